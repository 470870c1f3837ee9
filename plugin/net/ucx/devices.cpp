#include "plugin/net/ucx/devices.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "codecs/base/number_text.h"

namespace slimwire::net {
namespace {

namespace fs = std::filesystem;

// First line of a file, "" when it cannot be read.
std::string line_of(const fs::path& path) {
    std::ifstream stream(path);
    std::string line;
    std::getline(stream, line);
    return line;
}

std::vector<std::string> names_in(const fs::path& folder) {
    std::vector<std::string> names;
    std::error_code error;
    for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
         entry.increment(error)) {
        names.push_back(entry->path().filename().string());
    }
    std::sort(names.begin(), names.end());
    return names;
}

std::string pci_path_of(const fs::path& device) {
    std::error_code error;
    const fs::path path = fs::canonical(device, error);
    return error || path.string().find("/pci") == std::string::npos ? "" : path.string();
}

// "0c42:a103:0065:bd4c" or "02:42:ac:11:00:02" as a number.
uint64_t hex_digits(const std::string& text) {
    uint64_t value = 0;
    for (const char c : text) {
        const auto digit = std::string_view("0123456789abcdef").find(c);
        value = digit == std::string_view::npos ? value : value << 4 | digit;
    }
    return value;
}

bool listed(std::string_view list, std::string_view name) {
    if (list.empty() || list == "all") {
        return true;
    }
    while (!list.empty()) {
        const size_t comma = std::min(list.find(','), list.size());
        const std::string_view entry = list.substr(0, comma);
        // UCX takes "mlx5_0" for its first port.
        if (entry == name || std::string(entry) + ":1" == name) {
            return true;
        }
        list.remove_prefix(std::min(comma + 1, list.size()));
    }
    return false;
}

std::vector<NetDevice> rdma_devices(std::string_view ucx_devices, const fs::path& sys) {
    std::vector<NetDevice> found;
    const fs::path root = sys / "class/infiniband";
    for (const std::string& name : names_in(root)) {
        for (const std::string& port : names_in(root / name / "ports")) {
            const fs::path folder = root / name / "ports" / port;
            NetDevice device;
            device.name = name + ":" + port;
            if (line_of(folder / "state").find("ACTIVE") == std::string::npos ||
                !listed(ucx_devices, device.name)) {
                continue;
            }
            device.rdma = true;
            device.port = std::atoi(port.c_str());
            device.pci_path = pci_path_of(root / name / "device");
            device.guid = hex_digits(line_of(root / name / "node_guid"));
            device.interface = line_of(folder / "gid_attrs/ndevs/0");
            const double gbit = leading_number(line_of(folder / "rate")).first;
            device.speed_mbps = gbit > 0 ? static_cast<int>(gbit * 1000) : device.speed_mbps;
            found.push_back(std::move(device));
        }
    }
    return found;
}

// Such as containers' veths have.
bool of_link_alone(const Interface& one) {
    return one.address.any.sa_family == AF_INET6 &&
           IN6_IS_ADDR_LINKLOCAL(&one.address.v6.sin6_addr);
}

NetDevice device_of(const Interface& interface, const fs::path& sys) {
    const fs::path folder = sys / "class/net" / interface.name;
    NetDevice device;
    device.name = device.interface = interface.name;
    device.link_alone = of_link_alone(interface);
    device.pci_path = pci_path_of(folder / "device");
    device.guid = hex_digits(line_of(folder / "address"));
    const int speed = std::atoi(line_of(folder / "speed").c_str());
    device.speed_mbps = speed > 0 ? speed : device.speed_mbps;
    return device;
}

}  // namespace

std::vector<Interface> choose(const std::vector<Interface>& all, std::string_view wanted) {
    std::vector<Interface> chosen;
    for (int group = 0; group < 4 && chosen.empty(); ++group) {
        std::copy_if(all.begin(), all.end(), std::back_inserter(chosen), [&](const Interface& one) {
            const bool bridge = interface_matches("docker,virbr,br-", one.name);
            const bool named = !wanted.empty() && interface_matches(wanted, one.name);
            return (wanted.empty() || named) && (group > 0 || named || !bridge) &&
                   (group > 1 || !of_link_alone(one)) && (group > 2 || named || !one.loopback);
        });
    }
    return chosen;
}

namespace {

std::string list_of(std::string_view interfaces) {
    return "'" + std::string(interfaces) +
           "' (SLIMWIRE_SOCKET_IFNAME, else NCCL_SOCKET_IFNAME: " + std::string(kInterfaceLists) +
           ")";
}

}  // namespace

Result<std::vector<NetDevice>> find_devices(std::string_view interfaces,
                                            std::string_view ucx_devices,
                                            const std::string& sys) {
    std::vector<NetDevice> found = rdma_devices(ucx_devices, sys);
    if (!found.empty()) {
        return found;
    }
    SLIMWIRE_TRY_ASSIGN(const std::vector<Interface> running, running_interfaces());
    std::vector<Interface> usable;
    std::copy_if(running.begin(), running.end(), std::back_inserter(usable),
                 [&](const Interface& one) { return listed(ucx_devices, one.name); });
    if (usable.empty()) {
        return no_interface(running, "UCX_NET_DEVICES '" + std::string(ucx_devices) + "'");
    }
    for (const Interface& interface : choose(usable, interfaces)) {
        found.push_back(device_of(interface, sys));
    }
    if (found.empty()) {
        return no_interface(usable, list_of(interfaces));
    }
    return found;
}

Result<SocketAddress> listening_address(const NetDevice& device, std::string_view interfaces) {
    SLIMWIRE_TRY_ASSIGN(const std::vector<Interface> running, running_interfaces());
    const std::vector<Interface> chosen = choose(running, interfaces);
    if (chosen.empty()) {
        return no_interface(running, list_of(interfaces));
    }
    const auto own = [&](const Interface& one) { return one.name == device.interface; };
    auto place = std::find_if(chosen.begin(), chosen.end(), own);
    if (place == chosen.end()) {
        place = chosen.begin();
        if (interfaces.empty()) {
            // The device's own interface, though of a kind that is not chosen by itself.
            const auto any = std::find_if(running.begin(), running.end(), own);
            return any != running.end() ? any->address : place->address;
        }
    }
    return place->address;
}

}  // namespace slimwire::net
