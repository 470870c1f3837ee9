// `slimwire topo` on recorded machines: text, JSON, and what cannot be read.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "tests/tools/cli_program.h"

namespace slimwire::cli::test {
namespace {

using Json = nlohmann::json;

std::string fixture(const std::string& name) {
    return std::string(TOPOLOGY_DATA) + "/" + name;
}

Ended topo(const std::vector<std::string>& arguments) {
    return succeed(with({"topo"}, arguments));
}
Json topo_json(const std::vector<std::string>& arguments) {
    return record_of(with({"topo"}, arguments));
}

TEST(Topo, TreeLinksAndWays) {
    const Ended ended = topo({"--xml", fixture("nvswitch_8gpu_8nic.xml"), "--nodes", "2"});
    EXPECT_HAS(
        ended.out,
        "machine   NCCL topology, version 1: 8 GPUs, 9 NICs, 2 processors, 1 NVLink domain, 8 "
        "rails\n");
    EXPECT_HAS(
        ended.out,
        "ranks     16 ranks on 2 nodes; 8 rails, alike on every node; slowest link in a node: "
        "NVL 370.8 GB/s, between nodes: NET 48 GB/s\n");
    EXPECT_HAS(ended.out, "CPU 0  GenuineIntel x86_64; 22 GB/s to other processors\n");
    EXPECT_HAS(
        ended.out,
        "│  ├─ GPU 1  32 GT/s x16, 48 GB/s; 0000:28:00.0; sm 9.0; NVLink or xGMI 370.8 GB/s; "
        "rail 1 (mlx5_1, PIX, 48 GB/s)\n");
    EXPECT_HAS(ended.out, "NVLink x18  GPU 7 - NVSwitch  370.8 GB/s\n");
    EXPECT_HAS(ended.out, "ways, class and GB/s\n");
    const std::vector<std::string> lines = lines_of(ended.out);
    EXPECT_HAS(lines[lines.size() - 8], "GPU 0");
    EXPECT_HAS(lines[lines.size() - 8], "PXN 48");
    EXPECT_HAS(lines[lines.size() - 8], "PHB 12");
}

TEST(Topo, PartsOfOneGpuHaveNoLink) {
    const ScratchFolder folder;
    const std::string path = folder.write(
        "parts.xml",
        "<system version=\"1\"><cpu numaid=\"0\"><pci busid=\"0000:01:00.0\" class=\"0x030200\">"
        "<gpu dev=\"0\" sm=\"107\" mlopart=\"0\" rank=\"0\"/><gpu dev=\"1\" "
        "sm=\"107\" mlopart=\"1\" rank=\"1\"/></pci></cpu></system>");
    const Ended ended = topo({"--xml", path});
    EXPECT_HAS(ended.out, "slowest link in a node: LOC, which is one GPU, no link,");
    EXPECT_HAS_NOT(ended.out, "5000");
}

TEST(Topo, JsonIsOneLineOfWhatIsKnown) {
    const Json json = topo_json({"--xml", fixture("switches_2gpu_1nic.xml")});
    EXPECT_EQ(json["record"], "topo");
    EXPECT_EQ(json["gpus"].size(), 8u);
    EXPECT_EQ(json["gpus"][2]["rail"], 1);
    EXPECT_EQ(json["gpus"][2]["net_known"], false);
    EXPECT_EQ(json["ways"].size(), 8u * 7 + 8 * 4);
    EXPECT_EQ(json["ways"][0]["class"], "PIX");
    EXPECT_EQ(json["ways"][0]["gb_s"], 12.0);
    EXPECT_EQ(json["communicator"]["slowest_in_node"]["class"], "SYS");
    EXPECT_EQ(json["communicator"]["slowest_between_nodes"]["class"], "DIS");
    EXPECT_EQ(json["devices"].size(), 2u + 4 + 12);
}

// The slowest link in a node is the least of the table of ways, of every machine that is recorded.
TEST(Topo, TheSlowestLinkIsTheLeastOfTheWays) {
    for (const char* name : {"cube_mesh.xml", "nvswitch_8gpu_8nic.xml", "pcie_two_levels.xml",
                             "switches_2gpu_1nic.xml", "xgmi_4gpu.xml", "hwloc_v2.xml"}) {
        const Json json = topo_json({"--xml", fixture(name)});
        std::map<int, int> is_gpu;
        for (const Json& gpu : json["gpus"]) {
            is_gpu[gpu["device"]] = 1;
        }
        double least = 1e9;
        for (const Json& way : json["ways"]) {
            if (is_gpu[way["to"]] != 0 && way["class"] != "DIS" && way["class"] != "NET") {
                least = std::min(least, way["gb_s"].get<double>());
            }
        }
        EXPECT_NEAR(json["communicator"]["slowest_in_node"]["gb_s"].get<double>(), least, 0.001)
            << name;
    }
}

TEST(Topo, LinksThatAFileLeavesToNccl) {
    const ScratchFolder folder;
    const std::string file = folder.write(
        "template.xml",
        "<system version=\"1\"><cpu numaid=\"0\">"
        "<pci busid=\"0000:01:00.0\" class=\"0x030200\" link_speed=\"16 GT/s\" link_width=\"16\"/>"
        "<pci busid=\"0000:02:00.0\" class=\"0x030200\" link_speed=\"16 GT/s\" link_width=\"16\"/>"
        "</cpu></system>");
    const Ended ended = topo({"--xml", file});
    EXPECT_HAS(ended.out, "NVLinks not known (NCCL finds them itself)");
    EXPECT_HAS(ended.out, "slowest link in a node: not known (without NVLinks PHB");
    EXPECT_EQ(topo_json({"--xml", file})["gpu_links_known"], false);
    const std::vector<std::string> plan = {
        "advise", "--xml", file, "--gpu", "a100", "--layers", "2", "--hidden", "1024", "--dp", "4"};
    expect_says(2, plan, {"accepted: --within with their GB/s"});
    expect_prints(with(plan, {"--within", "300"}), {"300 GB/s within a node"});
}

// hwloc says nothing of NVLinks, and a file without classes nothing of GPUs.
TEST(Topo, LinksThatAFileHasNoWordFor) {
    const Ended hwloc = topo({"--xml", fixture("hwloc_v2.xml")});
    EXPECT_HAS(hwloc.out, "4 GPUs, 2 NICs, 2 processors, NVLinks not known");
    EXPECT_HAS(hwloc.out, "slowest link in a node: not known (without NVLinks SYS 10 GB/s)");
    expect_says(2, {"advise", "--xml", fixture("hwloc_v2.xml"), "--gpu", "a100"},
                {"accepted: --within with their GB/s"});
    EXPECT_HAS(topo({"--xml", fixture("no_classes.xml")}).out, "NVLinks not known");
}

// To GPUs, hosts that NVLink connects are one node.
TEST(Topo, AdviseTakesAnNvLinkDomainForANode) {
    expect_prints({"advise", "--xml", fixture("grace_two_hosts.xml"), "--gpu", "b200", "--layers",
                   "4", "--hidden", "1024", "--dp", "8"},
                  {"; 4 a node, 2 nodes\n", "721.8 GB/s within a node"});
}

TEST(Topo, WhatCannotBeReadIsOneLine) {
    const ScratchFolder folder;
    const std::string bad = folder.write("bad.xml", "<system version=\"1\">\n  <cpu numaid=0/>");
    for (const auto& [path, why] :
         {std::pair<std::string, const char*>("/nowhere.xml",
                                              " cannot be read: No such file or directory\n"),
          {folder.path(), " is a folder; accepted: a file"},
          {bad,
           ": line 2, column 15: Error parsing element attribute; accepted: well-formed XML\n"}}) {
        expect_says(1, {"topo", "--xml", path}, {"slimwire: error: " + path + why});
    }
    expect_says(2, {"topo", "--nodes", "0"}, {"--nodes"});
    expect_says(1, {"topo", "--report", "/nowhere.jsonl"}, {"/nowhere.jsonl"});
    expect_says(1, {"topo", "--xml", fixture("odd.xml"), "--calibration", "none"}, {"none"});
}

// Gather pays from where a third of the bytes makes up for 20 us, two_shot nowhere.
TEST(Topo, ThresholdsOfACalibration) {
    const ScratchFolder folder;
    const double largest = 1 << 20;
    const std::string file = folder.write(
        "c.jsonl", calibration_line("f32", 8,
                                    {calibrated_way("native", "native", 20, 1, largest),
                                     calibrated_way("int8", "gather", 30, 0.3, largest),
                                     calibrated_way("int8", "two_shot", 9000, 0.3, largest)}));
    Ended ended = topo({"--xml", fixture("nvswitch_8gpu_8nic.xml"), "--calibration", file});
    EXPECT_HAS(ended.out, "comm      all GPUs: 8 ranks on 1 node; 8 rails");
    EXPECT_HAS(ended.out, "allreduce of f32 by int8, gather: pays from 16");
    EXPECT_HAS(ended.out, "two_shot: pays at no size that was measured\n");
    // Another shape was not measured.
    ended = topo({"--xml", fixture("nvswitch_8gpu_8nic.xml"), "--nodes", "2", "--calibration", file,
                  "--json"});
    EXPECT_EQ(Json::parse(ended.out).at("comms").at(0).at("thresholds").size(), 0u);
    EXPECT_HAS(ended.err, "c.jsonl has no calls of 16 ranks on 2 nodes; slimwire calibrate");
}

TEST(Topo, CommunicatorsOfAJob) {
    const ScratchFolder folder;
    const Json comm{{"v", 1},
                    {"record", "comm"},
                    {"comm", "ab"},
                    {"rank", 0},
                    {"ranks", 4},
                    {"nodes", 2},
                    {"links",
                     {{"ranks_on_node", {2, 2}},
                      {"nv_domains", 2},
                      {"rails", 1},
                      {"rails_aligned", true},
                      {"slowest_in_node", {{"class", "NVL"}, {"mb_s", 370800}}},
                      {"slowest_between_nodes", {{"class", "NET"}, {"mb_s", 0}}}}},
                    {"thresholds",
                     {{{"op", "allreduce"},
                       {"dtype", "f32"},
                       {"codec", "int4"},
                       {"algorithm", "gather"},
                       {"pays_from_bytes", 65536}}}}};
    const std::string file = folder.write("r.jsonl", comm.dump() + "\n");
    const Ended ended = topo({"--report", file});
    EXPECT_HAS(ended.out,
               "comm      ab: 4 ranks on 2 nodes; 1 rail, alike on every node; slowest link in a "
               "node: NVL 370.8 GB/s, between nodes: NET, bandwidth not known\n");
    EXPECT_HAS(ended.out, "allreduce of f32 by int4, gather: pays from 64 KiB on\n");
}

TEST(Topo, ThisMachine) {
    const Json json = topo_json({});
    EXPECT_EQ(json["source"], "this machine");
    EXPECT_GE(json["devices"].size(), 1u);
}

}  // namespace
}  // namespace slimwire::cli::test
