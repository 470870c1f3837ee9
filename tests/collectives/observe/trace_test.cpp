// The trace's ring and file: nothing is lost without a line that says so, and what is written is
// bounded.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <limits>
#include <set>
#include <thread>

#include "collectives/observe/trace.h"
#include "tests/collectives/trace_reader.h"
#include "tests/support/ranks.h"

namespace slimwire::test {
namespace {

TraceOptions options_for(const std::string& path, uint64_t max_bytes = 0) {
    TraceOptions options;
    options.pattern = path;
    options.max_bytes = max_bytes;
    options.header = "\"mode\":\"record\"";
    return options;
}

TraceItem call_of(uint64_t number) {
    TraceItem item;
    item.call = number;
    item.signature.count = number;
    item.at_ns = steady_ns();
    return item;
}

TEST(Trace, what_was_pushed_can_be_read) {
    const TemporaryFolder folder;
    Trace trace(options_for(folder.file("trace")));
    TraceItem item = call_of(1);
    item.comm = 0xABCD;
    item.tensor = 0x1234;
    item.signature = {Op::kReduce, DType::kBfloat16, RedOp::kAvg, 3, 1000, 0};
    item.occurrence = 9;
    item.group = 4;
    item.in_place = true;
    item.at_ns = trace.began_ns() + 1500;
    item.host_ns = 2500;
    item.place = {0x77, 1, 5, 6};
    ASSERT_TRUE(trace.push(item));
    TraceItem time;
    time.kind = TraceKind::kTime;
    time.call = 1;
    time.device_ns = 7000;
    ASSERT_TRUE(trace.push(time));
    trace.flush();
    const ReadTrace read = read_trace(folder.file("trace"));
    ASSERT_EQ(read.calls.size(), 1u);
    const TracedCall& call = read.calls[0];
    EXPECT_EQ(call.comm, "000000000000abcd");
    EXPECT_EQ(call.tensor, "0000000000001234");
    EXPECT_TRUE(call.signature == item.signature);
    EXPECT_EQ(call.bytes, 2000u);
    EXPECT_EQ(call.occurrence, 9u);
    EXPECT_EQ(call.group, 4u);
    EXPECT_TRUE(call.in_place);
    EXPECT_FALSE(call.captured);
    EXPECT_DOUBLE_EQ(call.at_us, 1.5);
    EXPECT_DOUBLE_EQ(call.host_us, 2.5);
    EXPECT_DOUBLE_EQ(call.device_us, 7);
    EXPECT_EQ(call.path, "0000000000000077");
    EXPECT_EQ(call.place, 5u);
    EXPECT_EQ(call.step, 6u);
}

TEST(Trace, names_and_what_the_program_told_are_there_where_known) {
    const TemporaryFolder folder;
    Trace trace(options_for(folder.file("trace")));
    TraceItem item = call_of(1);
    ASSERT_TRUE(trace.push(item));
    item.name = "decoder.layers.0.weight";
    ASSERT_TRUE(trace.push(item));
    TraceItem told;
    told.kind = TraceKind::kTraining;
    told.at_ns = trace.began_ns() + 2000;
    told.learning_rate = std::numeric_limits<double>::quiet_NaN();
    ASSERT_TRUE(trace.push(told));
    told.phase = Phase::kEvaluation;
    told.marked = true;
    told.place.step = 12;
    told.learning_rate = 1e-300;
    told.loss_scale = 65536;
    ASSERT_TRUE(trace.push(told));
    trace.flush();
    const ReadTrace read = read_trace(folder.file("trace"));
    ASSERT_EQ(read.calls.size(), 2u);
    EXPECT_EQ(read.calls[0].name, "");
    EXPECT_EQ(read.calls[1].name, "decoder.layers.0.weight");
    ASSERT_EQ(read.trainings.size(), 2u);
    EXPECT_EQ(read.trainings[0].at("phase"), "training");
    EXPECT_DOUBLE_EQ(read.trainings[0].at("at_us"), 2);
    EXPECT_FALSE(read.trainings[0].contains("step"));
    EXPECT_FALSE(read.trainings[0].contains("learning_rate"));
    EXPECT_FALSE(read.trainings[0].contains("loss_scale"));
    EXPECT_EQ(read.trainings[1].at("loss_scale"), 65536);
    EXPECT_EQ(read.trainings[1].at("phase"), "evaluation");
    EXPECT_EQ(read.trainings[1].at("step"), 12);
    EXPECT_EQ(read.trainings[1].at("learning_rate"), 1e-300);
}

TEST(Trace, a_full_ring_drops_and_says_how_much) {
    const TemporaryFolder folder;
    Trace trace(options_for(folder.file("trace")));
    uint64_t pushed = 0;
    for (uint64_t i = 1; i <= Trace::kRing + 10; ++i) {
        pushed += trace.push(call_of(i)) ? 1 : 0;
    }
    EXPECT_EQ(pushed, Trace::kRing);
    trace.flush();
    const ReadTrace read = read_trace(folder.file("trace"));
    EXPECT_EQ(read.calls.size(), Trace::kRing);
    EXPECT_EQ(read.dropped, 10u);
    // There is room again, and what was said is not said twice.
    EXPECT_TRUE(trace.push(call_of(7)));
    trace.flush();
    const ReadTrace then = read_trace(folder.file("trace"));
    EXPECT_EQ(then.dropped, 10u);
    EXPECT_EQ(then.calls.back().call, 7u);
}

// Whoever makes the calls asks behind some items only, and of several threads one may ask late.
TEST(Trace, half_a_ring_presses_until_it_is_written) {
    const TemporaryFolder folder;
    Trace trace(options_for(folder.file("trace")));
    for (uint64_t i = 1; i < Trace::kRing / 2; ++i) {
        trace.push(call_of(i));
    }
    EXPECT_FALSE(trace.pressing());
    trace.push(call_of(1));
    trace.push(call_of(2));
    EXPECT_TRUE(trace.pressing());
    trace.push(call_of(3));
    EXPECT_TRUE(trace.pressing()) << "the thread that writes was not there to be woken before";
    trace.flush();
    EXPECT_FALSE(trace.pressing());
}

TEST(Trace, threads_lose_nothing_but_what_is_counted) {
    const TemporaryFolder folder;
    Trace trace(options_for(folder.file("trace")));
    constexpr uint64_t kEach = 20000;
    std::atomic<int> running{4};
    std::vector<std::thread> threads;
    for (uint64_t thread = 0; thread < 4; ++thread) {
        threads.emplace_back([&, thread] {
            for (uint64_t i = 0; i < kEach; ++i) {
                trace.push(call_of(1 + thread * kEach + i));
            }
            --running;
        });
    }
    while (running > 0) {
        trace.flush();
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    trace.flush();
    trace.flush();
    const ReadTrace read = read_trace(folder.file("trace"));
    std::set<uint64_t> seen;
    for (const TracedCall& call : read.calls) {
        EXPECT_TRUE(seen.insert(call.call).second) << call.call;
        EXPECT_EQ(call.signature.count, call.call);
    }
    EXPECT_EQ(read.calls.size() + read.dropped, 4 * kEach);
}

TEST(Trace, a_full_file_makes_way_and_the_next_says_so) {
    const TemporaryFolder folder;
    constexpr uint64_t kMost = 200000;
    Trace trace(options_for(folder.file("trace"), kMost));
    std::ofstream(folder.file("trace.1")) << "of another job\n";
    TraceItem comm;
    comm.kind = TraceKind::kComm;
    comm.comm = 77;
    comm.ranks = 3;
    ASSERT_TRUE(trace.push(comm));
    for (uint64_t i = 1; i <= 5000; ++i) {
        ASSERT_TRUE(trace.push(call_of(i)));
    }
    trace.flush();
    const ReadTrace last = read_trace(folder.file("trace"));
    const ReadTrace before = read_trace(folder.file("trace.1"));
    EXPECT_EQ(last.calls.back().call, 5000u);
    EXPECT_EQ(before.calls.back().call + 1, last.calls.front().call);
    EXPECT_EQ(last.rotated, 5000 - last.calls.size());
    EXPECT_EQ(before.rotated, last.rotated - before.calls.size());
    EXPECT_GT(last.header.at("part"), 2);
    // Each file knows the communicators.
    ASSERT_EQ(last.comms.size(), 1u);
    EXPECT_EQ(last.comms[0].at("ranks"), 3);
    EXPECT_LE(std::filesystem::file_size(folder.file("trace")) +
                  std::filesystem::file_size(folder.file("trace.1")),
              kMost);
    // Nor is what was lost forgotten with the file that said it.
    uint64_t dropped = 0;
    while (dropped < 7) {
        dropped += trace.push(call_of(1)) ? 0 : 1;
    }
    trace.flush();
    EXPECT_EQ(read_trace(folder.file("trace")).dropped, 7u);
    for (uint64_t i = 1; i <= 5000; ++i) {
        ASSERT_TRUE(trace.push(call_of(i)));
    }
    trace.flush();
    EXPECT_EQ(read_trace(folder.file("trace")).dropped_before, 7u);
}

TEST(Trace, a_pattern_that_ranks_share_is_a_warning) {
    const TemporaryFolder folder;
    ::setenv("WORLD_SIZE", "4", 1);
    for (const char* name : {"trace", "trace.%p"}) {
        testing::internal::CaptureStderr();
        {
            Trace trace(options_for(folder.file(name), 1000));
            trace.push(call_of(1));
            trace.flush();
        }
        const bool warned = testing::internal::GetCapturedStderr().find("has neither %r nor %p") !=
                            std::string::npos;
        EXPECT_EQ(warned, std::string(name) == "trace");
    }
    ::unsetenv("WORLD_SIZE");
}

TEST(Trace, a_place_that_is_no_file_is_left_alone) {
    const TemporaryFolder folder;
    const std::string pipe = folder.file("pipe");
    ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
    for (const std::string& path : {pipe, folder.file("none/trace"), std::string("/dev/null")}) {
        Trace trace(options_for(path, 1000));
        for (uint64_t i = 1; i <= 100; ++i) {
            trace.push(call_of(i));
            trace.flush();
        }
    }
    EXPECT_TRUE(std::filesystem::is_fifo(pipe));
    EXPECT_TRUE(std::filesystem::is_character_file("/dev/null"));
    EXPECT_FALSE(std::filesystem::exists(pipe + ".1"));
}

}  // namespace
}  // namespace slimwire::test
