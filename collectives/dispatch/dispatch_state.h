// What dispatch keeps in one process: the residuals of all communicators, and in the modes that
// only observe the observer. Makes and ends the sessions as communicators come and go.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "collectives/communicator/listener.h"
#include "collectives/communicator/process.h"
#include "collectives/dispatch/timing/call_timer.h"
#include "collectives/feedback/residual_store.h"

namespace slimwire {

class Observer;
class StateRing;

class DispatchState final : public CommunicatorListener {
  public:
    explicit DispatchState(Runtime& runtime);
    ~DispatchState() override;

    ResidualStore residuals;
    // There in the modes record and shadow, when the configuration is right.
    std::unique_ptr<Observer> observer;
    std::unique_ptr<StateRing> ring;  // null without SLIMWIRE_STATE, and where nothing compresses

    void started() override;
    std::unique_ptr<Communicator> make() override;
    [[nodiscard]] uint64_t saved_run() override;
    [[nodiscard]] uint64_t scratch_wanted(const Communicator& made) override;
    Status agree(const std::vector<Communicator*>& made,
                 const std::vector<Communicator*>& strangers,
                 AbortWatch* watch) override;
    [[nodiscard]] bool tells() const override;
    Status time_calls(const std::vector<Communicator*>& made, AbortWatch* watch) override;
    void created(Communicator* communicator) override;
    void ending(Communicator* communicator, bool abort) noexcept override;
    void release(Communicator* communicator, Retirement* left) noexcept override;
    void ended(Communicator* communicator, bool abort) noexcept override;
    [[nodiscard]] bool observes() const noexcept override { return observer != nullptr; }
    void adopt(const RealNccl& nccl,
               ncclComm_t comm,
               uint64_t key,
               const std::string& name) noexcept override;
    uint64_t key_of_part(ncclComm_t parent, int color) noexcept override;
    [[nodiscard]] bool in_group() const noexcept override;

  private:
    Runtime& runtime_;
    CallTimer timer_;
    std::mutex mutex_;  // of the next
    // What scratch_wanted() said, by ranks and name.
    std::map<std::pair<int, std::string>, uint64_t> scratch_wanted_;
};

// The runtime's, which make_dispatch_state() (dispatch.h) made.
[[nodiscard]] inline DispatchState& dispatch_state(const Runtime& runtime) noexcept {
    return static_cast<DispatchState&>(*runtime.listener);
}

}  // namespace slimwire
