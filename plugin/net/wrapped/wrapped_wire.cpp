#include "plugin/net/wrapped/wrapped_wire.h"

#include <strings.h>
#include <sys/random.h>

#include <algorithm>
#include <chrono>
#include <vector>

#include "plugin/net/wrapped/wrapped_state.h"

namespace slimwire::net {
namespace {

const char* name_of(ncclResult_t result) {
    switch (result) {
        case ncclSuccess:
            return "success";
        case ncclUnhandledCudaError:
            return "unhandled CUDA error";
        case ncclSystemError:
            return "system error";
        case ncclInternalError:
            return "internal error";
        case ncclInvalidArgument:
            return "invalid argument";
        case ncclInvalidUsage:
            return "invalid usage";
        case ncclRemoteError:
            return "remote error";
        case ncclInProgress:
            return "in progress";
        case ncclNumResults:
            break;
    }
    return "an unknown result";
}

class WrappedContext final : public WireContext {
  public:
    WrappedContext(std::shared_ptr<InnerContext> context, std::vector<bool> global)
        : context_(std::move(context)), reg_is_global_(std::move(global)) {}

    Status listen(int device, void* handle, std::unique_ptr<WireListener>* listener) override {
        SLIMWIRE_TRY(check(device));
        return wrapped_listen(context_, device, reg_is_global_[static_cast<size_t>(device)], handle,
                              listener);
    }
    Status connect(int device,
                   void* handle,
                   std::unique_ptr<WireConnecting>* attempt,
                   std::unique_ptr<SendWire>* wire) override {
        SLIMWIRE_TRY(check(device));
        return wrapped_connect(context_, device, reg_is_global_[static_cast<size_t>(device)],
                               handle, attempt, wire);
    }

  private:
    [[nodiscard]] Status check(int device) const {
        if (device < 0 || static_cast<size_t>(device) >= reg_is_global_.size()) {
            return {Code::kInvalidArgument, "no device " + std::to_string(device) + "; there are " +
                                                std::to_string(reg_is_global_.size())};
        }
        return {};
    }
    std::shared_ptr<InnerContext> context_;
    std::vector<bool> reg_is_global_;
};

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
        properties_.resize(static_cast<size_t>(count));
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
        for (const InnerProperties& properties : properties_) {
            global.push_back(properties.reg_is_global);
        }
        *context = std::make_unique<WrappedContext>(std::move(opened), std::move(global));
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
        InnerProperties& given = properties_[static_cast<size_t>(index)];
        SLIMWIRE_TRY(inner_status(*inner_, "properties", inner_->properties(index, &given)));
        if (given.device_type != kNetDeviceHost) {
            return {Code::kInvalidArgument,
                    std::string("net plugin ") + inner_->name() + ": device " + given.name +
                        " needs code on the GPU (type " + std::to_string(given.device_type) +
                        "); accepted: host devices"};
        }
        WireDevice device;
        device.name = given.name.c_str();
        device.pci_path = given.pci_path.empty() ? nullptr : given.pci_path.c_str();
        device.guid = given.guid;
        device.reg_is_global = given.reg_is_global;
        device.speed_mbps = given.speed_mbps > 0 ? given.speed_mbps : 10000;
        device.port = given.port;
        device.latency_us = given.latency_us;
        device.max_connections = std::max(1, given.max_comms / kLanes);
        device.rail_id = given.rail_id;
        device.plane_id = given.plane_id;
        device.max_message_bytes = given.max_p2p_bytes;
        devices_.push_back(device);
        return {};
    }

    std::shared_ptr<InnerTable> inner_;
    DebugLogger log_;
    std::unique_ptr<InnerContext> first_;      // devices are asked for after an init
    std::vector<InnerProperties> properties_;  // their strings are those of devices_
    std::vector<WireDevice> devices_;
};

void no_log(LogLevel, unsigned long, const char*, int, const char*, ...) {}

}  // namespace

Status inner_status(const InnerTable& inner, const char* call, ncclResult_t result) {
    if (result == ncclSuccess) {
        return {};
    }
    const bool our_fault = result == ncclInvalidArgument || result == ncclInvalidUsage;
    return {our_fault ? Code::kInvalidArgument : Code::kRemoteError,
            std::string("net plugin ") + inner.name() + ": " + call + " gave " + name_of(result) +
                " (" + std::to_string(result) + ")"};
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
