// Discovery against recorded sources: a tree for /sys and /proc, and a library that stands for
// hwloc, libibverbs and NVML. Each source missing, one at a time and all at once.
#include "topology/readers/discovery.h"

#include <cstdlib>
#include <filesystem>

#include "tests/support/has.h"
#include "tests/topology/fixture.h"
#include "topology/machine/comm_links.h"

namespace slimwire::test {
namespace {

namespace fs = std::filesystem;

class Discovering : public ::testing::Test {
  protected:
    void SetUp() override {
        std::string pattern = (fs::temp_directory_path() / "slimwire-topology-XXXXXX").string();
        ASSERT_NE(mkdtemp(pattern.data()), nullptr);
        root_ = pattern;
        ASSERT_EQ(setenv("TEST_FAKE_MACHINE", (root_ / "machine").c_str(), 1), 0);
    }
    void TearDown() override { fs::remove_all(root_); }

    void write(const std::string& path, const std::string& text) const {
        const fs::path file = root_ / path;
        fs::create_directories(file.parent_path());
        std::ofstream(file) << text << "\n";
    }
    void link(const std::string& path, const std::string& target) const {
        fs::create_directories((root_ / path).parent_path());
        fs::create_directory_symlink(root_ / target, root_ / path);
    }
    // A PCI function at a place below /sys/devices; its ports above it, too.
    void function(const std::string& place,
                  const std::string& pci_class,
                  const std::string& vendor,
                  int numa,
                  const std::string& speed,
                  int width) const {
        const std::string folder = "sys/devices/" + place;
        write(folder + "/class", pci_class);
        write(folder + "/vendor", vendor);
        write(folder + "/numa_node", std::to_string(numa));
        write(folder + "/max_link_speed", speed);
        write(folder + "/max_link_width", std::to_string(width));
        link("sys/bus/pci/devices/" + place.substr(place.rfind('/') + 1), folder);
    }

    // Two NUMA nodes. At the first a switch with two GPUs and an InfiniBand card of two ports, at
    // the second's own ports a GPU, an Ethernet card and the board's console.
    void record_sysfs() const {
        write("proc/cpuinfo",
              "processor\t: 0\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 143\nmodel "
              "name\t: X");
        write("sys/devices/system/node/node0/cpulist", "0-15");
        write("sys/devices/system/node/node1/cpulist", "16-31");
        write("sys/devices/system/node/node2/cpulist", "");  // memory only
        const std::string top = "pci0000:00/0000:00:01.0";
        const std::string upstream = top + "/0000:01:00.0";
        function(top, "0x060400", "0x8086", 0, "32.0 GT/s PCIe", 16);
        function(upstream, "0x060400", "0x1000", 0, "32.0 GT/s PCIe", 16);
        for (int i = 0; i < 2; ++i) {
            const std::string port = upstream + "/0000:02:0" + std::to_string(i) + ".0";
            function(port, "0x060400", "0x1000", 0, i == 0 ? "32.0 GT/s PCIe" : "16.0 GT/s PCIe",
                     16);
            function(port + "/0000:0" + std::to_string(3 + i) + ":00.0", "0x030200", "0x10de", 0,
                     "32.0 GT/s PCIe", 16);
        }
        function(upstream + "/0000:02:02.0", "0x060400", "0x1000", 0, "32.0 GT/s PCIe", 16);
        const std::string card = upstream + "/0000:02:02.0/0000:05:00.0";
        function(card, "0x020700", "0x15b3", 0, "32.0 GT/s PCIe", 16);
        for (int port = 1; port <= 2; ++port) {
            const std::string place =
                "sys/devices/" + card + "/infiniband/mlx5_0/ports/" + std::to_string(port);
            write(place + "/rate", port == 1 ? "200 Gb/sec (4X HDR)" : "10 Gb/sec (4X SDR)");
            write(place + "/state", port == 1 ? "4: ACTIVE" : "1: DOWN");
        }
        link("sys/class/infiniband/mlx5_0", "sys/devices/" + card + "/infiniband/mlx5_0");
        link("sys/devices/" + card + "/infiniband/mlx5_0/device", "sys/devices/" + card);
        write("sys/devices/" + card + "/net/ib0/speed", "200000");
        link("sys/devices/" + card + "/net/ib0/device", "sys/devices/" + card);
        link("sys/class/net/ib0", "sys/devices/" + card + "/net/ib0");

        const std::string second = "pci0000:80/0000:80:01.0";
        function(second, "0x060400", "0x8086", 1, "16.0 GT/s PCIe", 16);
        function(second + "/0000:81:00.0", "0x030200", "0x10de", 1, "16.0 GT/s PCIe", 16);
        function("pci0000:80/0000:80:02.0", "0x060400", "0x8086", 1, "8.0 GT/s PCIe", 8);
        const std::string ethernet = "pci0000:80/0000:80:02.0/0000:82:00.0";
        function(ethernet, "0x020000", "0x8086", 1, "8.0 GT/s PCIe", 8);
        write("sys/devices/" + ethernet + "/net/eth0/speed", "25000");
        link("sys/devices/" + ethernet + "/net/eth0/device", "sys/devices/" + ethernet);
        link("sys/class/net/eth0", "sys/devices/" + ethernet + "/net/eth0");
        write("sys/devices/virtual/net/lo/speed", "-1");
        link("sys/class/net/lo", "sys/devices/virtual/net/lo");
        function("pci0000:80/0000:80:03.0", "0x030000", "0x1a03", 1, "2.5 GT/s PCIe", 1);
    }
    void record_libraries(const std::string& more = "") const {
        write("machine", more +
                             "rdma mlx5_0 1 4 2 64\nrdma mlx5_0 2 1 2 1\n"
                             "gpu 0000:03:00.0 H200 90 5 16 -\ngpu 0000:04:00.0 H200 90 5 16 -\n"
                             "gpu 0000:81:00.0 L4 89 4 8 -\n"
                             "link 0 0000:04:00.0\nlink 0 0000:04:00.0\nlink 1 0000:03:00.0\n"
                             "link 1 0000:03:00.0");
    }
    [[nodiscard]] DiscoverySources with(bool hwloc, bool verbs, bool nvml) const {
        const std::string none = "libnot-there.so.1";
        return {hwloc ? FAKE_LIBRARIES : none, nvml ? FAKE_LIBRARIES : none,
                verbs ? FAKE_LIBRARIES : none, root_.string()};
    }

