#include "collectives/state/loaded_state.h"

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

std::vector<StateComm> PendingState::comms() const {
    const std::lock_guard lock(mutex_);
    std::vector<StateComm> comms;
    for (const auto& [key, comm] : comms_) {
        comms.push_back(comm);
    }
    return comms;
}

}  // namespace slimwire
