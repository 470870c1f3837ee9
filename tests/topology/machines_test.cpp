// Machines read from files against what stands in the files, worked out by hand: classes and
// bandwidths of ways, who shares what, rails. data/: models of published files' kinds, ours.
#include <algorithm>

#include "tests/support/has.h"
#include "tests/topology/fixture.h"

namespace slimwire::test {
namespace {

std::vector<int> rails_of(const ReadMachine& read) {
    std::vector<int> rails;
    for (const GpuPlace& place : read.places.gpus) {
        rails.push_back(place.rail);
    }
    return rails;
}

struct Summary {
    size_t gpus, nics, cpus, switches;
    int nv_domains, rails;
};

void expect_summary(const ReadMachine& read, const Summary& wanted) {
    EXPECT_EQ(read.places.gpus.size(), wanted.gpus);
    EXPECT_EQ(read.machine.nics().size(), wanted.nics);
    EXPECT_EQ(read.machine.of_kind(DeviceKind::kCpu).size(), wanted.cpus);
    EXPECT_EQ(read.machine.of_kind(DeviceKind::kSwitch).size(), wanted.switches);
    EXPECT_EQ(read.places.nv_domains, wanted.nv_domains);
    EXPECT_EQ(read.places.rails, wanted.rails);
}

// Two GPUs and a NIC a switch, PCIe 3, Intel (10 GB/s between processors).
TEST(Machines, SwitchesOfTwoGpusAndANic) {
    const ReadMachine read = read_fixture("switches_2gpu_1nic.xml");
    expect_summary(read, {8, 4, 2, 4, 0, 4});
    EXPECT_EQ(read.way(0, 0), "LOC 5000");
    EXPECT_EQ(read.way(0, 1), "PIX 12");
    EXPECT_EQ(read.way(0, 2), "PHB 12");
    EXPECT_EQ(read.way(0, 4), "SYS 10");
    EXPECT_EQ(read.way_to_nic(0, 0), "PIX 12");
    EXPECT_EQ(read.way_to_nic(0, 1), "PHB 12");
    EXPECT_EQ(read.way_to_nic(7, 0), "SYS 10");
    EXPECT_EQ(rails_of(read), (std::vector<int>{0, 0, 1, 1, 2, 2, 3, 3}));
    EXPECT_EQ(read.places.gpus[0].pci_switch, read.places.gpus[1].pci_switch);
    EXPECT_NE(read.places.gpus[1].pci_switch, read.places.gpus[2].pci_switch);
    EXPECT_FALSE(read.places.gpus[0].net_known) << "no <net> tells the wire's speed";
    EXPECT_EQ(read.machine.notes, std::vector<std::string>{});
}

TEST(Machines, FunctionsWithoutClassAreNeitherGpusNorNics) {
    const ReadMachine read = read_fixture("no_classes.xml");
    expect_summary(read, {0, 0, 2, 0, 0, 0});
    EXPECT_EQ(read.machine.of_kind(DeviceKind::kOther).size(), 9u);
    EXPECT_HAS(read.notes(), "by class and content neither GPU nor NIC: devices: 9");
    EXPECT_HAS(read.notes(), "no PCIe speed or width, taken as 8 GT/s or 16 lanes: devices: 9");
}

TEST(Machines, PcieOnlyWithOneNicForAll) {
    const ReadMachine read = read_fixture("pcie_one_nic.xml");
    expect_summary(read, {8, 1, 2, 0, 0, 1});
    EXPECT_EQ(read.way(0, 3), "PHB 24");
    EXPECT_EQ(read.way(3, 4), "SYS 10");
    EXPECT_EQ(read.way_to_nic(0, 0), "PHB 24");
    EXPECT_EQ(read.way_to_nic(4, 0), "SYS 10");
    EXPECT_EQ(read.places.gpus[0].pci_switch, -1);
    EXPECT_EQ(rails_of(read), (std::vector<int>(8, 0)));
    EXPECT_DOUBLE_EQ(read.places.gpus[4].net_gb_s, 10) << "no more than between the processors";
}

// Equally near NICs are shared out: the first GPU has the first.
TEST(Machines, TwoGpusAndTwoNicsASwitch) {
    const ReadMachine read = read_fixture("switch_2gpu_2nic.xml");
    expect_summary(read, {8, 8, 4, 4, 0, 8});
    EXPECT_EQ(read.way(0, 1), "PIX 24");
    EXPECT_EQ(read.way(1, 2), "SYS 16") << "AMD, other NUMA node";
    EXPECT_EQ(rails_of(read), (std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7}));
    EXPECT_EQ(read.places.gpus[1].nics, std::vector<int>{read.machine.nics()[1]});
}

// 18 links of 20.6 GB/s to the NVSwitches, wherever these are; NICs of 400 Gbit/s behind PCIe 5.
TEST(Machines, NvSwitch) {
    const ReadMachine read = read_fixture("nvswitch_8gpu_8nic.xml");
    expect_summary(read, {8, 9, 2, 8, 1, 8});
    for (size_t a = 0; a < 8; ++a) {
        for (size_t b = 0; b < 8; ++b) {
            EXPECT_EQ(read.way(a, b), a == b ? "LOC 5000" : "NVL 370.8");
        }
        EXPECT_EQ(read.places.gpus[a].nv_domain, 0);
        EXPECT_DOUBLE_EQ(read.places.gpus[a].net_gb_s, 48) << "PCIe, below the wire's 50";
        EXPECT_TRUE(read.places.gpus[a].net_known);
    }
    // The card for storage at the first processor is nobody's rail.
    EXPECT_EQ(rails_of(read), (std::vector<int>{0, 1, 2, 3, 5, 6, 7, 8}));
    EXPECT_EQ(read.machine.devices[static_cast<size_t>(read.machine.nics()[4])].ports[0].name,
              "mlx5_8");
    EXPECT_EQ(read.way_to_nic(0, 0), "PIX 48");
    EXPECT_EQ(read.way_to_nic(0, 1), "PXN 48") << "by NVLink and GPU 1";
    EXPECT_EQ(read.way_to_nic(0, 4), "PHB 12") << "8 lanes of PCIe 4";
    EXPECT_EQ(read.machine.devices[static_cast<size_t>(read.places.gpus[0].gpu)].bus_id,
              "0000:17:00.0");
}

// NVLinks of 20 GB/s, one or two between neighbours, by another GPU to the rest.
TEST(Machines, CubeMesh) {
    const ReadMachine read = read_fixture("cube_mesh.xml");
    expect_summary(read, {8, 4, 2, 4, 1, 4});
    EXPECT_EQ(read.machine.links.size(), 16u) << "each told by both ends";
    EXPECT_EQ(read.way(0, 1), "NVL 20");
    EXPECT_EQ(read.way(0, 3), "NVL 40");
    EXPECT_EQ(read.way(0, 4), "NVL 40");
    EXPECT_EQ(read.way(0, 5), "NVB 20") << "by GPU 1 or 4, one link on each way";
    EXPECT_EQ(read.way(0, 7), "NVB 40") << "by GPU 3, two links all the way";
    EXPECT_DOUBLE_EQ(read.places.gpus[0].nv_gb_s, 120);
    EXPECT_EQ(rails_of(read), (std::vector<int>{0, 0, 1, 1, 2, 2, 3, 3}));
}

// RCCL's dialect. GPUs stand in the order of their ordinals, not of the file.
TEST(Machines, Xgmi) {
    const ReadMachine read = read_fixture("xgmi_4gpu.xml");
    expect_summary(read, {4, 4, 4, 0, 1, 4});
    EXPECT_EQ(read.machine.links.size(), 6u);
    EXPECT_EQ(read.machine.links[0].kind, LinkKind::kXgmi);
    EXPECT_EQ(read.way(0, 3), "NVL 96");
    EXPECT_EQ(read.machine.devices[static_cast<size_t>(read.places.gpus[2].cpu)].number, 0);
    EXPECT_EQ(rails_of(read), (std::vector<int>{0, 1, 2, 3}));
    EXPECT_HAS(read.notes(), "speed 200000000 of cxi0 cannot be Mbit/s; taken as kbit/s");
    EXPECT_DOUBLE_EQ(read.places.gpus[0].net_gb_s, 24) << "PCIe 4, below the wire's 25";
}

TEST(Machines, NvLinkDomainOfTwoHosts) {
    const ReadMachine read = read_fixture("grace_two_hosts.xml");
    expect_summary(read, {4, 4, 4, 0, 1, 2});
    EXPECT_EQ(read.machine.hosts, (std::vector<std::string>{"0x1f00d", "0x2f00d"}));
    EXPECT_EQ(read.way(0, 1), "NVL 721.8");
    EXPECT_EQ(read.way(0, 3), "NVL 721.8") << "to the other host";
    EXPECT_EQ(rails_of(read), (std::vector<int>{0, 1, 0, 1})) << "the same on both hosts";
    EXPECT_EQ(read.way_to_nic(0, 0), "PHB 48") << "chip to chip, not 2 lanes of PCIe";
    EXPECT_EQ(read.way_to_nic(0, 2), "DIS 0") << "the other host's";
    EXPECT_EQ(read.machine.label(read.places.gpus[2].gpu), "GPU 0 of host 1");
}

TEST(Machines, TwoLevelsOfSwitchesAndASocketInterface) {
    const ReadMachine read = read_fixture("pcie_two_levels.xml");
    expect_summary(read, {4, 1, 2, 3, 0, 1});
    EXPECT_EQ(read.way(0, 1), "PIX 12") << "the second card has 8 lanes";
    EXPECT_EQ(read.way(0, 2), "PXB 24");
    EXPECT_EQ(read.way(1, 2), "PXB 12");
    EXPECT_DOUBLE_EQ(read.places.gpus[0].net_gb_s, 1.25);
    EXPECT_HAS(read.notes(), "interface eth0 stands under several processors");
}

TEST(Machines, OddContentIsTakenAndNoted) {
    const ReadMachine read = read_fixture("odd.xml");
    expect_summary(read, {2, 1, 1, 0, 1, 1});
    EXPECT_EQ(read.way(0, 1), "NVL 60") << "three links, told twice";
    for (const char* note :
         {"version '7' of <system>", "<nvlink> of 0000:01:00.0 to itself, passed over",
          "line 9, column 9: <nvlink> to '0000:77:00.0', which is not in the file",
          "line 16, column 35: <mystery> in <gpu> is not known", "a <pci> without busid",
          "<c2c> without bandwidth", "<numa> in <cpu>"}) {
        EXPECT_HAS(read.notes(), note);
    }
}

// Files of two machines put together without host_hash would be one card with itself.
TEST(Machines, TwoGpusWithOneBusIdAreRefused) {
    const auto read = [](const std::string& second) {
        const std::string gpu = "<pci busid=\"0000:a1:00.0\" class=\"0x030200\"/>\n";
        return read_machine_xml("<system version=\"1\">\n<cpu numaid=\"0\">\n" + gpu + second +
                                gpu + "</cpu></system>");
    };
    EXPECT_EQ(read("").status().message(),
              "line 4, column 1: a second <pci> of a GPU with busid '0000:a1:00.0'; accepted: one "
              "on a machine, machines told apart by host_hash of <cpu>");
    EXPECT_TRUE(read("</cpu><cpu numaid=\"0\" host_hash=\"0x2\">\n").ok());
}

TEST(Machines, HwlocOfTwoPackages) {
    const ReadMachine read = read_fixture("hwloc_v2.xml");
    expect_summary(read, {4, 2, 2, 2, 0, 2});
    EXPECT_EQ(read.machine.source, "hwloc 2.0");
    EXPECT_EQ(read.way(0, 1), "PIX 24") << "root port and downstream ports are no switches";
    EXPECT_EQ(read.way(1, 2), "SYS 10");
    EXPECT_EQ(rails_of(read), (std::vector<int>{0, 0, 1, 1}));
    const Device& nic = read.machine.devices[static_cast<size_t>(read.machine.nics()[1])];
    ASSERT_EQ(nic.ports.size(), 1u) << "one port of two names";
    EXPECT_EQ(nic.ports[0].name, "mlx5_1");
    EXPECT_TRUE(nic.ports[0].rdma);
    EXPECT_EQ(read.machine.devices[static_cast<size_t>(read.places.gpus[3].cpu)].number, 1);
}

Result<Machine> machine_of(const std::string& inner) {
    return read_machine_xml("<system version=\"1\"><cpu numaid=\"0\">" + inner + "</cpu></system>");
}
ReadMachine read_inner(const std::string& inner) {
    Result<Machine> machine = machine_of(inner);
    EXPECT_TRUE(machine.ok());
    return ReadMachine(std::move(machine).value());
}

TEST(Machines, SeveralGpusInOneFunctionShareTheGpu) {
    const ReadMachine read = read_inner(
        "<pci busid=\"0000:01:00.0\" class=\"0x030200\" link_speed=\"64.0 GT/s PCIe\" "
        "link_width=\"2\">"
        "<gpu dev=\"0\" sm=\"107\" mlopart=\"0\" rank=\"0\"/><gpu dev=\"1\" sm=\"107\" "
        "mlopart=\"1\" "
        "rank=\"1\"/></pci>");
    ASSERT_EQ(read.places.gpus.size(), 2u);
    EXPECT_EQ(read.way(0, 1), "LOC 5000");
}

TEST(Machines, DisplayControllersAreGpusByTheirMaker) {
    const ReadMachine read = read_inner(
        "<pci busid=\"0000:01:00.0\" class=\"0x030000\" vendor=\"0x10de\"/>"
        "<pci busid=\"0000:02:00.0\" class=\"0x038000\" vendor=\"0x1002\"/>"
        "<pci busid=\"0000:08:00.0\" class=\"0x030000\" vendor=\"0x1a03\"/>");
    EXPECT_EQ(read.places.gpus.size(), 2u) << "a board's console is none";
}

// A function with one <gpu> of a number and what is said of it, in a machine of NCCL's dialect.
std::string gpu_of(int number, const std::string& said, const std::string& inner = "") {
    const std::string digit = std::to_string(number);
    return "<pci busid=\"0000:0" + digit + ":00.0\" class=\"0x030200\"><gpu dev=\"" + digit +
           "\" " + said + ">" + inner + "</gpu></pci>";
}

// Files leave links to NCCL, which asks the machine; what NCCL wrote down itself has all of them.
TEST(Machines, LinksThatAreNotTold) {
    const std::string dumped = "sm=\"80\" rank=\"0\"";
    const auto told = [](const std::string& inner) {
        const Result<Machine> machine = machine_of(inner);
        EXPECT_TRUE(machine.ok());
        return machine.value().gpu_links_told;
    };
    EXPECT_TRUE(told(gpu_of(1, dumped) + gpu_of(2, dumped)));
    EXPECT_FALSE(told(gpu_of(1, "sm=\"80\"") + gpu_of(2, "sm=\"80\"")));
    const auto nvlink = [](const char* more) {
        return std::string("<nvlink target=\"0000:09:00.0\" count=\"4\"") + more + "/>";
    };
    // Of the switch or of a GPU that is not there.
    EXPECT_FALSE(told(gpu_of(1, dumped, nvlink("")) + gpu_of(2, dumped, nvlink(""))));
    const std::string away = nvlink(" tclass=\"0x030200\"");
    EXPECT_TRUE(told(gpu_of(1, dumped, away) + gpu_of(2, dumped, away)));
    EXPECT_FALSE(told("<pci busid=\"0000:01:00.0\"/>")) << "it may be a GPU";
    EXPECT_TRUE(told("<pci busid=\"0000:01:00.0\" class=\"0x010802\"/>" + gpu_of(1, dumped) +
                     gpu_of(2, dumped)));
    EXPECT_FALSE(read_fixture("hwloc_v2.xml").machine.gpu_links_told);
}

TEST(Machines, WidthsAndNamesThatMeanNothing) {
    const ReadMachine read = read_inner(
        "<pci busid=\"0000:01:00.0\" class=\"0x120000\" link_speed=\"32.0 GT/s PCIe\" "
        "link_width=\"255\"><gpu dev=\"0\" sm=\"94\" rank=\"0\" "
        "gcn=\"gfx942:sramecc+:xnack-\"><xgmi target=\"0000:02:00.0\" count=\"1\" "
        "tclass=\"0x120000\"/></gpu></pci>"
        "<pci busid=\"0000:02:00.0\" class=\"0x120000\" link_speed=\"\" link_width=\"63\">"
        "<gpu dev=\"1\" sm=\"94\" rank=\"1\" gcn=\"gfx942\"/></pci>");
    ASSERT_EQ(read.places.gpus.size(), 2u);
    EXPECT_TRUE(read.machine.gpu_links_told);
    EXPECT_EQ(read.way(0, 1), "NVL 48");
    for (const GpuPlace& place : read.places.gpus) {
        const Device& gpu = read.machine.devices[static_cast<size_t>(place.gpu)];
        EXPECT_EQ(gpu.gcn, 942);
        EXPECT_EQ(gpu.pcie_width, 0);
    }
    const Device& first = read.machine.devices[static_cast<size_t>(read.places.gpus[0].gpu)];
    EXPECT_DOUBLE_EQ(first.up_gb_s, 48) << "16 lanes";
}

TEST(Machines, OneGpuMayHaveSeveralNics) {
    std::string text = "<pci busid=\"0000:10:00.0\" class=\"0x060400\">";
    for (int i = 0; i < 2; ++i) {
        text += "<pci busid=\"0000:1" + std::to_string(1 + i) +
                ":00.0\" class=\"0x030200\" "
                "link_speed=\"32 GT/s\" link_width=\"16\"/>";
    }
    for (int i = 0; i < 4; ++i) {
        text += "<pci busid=\"0000:2" + std::to_string(i) +
                ":00.0\" class=\"0x020000\" "
                "link_speed=\"16 GT/s\" link_width=\"16\"><nic><net name=\"n" +
                std::to_string(i) + "\" speed=\"100000\"/></nic></pci>";
    }
    const ReadMachine read = read_inner(text + "</pci>");
    ASSERT_EQ(read.places.gpus.size(), 2u);
    EXPECT_EQ(read.places.gpus[0].nics.size(), 2u);
    EXPECT_EQ(read.places.gpus[1].nics,
              (std::vector<int>{read.machine.nics()[2], read.machine.nics()[3]}));
    EXPECT_EQ(read.places.gpus[1].rail, 2);
    EXPECT_DOUBLE_EQ(read.places.gpus[0].net_gb_s, 25) << "two wires of 12.5";
}

// POWER: NVLink to the processor is a way for GPUs, too.
TEST(Machines, NvLinkToAProcessor) {
    std::string text;
    for (int i = 0; i < 2; ++i) {
        text += "<pci busid=\"000" + std::to_string(4 + i) +
                ":01:00.0\" class=\"0x030200\"><gpu dev=\"" + std::to_string(i) +
                "\" sm=\"70\"><nvlink target=\"0004:00:00.0\" count=\"3\" "
                "tclass=\"0x060400\"/></gpu></pci>";
    }
    const ReadMachine read = read_inner(text);
    EXPECT_EQ(read.way(0, 1), "NVL 60");
}

TEST(Machines, WhatIsNoMachineIsAnErrorWithItsPlace) {
    const auto message = [](const std::string& text) {
        const Result<Machine> machine = read_machine_xml(text);
        EXPECT_FALSE(machine.ok()) << text;
        return machine.status().message();
    };
    EXPECT_EQ(
        message("\n<graph/>"),
        "line 2, column 1: the root element is <graph>; accepted: <system> (NCCL), <topology> "
        "(hwloc)");
    EXPECT_EQ(
        message("<topology version=\"2.0\"/>"),
        "line 1, column 1: <topology> has no <object>; accepted: what lstopo --of xml writes");
    EXPECT_HAS(message("<topology><object/></topology>"),
               "accepted: what lstopo --of xml of hwloc 2");
    constexpr char kDumps[] = "accepted: what NCCL_TOPO_DUMP_FILE writes";
    for (const char* inner :
         {"<pci/>", "<cpu><gpu sm=\"80\"/></cpu>", "<cpu><pci><gpu/></pci></cpu>"}) {
        EXPECT_HAS(message(std::string("<system version=\"1\">") + inner + "</system>"), kDumps);
    }
    std::string many = "<system version=\"1\">";
    for (int i = 0; i < 257; ++i) {
        many += "<cpu/>";
    }
    EXPECT_HAS(message(many + "</system>"), "257 processors; accepted: 4096, 512 and 256");
}

}  // namespace
}  // namespace slimwire::test
