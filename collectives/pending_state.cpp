#include "collectives/pending_state.h"

namespace slimwire {

PendingState& PendingState::instance() {
    static PendingState* const state = new PendingState;  // calls may outlive main
    return *state;
}

void PendingState::replace(StateContent content) {
    std::map<LastingTensor, Waiting> waiting;
    std::map<uint64_t, StateComm> comms;
    for (size_t i = 0; i < content.index.tensors.size(); ++i) {
        const StateTensor& tensor = content.index.tensors[i];
        waiting.emplace(tensor.tensor, Waiting{tensor.shape, tensor.bytes, tensor.shared,
                                               std::move(content.residuals[i])});
    }
    for (const StateComm& comm : content.index.comms) {
        comms.emplace(comm.key, comm);
    }
    const std::lock_guard lock(mutex_);
    waiting_.swap(waiting);
    comms_.swap(comms);
    loaded_.store(true, std::memory_order_release);
}

std::unique_ptr<std::byte[]> PendingState::take(const LastingTensor& tensor,
                                                uint64_t shape,
                                                uint64_t bytes,
                                                bool* misfit) {
    const std::lock_guard lock(mutex_);
    const auto found = waiting_.find(tensor);
    *misfit = false;
    if (found == waiting_.end()) {
        return nullptr;
    }
    Waiting waiting = std::move(found->second);
    waiting_.erase(found);
    *misfit = waiting.shape != shape || waiting.bytes != bytes;
    return *misfit ? nullptr : std::move(waiting.residuals);
}

uint64_t PendingState::moment(uint64_t comm) const {
    const std::lock_guard lock(mutex_);
    const auto found = comms_.find(comm);
    return found == comms_.end() ? 0 : found->second.moment;
}

std::array<uint32_t, 2> PendingState::drawn(uint64_t comm) const {
    const std::lock_guard lock(mutex_);
    const auto found = comms_.find(comm);
    return found == comms_.end()
               ? std::array<uint32_t, 2>{}
               : std::array<uint32_t, 2>{found->second.drawn[0], found->second.drawn[1]};
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
