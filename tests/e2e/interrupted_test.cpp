// A rank that dies, stops or is slow somewhere inside a compressed call: the others get an error in
// bounded time, or wait and have the right result. The moment is drawn by the seed, so that over
// many seeds every phase of every algorithm is met; INTERRUPTED_AFTER_US fixes it.
#include <gtest/gtest.h>

#include <random>

#include "tests/support/job.h"
#include "tests/support/seed.h"

namespace slimwire::test {
namespace {

constexpr const char* kOperations[] = {"allreduce", "reducescatter", "reduce",
                                       "allgather", "broadcast",     "alltoall",
                                       "gather",    "scatter",       "sendrecv"};

std::string moment(int most_us) {
    const char* given = std::getenv("INTERRUPTED_AFTER_US");
    static std::mt19937 random(test_seed());
    return given != nullptr ? given : std::to_string(random() % static_cast<unsigned>(most_us));
}

Job make_job(const std::string& op, const std::string& fate, const std::string& after_us) {
    Job job = slimwire_job({SLIMWIRE_TEST_INTERRUPTED, op, fate, after_us}, 3);
    job.environment["SLIMWIRE_CODEC"] = "int8:block=64";
    job.environment["SLIMWIRE_OPS"] = "all";
    job.environment["SLIMWIRE_MIN_BYTES"] = "2KiB";
    job.environment["runtime.slice_bytes"] = "65536";
    job.limit_s = 50;
    return job;
}

TEST(Interrupted, killed_rank_is_an_error_of_the_others) {
    for (const char* op : kOperations) {
        const std::string after_us = moment(30000);
        SCOPED_TRACE(std::string(op) + " INTERRUPTED_AFTER_US=" + after_us);
        const auto ranks = run_ranks(make_job(op, "kill", after_us));
        EXPECT_EQ(ranks[2].exit_code, 128 + 9);
        for (const size_t rank : {0, 1}) {
            EXPECT_EQ(ranks[rank].exit_code, 42) << ranks[rank].out << ranks[rank].err;
            EXPECT_LT(ranks[rank].seconds, 25);
        }
    }
}

TEST(Interrupted, stopped_rank_is_waited_for) {
    for (const char* op : {"allreduce", "sendrecv"}) {
        const std::string after_us = moment(20000);
        SCOPED_TRACE(std::string(op) + " INTERRUPTED_AFTER_US=" + after_us);
        EXPECT_EQ(unless_all_exit(run_ranks(make_job(op, "stop", after_us))), "");
    }
}

TEST(Interrupted, slow_rank_is_waited_for) {
    for (const char* op : {"reduce", "allgather", "sendrecv"}) {
        SCOPED_TRACE(op);
        EXPECT_EQ(unless_all_exit(run_ranks(make_job(op, "slow", "0"))), "");
    }
}

}  // namespace
}  // namespace slimwire::test
