// What a calibration makes of rules that leave algorithm and sizes open, files of calibrations, and
// times of calls that ranks agreed on when a communicator was made.
#include "collectives/plan/comm_costs.h"

#include <gtest/gtest.h>

#include <unistd.h>

#include <array>
#include <cstdio>
#include <fstream>
#include <memory>
#include <vector>

#include "collectives/dispatch/planner.h"
#include "collectives/plan/plan.h"
#include "collectives/plan/timed_calls.h"
#include "collectives/policy/calibration_file.h"
#include "collectives/policy/names.h"

namespace slimwire {
namespace {

constexpr uint64_t kKiB = 1024, kMiB = 1 << 20;
const char* const kInt4 = "int4";

// A way that takes `fixed_us` and what `wire` of each byte takes at 1 GB/s.
std::string way(const std::string& codec,
                const std::string& algorithm,
                double fixed_us,
                double wire) {
    std::string samples;
    for (uint64_t bytes = 4 * kKiB; bytes <= 16 * kMiB; bytes *= 4) {
        const double crossing = wire * static_cast<double>(bytes);
        samples += (samples.empty() ? "" : ",") + std::string("{\"bytes\":") +
                   std::to_string(bytes) + ",\"wire_bytes\":" + std::to_string(crossing) +
                   ",\"seconds\":" + std::to_string(fixed_us * 1e-6 + crossing * 1e-9) + "}";
    }
    return "{\"codec\":\"" + codec + "\",\"algorithm\":\"" + algorithm + "\",\"samples\":[" +
           samples + "]}";
}

std::string line(const std::string& op,
                 int ranks,
                 int nodes,
                 double nominal_gb_s,
                 const std::vector<std::string>& ways) {
    std::string all;
    for (const std::string& one : ways) {
        all += (all.empty() ? "" : ",") + one;
    }
    return "{\"record\":\"calibration\",\"op\":\"" + op +
           "\",\"dtype\":\"f32\",\"ranks\":" + std::to_string(ranks) +
           ",\"nodes\":" + std::to_string(nodes) +
           ",\"nominal_gb_s\":" + std::to_string(nominal_gb_s) + ",\"ways\":[" + all + "]}\n";
}

// Native needs 20 us and every byte, gather 100 us and half, two_shot 400 us and an eighth.
std::string usual_line(double nominal_gb_s = 1) {
    return line("all_reduce", 4, 4, nominal_gb_s,
                {way("native", "native", 20, 1), way(kInt4, "two_shot", 400, 0.125),
                 way(kInt4, "gather", 100, 0.5)});
}

std::shared_ptr<const CommCosts> costs_of(const std::string& text,
                                          int ranks,
                                          int nodes,
                                          uint32_t mb_s) {
    Result<std::vector<Calibration>> read = read_calibrations(text, "c.jsonl");
    EXPECT_TRUE(read.ok()) << read.status().message();
    return CommCosts::make(
        std::make_shared<const std::vector<Calibration>>(std::move(read).value()), ranks, nodes,
        mb_s);
}

Config costs_config_of(const std::string& keys, const std::string& match = "op = \"allreduce\"") {
    Result<Policy> policy = parse_policy(
        "version = 1\n[[rule]]\nname = \"r\"\nmatch = { " + match + " }\n" + keys, "p.toml");
    EXPECT_TRUE(policy.ok()) << policy.status().message();
    Config config;
    config.policy = std::move(policy).value();
    config.active = true;
    return config;
}

PlanShape costs_shape_of(int ranks, std::shared_ptr<const CommCosts> costs) {
    PlanShape shape;
    shape.ranks = ranks;
    shape.go = true;
    shape.costs = std::move(costs);
    return shape;
}

CallSignature call_of(uint64_t bytes, Op op = Op::kAllReduce) {
    CallSignature signature;
    signature.op = op;
    signature.count = bytes / 4;
    signature.dtype = DType::kFloat32;
    signature.redop = reduces(op) ? RedOp::kSum : RedOp::kNone;
    return signature;
}

Plan plan_of(uint64_t bytes, const std::string& keys, const PlanShape& shape) {
    return make_plan(call_of(bytes), shape, costs_config_of(keys));
}

TEST(CommCosts, TheFastestAlgorithmIsWhatAutoMeans) {
    const PlanShape shape = costs_shape_of(4, costs_of(usual_line(), 4, 4, 1000));
    const std::string keys = "codec = \"int4\"\nmin_bytes = 0\n";
    const Plan small = plan_of(256 * kKiB, keys, shape);
    ASSERT_TRUE(small.compressed) << small.reason;
    EXPECT_EQ(small.algorithm, Algorithm::kGather) << small.reason;
    EXPECT_NE(small.reason.find("by gather and"), std::string::npos) << small.reason;
    const Plan large = plan_of(4 * kMiB, keys, shape);
    EXPECT_EQ(large.algorithm, Algorithm::kTwoShot) << large.reason;
    // Nearly alike: the shape's stays, and the reason has its time.
    const Plan alike = plan_of(720 * kKiB, keys, shape);
    EXPECT_EQ(alike.algorithm, Algorithm::kTwoShot) << alike.reason;
    EXPECT_NE(alike.reason.find("0.492 ms by two_shot and"), std::string::npos) << alike.reason;
    // A rule's own word stands, and without a calibration the shape decides.
    EXPECT_EQ(plan_of(256 * kKiB, keys + "algorithm = \"two_shot\"\n", shape).algorithm,
              Algorithm::kTwoShot);
    EXPECT_EQ(plan_of(256 * kKiB, keys, costs_shape_of(4, nullptr)).algorithm, Algorithm::kTwoShot);
}

// 100 us + 0.5 n at 1 GB/s against 20 us + n: 5 % of the native time are saved from 180 kB on.
TEST(CommCosts, AutoCompressesFromWhereItPays) {
    const PlanShape shape = costs_shape_of(4, costs_of(usual_line(), 4, 4, 1000));
    const std::string keys = "codec = \"int4\"\nmin_bytes = \"auto\"\n";
    EXPECT_TRUE(plan_of(192 * kKiB, keys, shape).compressed);
    const Plan small = plan_of(160 * kKiB, keys, shape);
    EXPECT_FALSE(small.compressed);
    EXPECT_NE(small.reason.find("natively, as calibrated, which saves less than 5 %"),
              std::string::npos)
        << small.reason;
    const Plan slower = plan_of(128 * kKiB, keys, shape);
    EXPECT_TRUE(slower.reason.ends_with("natively, as calibrated")) << slower.reason;
    EXPECT_EQ(small.rule, "r");
    // A number of the rule's own stays what it is.
    EXPECT_TRUE(plan_of(64 * kKiB, "codec = \"int4\"\nmin_bytes = 0\n", shape).compressed);
}

// Gather saves 6 % at 1 MiB, the shape's two_shot nothing.
TEST(CommCosts, AutoTakesTheAlgorithmThatPays) {
    const std::string text = line("all_reduce", 4, 4, 1,
                                  {way("native", "native", 20, 1), way(kInt4, "two_shot", 80, 0.95),
                                   way(kInt4, "gather", 60, 0.9)});
    const PlanShape shape = costs_shape_of(4, costs_of(text, 4, 4, 1000));
    const Plan plan = plan_of(1 * kMiB, "codec = \"int4\"\nmin_bytes = \"auto\"\n", shape);
    EXPECT_TRUE(plan.compressed) << plan.reason;
    EXPECT_EQ(plan.algorithm, Algorithm::kGather) << plan.reason;
}

TEST(CommCosts, LinksOfTheCommunicatorAreWhatCounts) {
    const std::string keys = "codec = \"int4\"\nmin_bytes = \"auto\"\n";
    // Ten times faster: bytes matter ten times less.
    EXPECT_FALSE(plan_of(192 * kKiB, keys, costs_shape_of(4, costs_of(usual_line(), 4, 4, 10000)))
                     .compressed);
    EXPECT_TRUE(
        plan_of(32 * kKiB, keys, costs_shape_of(4, costs_of(usual_line(), 4, 4, 100))).compressed);
    // Not known: the link that was measured.
    EXPECT_TRUE(
        plan_of(192 * kKiB, keys, costs_shape_of(4, costs_of(usual_line(), 4, 4, 0))).compressed);
    // Of two of one shape the nearer.
    const std::string slow =
        line("all_reduce", 4, 4, 0.1,
             {way("native", "native", 20, 1), way(kInt4, "two_shot", 9000, 0.9)});
    EXPECT_TRUE(
        plan_of(192 * kKiB, keys, costs_shape_of(4, costs_of(slow + usual_line(), 4, 4, 900)))
            .compressed);
    EXPECT_FALSE(
        plan_of(192 * kKiB, keys, costs_shape_of(4, costs_of(usual_line() + slow, 4, 4, 110)))
            .compressed);
}

TEST(CommCosts, OtherShapesCodecsAndTypesAreNotKnown) {
    EXPECT_EQ(costs_of(usual_line(), 8, 4, 0), nullptr);
    EXPECT_EQ(costs_of(usual_line(), 4, 2, 0), nullptr);
    EXPECT_EQ(CommCosts::make(nullptr, 4, 4, 0), nullptr);
    const std::shared_ptr<const CommCosts> costs = costs_of(usual_line(), 4, 4, 0);
    ASSERT_NE(costs, nullptr);
    EXPECT_EQ(costs->find(Op::kAllReduce, DType::kFloat32, kInt4, kMiB).ways.size(), 2u);
    EXPECT_TRUE(costs->find(Op::kAllReduce, DType::kBfloat16, kInt4, kMiB).ways.empty());
    EXPECT_TRUE(costs->find(Op::kAllReduce, DType::kFloat32, "int8", kMiB).ways.empty());
    EXPECT_TRUE(costs->find(Op::kReduceScatter, DType::kFloat32, kInt4, kMiB).ways.empty());
    // These have the floor that they have without: 64 KiB where no bandwidth is known.
    const std::string keys = "codec = \"int8\"\nmin_bytes = \"auto\"\n";
    EXPECT_TRUE(plan_of(64 * kKiB, keys, costs_shape_of(4, costs)).compressed);
    EXPECT_FALSE(plan_of(32 * kKiB, keys, costs_shape_of(4, costs)).compressed);
}

// On a known link of 1 GB/s and 4 ranks int4 saves 5 % of 1.5 n from about 17 KiB on: four passes
// of 5 us against 1.5 n (0.95 - 0.13) ns.
TEST(CommCosts, WithoutACalibrationTheLinkSaysFromWhere) {
    const std::string keys = "codec = \"int4\"\nmin_bytes = \"auto\"\n";
    PlanShape shape = costs_shape_of(4, nullptr);
    EXPECT_FALSE(plan_of(63 * kKiB, keys, shape).compressed);
    EXPECT_TRUE(plan_of(64 * kKiB, keys, shape).compressed);
    shape.slowest_mb_s = 1000;
    EXPECT_TRUE(plan_of(20 * kKiB, keys, shape).compressed);
    const Plan small = plan_of(14 * kKiB, keys, shape);
    EXPECT_FALSE(small.compressed);
    EXPECT_NE(small.reason.find("as estimated for 1000 MB/s"), std::string::npos) << small.reason;
    // A link as fast as memory: at no size.
    shape.slowest_mb_s = 1000000;
    EXPECT_FALSE(plan_of(1024 * kMiB, keys, shape).compressed);
    // Between two nodes of two the slowest link carries what two ends exchange.
    shape.slowest_mb_s = 1000;
    shape.max_ranks_per_node = 2;
    shape.scope = Scope::kInterNode;
    EXPECT_FALSE(plan_of(20 * kKiB, keys, shape).compressed);
    EXPECT_TRUE(plan_of(40 * kKiB, keys, shape).compressed);
}

TEST(CommCosts, StagesOfOneTensorStayWithOneAlgorithm) {
    const PlanShape shape = costs_shape_of(4, costs_of(usual_line(), 4, 4, 1000));
    const Plan plan = plan_of(256 * kKiB,
                              "codec = \"int4\"\nmin_bytes = 0\nef = \"ef14\"\n"
                              "accordion = { low = \"int8\", window = 4 }\n",
                              shape);
    EXPECT_EQ(
        plan.algorithm,
        plan_of(256 * kKiB, "codec = \"int4\"\nmin_bytes = 0\nalgorithm = \"two_shot\"\n", shape)
            .algorithm)
        << plan.reason;
}

TEST(CommCosts, BothEndsOfAMessageDecideAlike) {
    const std::string text =
        line("pairs", 4, 4, 1, {way("native", "native", 20, 1), way(kInt4, "direct", 60, 0.2)});
    const Config config =
        costs_config_of("codec = \"int4\"\nmin_bytes = \"auto\"\n", "op = \"send\"");
    for (const Op op : {Op::kSend, Op::kRecv}) {
        PlanShape shape = costs_shape_of(4, costs_of(text, 4, 4, 0));
        EXPECT_TRUE(make_plan(call_of(64 * kKiB, op), shape, config).compressed);
        EXPECT_FALSE(make_plan(call_of(48 * kKiB, op), shape, config).compressed);
        // Where some peers share a node, what was measured is not known to hold.
        shape.scope = Scope::kInterNode;
        shape.max_ranks_per_node = 2;
        EXPECT_TRUE(make_plan(call_of(64 * kKiB, op), shape, config).compressed);
        EXPECT_FALSE(make_plan(call_of(60 * kKiB, op), shape, config).compressed);
    }
}

TEST(CommCosts, ThresholdsAreOfTheCommunicatorsOwnLink) {
    const std::vector<CostThreshold> fast = costs_of(usual_line(), 4, 4, 1000)->thresholds();
    ASSERT_EQ(fast.size(), 2u);
    EXPECT_EQ(fast[1].codec, kInt4);
    EXPECT_EQ(fast[1].algorithm, "gather");
    ASSERT_TRUE(fast[1].pays_from_bytes.has_value());
    EXPECT_NEAR(static_cast<double>(*fast[1].pays_from_bytes), 180e3, 6e3);
    const std::vector<CostThreshold> slow = costs_of(usual_line(), 4, 4, 100)->thresholds();
    EXPECT_LT(slow[1].pays_from_bytes.value(), 40e3);
}

TEST(CalibrationFile, ErrorsSayWhere) {
    const auto with = [](const char* member, const char* other) {
        std::string text = usual_line();
        const std::string name = std::string("\"") + member + "\":";
        const size_t begin = text.find(name) + name.size();
        return text.replace(begin, text.find_first_of(",}]", begin) - begin, other);
    };
    std::vector<std::pair<std::string, std::string>> cases = {
        {usual_line() + "{\"record\":7}\n", "c.jsonl:2: no calibration"},
        {"nonsense", "c.jsonl:1:"},
        {"[]", "c.jsonl:1:"},
        {"{\"record\":\"calibration\"}", "c.jsonl:1: a calibration with no 'op'; accepted: a text"},
        {with("ranks", "\"four\""),
         "c.jsonl:1: a calibration with 'ranks' of \"four\"; accepted: a "
         "whole number from 1 to 1048576"},
        {with("dtype", "7"), "'dtype' of 7; accepted: a text"},
        {"{\"record\":\"calibration\",\"op\":\"all_reduce\",\"dtype\":\"f32\",\"ranks\":2,"
         "\"nodes\":1,\"nominal_gb_s\":1,\"ways\":{}}",
         "'ways' of {}; accepted: a list"},
        {line("all_reduce", 4, 4, 1, {way("int4", "two_shot", 1, 1)}), "first way is not native"}};
    for (const char* wrong : {"-4", "0", "2.5", "null", "1e300", "9999999999"}) {
        cases.emplace_back(with("nodes", wrong), "'nodes' of ");
    }
    for (const char* name : {"nominal_gb_s", "bytes", "seconds"}) {
        cases.emplace_back(with(name, "-1"), "of -1; accepted: a number from 0");
    }
    for (const auto& [text, part] : cases) {
        const std::string message = read_calibrations(text, "c.jsonl").status().message();
        EXPECT_NE(message.find(part), std::string::npos) << message;
    }
}

class CalibrationOfAJob : public testing::Test {
  protected:
    ~CalibrationOfAJob() override { (void)std::remove(path_.c_str()); }

