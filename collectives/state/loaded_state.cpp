#include "collectives/state/loaded_state.h"

#include <algorithm>
#include <set>

#include "collectives/communicator/communicator.h"

namespace slimwire {

PendingState& PendingState::instance() {
    static PendingState* const state = new PendingState;  // calls may outlive main
    return *state;
}

PendingState::AllWaiting PendingState::waiting_of(StateContent content) {
    AllWaiting all;
    for (size_t i = 0; i < content.index.tensors.size(); ++i) {
        const StateTensor& tensor = content.index.tensors[i];
        Waiting waiting{tensor.shape,
                        tensor.bytes,
                        tensor.kind,
                        tensor.loss_scale,
                        std::move(content.held[i]),
                        {}};
        if (waiting.held == nullptr) {
            waiting.read = [read = content.read, i](uint64_t offset, std::span<std::byte> out) {
                return read(i, offset, out);
            };
        }
        all.emplace(std::pair(tensor.tensor, record_of(tensor.kind)), std::move(waiting));
    }
    return all;
}

void PendingState::replace(StateContent content) {
    std::map<uint64_t, StateComm> comms;
    for (const StateComm& comm : content.index.comms) {
        comms.emplace(comm.key, comm);
    }
    std::function<Result<StateContent>()> by_atoms = std::move(content.by_atoms);
    AllWaiting waiting = waiting_of(std::move(content));
    const std::lock_guard lock(mutex_);
    waiting_.swap(waiting);
    comms_.swap(comms);
    by_atoms_ = std::move(by_atoms);
    instead_.reset();
    loaded_.store(true, std::memory_order_release);
}

PendingState::Loaded PendingState::take(const LastingTensor& tensor,
                                        uint64_t shape,
                                        uint64_t bytes) {
    const std::lock_guard lock(mutex_);
    const auto found = waiting_.find({tensor, StateKind::kResiduals});
    if (found == waiting_.end()) {
        return {};
    }
    Waiting waiting = std::move(found->second);
    waiting_.erase(found);
    waiting_.erase({tensor, StateKind::kMap});
    const bool misfit = waiting.shape != shape || waiting.bytes != bytes;
    return {misfit ? nullptr : std::move(waiting.held), misfit, waiting.loss_scale};
}

bool PendingState::waits(const LastingTensor& tensor) const {
    const std::lock_guard lock(mutex_);
    return waiting_.contains({tensor, StateKind::kResiduals});
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
    return own.key != 0 || communicator.world == 0 ? own : comm(atoms_key(communicator.world));
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

PendingState::Atoms PendingState::take_from(AllWaiting* waiting,
                                            const LastingTensor& tensor,
                                            int ranks) {
    const auto at = find_atom(*waiting, tensor, ranks);
    if (at == waiting->end()) {
        return {};
    }
    const auto [key, kind] = at->first;
    const auto take = [&, of = key](StateKind wanted) {
        const auto found = waiting->find({of, wanted});
        if (found == waiting->end()) {
            return Atoms::One();
        }
        Waiting record = std::move(found->second);
        waiting->erase(found);
        Atoms::One one{record.bytes, record.loss_scale, std::move(record.read)};
        if (record.held != nullptr) {
            one.read = [held = record.held](uint64_t offset, std::span<std::byte> out) {
                std::copy_n(held.get() + offset, out.size(), out.data());
                return Status();
            };
        }
        return one;
    };
    return {take(kind), take(StateKind::kOwedBySums), take(StateKind::kAlike),
            take(StateKind::kEstimateOfSum), kind == StateKind::kEstimates};
}

PendingState::Atoms PendingState::take_atoms(const LastingTensor& tensor, int ranks) {
    const std::lock_guard lock(mutex_);
    return take_from(&waiting_, tensor, ranks);
}

bool PendingState::atoms_wait(const LastingTensor& tensor, int ranks) const {
    const std::lock_guard lock(mutex_);
    return find_atom(waiting_, tensor, ranks) != waiting_.end();
}

Result<PendingState::Atoms> PendingState::atoms_instead(const LastingTensor& tensor, int ranks) {
    const std::lock_guard lock(mutex_);
    if (!instead_.has_value()) {
        instead_.emplace();
        if (by_atoms_) {
            SLIMWIRE_TRY_ASSIGN(StateContent content, by_atoms_());
            instead_ = waiting_of(std::move(content));
        }
    }
    return take_from(&*instead_, tensor, ranks);
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
