// min_bytes = "auto" without a calibration: calls are timed when a communicator is made, whichever
// way its ranks make it, and all of its ranks take the same from that. One process, four emulated
// devices.
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include "tests/plugin/lives_fixture.h"
#include "tests/support/own_files.h"

namespace slimwire::test {
namespace {

using Json = nlohmann::json;

class TimedCalls : public Lives, protected OwnFiles {
  protected:
    static void SetUpTestSuite() { ask_for_report(); }
    static void TearDownTestSuite() { OwnFiles::TearDownTestSuite(); }

    // Runs make(), in which as many ranks say what they go by.
    template <class Make>
    static void expect_told(size_t ranks, const Make& make) {
        testing::internal::CaptureStderr();
        make();
        const std::string log = testing::internal::GetCapturedStderr();
        const std::regex told("min_bytes auto goes by (timed calls|the estimate: rank)");
        EXPECT_EQ(static_cast<size_t>(std::distance(
                      std::sregex_iterator(log.begin(), log.end(), told), std::sregex_iterator())),
                  ranks)
            << log;
    }

    // A sum over the ranks, compressed or not; ends the communicators.
    void use_and_end(ncclComm_t (*comms)[kDevices], const std::vector<int>& ranks) {
        ASSERT_NCCL(ncclGroupStart());
        for (const int i : ranks) {
            const ncclResult_t queued = all_reduce(i, (*comms)[i]);
            ASSERT_TRUE(queued == ncclSuccess || queued == ncclInProgress);
        }
        const ncclResult_t ended = ncclGroupEnd();
        ASSERT_TRUE(ended == ncclSuccess || ended == ncclInProgress);
        settle(*comms);
        expect_sum(ranks, false);
        for (const int i : ranks) {
            end(std::exchange((*comms)[i], nullptr));
        }
    }

    // What the communicators that ended since the last look say, by key; each alike on its ranks.
    // Returns how many went by what was timed; all say why.
    size_t timed_comms(size_t comms) {
        std::map<std::string, std::set<std::string>> thresholds, reasons;
        for (const Json& record : report()) {
            if (seen_.count(record.value("comm", "")) > 0) {
                continue;
            }
            if (record.at("record") == "comm") {
                EXPECT_EQ(record.at("agreement"), "go");
                thresholds[record.at("comm")].insert(record.at("thresholds").dump());
            } else if (record.at("record") == "key" && record.at("op") == "allreduce") {
                reasons[record.at("comm")].insert(record.at("reason"));
            }
        }
        EXPECT_EQ(thresholds.size(), comms);
        size_t timed = 0;
        for (const auto& [comm, said] : thresholds) {
            seen_.insert(comm);
            EXPECT_EQ(said.size(), 1u) << comm << ": ranks took different times";
            EXPECT_EQ(reasons[comm].size(), 1u) << comm << ": ranks decided differently";
            const bool by_times = *said.begin() != "[]";
            const std::string reason = reasons[comm].empty() ? "" : *reasons[comm].begin();
            EXPECT_EQ(reason.find("as timed at creation") != std::string::npos, by_times) << reason;
            timed += by_times ? 1 : 0;
        }
        return timed;
    }

