// The traps of preloading and of living inside another program's process, each by its name.
#include <gtest/gtest.h>

#include "tests/support/has.h"
#include "tests/support/job.h"

namespace slimwire::test {
namespace {

Job with_codec(Job job) {
    job.environment["SLIMWIRE_CODEC"] = "int4:block=64";
    job.environment["SLIMWIRE_MIN_BYTES"] = "4KiB";
    return job;
}

Job traps_stub_job(const std::string& what, const std::string& reports) {
    Job job = with_codec(slimwire_job({SLIMWIRE_TEST_STUB_USER, what}, 1, reports));
    job.library_path.insert(job.library_path.begin(), SLIMWIRE_TEST_STUB);
    return job;
}

// Calls the reports count for one operation.
uint64_t calls_of(const std::string& reports, const std::string& op) {
    return sum_keys(read_reports(reports), "calls",
                    [&](const auto& key) { return key.at("op") == op; });
}

// The same job by the other ways in.
class ByEveryWayIn : public testing::TestWithParam<const char*> {
  protected:
    std::vector<Ended> run(const std::string& what, const std::string& reports) {
        Job job = traps_stub_job(what, reports);
        const std::string way = GetParam();
        if (way == "dropin") {
            make_dropin(dropin_.path(), std::string(SLIMWIRE_TEST_STUB) + "/libnccl.so.2");
            put_dropin_before(&job, dropin_.path());
        } else if (way == "audit") {
            job.environment["LD_AUDIT"] = SLIMWIRE_TEST_AUDIT;
            job.preload.clear();
#ifdef SLIMWIRE_TEST_SANITIZER_RUNTIME
            job.environment["LD_PRELOAD"] = SLIMWIRE_TEST_SANITIZER_RUNTIME;
#endif
        }
        return run_ranks(job);
    }
    const TemporaryFolder dropin_;
};

TEST_P(ByEveryWayIn, ReentryFromNcclThread) {
    const TemporaryFolder reports;
    const auto ranks = run("reentry", reports.path());
    ASSERT_EQ(unless_all_exit(ranks), "");
    // The stub saw its own calls, and slimwire counted only the program's.
    EXPECT_EQ(ranks[0].out, "AllReduce 5 Broadcast 12 AllGather 5 open groups 0\n");
    EXPECT_EQ(calls_of(reports.path(), "allreduce"), 5u);
    EXPECT_EQ(calls_of(reports.path(), "broadcast"), 7u);
    EXPECT_EQ(calls_of(reports.path(), "allgather"), 0u);
}

TEST_P(ByEveryWayIn, FutureFunctionsStayReachable) {
    const TemporaryFolder reports;
    EXPECT_EQ(unless_all_exit(run("future", reports.path())), "");
}

INSTANTIATE_TEST_SUITE_P(Traps,
                         ByEveryWayIn,
                         testing::Values("preload", "dropin", "audit"),
                         [](const auto& info) { return std::string(info.param); });

TEST(Traps, OneSidedCallsAreCountedOnceAndSaidToStayNative) {
    const TemporaryFolder reports;
    ASSERT_EQ(unless_all_exit(run_ranks(traps_stub_job("one_sided", reports.path()))), "");
    const auto records = read_reports(reports.path());
    const auto sum_of = [&](const char* member, const char* op) {
        return sum_keys(records, member, [&](const auto& key) {
            return key.at("op") == op && key.at("codec") == "native" &&
                   key.at("reason") == "one-sided: the peer makes no call that could decode";
        });
    };
    EXPECT_EQ(sum_of("calls", "putsignal"), 2u);
    EXPECT_EQ(sum_of("input_bytes", "putsignal"), 16000u);
    EXPECT_EQ(sum_of("wire_bytes", "putsignal"), 16000u);
    EXPECT_EQ(sum_of("calls", "signal"), 1u) << "the program's, not the stub's";
    EXPECT_EQ(sum_of("calls", "waitsignal"), 1u);
    EXPECT_EQ(sum_of("input_bytes", "waitsignal"), 0u);
}

TEST(Traps, CommHandleReused) {
    const TemporaryFolder reports;
    Job job = traps_stub_job("reuse", reports.path());
    job.environment["SLIMWIRE_LOG"] = "info";  // a line for each new plan
    const auto ranks = run_ranks(job);
    ASSERT_EQ(unless_all_exit(ranks), "");
    EXPECT_HAS(ranks[0].err, "count 22");
    EXPECT_HAS_NOT(ranks[0].err, "count 33")
        << "a call on an unknown communicator went to a dead one's state: " << ranks[0].err;
    const auto records = read_reports(reports.path());
    const auto calls_with = [&](int count) {
        return sum_keys(records, "calls",
                        [&](const auto& key) { return key.at("count") == count; });
    };
    EXPECT_EQ(calls_with(11), 3u);
    EXPECT_EQ(calls_with(22), 1u);
    EXPECT_EQ(calls_with(33), 0u);
    int communicators = 0;
    for (const auto& record : records) {
        communicators += record.at("record") == "comm";
    }
    EXPECT_EQ(communicators, 2);
}

// When static objects are destroyed, those of the thread no longer are.
TEST(Traps, CallsByDestructorsOfStaticObjects) {
    for (const char* mode : {"on", "shadow", "record"}) {
        const TemporaryFolder traces;
        Job job = with_codec(slimwire_job({SLIMWIRE_TEST_REDUCE, "--at-exit", "40"}, 2));
        job.environment["SLIMWIRE_EF"] = "ef14";
        job.environment["SLIMWIRE_MODE"] = mode;
        job.environment["SLIMWIRE_TRACE"] = traces.path() + "/%r";
        EXPECT_EQ(unless_all_exit(run_ranks(job)), "") << mode;
    }
}

TEST(Traps, DropinCompressesAndReachesTheRealLibrary) {
    const TemporaryFolder reports, dropin;
    make_dropin(dropin.path(), std::string(SLIMWIRE_TEST_EMULATOR) + "/libnccl.so.2");
    Job job = with_codec(slimwire_job({SLIMWIRE_TEST_REDUCE}, 2, reports.path()));
    put_dropin_before(&job, dropin.path());
    ASSERT_EQ(unless_all_exit(run_ranks(job)), "");
    EXPECT_EQ(sum_keys(read_reports(reports.path()), "calls", compressed), 10u);
}

TEST(Traps, DlopenLocal) {
    const TemporaryFolder reports;
    const Job job = with_codec(
        slimwire_job({SLIMWIRE_TEST_LOCAL_HOST, SLIMWIRE_TEST_REDUCE_MODULE}, 2, reports.path()));
    ASSERT_EQ(unless_all_exit(run_ranks(job)), "");
    EXPECT_EQ(sum_keys(read_reports(reports.path()), "calls", compressed), 10u);
}

TEST(Traps, CapturedCallsAreCompressedAndOutliveTheCommunicator) {
    const TemporaryFolder reports;
    const auto ranks =
        run_ranks(with_codec(slimwire_job({SLIMWIRE_TEST_REDUCE, "--capture"}, 2, reports.path())));
    ASSERT_EQ(unless_all_exit(ranks), "");
    const auto records = read_reports(reports.path());
    EXPECT_EQ(sum_keys(records, "calls", compressed), 2u);
    EXPECT_EQ(sum_keys(records, "calls", any_key), 2u);
}

TEST(Faults, UnwritableReportIsOneWarning) {
    Job job = with_codec(slimwire_job({SLIMWIRE_TEST_REDUCE}, 2));
    job.environment["SLIMWIRE_REPORT"] = "/proc/no-such-folder/report.%r";
    const auto ranks = run_ranks(job);
    ASSERT_EQ(unless_all_exit(ranks), "");
    for (const Ended& rank : ranks) {
        EXPECT_HAS(rank.err, "/proc/no-such-folder/report.");
        EXPECT_EQ(rank.err.find('\n'), rank.err.size() - 1) << "not one line: " << rank.err;
    }
}

TEST(Faults, MissingRealNcclIsOneLineThatSaysWhatToDo) {
    const TemporaryFolder empty;
    for (const std::string& library : {std::string("/no/such/libnccl.so.2"), std::string("/bin/sh"),
                                       std::string(SLIMWIRE_TEST_PRELOAD)}) {
        Job job = slimwire_job({SLIMWIRE_TEST_LOOKUP}, 1);
        job.library_path = {empty.path()};
        job.environment["SLIMWIRE_NCCL_LIBRARY"] = library;
        const auto ranks = run_ranks(job);
        EXPECT_EQ(unless_all_exit(ranks, 2), "") << library;  // ncclSystemError
        EXPECT_HAS(ranks[0].err, "SLIMWIRE_NCCL_LIBRARY");
        EXPECT_HAS(ranks[0].err, library);
        EXPECT_EQ(ranks[0].err.find('\n'), ranks[0].err.size() - 1)
            << "not one line: " << ranks[0].err;
        EXPECT_HAS(ranks[0].out, "SLIMWIRE_NCCL_LIBRARY");
    }
}

}  // namespace
}  // namespace slimwire::test
