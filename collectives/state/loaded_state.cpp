#include "collectives/state/loaded_state.h"

#include "collectives/communicator/communicator.h"

namespace slimwire {

PendingState& PendingState::instance() {
    static PendingState* const state = new PendingState;  // calls may outlive main
    return *state;
}

void PendingState::replace(StateContent content) {
    decltype(waiting_) waiting;
    std::map<uint64_t, StateComm> comms;
    for (size_t i = 0; i < content.index.tensors.size(); ++i) {
        const StateTensor& tensor = content.index.tensors[i];
        waiting.emplace(std::pair(tensor.tensor, record_of(tensor.kind)),
                        Waiting{tensor.shape, tensor.bytes, tensor.kind, tensor.loss_scale,
                                std::move(content.held[i])});
    }
    for (const StateComm& comm : content.index.comms) {
        comms.emplace(comm.key, comm);
    }
    const std::lock_guard lock(mutex_);
    waiting_.swap(waiting);
    comms_.swap(comms);
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

PendingState::Atoms PendingState::take_atoms(const LastingTensor& tensor) {
    const std::lock_guard lock(mutex_);
    const auto take = [&](StateKind kind) {
        const auto found = waiting_.find({tensor, kind});
        if (found == waiting_.end()) {
            return Atoms::One();
        }
        Waiting waiting = std::move(found->second);
        waiting_.erase(found);
        return Atoms::One{std::move(waiting.held), waiting.bytes, waiting.loss_scale};
    };
    return {take(StateKind::kOwed), take(StateKind::kOwedBySums), take(StateKind::kAlike)};
}

bool PendingState::atoms_wait(const LastingTensor& tensor) const {
    const std::lock_guard lock(mutex_);
    return waiting_.contains({tensor, StateKind::kOwed});
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
