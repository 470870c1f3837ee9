// The report file: when it appears, its name, whole at any time, and what stands in its way.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <chrono>
#include <cstdlib>
#include <thread>

#include "tests/collectives/reporter_fixture.h"

namespace slimwire {
namespace {

using namespace std::chrono_literals;

TEST_F(ReporterTest, no_thread_and_no_file_before_the_first_communicator) {
    const int before = thread_count();
    Reporter with_report(path_, true);
    Reporter without_report("", true);
    with_report.set_process_info({});
    EXPECT_EQ(thread_count(), before);
    EXPECT_TRUE(files().empty());
    without_report.add_comm();
    EXPECT_EQ(thread_count(), before) << "without a report there is nothing to write";
    with_report.add_comm();
    EXPECT_EQ(thread_count(), before + 1);
    with_report.finish();
    EXPECT_EQ(thread_count(), before);
}

TEST_F(ReporterTest, file_is_whole_at_any_time) {
    Reporter reporter(path_, false);
    const auto comm = add_comm(reporter);
    std::vector<CallStats*> keys;
    for (int i = 0; i < 200; ++i) {
        keys.push_back(&add_key(*comm, "int4"));
    }
    reporter.flush();
    std::atomic<bool> stop{false};
    std::thread writer([&] {
        while (!stop) {
            keys[0]->count_call();
            reporter.flush();
        }
    });
    uint64_t last = 0;
    for (int i = 0; i < 50; ++i) {
        const auto records = records_of(path_);
        ASSERT_EQ(records.size(), 202u);
        const uint64_t calls = records[2].at("calls").get<uint64_t>();
        ASSERT_GE(calls, last);
        last = calls;
    }
    stop = true;
    writer.join();
}

TEST_F(ReporterTest, many_short_communicators_keep_the_file_small) {
    Reporter reporter(path_, false);
    for (size_t i = 0; i < kMaxRetiredComms + 100; ++i) {
        const auto comm = add_comm(reporter);
        add_key(*comm, "int4").count_call();
        reporter.retire(comm);
    }
    reporter.flush();  // which the thread may still be about
    const auto records = records_of(path_);
    EXPECT_EQ(records.size(), 1 + 2 * (kMaxRetiredComms + 1));
    EXPECT_EQ(total(path_, "calls"), kMaxRetiredComms + 100);
    EXPECT_EQ(records[records.size() - 2].at("communicators"), 100);
}

// Else a program that ends thousands of communicators waits for as many rewritings of all of them.
TEST_F(ReporterTest, a_large_file_is_not_rewritten_by_those_who_end_communicators) {
    Reporter reporter(path_, false);
    const auto caller = std::this_thread::get_id();
    std::atomic<int> rewritten{0};
    reporter.set_beside([&] {
        rewritten += std::this_thread::get_id() == caller ? 1 : 0;
        return std::string();
    });
    std::vector<std::shared_ptr<CommStats>> comms;
    for (size_t i = 0; i < 2 * kMaxRetiredComms; ++i) {
        comms.push_back(add_comm(reporter));
        add_key(*comms.back(), "int4").count_call();
    }
    reporter.flush();
    rewritten = 0;
    for (size_t i = 0; i < kMaxRetiredComms + 100; ++i) {
        add_key(*comms[i], "int8").count_call();
        reporter.retire(comms[i]);
    }
    EXPECT_EQ(rewritten, 0);
    EXPECT_TRUE(eventually([&] { return total(path_, "calls") == 3 * kMaxRetiredComms + 100; }));
    const auto records = records_of(path_);
    EXPECT_EQ(std::count_if(records.begin(), records.end(),
                            [](const Json& one) {
                                return one.at("record") == "comm" && one.at("retired") == true;
                            }),
              kMaxRetiredComms + 1);
}

TEST_F(ReporterTest, file_name_waits_for_the_rank) {
    Reporter reporter(directory_ + "/r%r.jsonl", false);
    const auto comm = reporter.add_comm();
    reporter.flush();
    EXPECT_TRUE(files().empty());
    comm->update([](CommStats& c) { c.rank = 5; });
    reporter.flush();
    EXPECT_EQ(files(), std::vector<std::string>{"r5.jsonl"});
}

TEST_F(ReporterTest, launcher_rank_names_the_file) {
    ::setenv("RANK", "3", 1);
    Reporter reporter(directory_ + "/r%r.jsonl", false);
    const auto comm = add_comm(reporter, 1);
    reporter.flush();
    EXPECT_EQ(files(), std::vector<std::string>{"r3.jsonl"});
    EXPECT_EQ(records_of(directory_ + "/r3.jsonl").at(0).at("launcher_rank"), 3);
    ::unsetenv("RANK");
}

TEST_F(ReporterTest, unwritable_path_is_one_warning_that_names_it) {
    testing::internal::CaptureStderr();
    {
        Reporter reporter("/nonexistent/dir/r.jsonl", false);
        const auto comm = add_comm(reporter);
        CallStats& key = add_key(*comm, "int4");
        for (int i = 0; i < 3; ++i) {
            key.count_call();
            reporter.flush();
        }
        reporter.finish();
    }
    EXPECT_EQ(testing::internal::GetCapturedStderr(),
              "slimwire: warn: report file '/nonexistent/dir/r.jsonl' cannot be written: No such "
              "file or directory; the job goes on without it (SLIMWIRE_REPORT)\n");
}

TEST_F(ReporterTest, what_is_no_regular_file_is_not_replaced) {
    ASSERT_EQ(::mkfifo(path_.c_str(), 0600), 0);
    testing::internal::CaptureStderr();
    {
        Reporter reporter(path_, false);
        const auto comm = add_comm(reporter);
        reporter.flush();
    }
    EXPECT_NE(testing::internal::GetCapturedStderr().find("cannot be written: not a regular file"),
              std::string::npos);
    struct stat info {};
    ASSERT_EQ(::stat(path_.c_str(), &info), 0);
    EXPECT_TRUE(S_ISFIFO(info.st_mode));
}

TEST_F(ReporterTest, a_pattern_that_ranks_share_is_a_warning) {
    ::setenv("WORLD_SIZE", "4", 1);
    testing::internal::CaptureStderr();
    {
        Reporter reporter(path_, false);
        reporter.add_comm();
    }
    EXPECT_NE(testing::internal::GetCapturedStderr().find("has neither %r nor %p"),
              std::string::npos);
    testing::internal::CaptureStderr();
    {
        Reporter reporter(directory_ + "/%p", false);
        reporter.add_comm();
    }
    EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
    ::unsetenv("WORLD_SIZE");
}

}  // namespace
}  // namespace slimwire