    fs::path root_;
};

std::string all(const std::vector<std::string>& lines) {
    std::string text;
    for (const std::string& line : lines) {
        text += line + "\n";
    }
    return text;
}

TEST_F(Discovering, SysfsAlone) {
    record_sysfs();
    const Discovery found = discover_machine(with(false, false, false));
    const ReadMachine read(found.machine);
    ASSERT_EQ(read.places.gpus.size(), 3u) << all(found.log);
    EXPECT_EQ(read.machine.nics().size(), 2u);
    EXPECT_EQ(read.machine.of_kind(DeviceKind::kCpu).size(), 2u);
    EXPECT_EQ(read.machine.of_kind(DeviceKind::kSwitch).size(), 1u);
    EXPECT_EQ(read.way(0, 1), "PIX 24") << "the second GPU's port is of PCIe 4";
    EXPECT_EQ(read.way(0, 2), "SYS 22") << "Sapphire Rapids";
    EXPECT_EQ(read.way_to_nic(0, 0), "PIX 48");
    EXPECT_EQ(read.way_to_nic(2, 1), "PHB 6") << "8 lanes of PCIe 3";
    const auto nics = read.machine.nics();
    const Device& card = read.machine.devices[static_cast<size_t>(nics[0])];
    ASSERT_EQ(card.ports.size(), 2u) << "the interface ib0 is port 1";
    EXPECT_EQ(card.ports[0].name, "mlx5_0");
    EXPECT_DOUBLE_EQ(card.ports[0].gbit_s, 200);
    EXPECT_DOUBLE_EQ(card.ports[1].gbit_s, 0) << "down";
    const Device& ethernet = read.machine.devices[static_cast<size_t>(nics[1])];
    ASSERT_EQ(ethernet.ports.size(), 1u);
    EXPECT_EQ(ethernet.ports[0].name, "eth0");
    EXPECT_DOUBLE_EQ(ethernet.ports[0].gbit_s, 25);
    EXPECT_DOUBLE_EQ(read.places.gpus[2].net_gb_s, 3.125);
    EXPECT_FALSE(read.machine.gpu_links_told) << "NVML alone knows them";
    ASSERT_EQ(found.log.size(), 3u) << all(found.log);
    EXPECT_EQ(found.log[0], "hwloc: libnot-there.so.1 is missing; devices are read from " +
                                root_.string() + "/sys");
    EXPECT_EQ(found.log[1], "RDMA: libnot-there.so.1 is missing; ports are read from " +
                                root_.string() + "/sys/class/infiniband");
    EXPECT_EQ(found.log[2],
              "NVML: libnot-there.so.1 is missing; NVLinks of GPUs and their models are not known");
}

TEST_F(Discovering, NvmlAddsLinksModelsAndPcie) {
    record_sysfs();
    record_libraries();
    const Discovery found = discover_machine(with(false, true, true));
    const ReadMachine read(found.machine);
    ASSERT_EQ(read.places.gpus.size(), 3u);
    EXPECT_EQ(read.way(0, 1), "NVL 41.2") << "two links of 20.6, each told by both";
    ASSERT_EQ(read.machine.links.size(), 1u);
    EXPECT_EQ(read.machine.links[0].count, 2);
    EXPECT_TRUE(read.machine.gpu_links_told);
    const Device& last = read.machine.devices[static_cast<size_t>(read.places.gpus[2].gpu)];
    EXPECT_EQ(last.name, "L4");
    EXPECT_EQ(last.compute_capability, 89);
    EXPECT_DOUBLE_EQ(last.up_gb_s, 12) << "NVML says 8 lanes";
    const Device& card = read.machine.devices[static_cast<size_t>(read.machine.nics()[0])];
    ASSERT_EQ(card.ports.size(), 2u);
    EXPECT_DOUBLE_EQ(card.ports[0].gbit_s, 200) << "4 lanes of HDR";
    EXPECT_EQ(found.log.size(), 1u) << all(found.log);
}

TEST_F(Discovering, HwlocGivesTheTreeAndSysfsTheSpeeds) {
    write("machine", "xml " + fixture_path("hwloc_v2.xml"));
    write("sys/bus/pci/devices/0000:13:00.0/max_link_speed", "32.0 GT/s PCIe");
    write("sys/bus/pci/devices/0000:13:00.0/max_link_width", "16");
    const Discovery found = discover_machine(with(true, false, false));
    const ReadMachine read(found.machine);
    ASSERT_EQ(read.places.gpus.size(), 4u) << all(found.log);
    EXPECT_DOUBLE_EQ(read.machine.devices[static_cast<size_t>(read.places.gpus[0].gpu)].up_gb_s,
                     48);
    EXPECT_EQ(read.way(2, 3), "PIX 24") << "hwloc's own where sysfs has none";
    EXPECT_EQ(found.log.size(), 2u) << all(found.log);
}

TEST_F(Discovering, HwlocThatFailsLeavesItToSysfs) {
    record_sysfs();
    write("machine", "");
    Discovery found = discover_machine(with(true, false, false));
    EXPECT_EQ(found.machine.gpus().size(), 3u);
    EXPECT_HAS(all(found.log), "could not read the machine; devices are read from");
    write("bad.xml", "<topology>");
    write("machine", "xml " + (root_ / "bad.xml").string());
    found = discover_machine(with(true, false, false));
    EXPECT_EQ(found.machine.gpus().size(), 3u);
    EXPECT_HAS(all(found.log), "its XML: line 1, column 11: Start-end tags mismatch");
}

TEST_F(Discovering, NvmlWithoutATreeStillHasItsGpus) {
    write("machine",
          "gpu 0000:03:00.0 B200 100 6 16 domain-of-72\ngpu 0000:04:00.0 B200 100 6 16 "
          "domain-of-72\nlink 0 switch\nlink 0 switch\nlink 1 switch\nlink 1 cpu");
    const Discovery found = discover_machine(with(false, false, true));
    const ReadMachine read(found.machine);
    ASSERT_EQ(read.places.gpus.size(), 2u) << all(found.log);
    EXPECT_EQ(read.way(0, 1), "NVL 40.1") << "an NVSwitch; its far end has no PCI address";
    EXPECT_DOUBLE_EQ(read.places.gpus[0].nv_gb_s, 80.2);
    EXPECT_DOUBLE_EQ(read.places.gpus[1].nv_gb_s, 80.2) << "one of it to the processor";
    EXPECT_HAS(all(found.log), "sys/bus/pci/devices is missing or empty");
    EXPECT_HAS(all(found.log), "has no NUMA nodes; one is assumed");
    // Of one NVLink domain on different hosts.
    const RankPlace here = rank_place(read.machine, read.places, 0, 1);
    const RankPlace there = rank_place(read.machine, read.places, 1, 2);
    EXPECT_EQ(rank_link(here, there).path_class, PathClass::kNvLink);
}

TEST_F(Discovering, NvmlWithoutADriver) {
    record_sysfs();
    write("machine", "");
    const Discovery found = discover_machine(with(false, false, true));
    EXPECT_HAS(all(found.log), "did not start: NVML error 9");
    EXPECT_EQ(found.machine.gpus().size(), 3u);
}

TEST_F(Discovering, NothingAtAllIsAMachineWithoutDevices) {
    const Discovery found = discover_machine(with(false, false, false));
    EXPECT_EQ(found.machine.devices.size(), 1u);
    EXPECT_EQ(found.log.size(), 5u) << all(found.log);
}

// Whatever this machine has: no crash, and a processor at least.
TEST(Discovery, ThisMachine) {
    const Discovery found = discover_machine();
    EXPECT_GE(found.machine.of_kind(DeviceKind::kCpu).size(), 1u);
}

}  // namespace
}  // namespace slimwire::test
