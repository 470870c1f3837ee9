// Plans made of what a call carries, run by hand through the real exchanges on emulated devices:
// the ranks of one process, and what builds their plans and buffers.
#pragma once

#include <gtest/gtest.h>
#include <nccl.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "codecs/float16.h"
#include "collectives/algorithms/algorithm.h"
#include "collectives/call/backend.h"
#include "collectives/communicator/communicator.h"
#include "collectives/dispatch/planner.h"
#include "tests/support/seed.h"

namespace slimwire {

using Bytes = std::vector<uint8_t>;

inline float element(const Bytes& bytes, DType dtype, size_t i) {
    if (dtype == DType::kFloat32) {
        float x = 0;
        std::memcpy(&x, bytes.data() + 4 * i, 4);
        return x;
    }
    uint16_t half = 0;
    std::memcpy(&half, bytes.data() + 2 * i, 2);
    return dtype == DType::kFloat16 ? float16_to_float(half) : bfloat16_to_float(half);
}

inline void set_element(Bytes* bytes, DType dtype, size_t i, float x) {
    if (dtype == DType::kFloat32) {
        std::memcpy(bytes->data() + 4 * i, &x, 4);
        return;
    }
    const uint16_t half = dtype == DType::kFloat16 ? float_to_float16(x) : float_to_bfloat16(x);
    std::memcpy(bytes->data() + 2 * i, &half, 2);
}

// Ranks of one process, each on an emulated device of its own.
class Ranks {
  public:
    explicit Ranks(const std::vector<uint64_t>& hosts) : comms_(hosts.size()) {
        Result<DeviceApi> api = load_device_api();
        EXPECT_TRUE(api.ok()) << api.status().message();
        api_ = api.value();
        nccl_.Send = ncclSend;
        nccl_.Recv = ncclRecv;
        nccl_.AllGather = ncclAllGather;
        nccl_.AllReduce = ncclAllReduce;
        nccl_.GetErrorString = ncclGetErrorString;
        EXPECT_EQ(ncclCommInitAll(comms_.data(), size(), nullptr), ncclSuccess);
        std::vector<RankIdentity> places;
        for (const uint64_t host : hosts) {
            places.push_back({host, 0, -1});
        }
        shape_.ranks = size();
        shape_.go = true;
        shape_.nodes = std::make_shared<const NodeTable>(make_comm_shape(places).value());
        shape_.max_ranks_per_node = shape_.nodes->most();
        shape_.scope = shape_.nodes->nodes() > 1 ? Scope::kInterNode : Scope::kIntraNode;
        for (int rank = 0; rank < size(); ++rank) {
            states_.push_back(std::make_unique<Communicator>());
            Communicator& state = *states_.back();
            state.exchange_comm = comms_[static_cast<size_t>(rank)];
            state.rank = state.device = rank;
            state.device_memory = &memory_;
            state.shape = shape_;
        }
    }
    ~Ranks() {
        for (int rank = 0; rank < size(); ++rank) {
            Communicator* const state = states_[static_cast<size_t>(rank)].get();
            EXPECT_EQ(cudaSetDevice(rank), cudaSuccess);
            {
                Retirement left(&memory_, api_, rank);
                release_device_objects(api_, state, &left);
            }
            EXPECT_EQ(ncclCommDestroy(comms_[static_cast<size_t>(rank)]), ncclSuccess);
        }
    }
    Ranks(const Ranks&) = delete;
    Ranks& operator=(const Ranks&) = delete;

    [[nodiscard]] int size() const { return static_cast<int>(comms_.size()); }
    [[nodiscard]] const PlanShape& shape() const { return shape_; }

    // The residuals of a tensor on all ranks, zero.
    std::vector<void*> make_residuals(const Plan& plan) {
        std::vector<void*> residuals(comms_.size(), nullptr);
        for (int rank = 0; rank < size() && plan.residual.bytes > 0; ++rank) {
            EXPECT_EQ(cudaSetDevice(rank), cudaSuccess);
            void*& residual = residuals[static_cast<size_t>(rank)];
            EXPECT_EQ(cudaMalloc(&residual, plan.residual.bytes), cudaSuccess);
            EXPECT_EQ(cudaMemset(residual, 0, plan.residual.bytes), cudaSuccess);
            EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
        }
        return residuals;
    }
    static void free_all(const std::vector<void*>& buffers) {
        for (void* buffer : buffers) {
            EXPECT_EQ(cudaFree(buffer), cudaSuccess);
        }
    }

