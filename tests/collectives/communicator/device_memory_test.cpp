// Device memory comes and goes while work is pending that never ends unless the test says so.
#include "collectives/communicator/device_memory.h"

#include <gtest/gtest.h>

#include <limits>
#include <memory>
#include <vector>

#include "collectives/communicator/communicator.h"
#include "collectives/communicator/graph_memory.h"
#include "tests/support/pending_device.h"

namespace slimwire {
namespace {

using test::Machine;
using test::Point;

class MemoryOfADevice : public testing::Test {
  protected:
    MemoryOfADevice() {
        test::g_machine = &machine_;
        EXPECT_EQ(api_.stream_create_with_flags(&stream_, 0), cudaSuccess);
        state_.device_memory = &memory_;
        state_.memory = &budget_;
        state_.stats = std::make_shared<CommStats>();
    }
    ~MemoryOfADevice() override {
        collect();
        EXPECT_TRUE(machine_.live.empty()) << "nothing is kept";
        EXPECT_EQ(machine_.waits, 0);
    }
    void* allocate(uint64_t bytes) {
        void* memory = nullptr;
        EXPECT_EQ(memory_.allocate(api_, 0, bytes, &memory), cudaSuccess);
        return memory;
    }
    void collect() { memory_.collect(api_); }
    // Work on the stream that does not end by itself.
    std::shared_ptr<Point> enqueue() { return test::enqueue(stream_); }
    [[nodiscard]] bool lives(void* memory) const { return machine_.live.contains(memory); }
    cudaEvent_t event() {
        cudaEvent_t made = nullptr;
        EXPECT_EQ(api_.event_create_with_flags(&made, 0), cudaSuccess);
        EXPECT_EQ(api_.event_record(made, stream_), cudaSuccess);
        return made;
    }
    // A compressed call that uses the scratch.
    std::shared_ptr<Point> call(uint64_t scratch_bytes) {
        EXPECT_TRUE(prepare_device_objects(api_, &state_, scratch_bytes).ok());
        EXPECT_EQ(api_.stream_wait_event(stream_, state_.objects.chain, 0), cudaSuccess);
        const std::shared_ptr<Point> work = enqueue();
        EXPECT_EQ(api_.event_record(state_.objects.chain, stream_), cudaSuccess);
        state_.objects.chained = true;
        return work;
    }
    void release() {
        Retirement left(&memory_, api_, 0);
        release_device_objects(api_, &state_, &left);
    }

