#include "plugin/net/ucx/ucx_wire.h"

#include <cstring>
#include <string>

#include "plugin/net/ucx/connecting.h"
#include "plugin/net/ucx/listener.h"

namespace slimwire::net {
namespace {

// A context's end waits so long for the last acknowledgements of closed connections.
constexpr int kCloseLimitMs = 2000;
constexpr size_t kMostDevices = 16;  // that NCCL's own transports take

class UcxContext final : public WireContext {
  public:
    explicit UcxContext(std::shared_ptr<UcxState> state) : state_(std::move(state)) {}
    ~UcxContext() override { state_->progress_thread.wait_for_closing(kCloseLimitMs); }

    Status listen(int device, void* handle, std::unique_ptr<WireListener>* listener) override {
        SLIMWIRE_TRY_ASSIGN(std::shared_ptr<UcxDevice> chosen, device_at(device));
        WireHandle made{};
        SLIMWIRE_TRY_ASSIGN(*listener, UcxListener::open(state_, std::move(chosen), &made));
        memcpy(handle, &made, sizeof made);
        return {};
    }

    Status connect(int device,
                   void* handle,
                   std::unique_ptr<WireConnecting>* attempt,
                   std::unique_ptr<SendWire>* wire) override {
        wire->reset();
        if (*attempt == nullptr) {
            SLIMWIRE_TRY_ASSIGN(std::shared_ptr<UcxDevice> chosen, device_at(device));
            WireHandle read{};
            memcpy(&read, handle, sizeof read);
            SLIMWIRE_TRY_ASSIGN(*attempt, UcxConnecting::start(state_, std::move(chosen), read));
        }
        const Status status = static_cast<UcxConnecting&>(**attempt).step(wire);
        if (!status.ok() || *wire != nullptr) {
            attempt->reset();
        }
        return status;
    }

  private:
    Result<std::shared_ptr<UcxDevice>> device_at(int index) const {
        if (index < 0 || static_cast<size_t>(index) >= state_->devices.size()) {
            return Status(Code::kInvalidArgument,
                          "there is no network device " + std::to_string(index));
        }
        std::shared_ptr<UcxDevice> device = state_->devices[static_cast<size_t>(index)];
        SLIMWIRE_TRY(device->open());
        return device;
    }

    const std::shared_ptr<UcxState> state_;
};

class UcxWire final : public Wire {
  public:
    explicit UcxWire(std::shared_ptr<UcxState> state) : state_(std::move(state)) {}
    [[nodiscard]] int devices() const noexcept override {
        return static_cast<int>(state_->devices.size());
    }
    [[nodiscard]] const WireDevice& device(int index) const noexcept override {
        return state_->devices[static_cast<size_t>(index)]->info();
    }
    // Traffic classes belong to a UCX context, which is shared: UCX_IB_TRAFFIC_CLASS sets one.
    Status open(uint64_t, int, std::unique_ptr<WireContext>* context) override {
        *context = std::make_unique<UcxContext>(state_);
        return {};
    }
    void finish(int limit_ms) noexcept override {
        state_->progress_thread.wait_for_closing(limit_ms);
    }

  private:
    const std::shared_ptr<UcxState> state_;
};

}  // namespace

Result<std::unique_ptr<Wire>> open_ucx_wire(UcxSettings settings) {
    SLIMWIRE_TRY_ASSIGN(const UcxApi* api, load_ucx());
    auto state = std::make_shared<UcxState>();
    SLIMWIRE_TRY_ASSIGN(const std::vector<NetDevice> found,
                        find_devices(settings.interfaces, settings.devices));
    state->settings = std::move(settings);
    Status last;
    for (NetDevice device : found) {
        device.link_alone |= state->settings.sockets;
        auto made = std::make_shared<UcxDevice>(*api, device, state->settings);
        // One that opens shows that UCX works here; the others are opened when they are asked for.
        if (state->devices.empty()) {
            last = made->open();
        }
        if (last.ok() && state->devices.size() < kMostDevices) {
            if (device.link_alone && !state->settings.sockets && state->settings.warn) {
                state->settings.warn("net: " + device.name +
                                     " has only an IPv6 address of the link, which UCX cannot use; "
                                     "plain sockets carry its messages");
            }
            state->devices.push_back(std::move(made));
        }
    }
    if (state->devices.empty()) {
        return last;
    }
    return std::unique_ptr<Wire>(std::make_unique<UcxWire>(std::move(state)));
}

}  // namespace slimwire::net
