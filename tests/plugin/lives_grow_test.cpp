// Communicators that grow without blocking, in one process with four emulated devices: the ones
// that were there get bigger, the old ones go on.
#include <nccl_later.h>

#include "tests/plugin/lives_fixture.h"

namespace slimwire::test {
namespace {

class Grows : public Lives {
  protected:
    // Devices 0 and 1, ready.
    void start_two() {
        ncclConfig_t config = non_blocking();
        ncclUniqueId id;
        ASSERT_NCCL(ncclGetUniqueId(&id));
        for (int i = 0; i < 2; ++i) {
            ASSERT_CUDA(cudaSetDevice(i));
            ASSERT_EQ(ncclCommInitRankConfig(&old_[i], 2, id, i, &config), ncclInProgress);
        }
        settle(old_);
    }

    // Ranks 0 and 1 pass what they are part of, 2 and 3 the id; from one thread, ungrouped.
    void grow_to_four(ncclConfig_t* config) {
        ncclUniqueId id;
        ASSERT_NCCL(ncclCommGetUniqueId(old_[0], &id));
        for (int i = 0; i < kDevices; ++i) {
            ASSERT_CUDA(cudaSetDevice(i));
            ASSERT_EQ(ncclCommGrow(old_[i], kDevices, i == 0 || i > 1 ? &id : nullptr,
                                   i < 2 ? -1 : i, &grown_[i], config),
                      ncclInProgress)
                << "device " << i << ": " << ncclGetLastError(nullptr);
        }
    }

    ncclComm_t old_[kDevices] = {};
    ncclComm_t grown_[kDevices] = {};
};

TEST_F(Grows, non_blocking_ones_compress_and_so_do_the_old_ones) {
    start_two();
    for (int round = 0; round < 3; ++round) {
        ncclConfig_t config = non_blocking();
        grow_to_four(&config);
        settle(old_);
        settle(grown_);
        expect_compresses(grown_, all_);
        expect_compresses(old_, {0, 1});
        destroy(&grown_);
    }
    expect_compresses(old_, {0, 1});
    destroy(&old_);
}

// The new ranks never come, and the old ones give up.
TEST_F(Grows, abort_gives_up_a_growth) {
    start_two();
    ncclUniqueId id;
    ncclConfig_t config = non_blocking();
    ASSERT_NCCL(ncclCommGetUniqueId(old_[0], &id));
    for (int i = 0; i < 2; ++i) {
        ASSERT_CUDA(cudaSetDevice(i));
        ASSERT_EQ(ncclCommGrow(old_[i], kDevices, i == 0 ? &id : nullptr, -1, &grown_[i], &config),
                  ncclInProgress);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    const auto start = Clock::now();
    for (int i = 0; i < 2; ++i) {
        ASSERT_NCCL(ncclCommAbort(grown_[i]));
        ASSERT_NCCL(ncclCommAbort(old_[i]));  // NCCL is busy with it
    }
    EXPECT_LT(seconds_since(start), 3);
}

}  // namespace
}  // namespace slimwire::test