    Machine machine_;
    const DeviceApi api_ = test::pending_device();
    DeviceMemory memory_;
    MemoryBudget budget_;
    Communicator state_;
    cudaStream_t stream_ = nullptr;
};

TEST_F(MemoryOfADevice, IsOfAPoolThatDependsOnNoWork) {
    (void)enqueue();
    void* const memory = allocate(100);
    EXPECT_TRUE(lives(memory));
    EXPECT_EQ(machine_.depends, 0);
    EXPECT_EQ(machine_.peers, 2) << "those of the other three that reach the device";
    memory_.free(api_, 0, memory);
    EXPECT_FALSE(lives(memory));
    memory_.free(api_, 0, allocate(100));
    EXPECT_EQ(machine_.pools, 1);
}

// The host's may wait to come.
TEST_F(MemoryOfADevice, ThatPoolsKeepComesBackBeforeTheHostHelps) {
    machine_.room = 50;
    machine_.kept = 100;
    void* memory = nullptr;
    EXPECT_EQ(memory_.allocate_anyhow(api_, 0, 100, &memory), cudaSuccess);
    EXPECT_TRUE(lives(memory));
    memory_.free(api_, 0, memory);
}

TEST_F(MemoryOfADevice, ThatIsRetiredIsFreedByALaterCallOnceItsEventHasHappened) {
    void* const memory = allocate(100);
    const std::shared_ptr<Point> work = enqueue();
    memory_.retire(api_, 0, event(), {memory});
    memory_.free(api_, 0, allocate(100));
    collect();
    EXPECT_TRUE(lives(memory)) << "work may use it";
    work->ended = true;
    EXPECT_TRUE(lives(memory));
    memory_.free(api_, 0, allocate(100));
    EXPECT_FALSE(lives(memory));
}

TEST_F(MemoryOfADevice, ThatIsRetiredBehindAnEventDoesNotWaitForItsNextRecord) {
    void* const memory = allocate(100);
    const cudaEvent_t chain = event();
    const std::shared_ptr<Point> work = enqueue();
    EXPECT_EQ(api_.event_record(chain, stream_), cudaSuccess);
    {
        Retirement left(&memory_, api_, 0);
        left.after(chain);
        left.add(memory);
    }
    (void)enqueue();
    EXPECT_EQ(api_.event_record(chain, stream_), cudaSuccess);
    collect();
    EXPECT_TRUE(lives(memory));
    work->ended = true;
    collect();
    EXPECT_FALSE(lives(memory)) << "what came after does not use it";
}

TEST_F(MemoryOfADevice, ThatHasSeveralLastUsesStaysForAllOfThem) {
    void* const memory = allocate(100);
    const std::shared_ptr<Point> first = enqueue();
    const cudaEvent_t one = event();
    const std::shared_ptr<Point> second = enqueue();
    {
        Retirement left(&memory_, api_, 0);
        left.after(one);
        left.after(event());
        left.after(nullptr);
        left.add(memory);
        left.add(nullptr);
    }
    first->ended = true;
    collect();
    EXPECT_TRUE(lives(memory));
    second->ended = true;
    collect();
}

TEST_F(MemoryOfADevice, ThatNoWorkUsesIsFreedAtOnce) {
    void* const memory = allocate(100);
    {
        Retirement left(&memory_, api_, 0);
        left.after(event());
        left.add(memory);
    }
    EXPECT_FALSE(lives(memory));
    (void)enqueue();
    memory_.retire(api_, 0, nullptr, {allocate(100)});
}

TEST_F(MemoryOfADevice, IsOfANewPoolWhereAResetTookTheOld) {
    memory_.free(api_, 0, allocate(100));
    machine_.lost = true;
    memory_.free(api_, 0, allocate(100));
    EXPECT_EQ(machine_.pools, 2);
}

// The call before may wait for a rank that waits for the call which needs more.
TEST_F(MemoryOfADevice, ScratchGrowsWhileACallIsPending) {
    const std::shared_ptr<Point> before = call(100);
    void* const outgrown = state_.objects.scratch;
    const std::shared_ptr<Point> work = call(200);
    EXPECT_NE(state_.objects.scratch, outgrown);
    EXPECT_EQ(state_.objects.scratch_bytes, 200u);
    EXPECT_EQ(budget_.held(0), 200u);
    EXPECT_EQ(machine_.waits, 0);
    collect();
    EXPECT_TRUE(lives(outgrown)) << "the call before uses it";
    before->ended = true;
    collect();
    EXPECT_FALSE(lives(outgrown)) << "although a call is pending";
    work->ended = true;
    release();
}

TEST_F(MemoryOfADevice, AnEndLeavesThePendingCallItsScratch) {
    const std::shared_ptr<Point> work = call(100);
    void* const scratch = state_.objects.scratch;
    release();
    EXPECT_EQ(budget_.held(0), 0u);
    EXPECT_TRUE(lives(scratch));
    work->ended = true;
    collect();
    EXPECT_FALSE(lives(scratch));
}

// Half of 5 % of the device for the first communicator; less where there is not even that.
TEST_F(MemoryOfADevice, IsReservedAsFarAsThereIsAny) {
    reserve_scratch(api_, &state_, 10000);
    EXPECT_EQ(state_.objects.reserve_bytes, 4864u);
    EXPECT_EQ(budget_.held(0), 4864u);
    Communicator second;
    second.device_memory = &memory_;
    second.memory = &budget_;
    second.stats = std::make_shared<CommStats>();
    reserve_scratch(api_, &second, 10000);
    EXPECT_EQ(second.objects.reserve_bytes, 0u) << "half of what is left is too little";
    drop_reserve(api_, &state_);
    EXPECT_EQ(budget_.held(0), 0u);
    machine_.room = 4095;
    reserve_scratch(api_, &second, 4864);
    EXPECT_EQ(second.objects.reserve_bytes, 0u);
    EXPECT_EQ(budget_.held(0), 0u);
    machine_.room = 4608;
    reserve_scratch(api_, &second, 9999);
    EXPECT_EQ(second.objects.reserve_bytes, 0u) << "half of it would be less than there is use for";
    machine_.room = UINT64_MAX;
    reserve_scratch(api_, &second, 4096);
    EXPECT_EQ(second.stats->scratch_bytes, 4352u);
    EXPECT_EQ(second.objects.room(), 4096u);
    drop_reserve(api_, &second);
}

TEST_F(MemoryOfADevice, ThatIsReservedStaysForGraphs) {
    static auto* const kept = new GraphMemory(&budget_, &memory_);  // as the process's
    GraphMemory& graphs = *kept;
    reserve_scratch(api_, &state_, 4096);
    void* const reserve = state_.objects.reserve;
    const std::shared_ptr<Point> work = call(0);
    EXPECT_EQ(state_.objects.scratch, nullptr) << "nothing beside it";
    EXPECT_TRUE(graphs.keep_reserve(api_, nullptr, &state_).ok());
    EXPECT_TRUE(graphs.keep_reserve(api_, nullptr, &state_).ok());
    release();
    ASSERT_EQ(machine_.user_objects.size(), 2u);
    for (const auto& graphs_own : machine_.user_objects) {
        test::give_up(graphs_own.get(), 1);
    }
    graphs.free_returned(api_, 0);
    EXPECT_TRUE(lives(reserve)) << "the last call uses it";
    work->ended = true;
    collect();
    graphs.free_returned(api_, 0);
    EXPECT_FALSE(lives(reserve));
    EXPECT_EQ(budget_.held(0), 0u);
}

TEST(MemoryOfADeviceWithoutPools, IsCudaMallocs) {
    static int mallocs, frees;
    mallocs = frees = 0;
    DeviceApi api = test::plain_device();
    api.malloc = [](void** out, size_t bytes) {
        return ++mallocs, *out = std::malloc(bytes), cudaSuccess;
    };
    api.free = [](void* memory) { return ++frees, std::free(memory), cudaSuccess; };
    DeviceMemory memory;
    void* made = nullptr;
    ASSERT_EQ(memory.allocate(api, 0, 100, &made), cudaSuccess);
    memory.free(api, 0, made);
    EXPECT_EQ(mallocs, 1);
    EXPECT_EQ(frees, 1);
    EXPECT_FALSE(memory.reserved(api, 0).has_value());
}

TEST(DeviceObjects, streams_have_the_highest_priority) {
    DeviceApi api = test::plain_device();
    static std::vector<int> priorities;
    priorities.clear();
    api.stream_create_with_priority = [](cudaStream_t* out, unsigned flags, int priority) {
        EXPECT_EQ(flags, static_cast<unsigned>(cudaStreamNonBlocking));
        priorities.push_back(priority);
        return *out = nullptr, cudaSuccess;
    };
    Communicator state;
    ASSERT_TRUE(prepare_device_objects(api, &state, 0).ok());
    EXPECT_EQ(priorities, std::vector<int>(3, std::numeric_limits<int>::min()));
}

}  // namespace
}  // namespace slimwire