    static inline std::set<std::string> seen_;
};

TEST_F(TimedCalls, of_one_thread_and_of_a_part_of_all_ranks) {
    ncclComm_t comms[kDevices] = {}, parts[kDevices] = {};
    expect_told(kDevices, [&] { start(true, &comms); });
    expect_told(0, [&] {
        ASSERT_NCCL(ncclGroupStart());
        for (int i = 0; i < kDevices; ++i) {
            ASSERT_NCCL(ncclCommSplit(comms[i], 0, i, &parts[i], nullptr));
        }
        ASSERT_NCCL(ncclGroupEnd());
    });
    use_and_end(&parts, all_);
    use_and_end(&comms, all_);
    const size_t timed = timed_comms(2);
    EXPECT_TRUE(timed == 0 || timed == 2) << "a part goes by its parent's times";
}

TEST_F(TimedCalls, non_blocking) {
    const CallsMayWait launches("exchanges are launched later");
    ncclComm_t comms[kDevices] = {};
    expect_told(kDevices, [&] { start(false, &comms); });
    use_and_end(&comms, all_);
    (void)timed_comms(1);
}

// Rank 0 of both makes them in a group, and each of its peers comes by itself.
void make_two(bool blocking, ncclComm_t (*first)[kDevices], ncclComm_t (*second)[kDevices]) {
    ncclUniqueId ids[2];
    ncclConfig_t config = blocking ? ncclConfig_t(NCCL_CONFIG_INITIALIZER) : non_blocking();
    ASSERT_NCCL(ncclGetUniqueId(&ids[0]));
    ASSERT_NCCL(ncclGetUniqueId(&ids[1]));
    const auto peer = [&](int device, const ncclUniqueId& id, ncclComm_t* comm) {
        EXPECT_EQ(cudaSetDevice(device), cudaSuccess);
        const ncclResult_t made = ncclCommInitRankConfig(comm, 2, id, 1, &config);
        EXPECT_TRUE(made == ncclSuccess || made == ncclInProgress);
    };
    std::thread one(peer, 1, ids[0], &(*first)[1]), other(peer, 2, ids[1], &(*second)[2]);
    EXPECT_EQ(cudaSetDevice(0), cudaSuccess);
    EXPECT_EQ(ncclGroupStart(), ncclSuccess);
    (void)ncclCommInitRankConfig(&(*first)[0], 2, ids[0], 0, &config);
    (void)ncclCommInitRankConfig(&(*second)[0], 2, ids[1], 0, &config);
    const ncclResult_t made = ncclGroupEnd();
    EXPECT_TRUE(made == ncclSuccess || made == ncclInProgress) << ncclGetLastError(nullptr);
    one.join();
    other.join();
}

class TwoInAGroup : public TimedCalls, public testing::WithParamInterface<bool> {};

TEST_P(TwoInAGroup, whose_peers_make_one_each) {
    for (int round = 0; round < 2; ++round) {
        ncclComm_t first[kDevices] = {}, second[kDevices] = {};
        expect_told(4, [&] {
            make_two(GetParam(), &first, &second);
            settle(first);
            settle(second);
        });
        use_and_end(&first, {0, 1});
        use_and_end(&second, {0, 2});
        (void)timed_comms(2);
    }
}

INSTANTIATE_TEST_SUITE_P(Blocking, TwoInAGroup, testing::Bool());

// A receive on each device waits for a send that its peer makes once the other communicator is
// there.
TEST_F(TimedCalls, beside_work_that_waits_for_a_peer) {
    ncclComm_t waiting[kDevices] = {}, comms[kDevices] = {};
    start(true, &waiting);
    float* received[kDevices] = {};
    cudaStream_t streams[kDevices] = {};
    for (int i = 0; i < kDevices; i += 2) {
        ASSERT_CUDA(cudaSetDevice(i));
        ASSERT_CUDA(cudaStreamCreateWithFlags(&streams[i], cudaStreamNonBlocking));
        ASSERT_CUDA(cudaMalloc(reinterpret_cast<void**>(&received[i]), 64));
        ASSERT_NCCL(ncclRecv(received[i], 16, ncclFloat32, i + 1, waiting[i], streams[i]));
    }
    ncclUniqueId id;
    ASSERT_NCCL(ncclGetUniqueId(&id));
    ASSERT_NCCL(ncclGroupStart());
    for (int i = 0; i < kDevices; ++i) {
        ASSERT_CUDA(cudaSetDevice(i));
        ASSERT_NCCL(ncclCommInitRank(&comms[i], kDevices, id, i));
    }
    ASSERT_NCCL(ncclGroupEnd());
    for (int i = 1; i < kDevices; i += 2) {
        ASSERT_CUDA(cudaSetDevice(i));
        ASSERT_NCCL(ncclSend(in_[i], 16, ncclFloat32, i - 1, waiting[i], streams_[i]));
    }
    for (int i = 0; i < kDevices; i += 2) {
        ASSERT_CUDA(cudaSetDevice(i));
        ASSERT_CUDA(cudaStreamSynchronize(streams[i]));
        ASSERT_CUDA(cudaStreamDestroy(streams[i]));
        ASSERT_CUDA(cudaFree(received[i]));
    }
    use_and_end(&comms, all_);
    use_and_end(&waiting, all_);
    (void)timed_comms(2);
}

}  // namespace
}  // namespace slimwire::test
