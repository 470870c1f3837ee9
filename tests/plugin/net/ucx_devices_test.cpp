// Which devices the UCX wire takes and at which address it listens; and that IPv6 handles work.
#include "plugin/net/ucx/devices.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "plugin/net/ucx/handshake.h"
#include "tests/plugin/net/wire_pair.h"
#include "tests/support/has.h"
#include "tests/support/ranks.h"

namespace slimwire::net {
namespace {

namespace fs = std::filesystem;

void put(const fs::path& path, const std::string& text) {
    fs::create_directories(path.parent_path());
    std::ofstream(path) << text << "\n";
}

// A /sys with a card of two ports, the second without a cable, behind a PCI path.
struct Sys {
    Sys() {
        const fs::path card = root() / "devices/pci0000:80/0000:81:00.0/infiniband/mlx5_0";
        put(card / "node_guid", "0c42:a103:0065:bd4c");
        put(card / "ports/1/state", "4: ACTIVE");
        put(card / "ports/1/rate", "100 Gb/sec (4X EDR)");
        put(card / "ports/1/gid_attrs/ndevs/0", "eth7");
        put(card / "ports/2/state", "1: DOWN");
        put(card / "ports/2/rate", "10 Gb/sec (1X)");
        fs::create_directories(root() / "class/infiniband");
        fs::create_directory_symlink(card, root() / "class/infiniband/mlx5_0");
        fs::create_directory_symlink(root() / "devices/pci0000:80/0000:81:00.0", card / "device");
    }
    [[nodiscard]] fs::path root() const { return folder.path(); }
    test::TemporaryFolder folder;
};

TEST(UcxDevices, RdmaPortsThatAreUpComeBeforeInterfaces) {
    const Sys sys;
    const auto found = find_devices("", "", sys.root());
    ASSERT_TRUE(found.ok()) << found.status().message();
    ASSERT_EQ(found.value().size(), 1u);
    const NetDevice& device = found.value()[0];
    EXPECT_EQ(device.name, "mlx5_0:1");
    EXPECT_TRUE(device.rdma);
    EXPECT_EQ(device.speed_mbps, 100'000);
    EXPECT_EQ(device.port, 1);
    EXPECT_EQ(device.guid, 0x0c42a1030065bd4cu);
    EXPECT_EQ(device.interface, "eth7");
    EXPECT_HAS(device.pci_path, "pci0000:80/0000:81:00.0");
}

TEST(UcxDevices, UcxNetDevicesNamesThem) {
    const Sys sys;
    for (const char* list : {"mlx5_0", "mlx5_0:1", "mlx5_9,mlx5_0:1", "all"}) {
        const auto found = find_devices("", list, sys.root());
        ASSERT_TRUE(found.ok());
        EXPECT_EQ(found.value().at(0).name, "mlx5_0:1") << list;
    }
    // An interface instead of the card.
    const auto found = find_devices("", "lo", sys.root());
    ASSERT_TRUE(found.ok());
    EXPECT_EQ(found.value().at(0).name, "lo");
    EXPECT_FALSE(found.value().at(0).rdma);
    const auto none = find_devices("", "nosuch", sys.root());
    EXPECT_EQ(none.status().code(), Code::kInvalidArgument);
    EXPECT_HAS(none.status().message(), "UCX_NET_DEVICES 'nosuch'; there are: ");
}

TEST(UcxDevices, InterfacesAreNamedAsNcclNamesThem) {
    EXPECT_TRUE(interface_matches("eth,ib", "ib0"));
    EXPECT_FALSE(interface_matches("eth,ib", "lo"));
    EXPECT_TRUE(interface_matches("=eth0,eth1", "eth1"));
    EXPECT_FALSE(interface_matches("=eth0", "eth01"));
    EXPECT_FALSE(interface_matches("^docker,lo", "docker0"));
    EXPECT_TRUE(interface_matches("^docker,lo", "eth0"));
    EXPECT_TRUE(interface_matches("^=lo", "lo1"));
    EXPECT_FALSE(interface_matches("", "eth0"));
    // NCCL's lists are those of cards, too, whose ports count for cards only.
    EXPECT_TRUE(interface_matches("ib0,eth0:1", "eth0"));
    EXPECT_TRUE(interface_matches("=eth0:1,eth1", "eth0"));
    EXPECT_FALSE(interface_matches("=eth0:1", "eth0:1"));
    EXPECT_FALSE(interface_matches("^eth0:1", "eth0"));
}

// UCX has no device of an address's label, and a device that it has not ends the job.
TEST(UcxDevices, AddressesWithLabelsAreTheirInterfaces) {
    sockaddr_in first{}, second{}, third{};
    first.sin_family = second.sin_family = third.sin_family = AF_INET;
    first.sin_addr.s_addr = htonl(0x0a010001);
    second.sin_addr.s_addr = htonl(0x0a010007);
    third.sin_addr.s_addr = htonl(0x0a020001);
    char names[3][8] = {"e0", "e0:1", "e1:x"};
    sockaddr_in* const addresses[3] = {&first, &second, &third};
    ifaddrs list[3]{};
    for (int i = 0; i < 3; ++i) {
        list[i].ifa_next = i < 2 ? &list[i + 1] : nullptr;
        list[i].ifa_name = names[i];
        list[i].ifa_flags = IFF_UP | IFF_RUNNING;
        list[i].ifa_addr = reinterpret_cast<sockaddr*>(addresses[i]);
    }
    const std::vector<Interface> found = running_in(list);
    ASSERT_EQ(found.size(), 2u);
    EXPECT_EQ(found[0].name + " " + to_string(found[0].address), "e0 10.1.0.1:0");
    EXPECT_EQ(found[1].name + " " + to_string(found[1].address), "e1 10.2.0.1:0");
}

TEST(UcxDevices, TheFamilyThatNcclIsToldCounts) {
    const auto addresses = [](const char* family, int other) {
        setenv("NCCL_SOCKET_FAMILY", family, 1);
        const auto running = running_interfaces();
        unsetenv("NCCL_SOCKET_FAMILY");
        EXPECT_TRUE(running.ok());
        return std::count_if(
            running.value().begin(), running.value().end(),
            [&](const Interface& one) { return one.address.any.sa_family == other; });
    };
    EXPECT_EQ(addresses("AF_INET6", AF_INET), 0);
    EXPECT_EQ(addresses("AF_INET", AF_INET6), 0);
    EXPECT_GE(addresses("AF_INET", AF_INET), 1);
    EXPECT_GE(addresses("ipv4", AF_INET), 1);  // NCCL ignores other words
}

TEST(UcxDevices, TheListDecidesDeviceAndAddress) {
    const Sys empty_sys;
    fs::remove_all(empty_sys.root() / "class");
    const auto found = find_devices("=lo", "", empty_sys.root());
    ASSERT_TRUE(found.ok()) << found.status().message();
    ASSERT_EQ(found.value().size(), 1u);
    EXPECT_EQ(found.value()[0].name, "lo");
    EXPECT_EQ(found.value()[0].pci_path, "");
    const auto address = listening_address(found.value()[0], "=lo");
    ASSERT_TRUE(address.ok());
    EXPECT_EQ(to_string(address.value()), "127.0.0.1:0");
    for (const auto& status : {find_devices("=nosuch", "", empty_sys.root()).status(),
                               listening_address(found.value()[0], "=nosuch").status()}) {
        EXPECT_EQ(status.code(), Code::kInvalidArgument);
        EXPECT_HAS(status.message(), "'=nosuch'");
        const size_t list = status.message().find("; there are: ");
        ASSERT_NE(list, std::string::npos) << status.message();
        EXPECT_NE(status.message().find("lo", list), std::string::npos) << status.message();
    }
    // By itself loopback is the last choice.
    const auto all = find_devices("", "", empty_sys.root());
    ASSERT_TRUE(all.ok());
    if (all.value().size() > 1) {
        for (const NetDevice& device : all.value()) {
            EXPECT_NE(device.name, "lo");
        }
    }
}

Interface interface_at(const char* name, const char* address) {
    Interface made{name, {}, std::string(name) == "lo"};
    if (inet_pton(AF_INET, address, &made.address.v4.sin_addr) == 1) {
        made.address.v4.sin_family = AF_INET;
    } else {
        made.address.v6.sin6_family = AF_INET6;
        EXPECT_EQ(inet_pton(AF_INET6, address, &made.address.v6.sin6_addr), 1) << address;
    }
    return made;
}

std::string names_of(const std::vector<Interface>& interfaces) {
    std::string names;
    for (const Interface& one : interfaces) {
        names += (names.empty() ? "" : " ") + one.name;
    }
    return names;
}

// A node of containers: veths have nothing but an address of their link, which UCX cannot use.
TEST(UcxDevices, AddressesOfTheLinkAloneComeBeforeLoopback) {
    const Interface lo = interface_at("lo", "127.0.0.1"), real = interface_at("e0", "fd00::1"),
                    bridge = interface_at("docker0", "172.17.0.1"),
                    veth = interface_at("veth1", "fe80::1"),
                    other = interface_at("veth2", "fe80::2");
    EXPECT_EQ(names_of(choose({lo, veth, bridge, real, other}, "")), "e0");
    EXPECT_EQ(names_of(choose({lo, veth, bridge}, "")), "docker0");
    EXPECT_EQ(names_of(choose({veth, lo}, "")), "veth1");
    EXPECT_EQ(names_of(choose({veth, other}, "")), "veth1 veth2");
    EXPECT_EQ(names_of(choose({lo, veth, real}, "veth,e")), "e0");
    EXPECT_EQ(names_of(choose({lo, veth, real}, "=veth1")), "veth1");
    EXPECT_EQ(names_of(choose({lo, bridge, real}, "^e0")), "lo docker0");
    EXPECT_EQ(names_of(choose({lo, real}, "=eth9")), "");
}

TEST(UcxDevices, AHandleCarriesAnIpv6Address) {
    SocketAddress address{};
    address.v6.sin6_family = AF_INET6;
    address.v6.sin6_addr = in6addr_loopback;
    std::ifstream file("/proc/net/if_inet6");
    const std::string known((std::istreambuf_iterator<char>(file)), {});
    if (known.find(std::string(31, '0') + "1 ") == std::string::npos) {
        GTEST_SKIP()
            << "/proc/net/if_inet6 does not list ::1: IPv6 is off on this machine or in this "
               "network namespace";
    }
    auto door = listen_at(&address);
    ASSERT_TRUE(door.ok()) << door.status().message();
    const WireHandle handle = make_handle(address, random_cookie().value());
    const auto read = address_of(handle);
    ASSERT_TRUE(read.ok());
    EXPECT_EQ(to_string(read.value()), to_string(address));
    EXPECT_EQ(to_string(address).substr(0, 6), "[::1]:");
    const Socket visitor = start_connect(read.value()).value();
    Socket guest;
    SocketAddress peer;
    EXPECT_TRUE(poll_until([&] {
        guest = accept_waiting(door.value(), &peer).value();
        return guest.valid();
    }));
    EXPECT_EQ(connect_error(visitor), 0);
}

}  // namespace
}  // namespace slimwire::net
