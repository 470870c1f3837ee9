// Atoms that wait (loaded_state.h): which are a tensor's, or its parameters', and how one rank's
// part of them is read.
#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "collectives/state/atoms.h"
#include "collectives/state/loaded_state.h"

namespace slimwire {

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
        const auto all = static_cast<uint64_t>(ranks), now = tensor.signature.count * all;
        const StateKind kind = at->first.second;
        if ((kind != StateKind::kOwed && kind != StateKind::kEstimates) ||
            same.order() != tensor.order() ||
            now > std::max(one.signature.count * all, shape) + shard_multiple(now, all) - 1) {
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
                                                  const ResidualMap& bucket,
                                                  const RankGroup& group) {
    struct Piece {
        uint64_t begin, end;
        ReadTensor read;
    };
    const auto take = [&](StateKind kind) {
        const auto pieces = std::make_shared<std::vector<Piece>>();
        Atoms::One all;
        for (size_t i = 0; i < bucket.parameters.size(); ++i) {
            const auto found = find_parameter(*waiting, tensor, bucket, i, kind);
            const LastingTensor name = parameter_of(tensor, bucket, i);
            Atoms::One own = found != waiting->end()
                                 ? take_record(waiting, found->first.first, kind)
                                 : take_part(waiting, name, group, kind);
            if (own.bytes > 0) {
                const uint64_t begin =
                    static_cast<uint64_t>(bucket.parameters[i].at) * sizeof(float);
                pieces->push_back({begin, begin + own.bytes, std::move(own.read)});
                all.loss_scale = own.loss_scale;
            } else if (kind == StateKind::kOwed) {
                (void)note_odd(name);
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

// The end where it is not told how groups share the tensor.
PendingState::AllWaiting::const_iterator PendingState::find_whole(const AllWaiting& waiting,
                                                                  const LastingTensor& tensor,
                                                                  const RankGroup& group,
                                                                  StateKind kind,
                                                                  Part* part) const {
    const auto name = tensor.ordinal == kNamed ? names_.find(tensor.path) : names_.end();
    const uint32_t pieces = name == names_.end() ? 0 : name->second.pieces;
    if (pieces == 0 || group.number == 0) {
        return waiting.end();
    }
    *part = pieces == ResidualMap::kReplicated ? Part() : Part{group.index, group.groups, pieces};
    const LastingTensor whole = whole_of(tensor, part->parts);
    const auto found = waiting.find({whole, kind});
    const bool fits = found != waiting.end() && tensor.signature.count % part->pieces == 0 &&
                      found->second.bytes == whole.signature.count * sizeof(float);
    return fits ? found : waiting.end();
}

PendingState::Atoms::One PendingState::take_part(AllWaiting* waiting,
                                                 const LastingTensor& tensor,
                                                 const RankGroup& group,
                                                 StateKind kind) const {
    Part part;
    const auto found = find_whole(*waiting, tensor, group, kind, &part);
    if (found == waiting->end()) {
        return {};
    }
    const Atoms::One whole = take_record(waiting, found->first.first, kind);
    const uint64_t bytes = whole.bytes / part.parts, block = bytes / part.pieces;
    return {bytes, whole.loss_scale,
            [read = whole.read, part, block](uint64_t offset, std::span<std::byte> out) -> Status {
                while (!out.empty()) {
                    const uint64_t piece = offset / block, inside = offset % block;
                    const size_t size = std::min<uint64_t>(block - inside, out.size());
                    SLIMWIRE_TRY(
                        read((piece * part.parts + part.index) * block + inside, out.first(size)));
                    offset += size;
                    out = out.subspan(size);
                }
                return {};
            }};
}

PendingState::Atoms PendingState::take_from(AllWaiting* waiting,
                                            const LastingTensor& tensor,
                                            int ranks,
                                            const ResidualMap* bucket,
                                            const RankGroup& group) {
    if (bucket != nullptr) {
        Atoms atoms = take_parameters(waiting, tensor, *bucket, group);
        if (atoms.owed.bytes > 0) {
            return atoms;
        }
    }
    const auto at = find_atom(*waiting, tensor, ranks);
    if (at == waiting->end()) {
        Atoms::One part = take_part(waiting, tensor, group, StateKind::kOwed);
        const bool estimates = part.bytes == 0;
        part = estimates ? take_part(waiting, tensor, group, StateKind::kEstimates) : part;
        return {std::move(part),
                take_part(waiting, tensor, group, StateKind::kOwedBySums),
                take_record(waiting, tensor, StateKind::kAlike),
                take_part(waiting, tensor, group, StateKind::kEstimateOfSum),
                estimates,
                0};
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
                                             const ResidualMap* bucket,
                                             const RankGroup& group) {
    const std::lock_guard lock(mutex_);
    return take_from(&waiting_, tensor, ranks, bucket, group);
}

bool PendingState::atoms_wait(const LastingTensor& tensor,
                              int ranks,
                              const ResidualMap* bucket,
                              const RankGroup& group) const {
    const std::lock_guard lock(mutex_);
    Part part;
    const auto whole = [&](const LastingTensor& one) {
        return find_whole(waiting_, one, group, StateKind::kOwed, &part) != waiting_.end() ||
               find_whole(waiting_, one, group, StateKind::kEstimates, &part) != waiting_.end();
    };
    bool found = find_atom(waiting_, tensor, ranks) != waiting_.end() || whole(tensor);
    for (size_t i = 0; !found && bucket != nullptr && i < bucket->parameters.size(); ++i) {
        for (const StateKind kind : {StateKind::kOwed, StateKind::kEstimates}) {
            found |= find_parameter(waiting_, tensor, *bucket, i, kind) != waiting_.end();
        }
        found |= whole(parameter_of(tensor, *bucket, i));
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

// What waits of other communicators that has the tensor's name, or one of its parameters'.
std::set<LastingTensor> PendingState::shared_by_others(const LastingTensor& tensor,
                                                       const ResidualMap* bucket) const {
    std::set<uint64_t> names;
    const auto add = [&](const LastingTensor& one) {
        const auto name = one.ordinal == kNamed ? names_.find(one.path) : names_.end();
        if (name != names_.end() && name->second.pieces != 0) {
            names.insert(one.path);
        }
    };
    add(tensor);
    for (size_t i = 0; bucket != nullptr && i < bucket->parameters.size(); ++i) {
        add(parameter_of(tensor, *bucket, i));
    }
    std::set<LastingTensor> found;
    if (names.empty()) {
        return found;
    }
    const auto shares = [&](const LastingTensor& one) {
        return one.ordinal == kNamed && one.comm != tensor.comm && names.contains(one.path);
    };
    for (const auto& [of, place] : places_) {
        if (shares(of) && waiting_.contains({place.bucket, StateKind::kResiduals})) {
            found.insert(place.bucket);
        }
    }
    for (const auto& [of, one] : waiting_) {
        if (shares(of.first) && of.second == StateKind::kResiduals) {
            found.insert(of.first);
        }
    }
    return found;
}

Status PendingState::take_apart(const LastingTensor& tensor,
                                const ResidualMap* bucket,
                                const RankGroup& group) {
    const std::lock_guard lock(mutex_);
    if (!by_atoms_) {
        return {};
    }
    std::set<LastingTensor> here = shared_by_others(tensor, bucket);
    for (size_t i = 0; bucket != nullptr && group.of_all() && i < bucket->parameters.size(); ++i) {
        const Place* const place = place_of(tensor, *bucket, i);
        if (place != nullptr && waiting_.contains({place->bucket, StateKind::kResiduals})) {
            here.insert(place->bucket);
        }
    }
    if (here.empty()) {
        return {};
    }
    SLIMWIRE_TRY(read_instead());
    std::set<LastingTensor> parts = here;  // parameters, and tensors by their names
    for (const auto& [of, place] : places_) {
        if (here.contains(place.bucket)) {
            parts.insert(of);
            parts.erase(place.bucket);
        }
    }
    std::set<LastingTensor> left = parts;
    for (auto next = instead_->begin(); next != instead_->end();) {
        const auto record = next++;
        const auto& [of, kind] = record->first;
        const bool moves =
            kind == StateKind::kOwed || kind == StateKind::kOwedBySums || kind == StateKind::kMap;
        LastingTensor own = of;
        own.comm = tensor.comm;
        const bool here_too = of.comm == atoms_key(group) && parts.contains(own);
        const auto part = std::find_if(parts.begin(), parts.end(), [&](const LastingTensor& one) {
            return here_too
                       ? one.order() == own.order()
                       : of.comm == kWholeTensors && one.ordinal == kNamed && one.path == of.path;
        });
        if (moves && part != parts.end()) {
            left.erase(*part);
            waiting_.insert(instead_->extract(record));
        }
    }
    if (left.size() == parts.size()) {
        return {};
    }
    for (const LastingTensor& one : here) {
        waiting_.erase({one, StateKind::kResiduals});
        waiting_.erase({one, StateKind::kMap});
    }
    for (const LastingTensor& one : left) {
        missed_["their bucket was taken apart, and how groups of ranks share them is not known"]
            .add(one, one.signature.count * sizeof(float));
    }
    return {};
}

Result<PendingState::Atoms> PendingState::atoms_instead(const LastingTensor& tensor,
                                                        int ranks,
                                                        const ResidualMap* bucket,
                                                        const RankGroup& group) {
    const std::lock_guard lock(mutex_);
    SLIMWIRE_TRY(read_instead());
    return take_from(&*instead_, tensor, ranks, bucket, group);
}

}  // namespace slimwire
