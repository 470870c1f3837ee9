// One network device opened by UCX: a UCP context restricted to the device and its transports, and
// the memory registered there. Shared by all connections over the device; any thread.
#pragma once

#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "codecs/base/status.h"
#include "plugin/net/ucx/devices.h"
#include "plugin/net/ucx/settings.h"
#include "plugin/net/ucx/ucx_api.h"
#include "plugin/net/wire.h"

namespace slimwire::net {

class UcxDevice {
  public:
    // `settings` outlive it. A device of the link alone has socket_api() instead of `api`.
    UcxDevice(const UcxApi& api, NetDevice device, const UcxSettings& settings);
    ~UcxDevice();
    UcxDevice(const UcxDevice&) = delete;
    UcxDevice& operator=(const UcxDevice&) = delete;

    // Opens the device, once: takes UCX longer the more interfaces the machine has. Fails when UCX
    // has no transport for it. Before context().
    Status open();

    [[nodiscard]] const UcxApi& api() const noexcept { return api_; }
    [[nodiscard]] ucp_context_h context() const noexcept { return context_; }
    [[nodiscard]] const NetDevice& facts() const noexcept { return facts_; }
    [[nodiscard]] const WireDevice& info() const noexcept { return info_; }
    [[nodiscard]] std::string carrier() const {
        return facts_.link_alone ? "a socket" : "ucx " + transports_;
    }

    // RDMA needs memory that the card knows: a region is registered once and counted. Other
    // transports copy, and *memory is null.
    Status register_memory(void* data, size_t bytes, WireMemory** memory);
    Status deregister_memory(WireMemory* memory);

  private:
    struct Region {
        ucp_mem_h handle = nullptr;
        int users = 0;
    };
    using Regions = std::map<std::pair<uintptr_t, size_t>, Region>;

    Status open_now();

    const UcxApi& api_;
    const NetDevice facts_;
    const UcxSettings& settings_;
    const std::string transports_;
    WireDevice info_;
    std::once_flag opening_;
    Status opened_;
    ucp_context_h context_ = nullptr;
    std::mutex regions_mutex_;
    Regions regions_;
};

}  // namespace slimwire::net
