// One network device opened by UCX: a UCP context restricted to the device and its transports, and
// the memory registered there. Shared by all connections over the device; any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "codecs/base/status.h"
#include "plugin/net/ucx/devices.h"
#include "plugin/net/ucx/ucx_api.h"
#include "plugin/net/wire.h"

namespace slimwire::net {

// What steers the UCX wire, read once from the environment. UCX's own UCX_* variables are read by
// UCX; of the options that the wire would set itself, the user's wins for those named here.
struct UcxSettings {
    std::string transports;        // UCX_TLS; "" for the device's own
    std::string interfaces;        // SLIMWIRE_SOCKET_IFNAME, else NCCL_SOCKET_IFNAME
    std::string devices;           // UCX_NET_DEVICES
    bool user_rendezvous = false;  // UCX_RNDV_THRESH is set
    bool sockets = false;          // not UCX, as for interfaces that it cannot use
    // A connection that has not said its hello after this long is a stranger's.
    uint64_t handshake_ns = 30'000'000'000;
    // A message that a peer had sent before it closed counts as lost when it has been looked for
    // this long and nothing else came meanwhile.
    uint64_t promise_ns = 60'000'000'000;
    // Gets one line for each refused peer; slimwire's log by default.
    std::function<void(const std::string&)> warn;
};

UcxSettings read_ucx_settings();

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
    std::once_flag opening_;
    Status opened_;
    ucp_context_h context_ = nullptr;
    std::mutex regions_mutex_;
    Regions regions_;
};

}  // namespace slimwire::net
