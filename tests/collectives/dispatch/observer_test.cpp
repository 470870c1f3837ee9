// What a mode that observes does when its communicator is aborted meanwhile.
#include "collectives/dispatch/shadow/observer.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <set>
#include <thread>
#include <vector>

#include "collectives/communicator/lifecycle.h"
#include "collectives/dispatch/dispatch.h"
#include "collectives/dispatch/dispatch_state.h"
#include "tests/support/plain_device.h"
#include "tests/support/ranks.h"

namespace slimwire::test {
namespace {

Runtime* g_runtime = nullptr;
const auto g_comm = reinterpret_cast<ncclComm_t>(&g_runtime);
std::set<cudaEvent_t> g_events;
int g_until_abort = 0;  // records of events

RealNccl one_rank() {
    RealNccl nccl;
    nccl.CommCount = [](ncclComm_t, int* ranks) { return *ranks = 1, ncclSuccess; };
    nccl.CommUserRank = [](ncclComm_t, int* rank) { return *rank = 0, ncclSuccess; };
    nccl.CommCuDevice = [](ncclComm_t, int* device) { return *device = 0, ncclSuccess; };
    return nccl;
}

DeviceApi device_with_events() {
    DeviceApi api = plain_device();
    api.peek_at_last_error = [] { return cudaSuccess; };
    api.host_alloc = [](void** out, size_t bytes, unsigned) {
        return *out = std::malloc(bytes), cudaSuccess;
    };
    api.event_create_with_flags = [](cudaEvent_t* out, unsigned) {
        static char all[64];
        *out = reinterpret_cast<cudaEvent_t>(&all[g_events.size()]);
        return g_events.insert(*out), cudaSuccess;
    };
    api.event_destroy = [](cudaEvent_t event) { return g_events.erase(event), cudaSuccess; };
    api.event_record = [](cudaEvent_t event, cudaStream_t) {
        if (g_until_abort-- == 0) {
            std::thread([] {
                const CommUse use;
                (void)comm_ending(*g_runtime, g_comm, true);
            }).join();
        }
        EXPECT_TRUE(g_events.contains(event)) << "it is destroyed while it is recorded";
        return cudaSuccess;
    };
    api.event_elapsed_time = [](float* ms, cudaEvent_t, cudaEvent_t) {
        return *ms = 1, cudaSuccess;
    };
    return api;
}

TEST(Observer, an_abort_destroys_no_event_that_another_thread_records) {
    const TemporaryFolder folder;
    const RealNccl nccl = one_rank();
    static auto* const kept = new std::vector<Runtime*>;  // never destroyed, as a process's
    for (int records = 0; records < 2; ++records) {       // in front of the call, behind it
        g_runtime = kept->emplace_back(new Runtime);
        g_runtime->use_device(device_with_events());
        g_runtime->config.settings.mode = Mode::kRecord;
        g_runtime->config.settings.trace_sample = 0;
        g_runtime->config.settings.trace_pattern = folder.file("trace");
        g_runtime->listener = make_dispatch_state(*g_runtime);
        g_runtime->listener->started();
        dispatch_state(*g_runtime).observer->adopt(nccl, g_comm, 1, {});
        g_until_abort = records;
        CollectiveCall call;
        call.signature = {Op::kAllReduce, DType::kFloat32, RedOp::kSum, 0, 10};
        call.comm = g_comm;
        {
            const CommUse use;
            Observation observation(*g_runtime, call);
            EXPECT_EQ(observation.end(ncclSuccess), ncclSuccess);
        }
        EXPECT_LT(g_until_abort, 0) << "no call was timed";
        EXPECT_EQ(g_runtime->comms.find(g_comm), nullptr);
        g_runtime->reporter().finish();
        g_events.clear();
    }
}

}  // namespace
}  // namespace slimwire::test
