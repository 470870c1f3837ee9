#include "plugin/net/wrapped/wrapped_wire.h"

#include <strings.h>
#include <sys/random.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <vector>

#include "plugin/net/wrapped/wrapped_state.h"

namespace slimwire::net {
namespace {

// By ncclResult_t.
constexpr const char* kResultNames[] = {"success",        "unhandled CUDA error", "system error",
                                        "internal error", "invalid argument",     "invalid usage",
                                        "remote error",   "in progress"};

class WrappedWire final : public Wire {
  public:
    WrappedWire(std::shared_ptr<InnerTable> inner, DebugLogger log)
        : inner_(std::move(inner)), log_(log) {}

    Status start() {
        std::unique_ptr<InnerContext> opened;
        SLIMWIRE_TRY(open_inner(0, -1, &opened));
        first_ = std::move(opened);
        int count = 0;
        SLIMWIRE_TRY(inner_status(*inner_, "devices", inner_->devices(&count)));
        if (count <= 0) {
            return {Code::kNotFound,
                    std::string("net plugin ") + inner_->name() + " finds no device"};
        }
        for (int i = 0; i < count; ++i) {
            SLIMWIRE_TRY(describe(i));
        }
        return {};
    }

    [[nodiscard]] int devices() const noexcept override {
        return static_cast<int>(devices_.size());
    }
    [[nodiscard]] const WireDevice& device(int index) const noexcept override {
        return devices_[static_cast<size_t>(index)];
    }
    Status open(uint64_t comm_id,
                int traffic_class,
                std::unique_ptr<WireContext>* context) override {
        std::unique_ptr<InnerContext> opened;
        SLIMWIRE_TRY(open_inner(comm_id, traffic_class, &opened));
        std::vector<bool> global;
        for (const WireDevice& device : devices_) {
            global.push_back(device.reg_is_global);
        }
        *context = make_wrapped_context(std::move(opened), std::move(global));
        return {};
    }

  private:
    Status open_inner(uint64_t comm_id, int traffic_class, std::unique_ptr<InnerContext>* context) {
        void* made = nullptr;
        SLIMWIRE_TRY(
            inner_status(*inner_, "init", inner_->init(&made, comm_id, traffic_class, log_)));
        *context = std::make_unique<InnerContext>(inner_, made);
        return {};
    }

    Status describe(int index) {
        WireDevice device;
        NetDeviceType type = kNetDeviceHost;
        SLIMWIRE_TRY(
            inner_status(*inner_, "properties", inner_->properties(index, &device, &type)));
        if (type != kNetDeviceHost) {
            return {Code::kInvalidArgument, std::string("net plugin ") + inner_->name() +
                                                ": device " + device.name +
                                                " needs code on the GPU (type " +
                                                std::to_string(type) + "); accepted: host devices"};
        }
        device.max_connections = std::max(1, device.max_connections / kLanes);
        devices_.push_back(std::move(device));
        return {};
    }

    std::shared_ptr<InnerTable> inner_;
    DebugLogger log_;
    std::unique_ptr<InnerContext> first_;  // devices are asked for after an init
    std::vector<WireDevice> devices_;
};

void no_log(LogLevel, unsigned long, const char*, int, const char*, ...) {}

}  // namespace

Status inner_status(const InnerTable& inner, const char* call, ncclResult_t result) {
    if (result == ncclSuccess) {
        return {};
    }
    const bool known = result >= 0 && result < static_cast<int>(std::size(kResultNames));
    const bool our_fault = result == ncclInvalidArgument || result == ncclInvalidUsage;
    return {our_fault ? Code::kInvalidArgument : Code::kRemoteError,
            std::string("net plugin ") + inner.name() + ": " + call + " gave " +
                (known ? kResultNames[result] : "an unknown result") + " (" +
                std::to_string(result) + ")"};
}

uint64_t random_number() {
    uint64_t number = 0;
    if (getrandom(&number, sizeof number, 0) != sizeof number) {
        number = static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
    }
    return number != 0 ? number : 1;
}

Result<std::unique_ptr<Wire>> open_wrapped_wire(const std::string& library, DebugLogger log) {
    SLIMWIRE_TRY_ASSIGN(auto table, InnerTable::open(library));
    if (strcasecmp(table->name(), "slimwire") == 0) {
        return Status(
            Code::kInvalidArgument,
            "net plugin '" + library +
                "' is slimwire itself; accepted: the plugin whose transport it shall use");
    }
    auto wire = std::make_unique<WrappedWire>(std::move(table), log != nullptr ? log : no_log);
    SLIMWIRE_TRY(wire->start());
    return std::unique_ptr<Wire>(std::move(wire));
}

}  // namespace slimwire::net
