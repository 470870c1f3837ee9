// Two accounts that must balance: the bytes slimwire reports and the emulator's transport counted,
// and what error feedback owes after many steps.
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <fstream>

#include "tests/e2e/wire_job.h"
#include "tests/support/has.h"

namespace slimwire::test {
namespace {

std::vector<SentBytes> run_coded_job(int ranks,
                                     const std::string& codec,
                                     const std::string& slice_bytes,
                                     const std::string& op = "allreduce") {
    return run_wire_job(ranks,
                        {{"SLIMWIRE_CODEC", codec},
                         {"SLIMWIRE_OPS", "all"},
                         {"SLIMWIRE_MIN_BYTES", "1KiB"},
                         {"runtime.slice_bytes", slice_bytes}},
                        {op, "100000", "65537", "5000", "1048576"});
}

// Factors and what is raw, by low_rank.cpp; in a tensor's first call the ranks tell each
// other what state they loaded, too.
TEST(WireBytes, OfFactorsAreTheFormula) {
    for (const auto& [ranks, codec] : {std::pair<uint64_t, const char*>{2, "powersgd:row=256"},
                                       {4, "powersgd:row=256"},
                                       {2, "linear_ae:row=256"}}) {
        SCOPED_TRACE(std::string(codec) + " on " + std::to_string(ranks));
        uint64_t elements = 0, halves = 0;
        for (const uint64_t count : {100000, 65536, 1048576}) {
            const uint64_t rows = count / 256, raw = count % 256;
            elements += 2 * 4 * (rows + 256) + raw + 2 * 128;
            halves += raw;
        }
        const uint64_t expected = 2 * (ranks - 1) * (4 * elements + 2 * halves) / ranks;
        for (const SentBytes& sent : run_wire_job(
                 static_cast<int>(ranks), {{"SLIMWIRE_CODEC", codec}, {"SLIMWIRE_EF", "ef14"}},
                 {"allreduce", "100000", "65536", "1048576"})) {
            EXPECT_EQ(sent.compressed_calls, 6u);
            EXPECT_EQ(sent.counted, expected);
            EXPECT_EQ(sent.reported + 6 * 2 * (ranks - 1) * 2 * 64 * sizeof(float) / ranks,
                      expected);
        }
    }
}

// Numbers of rows, what is of no row, and behind each answer the gradients of both matrices.
TEST(WireBytes, OfWhatAnAutoencoderOfCollectivesLearnsToo) {
    constexpr uint64_t kRanks = 3, kRow = 192, kWidth = 4, kCount = 65536;
    const auto run = [&](const std::string& row) {
        return run_wire_job(
            kRanks,
            {{"SLIMWIRE_POLICY",
              "[[rule]]\nname = \"tables\"\nmatch = { op = \"alltoall\", dtype = \"f32\" }\n"
              "forward_calls = 1\ncodec = \"linear_ae:width=4,row=" +
                  row + "\"\n"}},
            {"alltoall", "65536", "65536"});
    };
    constexpr uint64_t kNumbers = 4 * (kCount / kRow * kWidth) + 4 * (kCount % kRow);
    for (const SentBytes& sent : run("192")) {
        EXPECT_EQ(sent.reported, sent.counted);
        EXPECT_EQ(sent.compressed_reported,
                  2 * (kRanks - 1) * ((kNumbers + 15) / 16 * 16) +
                      2 * (2 * (kRanks - 1) * 4 * kRow * kWidth / kRanks));
    }
    // Of matrices that take more than the rows nothing is gained.
    for (const SentBytes& sent : run("32768")) {
        EXPECT_EQ(sent.compressed_calls, 0u);
    }
}

// Bytes of a slot of `count` elements of int8:block=64, by codecs/FORMAT.md.
uint64_t int8_slot(uint64_t count) {
    return ((count + 63) / 64 * 66 + 15) / 16 * 16;
}

// What a rank hands to the transport for one call, by direct.cpp and two_shot.cpp.
uint64_t formula(
    const std::string& op, uint64_t count, uint64_t ranks, uint64_t rank, uint64_t root) {
    const uint64_t block = int8_slot(count);
    const uint64_t chunk = int8_slot(((count + ranks - 1) / ranks + 63) / 64 * 64);
    if (op == "allreduce") {
        return 2 * (ranks - 1) * chunk;
    }
    if (op == "reduce") {
        return (ranks - 1) * chunk + (rank == root ? 0 : chunk);
    }
    if (op == "broadcast") {
        return (rank + 1) % ranks == root ? 0 : block;
    }
    if (op == "gather") {
        return rank == root ? 0 : block;
    }
    if (op == "scatter") {
        return rank == root ? (ranks - 1) * block : 0;
    }
    if (op == "sendrecv") {
        return block + (rank + 1 < ranks ? block : 0);
    }
    return (ranks - 1) * block;
}

class WireBytesOf : public testing::TestWithParam<const char*> {};

TEST_P(WireBytesOf, TransportAndReportEqualTheFormula) {
    constexpr uint64_t kRanks = 3;
    const auto sent = run_coded_job(kRanks, "int8:block=64", "0", GetParam());
    for (uint64_t rank = 0; rank < kRanks; ++rank) {
        uint64_t expected = 0, root = 0;
        for (const uint64_t count : {100000, 65537, 5000, 1048576}) {
            expected += 2 * formula(GetParam(), count, kRanks, rank, root++ % kRanks);
        }
        EXPECT_EQ(sent[rank].counted, expected) << "rank " << rank;
        EXPECT_EQ(sent[rank].reported, expected) << "rank " << rank;
    }
}

TEST(WireBytes, SlicesAreCountedToo) {
    for (const char* op : {"allreduce", "reducescatter", "reduce", "alltoall", "sendrecv"}) {
        SCOPED_TRACE(op);
        for (const SentBytes& rank : run_coded_job(3, "int4:block=64", "65536", op)) {
            EXPECT_EQ(rank.reported, rank.counted);
            EXPECT_GE(rank.compressed_calls, 8u);
        }
    }
}

INSTANTIATE_TEST_SUITE_P(Operations,
                         WireBytesOf,
                         testing::Values("allreduce",
                                         "reducescatter",
                                         "reduce",
                                         "allgather",
                                         "broadcast",
                                         "alltoall",
                                         "gather",
                                         "scatter",
                                         "sendrecv"));

// A cast compresses the fp32 half of the calls; the native half is reported by the ring formula.
TEST(WireBytes, TheEstimateOfNativeCallsIsClose) {
    for (const SentBytes& rank : run_coded_job(3, "bf16", "0")) {
        EXPECT_EQ(rank.compressed_calls, 4u);
        EXPECT_NEAR(static_cast<double>(rank.reported), static_cast<double>(rank.counted),
                    1e-3 * static_cast<double>(rank.counted));
    }
}

// Error of the running sum after 32 and 64 steps, of rank 0.
std::array<double, 2> running_errors(const std::string& codec, const std::string& feedback) {
    Job job = slimwire_job({SLIMWIRE_TEST_SPARSE_SUM, "64", "f32", "allreduce", "20000", "two"}, 3);
    job.environment["SLIMWIRE_CODEC"] = codec;
    job.environment["SLIMWIRE_EF"] = feedback;
    job.environment["runtime.slice_bytes"] = "30000";
    job.environment["SLIMWIRE_MIN_BYTES"] = "1KiB";
    const auto ranks = run_ranks(job);
    EXPECT_EQ(unless_all_exit(ranks), "");
    EXPECT_EQ(ranks[1].out, ranks[0].out);  // replicas stay equal
    std::array<double, 2> errors{};
    EXPECT_EQ(std::sscanf(ranks[0].out.c_str(), "error %lf %lf", &errors[0], &errors[1]), 2)
        << ranks[0].out;
    return errors;
}

// With EF14 on both sides the error of the running sum is exactly minus the residuals. With e the
// codec's relative error and M = 1 the largest gradient of a rank, a worker's residual is at most
// e (M + r), so r <= e / (1 - e); its decoded values are at most (1 + e) (M + r) = (1 + e) / (1 -
// e), and the server's residual at most e / (1 - e) times the sum of those. In units of the ranks:
double owed(double e) {
    return e / (1 - e) + e / (1 - e) * (1 + e) / (1 - e);
}

TEST(ErrorFeedback, Int2OwesABoundedAmountForEver) {
    const double bound = owed(0.5 * (1 + 0x1p-7));
    const auto errors = running_errors("int2:block=64", "ef14");
    for (const double error : errors) {
        EXPECT_LT(error, bound);
        EXPECT_GT(error, 0);
    }
    // The control: without feedback the same gradients leave that bound behind and go on.
    const auto without = running_errors("int2:block=64", "none");
    EXPECT_GT(without[1], bound);
    EXPECT_NEAR(without[1] / without[0], 2.0, 0.1);
}

// Of a rank: the whole message, and its third of the sums.
TEST(ErrorFeedback, BytesAnElement) {
    constexpr double kOwed = 20000 + 20000 / 3.0;
    struct Case {
        const char* feedback;
        const char* type;
        double most;
    };
    for (const Case& of : {Case{"ef14", "fp32", 4.1}, Case{"ef14", "bf16", 2.1},
                           Case{"ef14", "int8", 1.1}, Case{"ema", "", 1.1}}) {
        SCOPED_TRACE(std::string(of.feedback) + " " + of.type);
        const TemporaryFolder reports;
        Job job = slimwire_job({SLIMWIRE_TEST_SPARSE_SUM, "4", "f32", "allreduce", "20000", "two"},
                               3, reports.path());
        job.environment["SLIMWIRE_POLICY"] =
            "[[rule]]\nname = \"sums\"\nmatch = { op = [\"allreduce\", \"reducescatter\", "
            "\"reduce\"] }\ncodec = \"int4:block=64\"\nmin_bytes = \"1KiB\"\nef = \"" +
            std::string(of.feedback) + "\"\n" +
            (*of.type == 0 ? "" : "residual = \"" + std::string(of.type) + "\"\n");
        ASSERT_EQ(unless_all_exit(run_ranks(job)), "");
        for (const auto& record : read_reports(reports.path())) {
            if (record.at("record") == "comm") {
                const double bytes = record.at("residual_bytes");
                EXPECT_EQ(record.at("residual_tensors"), 2);
                EXPECT_LE(bytes / 2 / kOwed, of.most);
                EXPECT_GT(bytes / 2 / kOwed, of.most - 0.15);
            }
        }
    }
}

// The two tensors of the program take 24.0 KB of scratch and 106.9 KB of residuals each; there is
// room for one.
TEST(ErrorFeedback, ATensorBeyondTheMemoryLimitGoesWithoutAndTheReportSaysSo) {
    const TemporaryFolder reports;
    Job job = slimwire_job({SLIMWIRE_TEST_SPARSE_SUM, "16", "f32", "allreduce", "20000", "two"}, 3,
                           reports.path());
    job.environment["SLIMWIRE_CODEC"] = "int4:block=64";
    job.environment["SLIMWIRE_EF"] = "ef14";
    job.environment["SLIMWIRE_MIN_BYTES"] = "1KiB";
    job.environment["SLIMWIRE_MAX_MEMORY"] = "150000";
    job.environment["SLIMWIRE_LOG"] = "warn";
    job.environment["runtime.summary"] = "1";
    const auto ranks = run_ranks(job);
    ASSERT_EQ(unless_all_exit(ranks), "");
    EXPECT_EQ(ranks[1].out, ranks[0].out);
    for (const Ended& rank : ranks) {
        const std::string told = "goes without its residual of 106880 bytes";
        const size_t first = rank.err.find(told);
        EXPECT_NE(first, std::string::npos) << rank.err;
        EXPECT_EQ(rank.err.find(told, first + 1), std::string::npos) << "warned twice";
    }
    EXPECT_HAS(ranks[0].err, "residuals take 104 KiB; 16 calls went without their residual");
    int communicators = 0;
    for (const auto& record : read_reports(reports.path())) {
        if (record.at("record") == "comm") {
            ++communicators;
            EXPECT_EQ(record.at("residual_tensors"), 1);
            EXPECT_EQ(record.at("residual_bytes"), 106880);
            EXPECT_EQ(record.at("unfed_calls"), 16);
        } else if (record.at("record") == "process") {
            EXPECT_EQ(record.at("max_memory_bytes"), 150000);
        } else {
            EXPECT_NE(record.at("codec"), "native");
        }
    }
    EXPECT_EQ(communicators, 3);
}

// 6000 counts are 18 000 kinds of calls, beyond the 4096 that keep a plan
// (collectives/dispatch/plan_lookup.h).
TEST(ManyCounts, StayCheapAndBounded) {
    const TemporaryFolder reports;
    Job job = slimwire_job({SLIMWIRE_TEST_MANY_COUNTS, "6000"}, 2, reports.path());
    job.environment["SLIMWIRE_CODEC"] = "int8:block=64";
    job.environment["SLIMWIRE_OPS"] = "all";
    job.environment["SLIMWIRE_MIN_BYTES"] = "1KiB";
    job.environment["SLIMWIRE_LOG"] = "warn";
    job.limit_s = 150;
    const auto ranks = run_ranks(job);
    ASSERT_EQ(unless_all_exit(ranks), "");
    for (const Ended& rank : ranks) {
        long kept_kib = 0;
        double call_us = 0;
        ASSERT_EQ(std::sscanf(rank.out.c_str(), "done kept %ld us %lf", &kept_kib, &call_us), 2);
        // It is 2.6 MiB; it would be 16 MiB if all plans were kept.
        EXPECT_LT(kept_kib, 4096);
        RecordProperty("host_us_per_call", std::to_string(call_us));
    }
    const auto records = read_reports(reports.path());
    EXPECT_EQ(sum_keys(records, "calls", compressed), 2u * 3 * 6000);
    size_t keys = 0;
    for (const auto& record : records) {
        keys += record.at("record") == "key" ? 1 : 0;
    }
    EXPECT_LT(keys, 2u * 4200);
}

// The middle rank has 4096 kinds of calls long before its neighbours; what decides about both ends
// of a call goes on all the same. Plans that go again go behind groups, too.
TEST(ManyCounts, OfOneRankDecideNothingForOthers) {
    const TemporaryFolder folder, reports;
    std::ofstream(folder.file("policy.toml"))
        << "version = 1\n"
           "[[rule]]\nname = \"sums\"\nmatch = { op = \"allreduce\" }\ncodec = \"int8\"\n"
           "ramp = [{ until = 2, codec = \"bf16\" }]\n"
           "[[rule]]\nname = \"forward\"\ncodec = \"int8\"\n"
           "match = { op = [\"send\", \"recv\"], direction = \"forward\" }\n"
           "[[rule]]\nname = \"backward\"\ncodec = \"bf16\"\n"
           "match = { op = [\"send\", \"recv\"], direction = \"backward\" }\n";
    Job job = slimwire_job({SLIMWIRE_TEST_MANY_COUNTS, "1200", "line"}, 3, reports.path());
    job.environment["SLIMWIRE_POLICY"] = folder.file("policy.toml");
    job.environment["SLIMWIRE_LOG"] = "warn";
    ASSERT_EQ(unless_all_exit(run_ranks(job)), "");
    const auto records = read_reports(reports.path());
    // A ramp without error feedback may cut chunks otherwise than its codec.
    EXPECT_EQ(sum_keys(records, "calls", compressed), 3u * 1200 + 8u * (1200 - 4));
    for (const auto& record : records) {
        EXPECT_LT(record.value("plans", 0u), 2u * 4096 + 16);
    }
}

}  // namespace
}  // namespace slimwire::test
