#include "plugin/net/ucx/ucx_device.h"

#include <cstdlib>

#include "collectives/call/log.h"
#include "plugin/net/ucx/socket_api.h"

namespace slimwire::net {
namespace {

// A device's own transports only. Shared memory would be faster between processes of one machine,
// but it also joins network namespaces, past the link between them; and NCCL has its own
// shared-memory transport for ranks that share a machine.
std::string own_transports(const NetDevice& device) {
    return device.rdma ? "ib" : "tcp";
}

// What TCP moves with one call: 64 KiB, UCX's own choice, reaches 0.89 of a plain socket's goodput
// in messages of 1 MiB, 256 KiB 1.02, 512 KiB 1.06, 1100 KiB 0.95 (net_bench). Both ends must
// agree.
constexpr const char* kTcpPieceBytes = "512k";

Status configure(const UcxApi& api,
                 ucp_config_t* config,
                 const NetDevice& device,
                 const std::string& transports,
                 const UcxSettings& settings) {
    const auto set = [&](const char* name, const std::string& value) -> Status {
        const ucs_status_t status = api.ucp_config_modify(config, name, value.c_str());
        if (status != UCS_OK) {
            return {Code::kInvalidArgument, std::string("UCX refuses ") + name + " '" + value +
                                                "': " + api.ucs_status_string(status)};
        }
        return {};
    };
    SLIMWIRE_TRY(set("TLS", transports));
    SLIMWIRE_TRY(set("NET_DEVICES", device.name));
    if (!device.rdma) {
        // Over sockets every message is sent at once (the wire itself bounds how far a sender runs
        // ahead): faster, and UCX then needs no connection back to the sender. Half-made ones, and
        // a rendezvous that its peer leaves, are what UCX 1.13 ends the process for.
        if (!settings.user_rendezvous) {
            SLIMWIRE_TRY(set("RNDV_THRESH", "inf"));
        }
        SLIMWIRE_TRY(set("RESOLVE_REMOTE_EP_ID", "n"));
    }
    SLIMWIRE_TRY(set("KEEPALIVE_INTERVAL", "inf"));  // the handshake's socket stays open for that
    // Options of transports, known to UCX only when it opens them: connecting must not wait, and a
    // worker of one connection needs no queue for a thousand.
    SLIMWIRE_TRY(set("CONN_NB", "y"));
    if (!device.rdma) {
        SLIMWIRE_TRY(set("RX_SEG_SIZE", kTcpPieceBytes));
        SLIMWIRE_TRY(set("RX_BUFS_GROW", "2"));
        if (const int family = wanted_family(); family != AF_UNSPEC) {
            SLIMWIRE_TRY(set("AF_PRIO", family == AF_INET6 ? "inet6" : "inet"));
        }
    }
    if (device.rdma) {
        SLIMWIRE_TRY(set("RX_QUEUE_LEN", "512"));
    }
    return {};
}

std::string first_of(const char* name, const char* other = nullptr) {
    for (const char* variable : {name, other}) {
        const char* value = variable != nullptr ? std::getenv(variable) : nullptr;
        if (value != nullptr && *value != '\0') {
            return value;
        }
    }
    return {};
}

}  // namespace

UcxSettings read_ucx_settings() {
    UcxSettings settings;
    settings.transports = first_of("UCX_TLS");
    settings.interfaces = first_of("SLIMWIRE_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME");
    settings.devices = first_of("UCX_NET_DEVICES");
    settings.user_rendezvous = !first_of("UCX_RNDV_THRESH").empty();
    settings.warn = [](const std::string& line) { log_line(slimwire::LogLevel::kWarn, line); };
    return settings;
}

UcxDevice::UcxDevice(const UcxApi& api, NetDevice device, const UcxSettings& settings)
    : api_(device.link_alone ? socket_api() : api),
      facts_(std::move(device)),
      settings_(settings),
      transports_(settings.transports.empty() ? own_transports(facts_) : settings.transports) {}

Status UcxDevice::open() {
    std::call_once(opening_, [&] { opened_ = open_now(); });
    return opened_;
}

Status UcxDevice::open_now() {
    ucp_config_t* config = nullptr;
    ucs_status_t status = api_.ucp_config_read(nullptr, nullptr, &config);
    if (status != UCS_OK) {
        return ucx_error(api_, "configuration", status);
    }
    const Status configured = configure(api_, config, facts_, transports_, settings_);
    ucp_params_t params{};
    params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_MT_WORKERS_SHARED;
    params.features = UCP_FEATURE_TAG | UCP_FEATURE_WAKEUP;
    params.mt_workers_shared = 1;
    if (configured.ok()) {
        status = api_.ucp_init_version(UCP_API_MAJOR, UCP_API_MINOR, &params, config, &context_);
    }
    api_.ucp_config_release(config);
    SLIMWIRE_TRY(configured);
    if (status != UCS_OK) {
        context_ = nullptr;
        return ucx_error(api_,
                         "device " + facts_.name + " with transports " + transports_ +
                             (settings_.transports.empty()
                                  ? ""
                                  : " (UCX_TLS; accepted: what ucx_info -d lists, like tcp, or "
                                    "nothing)"),
                         status);
    }
    return {};
}

UcxDevice::~UcxDevice() {
    for (const auto& [key, region] : regions_) {
        api_.ucp_mem_unmap(context_, region.handle);
    }
    if (context_ != nullptr) {
        api_.ucp_cleanup(context_);
    }
}

Status UcxDevice::register_memory(void* data, size_t bytes, WireMemory** memory) {
    if (!facts_.rdma || bytes == 0) {
        *memory = nullptr;
        return {};
    }
    const std::lock_guard lock(regions_mutex_);
    const auto [place, fresh] = regions_.try_emplace({reinterpret_cast<uintptr_t>(data), bytes});
    Region& region = place->second;
    if (fresh) {
        ucp_mem_map_params_t params{};
        params.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH |
                            UCP_MEM_MAP_PARAM_FIELD_MEMORY_TYPE;
        params.address = data;
        params.length = bytes;
        params.memory_type = UCS_MEMORY_TYPE_HOST;
        const ucs_status_t status = api_.ucp_mem_map(context_, &params, &region.handle);
        if (status != UCS_OK) {
            regions_.erase(place);
            return ucx_error(api_, "registering " + std::to_string(bytes) + " bytes", status);
        }
    }
    ++region.users;
    *memory = reinterpret_cast<WireMemory*>(&*place);
    return {};
}

Status UcxDevice::deregister_memory(WireMemory* memory) {
    if (memory == nullptr) {
        return {};
    }
    const std::lock_guard lock(regions_mutex_);
    auto* entry = reinterpret_cast<Regions::value_type*>(memory);
    if (--entry->second.users > 0) {
        return {};
    }
    const ucs_status_t status = api_.ucp_mem_unmap(context_, entry->second.handle);
    regions_.erase(entry->first);
    return status == UCS_OK ? Status() : ucx_error(api_, "deregistering memory", status);
}

}  // namespace slimwire::net
