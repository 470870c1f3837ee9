// Parts of the command line that need no process: the judgement of benchmark figures, lists,
// shapes, environments.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/tools/cli_program.h"
#include "tools/cli/bench/bench_collective.h"
#include "tools/cli/common/environment.h"
#include "tools/cli/common/text.h"
#include "tools/cli/run/hook.h"
#include "tools/cli/run/job.h"

namespace slimwire::cli::test {
namespace {

// 64 MiB fp32 on 4 ranks at 1 Gbit/s, int4: an eighth of the bytes and a bit.
CollectiveMeasurement plausible() {
    CollectiveMeasurement m;
    m.codec = "int4";
    m.reported_codec = "int4";
    m.algorithm = "two_shot";
    m.bytes = 64u << 20;
    m.native_us = {820000, 815000, 810000};
    m.time_us = {140000, 150000, 145000};
    m.counted = true;
    m.native_wire_bytes = 100663296;
    m.wire_bytes = 13369344;
    m.reported_wire_bytes = 13369344;
    m.formula_bytes = 100663296;
    m.ideal_us = 805306;
    m.rel_error = 0.08;
    return m;
}

TEST(Judge, MediansAndRatios) {
    const auto result = judge(plausible());
    EXPECT_FALSE(result.contains("failed"));
    EXPECT_DOUBLE_EQ(result["native_us"], 815000);
    EXPECT_DOUBLE_EQ(result["time_us"], 145000);
    EXPECT_DOUBLE_EQ(result["speedup"], 815000.0 / 145000.0);
    EXPECT_DOUBLE_EQ(result["efficiency"], (815000.0 / 145000.0) / (100663296.0 / 13369344.0));
    // What was counted between nodes decides where it is known.
    CollectiveMeasurement nodes = plausible();
    nodes.native_between_nodes_bytes = 9000;
    nodes.between_nodes_bytes = 1000;
    EXPECT_DOUBLE_EQ(judge(nodes)["efficiency"], (815000.0 / 145000.0) / 9);
    EXPECT_EQ(result["algorithm"], "two_shot");

    CollectiveMeasurement even = plausible();
    even.time_us = {1, 2, 4, 100};
    EXPECT_DOUBLE_EQ(judge(even)["time_us"], 3);
}

TEST(Judge, ImpossibleFiguresAreFailures) {
    using Change = void (*)(CollectiveMeasurement&);
    const std::pair<Change, const char*> kWrong[] = {
        {[](CollectiveMeasurement& m) { m.time_us = {100000}; }, "efficiency"},
        {[](CollectiveMeasurement& m) { m.native_us = {850000}; }, "of its ideal"},
        {[](CollectiveMeasurement& m) { m.reported_wire_bytes -= 16; },
         "the transport counted 13369344"},
        {[](CollectiveMeasurement& m) { m.identical = false; }, "differ"},
        {[](CollectiveMeasurement& m) { m.rel_error = NAN; }, "not finite"},
        {[](CollectiveMeasurement& m) { m.nodes = 2, m.reported_nodes = 4; },
         "stand on 4 nodes, not 2"},
        {[](CollectiveMeasurement& m) { m.reported_codec = "native", m.reason = "why"; },
         "not compressed: why"},
        {[](CollectiveMeasurement& m) { m.reported_codec = ""; }, "does not have the call"}};
    for (const auto& [change, why] : kWrong) {
        CollectiveMeasurement m = plausible();
        change(m);
        EXPECT_HAS(judge(m).value("failed", ""), why);
    }
}

TEST(Judge, LimitsAreWhereTheContractPutsThem) {
    CollectiveMeasurement m = plausible();
    m.ideal_us = 800000;
    m.native_us = {840000};  // 1.05 exactly
    EXPECT_FALSE(judge(m).contains("failed"));
    m.native_us = {840800};
    EXPECT_TRUE(judge(m).contains("failed"));
    // Unshaped: no ideal to hold native to.
    m.ideal_us = 0;
    m.native_us = {999999};
    m.time_us = {999999};
    EXPECT_FALSE(judge(m).contains("failed"));
}

TEST(Judge, NativeIsABaseline) {
    CollectiveMeasurement m = plausible();
    m.codec = "native";
    m.reported_codec = "native";
    m.algorithm = "native";
    m.time_us = m.native_us;
    m.wire_bytes = m.native_wire_bytes;
    m.reported_wire_bytes = 1;
    const auto result = judge(m);
    EXPECT_FALSE(result.contains("failed"));
    EXPECT_DOUBLE_EQ(result["speedup"], 1);
    EXPECT_DOUBLE_EQ(result["efficiency"], 1);
}

TEST(Judge, WithoutACountTheReportSpeaks) {
    CollectiveMeasurement m = plausible();
    m.counted = false;
    m.wire_bytes = m.native_wire_bytes = -1;
    const auto result = judge(m);
    EXPECT_FALSE(result.contains("failed"));
    EXPECT_DOUBLE_EQ(result["wire_bytes"], 13369344);
    EXPECT_DOUBLE_EQ(result["native_wire_bytes"], 100663296);
}

TEST(Lists, CommasInsideACodecBelongToIt) {
    EXPECT_EQ(split_codecs("int4,int8:block=128,scale=f32,bf16"),
              (std::vector<std::string>{"int4", "int8:block=128,scale=f32", "bf16"}));
    EXPECT_EQ(split_codecs("int4:block=64"), (std::vector<std::string>{"int4:block=64"}));
    EXPECT_TRUE(split_codecs("").empty());
}

TEST(Shapes, LinkAndNodes) {
    const Result<LinkSpec> link = parse_link("2.5gbit,50us");
    ASSERT_TRUE(link.ok()) << link.status().message();
    EXPECT_DOUBLE_EQ(link.value().bits_per_second, 2.5e9);
    EXPECT_DOUBLE_EQ(link.value().latency_us, 50);
    EXPECT_DOUBLE_EQ(parse_link("100mbit").value().bits_per_second, 1e8);
    for (const char* bad :
         {"", "gbit", "1", "1gbit,", "1gbit,5", "-1gbit", "0mbit", "1gbit,5us,6us"}) {
        EXPECT_FALSE(parse_link(bad).ok()) << bad;
    }
    const Result<NodeShape> nodes = parse_nodes("3x8");
    ASSERT_TRUE(nodes.ok());
    EXPECT_EQ(nodes.value().nodes, 3);
    EXPECT_EQ(nodes.value().ranks_per_node, 8);
    for (const char* bad : {"", "3", "x", "3x", "x8", "0x8", "3x0", "3x8x1", "-1x2", "3 x8"}) {
        EXPECT_FALSE(parse_nodes(bad).ok()) << bad;
    }
}

TEST(Environments, PrependKeepsWhatIsThere) {
    Environment environment;
    environment.prepend("LD_LIBRARY_PATH", "/ours");
    EXPECT_STREQ(environment.get("LD_LIBRARY_PATH"), "/ours");  // no empty element: that is "."
    environment.set("LD_LIBRARY_PATH", "/a::/b");
    environment.prepend("LD_LIBRARY_PATH", "/ours");
    EXPECT_STREQ(environment.get("LD_LIBRARY_PATH"), "/ours:/a::/b");
    environment.prepend("LD_LIBRARY_PATH", "/b");
    EXPECT_STREQ(environment.get("LD_LIBRARY_PATH"), "/b:/ours:/a");
    environment.set("LD_PRELOAD", "x.so y.so");
    environment.prepend_preload("/ours.so");
    EXPECT_STREQ(environment.get("LD_PRELOAD"), "/ours.so:x.so y.so");
    EXPECT_EQ(environment.get("ABSENT"), nullptr);
}

TEST(Environments, NativeHasNoHook) {
    const ScratchFolder folder;
    const std::string real = folder.write("real/libnccl.so.2", "");
    std::filesystem::create_directories(folder.path() / "dropin");
    std::filesystem::create_symlink(real, folder.path() / "dropin/libnccl-real.so");
    Environment environment;
    environment.set("LD_PRELOAD", "/a/libslimwire.so x.so");
    environment.set("LD_AUDIT", "/b/libslimwire-audit.so");
    environment.set("LD_LIBRARY_PATH", "/c:" + (folder.path() / "dropin").string() + "::/d");
    take_hooks_out(&environment);
    EXPECT_STREQ(environment.get("LD_PRELOAD"), "x.so");
    EXPECT_EQ(environment.get("LD_AUDIT"), nullptr);
    EXPECT_EQ(environment.get("LD_LIBRARY_PATH"),
              "/c:" + std::filesystem::canonical(folder.path() / "real").string() + ":/d");
    environment.set("LD_LIBRARY_PATH", "/c::/d");
    take_hooks_out(&environment);
    EXPECT_STREQ(environment.get("LD_LIBRARY_PATH"), "/c::/d");
}

TEST(Texts, Bytes) {
    EXPECT_EQ(format_bytes(0), "0 B");
    EXPECT_EQ(format_bytes(1023), "1023 B");
    EXPECT_EQ(format_bytes(65536), "64 KiB");
    EXPECT_EQ(format_bytes(1.5 * 1024 * 1024), "1.5 MiB");
}

}  // namespace
}  // namespace slimwire::cli::test
