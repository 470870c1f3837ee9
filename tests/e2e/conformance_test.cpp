// Random NCCL calls, natively and compressed, against float64 and between ranks: runs the program
// in conformance/ as a job. 10 000 calls in all over the jobs below.
#include <gtest/gtest.h>

#include <string>

#include "tests/support/job.h"
#include "tests/support/seed.h"

namespace slimwire::test {
namespace {

struct Case {
    const char* name;
    int calls;
    int ranks;
    int threads = 0;         // devices of one process instead of ranks
    const char* codec = "";  // specification for SLIMWIRE_CODEC
    const char* codec_name = "none";
    int block = 1;
    int slice_bytes = 0;
    const char* nodes = "";
};

Job make_job(const Case& of, const std::string& seed, const std::string& reports) {
    constexpr const char* kMinBytes = "2048";
    std::vector<std::string> command = {
        SLIMWIRE_TEST_CONFORMANCE, "--seed",      seed,          "--calls",
        std::to_string(of.calls),  "--codec",     of.codec_name, "--block",
        std::to_string(of.block),  "--min-bytes", kMinBytes};
    if (of.threads > 0) {
        command.insert(command.end(), {"--threads", std::to_string(of.threads)});
    }
    Job job = of.codec[0] == 0 ? emulated_job(command, of.ranks)
                               : slimwire_job(command, of.ranks, reports);
    if (of.codec[0] != 0) {
        job.environment["SLIMWIRE_CODEC"] = of.codec;
        job.environment["SLIMWIRE_OPS"] = "all";
        job.environment["SLIMWIRE_MIN_BYTES"] = kMinBytes;
        job.environment["SLIMWIRE_SLICE_BYTES"] = std::to_string(of.slice_bytes);
    }
    if (of.threads > 0) {
        job.environment["SLIMWIRE_EMU_DEVICES"] = std::to_string(of.threads);
    }
    if (of.nodes[0] != 0) {
        job.environment["SLIMWIRE_EMU_NODES"] = of.nodes;
    }
    job.limit_s = 240;
    return job;
}

class Conformance : public testing::TestWithParam<Case> {};

TEST_P(Conformance, EveryResultIsWithinTheBoundAndEqualOnAllRanks) {
    const Case& of = GetParam();
    const std::string seed = std::to_string(test_seed());
    SCOPED_TRACE("repeat with SLIMWIRE_TEST_SEED=" + seed);
    const TemporaryFolder reports;
    const std::vector<Ended> ranks = run_ranks(make_job(of, seed, reports.path()));
    ASSERT_EQ(unless_all_exit(ranks), "");
    EXPECT_NE(ranks[0].out.find("digest "), std::string::npos) << ranks[0].out;
    if (of.codec[0] != 0) {
        // A run that compressed nothing would have shown nothing.
        const auto records = read_reports(reports.path());
        EXPECT_GT(sum_keys(records, "calls", compressed), static_cast<uint64_t>(of.calls) / 20);
        EXPECT_GT(sum_keys(records, "calls", [](const auto& key) { return !compressed(key); }),
                  static_cast<uint64_t>(of.calls) / 20);
        if (of.calls >= 1500 && of.ranks >= 3) {  // long enough for every operation to come up
            for (const char* op : {"allreduce", "reducescatter", "reduce", "allgather", "broadcast",
                                   "alltoall", "gather", "scatter", "send", "recv"}) {
                const auto of_op = [&](const auto& key) {
                    return compressed(key) && key.at("op") == op;
                };
                EXPECT_GT(sum_keys(records, "calls", of_op), 0u) << op;
            }
        }
    }
}

INSTANTIATE_TEST_SUITE_P(
    Calls,
    Conformance,
    testing::Values(Case{"native", 3000, 3},
                    Case{"int8", 1500, 4, 0, "int8:block=64", "int8", 64},
                    Case{"int4", 2500, 3, 0, "int4:block=32", "int4", 32},
                    Case{"int4_sliced", 700, 2, 0, "int4:block=64", "int4", 64, 65536},
                    Case{"int2", 500, 2, 0, "int2:block=64", "int2", 64},
                    Case{"int6_stochastic", 400, 3, 0, "int6:block=64,rounding=stochastic",
                         "int6_stochastic", 64},
                    Case{"int8_rotated", 400, 3, 0, "int8:block=64,rotate=64", "int8_rotated", 64},
                    Case{"fp8e4m3", 400, 2, 0, "fp8e4m3:block=64", "fp8e4m3", 64},
                    Case{"bf16", 1500, 2, 0, "bf16", "bf16", 1},
                    Case{"threads", 1200, 1, 3, "int4:block=64", "int4", 64},
                    Case{"threads_native", 600, 1, 4}),
    [](const auto& info) { return std::string(info.param.name); });

class Determinism : public testing::TestWithParam<Case> {};

TEST_P(Determinism, TheSameSeedGivesTheSameBits) {
    const Case& of = GetParam();
    const std::string seed = std::to_string(test_seed());
    SCOPED_TRACE("repeat with SLIMWIRE_TEST_SEED=" + seed);
    const TemporaryFolder reports;
    const std::vector<Ended> first = run_ranks(make_job(of, seed, reports.path()));
    const std::vector<Ended> second = run_ranks(make_job(of, seed, reports.path()));
    ASSERT_EQ(unless_all_exit(first), "");
    ASSERT_EQ(unless_all_exit(second), "");
    EXPECT_EQ(first[0].out, second[0].out);
    const std::vector<Ended> other = run_ranks(make_job(of, seed + "1", reports.path()));
    ASSERT_EQ(unless_all_exit(other), "");
    EXPECT_NE(first[0].out.substr(first[0].out.find("digest")),
              other[0].out.substr(other[0].out.find("digest")));
}

INSTANTIATE_TEST_SUITE_P(Calls,
                         Determinism,
                         testing::Values(Case{"native", 150, 2},
                                         Case{"int6_stochastic", 150, 3, 0,
                                              "int6:block=64,rounding=stochastic",
                                              "int6_stochastic", 64},
                                         Case{"int4", 150, 3, 0, "int4:block=64", "int4", 64}),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace slimwire::test
