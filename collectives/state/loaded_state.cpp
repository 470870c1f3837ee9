#include "collectives/state/loaded_state.h"

#include <algorithm>
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
                            name == names_.end() ? std::string() : name->second.text};
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
        for (const ResidualMap::Name& name : map.names) {
            names_.emplace(named({}, name.text).path, name);
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
    if (tensor.ordinal == kNamed && names_.contains(tensor.path) && !note_odd(tensor)) {
        missed_["another tensor of this name came first and took what there was"].add(tensor, 0);
    }
}

// Why what waits by the tensor's name is not its own; false where nothing does.
bool PendingState::note_odd(const LastingTensor& tensor) {
    const auto waits = [&](const auto& one) {
        return one.first.first.ordinal == kNamed && one.first.first.path == tensor.path;
    };
    const auto name = tensor.ordinal == kNamed ? names_.find(tensor.path) : names_.end();
    if (name == names_.end() || std::none_of(waiting_.begin(), waiting_.end(), waits)) {
        return false;
    }
    odd_.emplace(tensor.path,
                 name->second.pieces != 0
                     ? "the tensor of this name is of another kind or size now"
                     : "the tensor of this name is of another kind, size or group of "
                       "ranks now; how groups share it slimwire_split_parameter tells");
    return true;
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

uint64_t PendingState::moment_of(const Communicator& communicator) const {
    const StateComm own = comm_of(communicator);
    return own.key != 0 ? own.snapshot_id : comm(kWholeTensors).snapshot_id;
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