    // What each rank has afterwards of what they put in; scalars[rank] where premulsum.
    std::vector<Bytes> run(const Plan& plan,
                           const std::vector<Bytes>& inputs,
                           const std::vector<void*>& residuals,
                           bool in_place,
                           const std::vector<float>& scalars) {
        const auto ranks = comms_.size();
        std::vector<void*> send(ranks), recv(ranks);
        std::vector<cudaStream_t> streams(ranks);
        std::vector<PreMulScalar> held(ranks);
        std::vector<ExchangeRoom> rooms(ranks);
        std::vector<Exchange*> exchanges(ranks);
        for (size_t rank = 0; rank < ranks; ++rank) {
            Communicator& state = *states_[rank];
            EXPECT_EQ(cudaSetDevice(state.device), cudaSuccess);
            const size_t bytes = inputs[rank].size();
            EXPECT_EQ(cudaMalloc(&send[rank], bytes), cudaSuccess);
            EXPECT_EQ(cudaMemcpy(send[rank], inputs[rank].data(), bytes, cudaMemcpyHostToDevice),
                      cudaSuccess);
            recv[rank] = send[rank];
            if (!in_place) {
                EXPECT_EQ(cudaMalloc(&recv[rank], bytes), cudaSuccess);
                EXPECT_EQ(cudaMemset(recv[rank], 0xA5, bytes), cudaSuccess);
            }
            EXPECT_EQ(cudaStreamCreateWithFlags(&streams[rank], cudaStreamNonBlocking),
                      cudaSuccess);
            const Status ready = prepare_device_objects(api_, &state, plan.scratch.bytes);
            EXPECT_TRUE(ready.ok()) << ready.message();
            EXPECT_EQ(cudaMemset(state.objects.scratch, 0xFF, state.objects.scratch_bytes),
                      cudaSuccess);
            EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess) << "the stream waits for no other";
            CollectiveCall call;
            call.signature = plan.signature;
            call.send = send[rank];
            call.recv = recv[rank];
            call.stream = streams[rank];
            ExchangeContext context{api_, nccl_, state, plan, call};
            context.work = streams[rank];
            context.scratch = static_cast<char*>(state.objects.scratch);
            context.residual = residuals[rank];
            if (plan.signature.redop == RedOp::kPreMulSum) {
                held[rank].value = scalars[rank];
                context.scalar = &held[rank];
            }
            exchanges[rank] = descriptor_of(context.plan.algorithm).make(context, &rooms[rank]);
        }
        const auto each = [&](const auto& body) {
            for (size_t rank = 0; rank < ranks; ++rank) {
                EXPECT_EQ(cudaSetDevice(static_cast<int>(rank)), cudaSuccess);
                const Status status = body(*exchanges[rank]);
                EXPECT_TRUE(status.ok()) << "rank " << rank << ": " << status.message();
            }
        };
        for (int phase = 0; phase < exchanges[0]->phases(); ++phase) {
            each([&](Exchange& exchange) { return exchange.kernels(phase); });
            if (exchanges[0]->exchanges(phase)) {
                EXPECT_EQ(ncclGroupStart(), ncclSuccess);
                each([&](Exchange& exchange) { return exchange.exchange(phase); });
                EXPECT_EQ(ncclGroupEnd(), ncclSuccess);
            }
            each([&](Exchange& exchange) { return exchange.finish(phase); });
        }
        std::vector<Bytes> results = inputs;
        for (size_t rank = 0; rank < ranks; ++rank) {
            EXPECT_EQ(cudaSetDevice(static_cast<int>(rank)), cudaSuccess);
            EXPECT_EQ(cudaStreamSynchronize(streams[rank]), cudaSuccess);
            EXPECT_EQ(cudaMemcpy(results[rank].data(), recv[rank], results[rank].size(),
                                 cudaMemcpyDeviceToHost),
                      cudaSuccess);
            EXPECT_EQ(cudaFree(send[rank]), cudaSuccess);
            if (!in_place) {
                EXPECT_EQ(cudaFree(recv[rank]), cudaSuccess);
            }
            EXPECT_EQ(cudaStreamDestroy(streams[rank]), cudaSuccess);
        }
        return results;
    }

  private:
    DeviceApi api_;
    DeviceMemory memory_;
    RealNccl nccl_;
    PlanShape shape_;
    std::vector<ncclComm_t> comms_;
    std::vector<std::unique_ptr<Communicator>> states_;
};

inline Config config_of(const std::string& rules, uint64_t slice_bytes) {
    Result<Policy> policy = parse_policy("version = 1\n" + rules, "p.toml");
    EXPECT_TRUE(policy.ok()) << policy.status().message();
    Config config;
    config.policy = std::move(policy).value();
    config.settings.slice_bytes = slice_bytes;
    return config;
}

inline std::string rule(const std::string& name,
                        const std::string& match,
                        const std::string& action) {
    return "[[rule]]\nname = '" + name + "'\nmatch = { " + match + " }\n" + action + "\n";
}

inline const std::vector<uint64_t> kTwo = {1, 1}, kThree = {1, 1, 1}, kOneNode = {1, 1, 1, 1},
                                   kTwoNodes = {1, 1, 2, 2}, kUneven = {1, 2, 1, 1, 2};

}  // namespace slimwire
