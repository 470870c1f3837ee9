// The reporter over the life of a process: what is counted reaches the file each second and
// survives SIGKILL, forked children leave it alone, and the summary comes at exit. Situations that
// end a process run in a child. The file: when it appears, its name, whole at any time, and what
// stands in its way.
#include <dirent.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "collectives/call/launcher_names.h"
#include "collectives/observe/report.h"
#include "collectives/observe/stats.h"
#include "tests/support/ranks.h"

namespace slimwire {
namespace {

using namespace std::chrono_literals;
using Json = nlohmann::json;

std::vector<Json> records_of(const std::string& path) {
    std::istringstream stream(test::read_file(path));
    std::vector<Json> records;
    for (std::string line; std::getline(stream, line);) {
        records.push_back(Json::parse(line));
    }
    return records;
}

// Sum of `member` over the key records.
uint64_t total(const std::string& path, const char* member) {
    uint64_t sum = 0;
    for (const Json& record : records_of(path)) {
        sum += record.at("record") == "key" ? record.at(member).get<uint64_t>() : 0;
    }
    return sum;
}

bool eventually(const std::function<bool()>& condition,
                std::chrono::milliseconds limit = std::chrono::seconds(10)) {
    const auto end = std::chrono::steady_clock::now() + limit;
    while (!condition()) {
        if (std::chrono::steady_clock::now() > end) {
            return false;
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return true;
}

int thread_count() {
    const std::filesystem::directory_iterator tasks("/proc/self/task");
    return static_cast<int>(std::distance(begin(tasks), end(tasks)));
}

CallStats& add_key(CommStats& comm, const char* codec) {
    CallStats& key = comm.add_key();
    key.signature = {Op::kAllReduce, DType::kFloat32, RedOp::kSum, 0, 25};
    key.codec = codec;
    key.algorithm = "two_shot";
    key.rule = "env";
    key.reason = "rule env";
    key.input_bytes_per_call = 100;
    key.wire_bytes_per_call = 20;
    key.native_bytes_per_call = 150;
    comm.publish(key);
    return key;
}

// Of a rule with a codec, whose calls are native.
CallStats& add_native_key(CommStats& comm, const char* rule, bool waits = false) {
    CallStats& key = comm.add_key();
    key.signature = {Op::kAllReduce, DType::kFloat32, RedOp::kSum, 0, 25};
    key.codec = key.algorithm = "native";
    key.rule = rule;
    key.reason = "too small";
    key.remedy = "less";
    key.input_bytes_per_call = 100;
    comm.publish(key, waits);
    return key;
}

std::shared_ptr<CommStats> add_comm(Reporter& reporter, int rank = 0) {
    auto comm = reporter.add_comm();
    comm->update([&](CommStats& c) {
        c.comm = "00000000000000aa";
        c.rank = rank;
        c.ranks = 4;
        c.nodes = 1;
        c.agreement = "go";
    });
    return comm;
}

class ReporterTest : public testing::Test {
  protected:
    void SetUp() override {
        std::for_each(std::begin(kRankNames), std::end(kRankNames), ::unsetenv);
        std::for_each(std::begin(kSizeNames), std::end(kSizeNames), ::unsetenv);
    }
    std::vector<std::string> files() const {
        std::vector<std::string> names;
        for (const auto& entry : std::filesystem::directory_iterator(directory_)) {
            if (const std::string name = entry.path().filename(); name.front() != '.') {
                names.push_back(name);
            }
        }
        return names;
    }
    const test::TemporaryFolder folder_;
    const std::string directory_ = folder_.path(), path_ = folder_.file("r0.jsonl");
};

void count(CallStats& key, uint64_t calls) {
    for (uint64_t i = 0; i < calls; ++i) {
        key.count_call();
    }
}

TEST_F(ReporterTest, counters_reach_the_file) {
    Reporter reporter(directory_ + "/r%r.jsonl", false);
    reporter.set_process_info({"0.1.0", 1, "p.toml", true, "2.28.9", "/x", "emulator"});
    const auto comm = add_comm(reporter);
    CallStats& key = add_key(*comm, "int4");
    for (uint64_t calls : {3, 4}) {
        count(key, calls);
        const uint64_t expected = calls == 3 ? 3 : 7;
        EXPECT_TRUE(eventually([&] { return total(path_, "calls") == expected; }));
    }
    EXPECT_EQ(total(path_, "wire_bytes"), 140u);
    EXPECT_EQ(records_of(path_).at(0).at("nccl_version"), "2.28.9");
    EXPECT_EQ(files(), std::vector<std::string>{"r0.jsonl"}) << "no temporary file is left";
}

TEST_F(ReporterTest, an_idle_process_does_not_write) {
    Reporter reporter(path_, false);
    const auto comm = add_comm(reporter);
    add_key(*comm, "int4").count_call();
    reporter.flush();
    struct stat before {};
    ASSERT_EQ(::stat(path_.c_str(), &before), 0);
    std::this_thread::sleep_for(1300ms);
    reporter.flush();
    struct stat after {};
    ASSERT_EQ(::stat(path_.c_str(), &after), 0);
    EXPECT_EQ(before.st_ino, after.st_ino) << "each writing makes a new file";
}

TEST_F(ReporterTest, reporter_thread_takes_no_signal) {
    Reporter reporter(path_, false);
    const auto comm = add_comm(reporter);
    ASSERT_TRUE(eventually([&] { return !files().empty(); }));
    bool found = false;
    DIR* const tasks = ::opendir("/proc/self/task");
    while (const dirent* entry = ::readdir(tasks)) {
        const std::string task = std::string("/proc/self/task/") + entry->d_name;
        if (test::read_file(task + "/comm") == "slimwire-report\n") {
            found = true;
            const std::string status = test::read_file(task + "/status");
            const size_t at = status.find("SigBlk:");
            ASSERT_NE(at, std::string::npos);
            const uint64_t blocked = std::stoull(status.substr(at + 7, 20), nullptr, 16);
            for (const int number : {SIGINT, SIGTERM, SIGUSR1, SIGCHLD, SIGALRM, SIGPROF}) {
                EXPECT_TRUE(blocked >> (number - 1) & 1) << number;
            }
        }
    }
    ::closedir(tasks);
    EXPECT_TRUE(found);
    sigset_t mine;
    ::pthread_sigmask(SIG_SETMASK, nullptr, &mine);
    EXPECT_EQ(::sigismember(&mine, SIGUSR1), 0) << "the caller's mask is as before";
}

TEST_F(ReporterTest, sigkill_leaves_what_was_counted) {
    const pid_t child = ::fork();
    if (child == 0) {
        Reporter reporter(path_, false);
        const auto comm = add_comm(reporter);
        count(add_key(*comm, "int4"), 1000);
        for (;;) {
            ::pause();
        }
    }
    EXPECT_TRUE(eventually([&] { return total(path_, "calls") == 1000; }));
    ASSERT_EQ(::kill(child, SIGKILL), 0);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status));
    EXPECT_EQ(total(path_, "calls"), 1000u);
}

TEST_F(ReporterTest, retired_communicator_keeps_its_records) {
    Reporter reporter(path_, false);
    auto comm = add_comm(reporter);
    add_key(*comm, "int4").count_call();
    comm->scratch_bytes = 4096;
    reporter.retire(comm);
    comm.reset();
    const auto records = records_of(path_);
    ASSERT_EQ(records.size(), 3u) << "written at once";
    EXPECT_EQ(records[1].at("retired"), true);
    EXPECT_EQ(records[1].at("scratch_bytes"), 4096);
    EXPECT_EQ(records[2].at("calls"), 1);
}

// A data loader's workers fork after initialisation; they must neither write, print nor hang.
TEST_F(ReporterTest, fork_after_init) {
    testing::internal::CaptureStderr();
    auto reporter = std::make_unique<Reporter>(path_, true);
    reporter->set_process_info({"0.1.0", 1, "p.toml", true, "", "", ""});
    const auto comm = add_comm(*reporter);
    CallStats& key = add_key(*comm, "int4");
    key.count_call();
    reporter->flush();
    const std::string before = test::read_file(path_);
    const pid_t child = ::fork();
    if (child == 0) {
        ::alarm(20);
        key.count_call();
        const auto own = reporter->add_comm();
        add_key(*own, "int4").count_call();
        reporter->flush();
        reporter->retire(comm);
        reporter->finish();
        reporter.reset();
        ::_exit(test::read_file(path_) == before ? 0 : 1);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    EXPECT_EQ(test::read_file(path_), before);
    key.count_call();
    reporter->flush();
    EXPECT_EQ(total(path_, "calls"), 2u) << "the parent goes on";
    reporter.reset();
    EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

TEST_F(ReporterTest, finish_writes_and_prints_once_from_rank_0) {
    testing::internal::CaptureStderr();
    Reporter reporter(path_, true);
    reporter.set_process_info({"0.1.0", 1, "p.toml", true, "", "", ""});
    const auto comm = add_comm(reporter);
    comm->update([](CommStats& c) {
        c.links.slowest_between_nodes = {PathClass::kNet, 1250, false};
    });
    CallStats& key = add_key(*comm, "int4");
    key.count_call();
    reporter.finish();
    reporter.finish();
    EXPECT_EQ(total(path_, "calls"), 1u);
    EXPECT_EQ(testing::internal::GetCapturedStderr(),
              "slimwire: summary: rank 0 compressed 1 of its 1 calls (policy p.toml) with int4\n"
              "slimwire: summary: it sent 20 B instead of 150 B, 7.50 times fewer bytes; at 10 "
              "Gbit/s this saves about 0.104 us on the wire\n"
              "slimwire: summary: the report is " +
                  path_ + "\n");
    key.count_call();
    reporter.retire(comm);
    EXPECT_EQ(total(path_, "calls"), 2u) << "what is destroyed after exit began still counts";
}

TEST_F(ReporterTest, other_ranks_and_idle_processes_print_nothing) {
    testing::internal::CaptureStderr();
    {
        Reporter second("", true);
        second.set_process_info({"0.1.0", 1, "p.toml", true, "", "", ""});
        add_key(*add_comm(second, 1), "int4").count_call();
        second.finish();
        Reporter idle("", true);
        add_key(*add_comm(idle, 0), "native").count_call();
        idle.finish();
        Reporter quiet("", false);
        quiet.set_process_info({"0.1.0", 1, "p.toml", true, "", "", ""});
        add_key(*add_comm(quiet, 0), "int4").count_call();
        quiet.finish();
        ::setenv("RANK", "2", 1);
        Reporter launched("", true);
        launched.set_process_info({"0.1.0", 1, "p.toml", true, "", "", ""});
        add_key(*add_comm(launched, 0), "int4").count_call();
        launched.finish();
        ::unsetenv("RANK");
    }
    EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

TEST_F(ReporterTest, counting_from_many_threads_loses_nothing) {
    Reporter reporter(path_, false);
    const auto comm = add_comm(reporter);
    CallStats& shared = add_key(*comm, "int4");
    constexpr uint64_t kCalls = 50000;
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
        threads.emplace_back([&] {
            CallStats& own = add_key(*comm, "int8");
            for (uint64_t i = 0; i < kCalls; ++i) {
                shared.count_call();
                own.count_call();
                own.count_time(1);
                if (i % 10000 == 0) {
                    reporter.flush();
                }
            }
        });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    reporter.flush();
    EXPECT_EQ(total(path_, "calls"), 8 * kCalls);
    EXPECT_EQ(total(path_, "timed_calls"), 4 * kCalls);
}

std::string said_by(const std::function<void()>& act) {
    testing::internal::CaptureStderr();
    act();
    return testing::internal::GetCapturedStderr();
}

TEST_F(ReporterTest, a_rule_that_compresses_nothing_is_reported_once_after_many_calls) {
    Reporter reporter("", false);
    reporter.set_process_info({"0.1.0", 1, "p.toml", true, "2.28.9", "/x", "emulator"});
    const auto first = add_comm(reporter), second = add_comm(reporter);
    CallStats &some = add_native_key(*first, "idle"), &others = add_native_key(*second, "idle");
    EXPECT_EQ(said_by([&] {
                  count(some, kIdleCalls / 2);
                  count(others, kIdleCalls - kIdleCalls / 2 - 1);
              }),
              "");
    EXPECT_EQ(said_by([&] { count(some, 1); }),
              "slimwire: warn: p.toml: rule 'idle' compressed none of its 1000 calls, input 97.7 "
              "KiB, why: too small (1000); what would change it: less\n");
    EXPECT_EQ(said_by([&] {
                  count(some, 3 * kIdleCalls);
                  reporter.retire(first);
                  reporter.finish();
              }),
              "");
}

TEST_F(ReporterTest, a_rule_that_compresses_nothing_is_reported_at_exit) {
    Reporter reporter("", false);
    const auto comm = add_comm(reporter);
    CallStats& waiting = add_native_key(*comm, "waits", true);
    CallStats &small = add_native_key(*comm, "env"), &beside = add_native_key(*comm, "beside");
    EXPECT_EQ(said_by([&] { count(waiting, 2 * kIdleCalls); }), "") << "it may compress later";
    const auto others = add_comm(reporter);
    others->rank = 1;
    CallStats& of_others = add_native_key(*others, "waits");
    EXPECT_EQ(said_by([&] { count(of_others, kIdleCalls); }), "") << "of another rank";
    // Of these some other key compresses, before or afterwards.
    CallStats& large = add_key(*comm, "int4");
    EXPECT_EQ(said_by([&] {
                  count(small, kIdleCalls - 1);
                  count(large, 1);
                  count(small, 1);
                  comm->rule_compresses("beside");
                  count(beside, kIdleCalls);
                  reporter.retire(comm);
              }),
              "");
    const std::string said = said_by([&] { reporter.finish(); });
    EXPECT_NE(said.find("rule 'waits' compressed none of its 3000 calls"), std::string::npos);
    EXPECT_EQ(said.find('\n'), said.size() - 1) << "not one line: " << said;
    EXPECT_EQ(said_by([&] { reporter.finish(); }), "");
}

TEST_F(ReporterTest, one_rank_of_the_job_reports_rules_that_compress_nothing) {
    const auto said_with = [&](const std::vector<int>& ranks) {
        return said_by([&] {
            Reporter reporter("", false);
            for (const int rank : ranks) {
                count(add_native_key(*add_comm(reporter, rank), "idle"), 1);
            }
            reporter.finish();
        });
    };
    EXPECT_EQ(said_with({1}), "");
    // Ranks that are threads come in any order.
    EXPECT_NE(said_with({1, 0}).find("rule 'idle' compressed none of its 2 calls"),
              std::string::npos);
    ::setenv("RANK", "1", 1);
    EXPECT_EQ(said_with({0}), "");
    ::unsetenv("RANK");
}

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