    // With SLIMWIRE_CALIBRATION of `path`.
    static Result<Config> load(const std::string& path) {
        named_ = path;
        const std::array<const char*, 1> nothing{nullptr};
        return load_config(
            [](const char* name) -> const char* {
                const std::string variable = name;
                return variable == "SLIMWIRE_CODEC"         ? "int4"
                       : variable == "SLIMWIRE_CALIBRATION" ? named_.c_str()
                                                            : nullptr;
            },
            nothing.data());
    }
    Result<Config> load_text(const std::string& text) const {
        std::ofstream(path_) << text;
        return load(path_);
    }
    const std::string path_ =
        testing::TempDir() + "/calibration-" + std::to_string(getpid()) + ".jsonl";

  private:
    static std::string named_;
};
std::string CalibrationOfAJob::named_;

// Ranks with other calibrations would make other plans, so they must differ in what is compared.
TEST_F(CalibrationOfAJob, IsInTheHash) {
    const auto hash = [](const Result<Config>& config) {
        EXPECT_TRUE(config.ok()) << config.status().message();
        return config.ok() ? config.value().hash : 0;
    };
    const uint64_t one = hash(load_text(usual_line()));
    EXPECT_NE(one, hash(load("")));
    EXPECT_NE(one, hash(load_text(usual_line(2))));
    EXPECT_EQ(one, hash(load_text(usual_line())));
}

TEST_F(CalibrationOfAJob, IsAnErrorWhereItCannotBeRead) {
    for (const std::string& text : {std::string(), std::string("{}\n")}) {
        const Status status = load_text(text).status();
        EXPECT_EQ(status.message().find("SLIMWIRE_CALIBRATION: " + path_), 0u) << status.message();
    }
    for (const std::string& path : {path_ + ".missing", testing::TempDir()}) {
        const Status status = load(path).status();
        EXPECT_EQ(status.message().find("SLIMWIRE_CALIBRATION: " + path), 0u) << status.message();
    }
}

const TimedKind kSums{Op::kAllReduce, DType::kFloat32, "int8:block=256", "two_shot"};

// Of a link of `ns_per_kib` and a codec that sends a quarter of the bytes and takes `codec_ns` more
// a call, on top of a latency.
TimedCalls times_on(double ns_per_kib, double codec_ns, size_t sizes) {
    TimedCalls times;
    for (size_t size = 0; size < sizes; ++size) {
        const double kib = static_cast<double>(TimedCalls::kBytes[size]) / 1024;
        times.pairs[0][size] = {static_cast<uint32_t>(20000 + ns_per_kib * kib),
                                static_cast<uint32_t>(20000 + codec_ns + ns_per_kib * kib / 4)};
    }
    return times;
}

std::shared_ptr<const CommCosts> costs_of(const TimedCalls& times,
                                          const std::vector<TimedKind>& kinds = {kSums}) {
    return CommCosts::make(
        std::make_shared<const std::vector<Calibration>>(calibrations_of(kinds, times, 4, 2)), 4, 2,
        1250, "as timed");
}

TEST(TimedCalls, SayFromWhichSizeCallsPay) {
    // 5 % of 20 us + 8 us a KiB are saved from 6 us a KiB * n = 51 us + 0.4 us * n on: 9.1 KiB.
    const auto costs = costs_of(times_on(8000, 50000, 3));
    ASSERT_NE(costs, nullptr);
    EXPECT_STREQ(costs->how(), "as timed");
    const std::vector<CostThreshold> all = costs->thresholds();
    ASSERT_EQ(all.size(), 1u);
    EXPECT_EQ(all[0].codec, kSums.codec);
    EXPECT_EQ(all[0].algorithm, "two_shot");
    ASSERT_TRUE(all[0].pays_from_bytes.has_value());
    EXPECT_NEAR(static_cast<double>(*all[0].pays_from_bytes), 9.1 * 1024, 300);
}

// Straight on beyond the largest size: on a fast link the codec's latency is paid for later.
TEST(TimedCalls, SayThatLargerOnesPay) {
    const auto costs = costs_of(times_on(8, 200000, TimedCalls::kBytes.size()));
    const std::vector<CostThreshold> all = costs->thresholds();
    ASSERT_TRUE(all.at(0).pays_from_bytes.has_value());
    EXPECT_NEAR(static_cast<double>(*all[0].pays_from_bytes), 36.75e6, 1e6);
    const CommCosts::Call call =
        costs->find(Op::kAllReduce, DType::kFloat32, kSums.codec, 256 << 20);
    ASSERT_EQ(call.ways.size(), 1u);
    EXPECT_NEAR(call.native_s, 20e-6 + 8e-9 * (256 << 10), 1e-6);
    EXPECT_NEAR(call.ways[0].seconds, 220e-6 + 2e-9 * (256 << 10), 1e-6);
}

TEST(TimedCalls, SayThatACodecNeverPays) {
    TimedCalls times = times_on(8000, 50000, 3);
    for (TimedCalls::Pair& pair : times.pairs[0]) {
        std::swap(pair.native_ns, pair.compressed_ns);
    }
    EXPECT_FALSE(costs_of(times)->thresholds().at(0).pays_from_bytes.has_value());
}

TEST(TimedCalls, SayNothingByOneSizeOrForAnotherShape) {
    EXPECT_EQ(costs_of(times_on(8000, 50000, 1)), nullptr);
    const auto all = std::make_shared<const std::vector<Calibration>>(
        calibrations_of({kSums}, times_on(8000, 50000, 3), 4, 2));
    EXPECT_EQ(CommCosts::make(all, 4, 1, 0), nullptr);
    EXPECT_NE(CommCosts::make(all, 4, 2, 0), nullptr) << "a part of the same shape";
}

TEST(TimedCalls, OfOneOperationAreOneCalibration) {
    TimedCalls times = times_on(8000, 50000, 3);
    times.pairs[1] = times.pairs[2] = times.pairs[0];
    TimedKind other = kSums, scattered = kSums;
    other.codec = "int4:block=64";
    scattered.op = Op::kReduceScatter;
    const auto all = calibrations_of({kSums, other, scattered}, times, 4, 2);
    ASSERT_EQ(all.size(), 2u);
    EXPECT_EQ(all[0].ways.size(), 3u);
    EXPECT_EQ(all[1].ways.size(), 2u);
    EXPECT_EQ(costs_of(times, {kSums, other, scattered})->thresholds().size(), 3u);
}

TEST(TimedCalls, AreTheMedianOfRanks) {
    std::vector<TimedCalls> ranks(3);
    ranks[0].pairs[0][1] = {7000000, 900};
    ranks[1].pairs[0][1] = {7, 300};
    ranks[2].pairs[0][1] = {5000, 8000000};
    const TimedCalls times = TimedCalls::median_of(ranks);
    EXPECT_EQ(times.pairs[0][1].native_ns, 5000u);
    EXPECT_EQ(times.pairs[0][1].compressed_ns, 900u);
    EXPECT_EQ(times.pairs[0][0].native_ns, 0u);
}

TEST(TimedCalls, GoOnWithinTheBudget) {
    const size_t sizes = TimedCalls::kBytes.size();
    EXPECT_TRUE(TimedCalls().goes_on(0));
    EXPECT_TRUE(times_on(8, 5000, 2).goes_on(2));
    EXPECT_TRUE(times_on(8, 5000, sizes - 1).goes_on(sizes - 1));
    EXPECT_FALSE(times_on(8, 5000, sizes).goes_on(sizes));
    // 1 Gbit/s: 12 us a KiB. 64 KiB take 1 ms natively and 512 KiB 6 ms; 4 MiB would take 50 ms.
    EXPECT_TRUE(times_on(12000, 50000, 2).goes_on(2));
    EXPECT_FALSE(times_on(12000, 50000, 3).goes_on(3));
}

}  // namespace
}  // namespace slimwire
