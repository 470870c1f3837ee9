#include "collectives/call/interfaces.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace slimwire {
namespace {

constexpr char kFamilyVariable[] = "NCCL_SOCKET_FAMILY";

// What an interface's addresses are worth to a peer; less is better.
int rank_of(const sockaddr* address) {
    if (address->sa_family == AF_INET) {
        return 0;
    }
    const auto& v6 = reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr;
    return IN6_IS_ADDR_LINKLOCAL(&v6) ? 2 : 1;
}

}  // namespace

std::string to_string(const SocketAddress& address) {
    char text[INET6_ADDRSTRLEN] = "?";
    if (address.any.sa_family == AF_INET6) {
        inet_ntop(AF_INET6, &address.v6.sin6_addr, text, sizeof text);
        return std::string("[") + text + "]:" + std::to_string(ntohs(address.v6.sin6_port));
    }
    inet_ntop(AF_INET, &address.v4.sin_addr, text, sizeof text);
    return std::string(text) + ":" + std::to_string(ntohs(address.v4.sin_port));
}

int wanted_family() {
    const char* const name = std::getenv(kFamilyVariable);
    const std::string_view family = name != nullptr ? name : "";
    return family == "AF_INET" ? AF_INET : family == "AF_INET6" ? AF_INET6 : AF_UNSPEC;
}

std::vector<Interface> running_in(const ifaddrs* list) {
    const int wanted = wanted_family();
    std::vector<Interface> found;
    for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
        constexpr unsigned kRunning = IFF_UP | IFF_RUNNING;
        const int family = entry->ifa_addr != nullptr ? entry->ifa_addr->sa_family : AF_UNSPEC;
        if ((entry->ifa_flags & kRunning) != kRunning ||
            (family != AF_INET && family != AF_INET6) ||
            (wanted != AF_UNSPEC && family != wanted)) {
            continue;
        }
        // Further addresses may have labels, "eth0:1"; names of interfaces have no colon.
        const std::string_view label = entry->ifa_name;
        const std::string name(label.substr(0, label.find(':')));
        Interface interface { name, {}, (entry->ifa_flags & IFF_LOOPBACK) != 0 };
        memcpy(&interface.address, entry->ifa_addr,
               family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in));
        const auto known = std::find_if(found.begin(), found.end(), [&](const Interface& other) {
            return other.name == interface.name;
        });
        if (known == found.end()) {
            found.push_back(std::move(interface));
        } else if (rank_of(&interface.address.any) < rank_of(&known->address.any)) {
            known->address = interface.address;
        }
    }
    return found;
}

Result<std::vector<Interface>> running_interfaces() {
    ifaddrs* list = nullptr;
    if (getifaddrs(&list) != 0) {
        return Status(Code::kSystemError,
                      std::string("network interfaces: ") + std::strerror(errno));
    }
    std::vector<Interface> found = running_in(list);
    freeifaddrs(list);
    return found;
}

bool interface_matches(std::string_view list, std::string_view name) {
    const bool excluded = !list.empty() && list.front() == '^';
    if (excluded) {
        list.remove_prefix(1);
    }
    const bool exact = !list.empty() && list.front() == '=';
    if (exact) {
        list.remove_prefix(1);
    }
    bool found = false;
    while (!list.empty()) {
        const size_t comma = std::min(list.find(','), list.size());
        const std::string_view item = list.substr(0, comma);
        const std::string_view entry = item.substr(0, item.find(':'));  // without a port of a card
        found = found ||
                (!entry.empty() && (exact ? name == entry : name.substr(0, entry.size()) == entry));
        list.remove_prefix(std::min(comma + 1, list.size()));
    }
    return found != excluded;
}

Status no_interface(const std::vector<Interface>& running, const std::string& chosen_by) {
    if (running.empty()) {
        return {Code::kInvalidArgument,
                "this machine has no running network interface with an address" +
                    (wanted_family() == AF_UNSPEC ? std::string()
                                                  : std::string(" of ") + kFamilyVariable + "=" +
                                                        std::getenv(kFamilyVariable))};
    }
    std::string names;
    for (const Interface& one : running) {
        names += (names.empty() ? "" : ", ") + one.name;
    }
    return {Code::kInvalidArgument, "no running network interface with an address is named by " +
                                        chosen_by + "; there are: " + names};
}

Result<Interface> listed_interface(const std::string& list, const std::string& variable) {
    SLIMWIRE_TRY_ASSIGN(std::vector<Interface> running, running_interfaces());
    std::stable_partition(running.begin(), running.end(),
                          [](const Interface& one) { return !one.loopback; });
    const auto found = std::find_if(running.begin(), running.end(), [&](const Interface& one) {
        return interface_matches(list, one.name);
    });
    if (found == running.end()) {
        return no_interface(running,
                            variable + " '" + list + "' (" + std::string(kInterfaceLists) + ")");
    }
    return *found;
}

}  // namespace slimwire
