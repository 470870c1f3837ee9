// The shaped link: how its specification reads, its clocks and shared memory, and the rate that
// real ranks see through it (short points with loose bounds; the committed figures come from
// tests/bench/link_bench.cpp).
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "tests/support/has.h"
#include "tests/tools/emulator/nccl_jobs.h"
#include "tools/emulator/nccl/transport/shaper.h"

namespace slimwire::emu {
namespace {

using slimwire::test::Ended;
using slimwire::test::Job;

LinkSpec spec_of(const char* text) {
    Result<LinkSpec> spec = parse_link_spec(text);
    EXPECT_TRUE(spec.ok()) << text;
    return spec.ok() ? spec.value() : LinkSpec{};
}

TEST(LinkSpec, rates_and_latencies) {
    EXPECT_FALSE(spec_of("").shaped());
    EXPECT_DOUBLE_EQ(spec_of("1gbit").bits_per_second, 1e9);
    EXPECT_DOUBLE_EQ(spec_of("2.5gbit").bits_per_second, 2.5e9);
    EXPECT_DOUBLE_EQ(spec_of("64kbit").bits_per_second, 64e3);
    EXPECT_EQ(spec_of("100mbit,50us").latency_ns, 50'000u);
    EXPECT_EQ(spec_of("100mbit,2ms").latency_ns, 2'000'000u);
    EXPECT_EQ(spec_of("100mbit,0us").latency_ns, 0u);
    EXPECT_EQ(spec_of("1gbit").wire_ns(125'000'000), 1'000'000'000u);
}

TEST(LinkSpec, what_is_no_link_is_refused_with_an_example) {
    for (const char* text : {"fast", "1", "gbit", "-1gbit", "0gbit", "1gbits", "1gbit,", "1gbit,5",
                             "1gbit,us", "1gbit;5us", "nangbit", "1gbit,-5us"}) {
        const Result<LinkSpec> spec = parse_link_spec(text);
        ASSERT_FALSE(spec.ok()) << text;
        EXPECT_EQ(spec.status().code(), Code::kInvalidArgument);
        EXPECT_HAS(spec.status().message(), std::string("'") + text + "'");
        EXPECT_HAS(spec.status().message(), "1gbit");
    }
}

TEST(LinkSpec, chunks_are_about_a_millisecond_of_wire) {
    EXPECT_EQ(spec_of("").chunk_bytes(), 256u * 1024);
    EXPECT_EQ(spec_of("10gbit").chunk_bytes(), 256u * 1024);
    EXPECT_EQ(spec_of("1gbit").chunk_bytes(), 128u * 1024);
    EXPECT_EQ(spec_of("1mbit").chunk_bytes(), 16u * 1024);
}

std::string token(const char* name) {
    return std::string(name) + std::to_string(getpid());
}

bool exists(const std::string& segment) {
    const int fd = shm_open(segment.c_str(), O_RDONLY, 0);
    if (fd >= 0) {
        close(fd);
    }
    return fd >= 0;
}

std::unique_ptr<Shaper> open_shaper(const std::string& name, const char* link = "1gbit") {
    Result<std::unique_ptr<Shaper>> shaper = Shaper::open(spec_of(link), name);
    EXPECT_TRUE(shaper.ok());
    return std::move(shaper).value();
}

TEST(Shaper, reservations_follow_each_other_and_directions_are_independent) {
    const auto shaper = open_shaper(token("order"));
    // 125 bytes are a microsecond at 1 Gbit/s.
    const WireSlot first = shaper->reserve_egress(3, 1000, 125);
    const WireSlot second = shaper->reserve_egress(3, 1000, 1250);
    const WireSlot later = shaper->reserve_egress(3, 50'000, 125);
    EXPECT_EQ(first.start_ns, 1000u);
    EXPECT_EQ(first.finish_ns, 2000u);
    EXPECT_EQ(second.start_ns, 2000u);
    EXPECT_EQ(second.finish_ns, 12'000u);
    EXPECT_EQ(later.start_ns, 50'000u);
    EXPECT_EQ(shaper->egress_free_ns(3), 51'000u);
    EXPECT_EQ(shaper->reserve_ingress(3, 1000, 125).start_ns, 1000u);
    EXPECT_EQ(shaper->reserve_egress(4, 1000, 125).start_ns, 1000u);
}

TEST(Shaper, processes_of_a_job_share_the_cards) {
    const std::string name = token("shared");
    const auto shaper = open_shaper(name);
    shaper->reserve_egress(0, 1000, 125);
    const pid_t child = fork();
    if (child == 0) {
        const auto same = open_shaper(name);
        _exit(same->reserve_egress(0, 1000, 125).start_ns == 2000 ? 0 : 1);
    }
    int status = -1;
    waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
    EXPECT_EQ(shaper->egress_free_ns(0), 3000u);
}

TEST(Shaper, threads_lose_no_reservation) {
    const auto shaper = open_shaper(token("race"));
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i) {
        threads.emplace_back([&] {
            for (int k = 0; k < 10'000; ++k) {
                shaper->reserve_egress(0, 0, 125);
            }
        });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    EXPECT_EQ(shaper->egress_free_ns(0), 40'000u * 1000);
}

TEST(Shaper, the_last_process_removes_the_segment) {
    const std::string name = token("last");
    auto one = open_shaper(name);
    auto two = open_shaper(name);
    const std::string segment = one->segment_name();
    one.reset();
    EXPECT_TRUE(exists(segment));
    two.reset();
    EXPECT_FALSE(exists(segment));
}

TEST(Shaper, what_a_killed_process_left_is_recognised) {
    const std::string name = token("stale");
    std::string segment;
    {
        const auto probe = open_shaper(name);
        segment = probe->segment_name();
    }
    const pid_t child = fork();
    if (child == 0) {
        const auto shaper = open_shaper(name).release();
        shaper->reserve_egress(0, 1ull << 60, 125);  // far in the future
        kill(getpid(), SIGKILL);
    }
    int status = 0;
    waitpid(child, &status, 0);
    ASSERT_TRUE(WIFSIGNALED(status));
    ASSERT_TRUE(exists(segment)) << "the killed process cannot have removed it";
    {
        // Its clocks are void for the next job of that name.
        const auto next = open_shaper(name);
        EXPECT_EQ(next->egress_free_ns(0), 0u);
    }
    EXPECT_FALSE(exists(segment));
    // And a start of any other job removes it too, but nothing that is in use.
    const auto alive = open_shaper(token("alive"));
    const pid_t again = fork();
    if (again == 0) {
        open_shaper(name).release();
        kill(getpid(), SIGKILL);
    }
    waitpid(again, &status, 0);
    ASSERT_TRUE(exists(segment));
    EXPECT_GE(Shaper::remove_stale_segments(), 1);
    EXPECT_FALSE(exists(segment));
    EXPECT_TRUE(exists(alive->segment_name()));
}

// --- Real ranks. The program checks the times itself and prints ratios.

void expect_rates(const std::vector<std::string>& arguments) {
    Job job;
    job.command = {SLIMWIRE_TEST_LINK_BENCH};
    job.command.insert(job.command.end(), arguments.begin(), arguments.end());
    job.library_path = {SLIMWIRE_TEST_EMULATOR};
    const std::vector<Ended> ended = slimwire::test::run_ranks(job);
    EXPECT_EQ(slimwire::test::unless_all_exit(ended), "") << ended[0].out;
}

TEST(ShapedRanks, send_recv_keeps_the_rate) {
    expect_rates(
        {"--bytes", "8388608", "--rates", "200,1000", "--ring-rates", "", "--at-least", "0.9"});
}
TEST(ShapedRanks, ring_of_four_keeps_the_rate) {
    expect_rates(
        {"--bytes", "8388608", "--rates", "", "--ring-rates", "500,1000", "--at-least", "0.85"});
}

TEST(ShapedRanks, no_segment_stays_behind) {
    Job job = slimwire::test::emulator_job("sweep", 2, {"large"});
    job.environment["SLIMWIRE_EMU_LINK"] = "10gbit";
    job.environment["SLIMWIRE_EMU_JOB"] = token("left behind");
    std::string segment;
    {
        const auto probe = open_shaper(job.environment["SLIMWIRE_EMU_JOB"]);
        segment = probe->segment_name();
    }
    EXPECT_EQ(slimwire::test::unless_all_exit(slimwire::test::run_ranks(job)), "");
    EXPECT_FALSE(exists(segment));
}

}  // namespace
}  // namespace slimwire::emu
