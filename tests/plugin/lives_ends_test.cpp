// Other ways in which communicators begin, grow, and end in the middle of work, under slimwire in
// one process. Part of the program of lives_in_process_test.cpp.
#include <malloc.h>
#include <nccl_later.h>

#include <string>
#include <thread>
#include <vector>

#include "tests/plugin/lives_fixture.h"
#include "tests/support/has.h"

extern "C" size_t __sanitizer_get_current_allocated_bytes();  // of AddressSanitizer

namespace slimwire::test {
namespace {

// What the process has of the allocator; and with what it fills what is given back, 0: nothing.
#ifdef __SANITIZE_ADDRESS__
size_t allocated_bytes() {
    return __sanitizer_get_current_allocated_bytes();
}
void overwrite_freed(int) {}  // a use of it is an error there
#else
size_t allocated_bytes() {
    return mallinfo2().uordblks;
}
void overwrite_freed(int value) {
    ASSERT_EQ(mallopt(M_PERTURB, value), 1);
}
#endif

TEST_F(Lives, scalable_agrees_by_the_first_of_its_ids) {
    for (const bool blocking : {true, false}) {
        ncclUniqueId ids[2];
        ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
        config.blocking = blocking ? 1 : 0;
        ASSERT_NCCL(ncclGetUniqueId(&ids[0]));
        ASSERT_NCCL(ncclGetUniqueId(&ids[1]));
        ncclComm_t comms[kDevices] = {};
        ASSERT_NCCL(ncclGroupStart());
        for (int i = 0; i < kDevices; ++i) {
            ASSERT_CUDA(cudaSetDevice(i));
            ASSERT_EQ(ncclCommInitRankScalable(&comms[i], kDevices, i, 2, ids, &config),
                      blocking ? ncclSuccess : ncclInProgress);
        }
        ASSERT_EQ(ncclGroupEnd(), blocking ? ncclSuccess : ncclInProgress);
        settle(comms);
        expect_compresses(comms, all_);
        destroy(&comms);
    }
}

TEST_F(Lives, init_all_inside_a_group) {
    ncclComm_t comms[kDevices] = {};
    ASSERT_NCCL(ncclGroupStart());
    ASSERT_NCCL(ncclCommInitAll(comms, kDevices, nullptr));
    ASSERT_NCCL(ncclGroupEnd());
    expect_compresses(comms, all_);
    destroy(&comms);
}

TEST_F(Lives, destroyed_right_after_compressed_calls) {
    for (const bool finalize : {false, true}) {
        ncclComm_t comms[kDevices] = {};
        ASSERT_NCCL(ncclCommInitAll(comms, kDevices, nullptr));
        for (int call = 0; call < 5; ++call) {
            ASSERT_NCCL(all_reduce_all(comms));
        }
        if (finalize) {
            std::vector<std::thread> threads;
            for (ncclComm_t comm : comms) {
                threads.emplace_back([comm] { ASSERT_NCCL(ncclCommFinalize(comm)); });
            }
            for (std::thread& thread : threads) {
                thread.join();
            }
        }
        destroy(&comms);
        expect_sum(all_);
    }
}

TEST_F(Lives, abort_from_another_thread_ends_a_compressed_call) {
    for (const bool blocking : {true, false}) {
        ncclComm_t comms[kDevices] = {};
        start(blocking, &comms);
        ncclComm_t without_2[kDevices] = {comms[0], comms[1], nullptr, comms[3]};
        ASSERT_NE(all_reduce_all(without_2), ncclInvalidArgument);
        const auto start = Clock::now();
        std::thread([&] {
            for (ncclComm_t comm : comms) {
                ASSERT_NCCL(ncclCommAbort(comm));
            }
        }).join();
        for (cudaStream_t stream : streams_) {
            ASSERT_CUDA(cudaStreamSynchronize(stream));
        }
        EXPECT_LT(seconds_since(start), kBoundSeconds);
    }
}

// What a thread in a call may be looking at is not freed before its end.
TEST_F(Lives, abort_from_another_thread_inside_a_group_is_an_error_at_its_end) {
    overwrite_freed(0x5a);
    ncclComm_t comms[kDevices] = {};
    ASSERT_NCCL(ncclCommInitAll(comms, kDevices, nullptr));
    ASSERT_NCCL(ncclGroupStart());
    for (int i = 0; i < kDevices; ++i) {
        ASSERT_NCCL(all_reduce(i, comms[i]));
    }
    const auto free_bytes = [] {
        size_t free = 0, total = 0;
        EXPECT_EQ(cudaSetDevice(0), cudaSuccess);
        EXPECT_EQ(cudaMemGetInfo(&free, &total), cudaSuccess);
        return free;
    };
    const size_t before = free_bytes();
    std::thread([&] {
        for (ncclComm_t comm : comms) {
            ASSERT_NCCL(ncclCommAbort(comm));
        }
    }).join();
    constexpr size_t kOfScratch = 1 << 20;
    EXPECT_LT(free_bytes(), before + kOfScratch);
    EXPECT_NE(ncclGroupEnd(), ncclSuccess);
    EXPECT_HAS(ncclGetLastError(nullptr), "was aborted");
    overwrite_freed(0);
}

// What ends keep, the job's statistics, is as much for either way.
TEST_F(Lives, aborted_ones_leave_no_more_memory_of_the_host_than_destroyed_ones) {
    const auto grows_by = [&](bool abort) {
        constexpr int kRounds = 50, kWarm = 5;
        size_t before = 0;
        for (int round = 0; round < kRounds + kWarm; ++round) {
            before = round == kWarm ? allocated_bytes() : before;
            ncclComm_t comms[kDevices] = {};
            EXPECT_EQ(ncclCommInitAll(comms, kDevices, nullptr), ncclSuccess);
            EXPECT_EQ(all_reduce_all(comms), ncclSuccess);
            for (cudaStream_t stream : streams_) {
                EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
            }
            if (!abort) {
                destroy(&comms);
                continue;
            }
            for (ncclComm_t comm : comms) {
                EXPECT_EQ(ncclCommAbort(comm), ncclSuccess);
            }
        }
        return (static_cast<double>(allocated_bytes()) - static_cast<double>(before)) /
               (kRounds * kDevices);
    };
    const double destroyed = grows_by(false), aborted = grows_by(true);
    EXPECT_LT(aborted, destroyed + 1000) << "bytes a communicator; destroyed ones: " << destroyed;
}

// The new ranks never come, and the old ones give up.
TEST_F(Lives, abort_gives_up_a_growth) {
    ncclConfig_t config = non_blocking();
    ncclUniqueId id;
    ncclComm_t old[kDevices] = {}, grown[kDevices] = {};
    ASSERT_NCCL(ncclGetUniqueId(&id));
    for (int i = 0; i < 2; ++i) {
        ASSERT_CUDA(cudaSetDevice(i));
        ASSERT_EQ(ncclCommInitRankConfig(&old[i], 2, id, i, &config), ncclInProgress);
    }
    settle(old);
    ASSERT_NCCL(ncclCommGetUniqueId(old[0], &id));
    for (int i = 0; i < 2; ++i) {
        ASSERT_CUDA(cudaSetDevice(i));
        ASSERT_EQ(ncclCommGrow(old[i], kDevices, i == 0 ? &id : nullptr, -1, &grown[i], &config),
                  ncclInProgress);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    const auto start = Clock::now();
    for (int i = 0; i < 2; ++i) {
        ASSERT_NCCL(ncclCommAbort(grown[i]));
        ASSERT_NCCL(ncclCommAbort(old[i]));  // NCCL is busy with it
    }
    EXPECT_LT(seconds_since(start), kBoundSeconds);
}

}  // namespace
}  // namespace slimwire::test
