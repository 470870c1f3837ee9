// Unmodified DistributedDataParallel over NCCL calls, natively and with slimwire before them.
#include "tests/e2e/torch/torch_job.h"

namespace slimwire::test {
namespace {

using TorchDdp = TorchTest;
using TorchJoin = ForkedTorchTest;
using Lines = std::vector<nlohmann::json>;

// Lines of one rank, and what every training of it must show.
void expect_sound(const std::vector<Lines>& ranks) {
    for (size_t i = 0; i < ranks[0].size(); ++i) {
        const auto& line = ranks[0][i];
        SCOPED_TRACE(line.dump());
        for (const Lines& lines : ranks) {
            ASSERT_EQ(lines.size(), ranks[0].size());
            EXPECT_EQ(lines[i].at("digest"), line.at("digest")) << "replicas differ";
        }
        // Buckets are rebuilt after the first steps, except with find_unused_parameters.
        EXPECT_GE(line.at("last").size(), 2U);
        EXPECT_EQ(line.at("first") == line.at("last"), line.at("variant") == "unused_parameters");
    }
}

// Of the trainings in float32: the loss is near Gloo's. Returns their digests by variant.
std::map<std::string, std::string> expect_near(const std::vector<Lines>& ranks, double loss) {
    std::map<std::string, std::string> digests;
    for (const Lines& lines : ranks) {
        for (const auto& line : lines) {
            if (line.at("type") == "float32") {
                SCOPED_TRACE(line.dump());
                EXPECT_FALSE(line.at("exact"));
                EXPECT_NEAR(line.at("loss").get<double>(), line.at("gloo_loss").get<double>(),
                            loss);
                digests[line.at("variant")] = line.at("digest");
            }
        }
    }
    return digests;
}

// Which thread calls, and where gradients lie, must not matter.
void expect_same_bits(const std::map<std::string, std::string>& digests) {
    ASSERT_EQ(digests.size(), 6U);
    EXPECT_EQ(digests.at("bucket_view"), digests.at("plain"));
    EXPECT_EQ(digests.at("other_thread"), digests.at("plain"));
}

// Compressed calls by both ranks of kinds that DDP makes: a call for each bucket and step.
void expect_compressed(const std::string& reports, const std::string& codec) {
    const auto records = read_reports(reports);
    const auto by_codec = [&](const auto& key) {
        return compressed(key) && key.at("codec") == codec;
    };
    EXPECT_EQ(sum_keys(records, "calls", compressed), sum_keys(records, "calls", by_codec));
    // Six variants of twenty steps of two or three buckets, on two ranks.
    EXPECT_GE(sum_keys(records, "calls", by_codec), 2U * 6U * 19U * 2U);
    EXPECT_EQ(sum_keys(records, "calls",
                       [](const auto& key) {
                           return compressed(key) &&
                                  (key.at("op") != "allreduce" || key.at("dtype") != "f32");
                       }),
              0U);
}

// The same job trains in float64, which goes native: that is Gloo's result to the bit, because a
// sum of two has one order.
TEST_F(TorchDdp, AllVariantsWithInt8UnderThePreload) {
    const TemporaryFolder reports;
    const auto ended =
        run_ranks(torch_slimwire_job({"ddp_variants.py", "float64", "float32"}, 2, reports.path(),
                                     {{"SLIMWIRE_CODEC", "int8"}, {"SLIMWIRE_MIN_BYTES", "1KiB"}}));
    ASSERT_EQ(unless_all_exit(ended), "");
    const auto lines = lines_of(ended);
    ASSERT_EQ(lines[0].size(), 12U);
    expect_sound(lines);
    for (const auto& line : lines[0]) {
        if (line.at("type") == "float64") {
            EXPECT_TRUE(line.at("exact")) << line.dump();
        }
    }
    expect_same_bits(expect_near(lines, 0.02));
    expect_compressed(reports.path(), "int8");
}

TEST_F(TorchDdp, AllVariantsWithInt4AndErrorFeedbackThroughTheDropin) {
    const TemporaryFolder reports, dropin;
    make_dropin(dropin.path(), SLIMWIRE_TEST_EMULATOR "/libnccl.so.2");
    Job job = torch_slimwire_job({"ddp_variants.py", "float32"}, 2, reports.path(),
                                 {{"SLIMWIRE_CODEC", "int4:block=64"},
                                  {"SLIMWIRE_EF", "ef14"},
                                  {"SLIMWIRE_MIN_BYTES", "1KiB"}});
    put_dropin_before(&job, dropin.path());
    const auto ended = run_ranks(job);
    ASSERT_EQ(unless_all_exit(ended), "");
    const auto lines = lines_of(ended);
    ASSERT_EQ(lines[0].size(), 6U);
    expect_sound(lines);
    expect_same_bits(expect_near(lines, 0.02));
    expect_compressed(reports.path(), "int4+ef14");
}

// A rank that has no batch left sums zeros, each time from where memory is free: of twelve epochs
// it keeps the bucket's, and those of four places in each of two.
TEST_F(TorchJoin, RanksThatJoinEarlyKeepFewResiduals) {
    const TemporaryFolder reports;
    const auto ended = run_forked(torch_slimwire_job(
        {"ddp_join.py", "12"}, 3, reports.path(),
        {{"SLIMWIRE_CODEC", "int4"}, {"SLIMWIRE_EF", "ef14"}, {"SLIMWIRE_MIN_BYTES", "2KiB"}}));
    ASSERT_EQ(unless_all_exit(ended), "");
    int communicators = 0;
    for (const auto& record : read_reports(reports.path())) {
        if (record.at("record") == "comm") {
            ++communicators;
            EXPECT_GE(record.at("residual_tensors").get<int>(), 1);
            EXPECT_LE(record.at("residual_tensors").get<int>(), 9);
        }
    }
    EXPECT_EQ(communicators, 3);
}

}  // namespace
}  // namespace slimwire::test
