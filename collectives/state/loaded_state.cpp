#include "collectives/state/loaded_state.h"

#include <algorithm>
#include <set>
#include <utility>

#include "collectives/call/log.h"
#include "collectives/communicator/communicator.h"
#include "collectives/state/atoms.h"

namespace slimwire {

PendingState& PendingState::instance() {
    static PendingState* const state = new PendingState;  // calls may outlive main
    return *state;
}

void PendingState::Missed::add(const LastingTensor& tensor, uint64_t more) noexcept {
    first = tensors++ == 0 ? tensor : first;
    bytes += more;
}

PendingState::AllWaiting PendingState::waiting_of(StateContent content, AllMissed* missed) {
    AllWaiting all;
    const uint64_t step = content.index.step;
    for (size_t i = 0; i < content.index.tensors.size(); ++i) {
        const StateTensor& tensor = content.index.tensors[i];
        // Step 0 is that of all states of a program that marks none.
        if (tensor.owed_at != 0 && (tensor.owed_at != step + 1 || step == 0)) {
            if (is_owed(tensor.kind)) {
                (*missed)["they were owed at step " + std::to_string(tensor.owed_at - 1) +
                          ", and a job that reduced other tensors saved them again"]
                    .add(tensor.tensor, tensor.bytes);
            }
            continue;
        }
        Waiting waiting{tensor.shape,
                        tensor.bytes,
                        tensor.kind,
                        tensor.loss_scale,
                        tensor.owed_at,
                        std::move(content.held[i]),
                        {}};
        if (waiting.held == nullptr) {
            waiting.read = [read = content.read, i](uint64_t offset, std::span<std::byte> out) {
                return read(i, offset, out);
            };
        }
        all.emplace(std::pair(tensor.tensor, record_of(tensor.kind)), std::move(waiting));
    }
    put_by_name(&all);
    return all;
}

ResidualMap PendingState::map_of(const AllWaiting& waiting, AllWaiting::const_iterator record) {
    const auto& [of, map] = *record;
    if (of.second != StateKind::kMap || map.held == nullptr) {
        return {};
    }
    const auto own = waiting.find({of.first, StateKind::kResiduals});
    Result<ResidualMap> said =
        residual_map_of({map.held.get(), map.bytes}, own == waiting.end() ? 0 : own->second.bytes);
    return said.ok() ? std::move(said).value() : ResidualMap();
}

void PendingState::put_by_name(AllWaiting* waiting) {
    std::vector<std::pair<LastingTensor, LastingTensor>> all;
    for (auto record = waiting->begin(); record != waiting->end(); ++record) {
        const LastingTensor& tensor = record->first.first;
        const LastingTensor name = by_name(tensor, map_of(*waiting, record));
        if (name.order() != tensor.order()) {
            all.emplace_back(tensor, name);
        }
    }
    for (const auto& [tensor, name] : all) {
        for (const StateKind kind : {StateKind::kResiduals, StateKind::kMap}) {
            if (auto record = waiting->extract({tensor, kind}); !record.empty()) {
                record.key().first = name;
                waiting->insert(std::move(record));
            }
        }
    }
}

void PendingState::replace(StateContent content) {
    std::map<uint64_t, StateComm> comms;
    for (const StateComm& comm : content.index.comms) {
        comms.emplace(comm.key, comm);
    }
    std::function<Result<StateContent>()> by_atoms = std::move(content.by_atoms);
    const uint64_t step = content.index.step;
    AllMissed missed;
    AllWaiting waiting = waiting_of(std::move(content), &missed);
    const std::lock_guard lock(mutex_);
    missed_.swap(missed);
    step_ = step;
    marked_ = begun_ = 0;
    told_ = false;
    waiting_.swap(waiting);
    note_places();
    note_names();
    comms_.swap(comms);
    by_atoms_ = std::move(by_atoms);
    instead_.reset();
    loaded_.store(true, std::memory_order_release);
}

void PendingState::miss(const LastingTensor& tensor, uint64_t bytes, const std::string& why) {
    const std::lock_guard lock(mutex_);
    missed_[why].add(tensor, bytes);
}

// A tensor whose call comes rarely waits, too, but then no other begins at zero.
void PendingState::tell_missed(bool ends) {
    constexpr uint64_t kSteps = 3;
    const std::lock_guard lock(mutex_);
    if (++marked_ <= kSteps && !ends) {
        return;
    }
    if (begun_ > 0 && !std::exchange(told_, true)) {
        const std::string untaken = "no call took them in " + std::to_string(marked_ - 1) +
                                    " steps, and " + std::to_string(begun_) +
                                    " other tensors began at zero, as with other buckets";
        for (const auto& [of, one] : waiting_) {
            if (is_owed(one.kind)) {
                const auto odd = odd_.find(of.first.ordinal == kNamed ? of.first.path : 0);
                missed_[odd == odd_.end() ? untaken : odd->second].add(of.first, one.bytes);
            }
        }
    }
    for (const auto& [why, one] : std::exchange(missed_, {})) {
        const auto name = names_.find(one.first.ordinal == kNamed ? one.first.path : 0);
        const AtomKey first{{},
                            0,
                            one.first.signature,
                            one.first.path,
                            one.first.ordinal,
                            StateKind::kResiduals,
                            name == names_.end() ? std::string() : name->second};
        log_line(LogLevel::kWarn, "loaded state: " + std::to_string(one.tensors) + " tensors, " +
                                      std::to_string(one.bytes) + " bytes, are not added, first " +
                                      first.text() + ": " + why);
    }
}

void PendingState::note_places() {
    places_.clear();
    for (auto record = waiting_.begin(); record != waiting_.end(); ++record) {
        const LastingTensor& bucket = record->first.first;
        const ResidualMap map = map_of(waiting_, record);
        const auto own = waiting_.find({bucket, StateKind::kResiduals});
        const bool there = own != waiting_.end() && own->second.kind == StateKind::kResiduals;
        for (size_t i = 0; there && i < map.parameters.size(); ++i) {
            places_.insert_or_assign(parameter_of(bucket, map, i),
                                     Place{bucket, map.parameters[i].at});
        }
    }
}

void PendingState::note_names() {
    names_.clear();
    odd_.clear();
    for (auto record = waiting_.begin(); record != waiting_.end(); ++record) {
        const ResidualMap map = map_of(waiting_, record);
        for (const std::string& name : map.names) {
            names_.emplace(named({}, name).path, name);
        }
    }
}

LastingTensor PendingState::key_of(const LastingTensor& tensor, const char* name, bool several) {
    const std::lock_guard lock(mutex_);
    const LastingTensor key = name == nullptr ? tensor : named(tensor, name);
    if (name == nullptr || !names_.contains(key.path)) {
        return tensor;
    }
    if (several) {
        odd_.insert_or_assign(key.path, "several pieces of memory have this name now");
        return {};
    }
    return key;
}

void PendingState::began_at_zero(const LastingTensor& tensor, uint64_t tensors) {
    begun_ += tensors;
    const std::lock_guard lock(mutex_);
    if (tensor.ordinal != kNamed || !names_.contains(tensor.path)) {
        return;
    }
    const auto waits = [&](const auto& one) {
        return one.first.first.ordinal == kNamed && one.first.first.path == tensor.path;
    };
    if (std::any_of(waiting_.begin(), waiting_.end(), waits)) {
        odd_.emplace(tensor.path, "the tensor of this name is of another kind or size now");
    } else {
        missed_["another tensor of this name came first and took what there was"].add(tensor, 0);
    }
}

// A parameter whose name the state does not have may have been none of a name in it.
const PendingState::Place* PendingState::place_of(const LastingTensor& bucket,
                                                  const ResidualMap& map,
                                                  size_t parameter) const {
    for (const bool with_name : {true, false}) {
        const auto place = places_.find(parameter_of(bucket, map, parameter, with_name));
        if (place != places_.end()) {
            return &place->second;
        }
    }
    return nullptr;
}

// Whether the tensor of this name had its parameters where they are now, or none were known.
bool PendingState::laid_out_so(const LastingTensor& tensor, const ResidualMap* bucket) const {
    bool all = true, had_names = false;
    for (size_t i = 0; bucket != nullptr && i < bucket->parameters.size(); ++i) {
        const Place* const place = place_of(tensor, *bucket, i);
        if (place != nullptr &&
            (place->bucket.order() != tensor.order() || place->at != bucket->parameters[i].at)) {
            return false;
        }
        all &= place != nullptr;
    }
    if (!all && !bucket->names.empty()) {
        had_names = std::any_of(places_.begin(), places_.end(), [&](const auto& one) {
            return one.second.bucket.order() == tensor.order() && one.first.ordinal == kNamed;
        });
    }
    return !had_names;
}

PendingState::Loaded PendingState::take(const LastingTensor& tensor,
                                        uint64_t shape,
                                        uint64_t bytes,
                                        const ResidualMap* bucket) {
    const std::lock_guard lock(mutex_);
    const auto found = waiting_.find({tensor, StateKind::kResiduals});
    if (found == waiting_.end() || !laid_out_so(tensor, bucket)) {
        return {};
    }
    Waiting waiting = std::move(found->second);
    waiting_.erase(found);
    waiting_.erase({tensor, StateKind::kMap});
    const bool misfit = waiting.shape != shape || waiting.bytes != bytes;
    return {misfit ? nullptr : std::move(waiting.held),
            misfit ? "they lie otherwise now (other nodes, slices or algorithm)" : nullptr,
            waiting.loss_scale};
}

bool PendingState::waits(const LastingTensor& tensor, const ResidualMap* bucket) const {
    const std::lock_guard lock(mutex_);
    bool found = waiting_.contains({tensor, StateKind::kResiduals});
    for (size_t i = 0; !found && bucket != nullptr && i < bucket->parameters.size(); ++i) {
        const Place* const place = place_of(tensor, *bucket, i);
        found = place != nullptr && waiting_.contains({place->bucket, StateKind::kResiduals});
    }
    return found;
}

ProgressRecords PendingState::take_progress(uint64_t comm) {
    const std::lock_guard lock(mutex_);
    ProgressRecords records;
    for (auto next = waiting_.begin(); next != waiting_.end();) {
        const auto one = next++;
        if (one->first.first.comm == comm && is_progress(one->first.second)) {
            const std::byte* const held = one->second.held.get();
            records.emplace(one->first, std::vector<std::byte>(held, held + one->second.bytes));
            waiting_.erase(one);
        }
    }
    return records;
}

StateComm PendingState::comm(uint64_t key) const {
    const std::lock_guard lock(mutex_);
    const auto found = comms_.find(key);
    return found == comms_.end() ? StateComm() : found->second;
}

StateComm PendingState::comm_of(const Communicator& communicator) const {
    const StateComm own = comm(communicator.checkpoint_key);
    return own.key != 0 || communicator.group.number == 0 ? own
                                                          : comm(atoms_key(communicator.group));
}

// The end where none is the tensor's, or it cannot be told which.
PendingState::AllWaiting::const_iterator PendingState::find_atom(const AllWaiting& waiting,
                                                                 const LastingTensor& tensor,
                                                                 int ranks) {
    if (tensor.signature.op != Op::kReduceScatter) {
        const auto owed = waiting.find({tensor, StateKind::kOwed});
        return owed != waiting.end() ? owed : waiting.find({tensor, StateKind::kEstimates});
    }
    // Tensors of one number of elements with padding were calls that were alike, whose order stays.
    using Found = AllWaiting::const_iterator;
    std::map<uint64_t, Found> first;  // of each such number
    std::set<uint64_t> exact;         // of those with a tensor that seems to have this count
    LastingTensor least = tensor;
    least.signature.count = 0;
    for (Found at = waiting.lower_bound({least, StateKind{}}); at != waiting.end(); ++at) {
        const LastingTensor& one = at->first.first;
        LastingTensor same = one;
        same.signature.count = tensor.signature.count;
        same.ordinal = tensor.ordinal;
        if (one.comm != tensor.comm || one.signature.count > tensor.signature.count) {
            break;
        }
        const uint64_t shape = at->second.shape;
        const auto all = static_cast<uint64_t>(ranks);
        const StateKind kind = at->first.second;
        if ((kind != StateKind::kOwed && kind != StateKind::kEstimates) ||
            same.order() != tensor.order() ||
            tensor.signature.count > std::max(one.signature.count, (shape + all - 1) / all)) {
            continue;
        }
        if (one.signature.count == tensor.signature.count) {
            exact.insert(shape);
        }
        const auto [other, fresh] = first.emplace(shape, at);
        if (!fresh && one.ordinal < other->second->first.first.ordinal) {
            other->second = at;
        }
    }
    if (exact.size() == 1) {
        return first[*exact.begin()];
    }
    return exact.empty() && first.size() == 1 ? first.begin()->second : waiting.end();
}

// Erased; of 0 bytes where there is none.
PendingState::Atoms::One PendingState::take_record(AllWaiting* waiting,
                                                   const LastingTensor& tensor,
                                                   StateKind kind) {
    const auto found = waiting->find({tensor, kind});
    if (found == waiting->end()) {
        return {};
    }
    Waiting record = std::move(found->second);
    waiting->erase({found->first.first, StateKind::kMap});
    waiting->erase(found);
    Atoms::One one{record.bytes, record.loss_scale, std::move(record.read)};
    if (record.held != nullptr) {
        one.read = [held = record.held](uint64_t offset, std::span<std::byte> out) {
            std::copy_n(held.get() + offset, out.size(), out.data());
            return Status();
        };
    }
    return one;
}

// A parameter whose name has none may have been none of a name.
PendingState::AllWaiting::const_iterator PendingState::find_parameter(const AllWaiting& waiting,
                                                                      const LastingTensor& tensor,
                                                                      const ResidualMap& bucket,
                                                                      size_t parameter,
                                                                      StateKind kind) {
    const auto found = waiting.find({parameter_of(tensor, bucket, parameter), kind});
    return found != waiting.end()
               ? found
               : waiting.find({parameter_of(tensor, bucket, parameter, false), kind});
}

// Of a bucket, put together of those of its parameters; zeros of those that have none.
PendingState::Atoms PendingState::take_parameters(AllWaiting* waiting,
                                                  const LastingTensor& tensor,
                                                  const ResidualMap& bucket) {
    struct Piece {
        uint64_t begin, end;
        ReadTensor read;
    };
    const auto take = [&](StateKind kind) {
        const auto pieces = std::make_shared<std::vector<Piece>>();
        Atoms::One all;
        for (size_t i = 0; i < bucket.parameters.size(); ++i) {
            const auto found = find_parameter(*waiting, tensor, bucket, i, kind);
            if (found != waiting->end()) {
                const uint64_t begin =
                    static_cast<uint64_t>(bucket.parameters[i].at) * sizeof(float);
                Atoms::One own = take_record(waiting, found->first.first, kind);
                pieces->push_back({begin, begin + own.bytes, std::move(own.read)});
                all.loss_scale = own.loss_scale;
            }
        }
        all.bytes = pieces->empty() ? 0 : bucket.elems * sizeof(float);
        all.pieces = pieces->size();
        all.read = [pieces](uint64_t offset, std::span<std::byte> out) -> Status {
            std::fill(out.begin(), out.end(), std::byte{0});
            for (const Piece& piece : *pieces) {
                const uint64_t begin = std::max(piece.begin, offset);
                const uint64_t end = std::min(piece.end, offset + out.size());
                if (begin < end) {
                    SLIMWIRE_TRY(
                        piece.read(begin - piece.begin, out.subspan(begin - offset, end - begin)));
                }
            }
            return {};
        };
        return all;
    };
    Atoms::One owed = take(StateKind::kOwed);
    const bool estimates = owed.bytes == 0;
    owed = estimates ? take(StateKind::kEstimates) : std::move(owed);
    const uint64_t missing = bucket.parameters.size() - owed.pieces;
    return {std::move(owed),
            take(StateKind::kOwedBySums),
            {},
            take(StateKind::kEstimateOfSum),
            estimates,
            missing};
}

PendingState::Atoms PendingState::take_from(AllWaiting* waiting,
                                            const LastingTensor& tensor,
                                            int ranks,
                                            const ResidualMap* bucket) {
    if (bucket != nullptr) {
        Atoms atoms = take_parameters(waiting, tensor, *bucket);
        if (atoms.owed.bytes > 0) {
            return atoms;
        }
    }
    const auto at = find_atom(*waiting, tensor, ranks);
    if (at == waiting->end()) {
        return {};
    }
    const auto [of, kind] = at->first;
    return {take_record(waiting, of, kind),
            take_record(waiting, of, StateKind::kOwedBySums),
            take_record(waiting, of, StateKind::kAlike),
            take_record(waiting, of, StateKind::kEstimateOfSum),
            kind == StateKind::kEstimates,
            0};
}

PendingState::Atoms PendingState::take_atoms(const LastingTensor& tensor,
                                             int ranks,
                                             const ResidualMap* bucket) {
    const std::lock_guard lock(mutex_);
    return take_from(&waiting_, tensor, ranks, bucket);
}

bool PendingState::atoms_wait(const LastingTensor& tensor,
                              int ranks,
                              const ResidualMap* bucket) const {
    const std::lock_guard lock(mutex_);
    bool found = find_atom(waiting_, tensor, ranks) != waiting_.end();
    for (size_t i = 0; !found && bucket != nullptr && i < bucket->parameters.size(); ++i) {
        for (const StateKind kind : {StateKind::kOwed, StateKind::kEstimates}) {
            found |= find_parameter(waiting_, tensor, *bucket, i, kind) != waiting_.end();
        }
    }
    return found;
}

Status PendingState::read_instead() {
    if (!instead_.has_value()) {
        instead_.emplace();
        if (by_atoms_) {
            SLIMWIRE_TRY_ASSIGN(StateContent content, by_atoms_());
            AllMissed known;
            instead_ = waiting_of(std::move(content), &known);
        }
    }
    return {};
}

Status PendingState::take_apart(const LastingTensor& tensor,
                                const ResidualMap& bucket,
                                const RankGroup& group) {
    const std::lock_guard lock(mutex_);
    std::set<LastingTensor> buckets;
    for (size_t i = 0; i < bucket.parameters.size(); ++i) {
        const Place* const place = place_of(tensor, bucket, i);
        if (place != nullptr && waiting_.contains({place->bucket, StateKind::kResiduals})) {
            buckets.insert(place->bucket);
        }
    }
    if (buckets.empty() || !by_atoms_) {
        return {};
    }
    SLIMWIRE_TRY(read_instead());
    for (const LastingTensor& other : buckets) {
        waiting_.erase({other, StateKind::kResiduals});
        waiting_.erase({other, StateKind::kMap});
    }
    for (const auto& [of, place] : places_) {
        if (!buckets.contains(place.bucket)) {
            continue;
        }
        LastingTensor atom = of;
        atom.comm = atoms_key(group);
        for (const StateKind kind : {StateKind::kOwed, StateKind::kOwedBySums, StateKind::kMap}) {
            if (auto record = instead_->extract({atom, kind}); !record.empty()) {
                waiting_.insert(std::move(record));
            }
        }
    }
    return {};
}

Result<PendingState::Atoms> PendingState::atoms_instead(const LastingTensor& tensor,
                                                        int ranks,
                                                        const ResidualMap* bucket) {
    const std::lock_guard lock(mutex_);
    SLIMWIRE_TRY(read_instead());
    return take_from(&*instead_, tensor, ranks, bucket);
}

std::vector<StateComm> PendingState::comms() const {
    const std::lock_guard lock(mutex_);
    std::vector<StateComm> comms;
    for (const auto& [key, comm] : comms_) {
        comms.push_back(comm);
    }
    return comms;
}

}  // namespace slimwire
