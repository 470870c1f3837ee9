#include "plugin/net/ucx/settings.h"

#include <cstdlib>

#include "collectives/call/log.h"

namespace slimwire::net {
namespace {

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

}  // namespace slimwire::net
