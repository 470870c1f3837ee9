// Rules that ask for parameters, under the calls of DistributedDataParallel in every way of making
// them: both ranks know at the same call what it carries, or the job would not come to its end.
#include <gtest/gtest.h>

#include <fstream>

#include "tests/support/has.h"
#include "tests/support/job.h"

namespace slimwire::test {
namespace {

constexpr char kParametersPolicy[] = R"(version = 1
[[rule]]
name = "norms"
match = { op = "allreduce", param = "1d" }
codec = "native"
[[rule]]
name = "weights"
match = { op = "allreduce", dtype = "f32", bytes = "1KiB.." }
codec = "int4"
)";
constexpr char kByName[] = R"(version = 1
[[rule]]
name = "vectors"
match = { op = "allreduce", name = ["p1", "p2", "p4"] }
codec = "native"
[[rule]]
name = "weights"
match = { op = "allreduce", dtype = "f32", bytes = "1KiB.." }
codec = "int4"
)";

std::string outputs(const std::string& way,
                    const std::string& reports = {},
                    const char* policy = kParametersPolicy,
                    std::string* log = nullptr) {
    const TemporaryFolder folder;
    std::ofstream(folder.file("policy.toml")) << policy;
    Job job =
        slimwire_job({SLIMWIRE_TEST_PARAMETERS, way}, 2, reports.empty() ? folder.path() : reports);
    job.environment["SLIMWIRE_POLICY"] = folder.file("policy.toml");
    let_calls_wait(&job, "the values of a broadcast that the next call goes by");
    const auto ranks = run_ranks(job);
    EXPECT_EQ(unless_all_exit(ranks), "");
    // But for the rank that an error names.
    const auto of_any_rank = [](std::string out) {
        const size_t at = out.find("rank ");
        return at == std::string::npos ? out : out.replace(at + 5, 1, "N");
    };
    EXPECT_EQ(of_any_rank(ranks[1].out), of_any_rank(ranks[0].out));
    if (log != nullptr) {
        *log = ranks[0].err;
    }
    return ranks[0].out;
}

// Before the rebuild, buckets are known from the counts of all-reduces once they came twice.
constexpr char kTraining[] =
    "step 1: native native\n"
    "step 2: native native\n"
    "step 3: native native\n"
    "step 4: parts parts\n"
    "step 5: parts parts\n"
    "step 6: parts parts\n";

constexpr char kShort[] =
    "step 1: native native\n"
    "step 2: parts parts\n"
    "step 3: parts parts\n";
constexpr char kReplayed[] =
    "step 1: native native\n"
    "step 2: parts parts\n"
    "replay: parts\nreplay: parts\nreplay: parts\n";

// In groups as PyTorch makes them; calls of a dropped group never were; other calls in between
// change nothing.
TEST(Parameters, PartsOfABucketTravelAsTheRulesSay) {
    for (const auto& [way, out] : {std::pair{"plain", kTraining},
                                   {"grouped", kTraining},
                                   {"non-blocking", kTraining},
                                   {"refused", kShort},
                                   {"chatting", kShort},
                                   {"together", kReplayed}}) {
        SCOPED_TRACE(way);
        const TemporaryFolder reports;
        EXPECT_EQ(outputs(way, reports.path()), out);
        if (out == kTraining) {
            EXPECT_EQ(sum_keys(read_reports(reports.path()), "calls", compressed), 2U * 6U);
        }
    }
}

// Plans that one rank alone made from it would wait for the others for ever.
TEST(Parameters, NamesCountWhereAllRanksHadThemWhenTheCommunicatorWasMade) {
    constexpr char kUnnamed[] =
        "step 1: native native\n"
        "step 2: native native\n"
        "step 3: native native\n"
        "step 4: all all\n"
        "step 5: all all\n"
        "step 6: all all\n";
    std::string log;
    EXPECT_EQ(outputs("named", {}, kByName, &log), kTraining);
    EXPECT_HAS_NOT(log, "registered");
    EXPECT_EQ(outputs("plain", {}, kByName), kUnnamed);
    EXPECT_EQ(outputs("named on one", {}, kByName, &log), kUnnamed);
    EXPECT_HAS(log, "did not register the same parameters on ranks 0 and 1");
    EXPECT_EQ(outputs("named late", {}, kByName, &log), kUnnamed);
    const size_t said = log.find("parameters were registered, or forgotten, after");
    EXPECT_NE(said, std::string::npos) << log;
    EXPECT_EQ(log.find("parameters were registered", said + 1), std::string::npos) << "once";
}

TEST(Parameters, ABucketInTheGroupThatTellsWhatItIsIsRefused) {
    const std::string out = outputs("too early");
    EXPECT_NE(
        out.find("in one ncclGroup with the broadcast that tells which parameters it carries"),
        std::string::npos)
        << out;
    EXPECT_HAS(out, "end ");
    EXPECT_HAS_NOT(out, "end 0");
}

}  // namespace
}  // namespace slimwire::test
