// Messages whose parts travel differently, through the real exchanges: plans made of what a call
// carries, run by hand on emulated devices. Raw parts must be the sum that the format says to the
// bit, every other part what a message of that part alone is.
#include <gtest/gtest.h>
#include <nccl.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <ostream>
#include <random>
#include <string>
#include <vector>

#include "codecs/float16.h"
#include "collectives/algorithms/algorithm.h"
#include "collectives/call/backend.h"
#include "collectives/communicator/communicator.h"
#include "collectives/dispatch/planner.h"
#include "tests/support/seed.h"

namespace slimwire {
namespace {

using Bytes = std::vector<uint8_t>;

float element(const Bytes& bytes, DType dtype, size_t i) {
    if (dtype == DType::kFloat32) {
        float x = 0;
        std::memcpy(&x, bytes.data() + 4 * i, 4);
        return x;
    }
    uint16_t half = 0;
    std::memcpy(&half, bytes.data() + 2 * i, 2);
    return dtype == DType::kFloat16 ? float16_to_float(half) : bfloat16_to_float(half);
}

void set_element(Bytes* bytes, DType dtype, size_t i, float x) {
    if (dtype == DType::kFloat32) {
        std::memcpy(bytes->data() + 4 * i, &x, 4);
        return;
    }
    const uint16_t half = dtype == DType::kFloat16 ? float_to_float16(x) : float_to_bfloat16(x);
    std::memcpy(bytes->data() + 2 * i, &half, 2);
}

float rounded(DType dtype, float x) {
    Bytes one(4);
    set_element(&one, dtype, 0, x);
    return element(one, dtype, 0);
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

Config config_of(const std::string& rules, uint64_t slice_bytes) {
    Result<Policy> policy = parse_policy("version = 1\n" + rules, "p.toml");
    EXPECT_TRUE(policy.ok()) << policy.status().message();
    Config config;
    config.policy = std::move(policy).value();
    config.settings.slice_bytes = slice_bytes;
    return config;
}

struct Case {
    const char* name;
    std::vector<uint64_t> hosts;
    DType dtype;
    RedOp redop;
    Op op;
    const char* weights;     // action of the rule for two dimensions
    const char* embeddings;  // of the rule for three; empty: there are none
    Algorithm algorithm;
    uint64_t slice_bytes;
    bool in_place;
};

void PrintTo(const Case& of, std::ostream* out) {
    *out << of.name;
}

std::string rule(const std::string& name, const std::string& match, const std::string& action) {
    return "[[rule]]\nname = \"" + name + "\"\nmatch = { " + match + " }\n" + action + "\n";
}

class Segments : public testing::TestWithParam<Case> {
  protected:
    // Parameters of one, two and three dimensions in any order and of any size.
    ParameterRanges random_parameters() {
        const int kinds = *GetParam().embeddings == '\0' ? 2 : 3;
        ParameterRanges parameters;
        uint64_t offset = 0;
        const size_t ranges = 300;  // more raw ones than one launch takes
        for (uint32_t i = 0; i < ranges; ++i) {
            // Never many codec parts: those are other tests' business.
            const bool norm = i % 15 != 3;
            const auto dimensions =
                static_cast<uint8_t>(norm ? 1 : 2 + random_() % static_cast<unsigned>(kinds - 1));
            // What is kept apart is so only by plans that gain something by themselves.
            const char* const weights = GetParam().weights;
            const bool apart =
                std::strstr(weights, "ema") != nullptr || std::strstr(weights, "ef21") != nullptr;
            const uint64_t least = apart ? 1000 : 1;
            const uint64_t count = norm ? 1 + random_() % 40 : least + random_() % 4000;
            parameters.ranges.push_back({offset, count, i, dimensions, ""});
            offset += count;
        }
        return parameters;
    }

    // The format's sum of raw elements: FORMAT.md, "Raw elements".
    float raw_sum(const PlanShape& shape,
                  Algorithm algorithm,
                  const std::vector<Bytes>& inputs,
                  size_t i,
                  const std::vector<float>& scalars) const {
        const Case& of = GetParam();
        const auto given = [&](int rank) {
            const auto r = static_cast<size_t>(rank);
            volatile float x = element(inputs[r], of.dtype, i);
            if (of.redop == RedOp::kPreMulSum) {
                x = rounded(of.dtype, scalars[r] * x);
            }
            return static_cast<float>(x);
        };
        const float factor =
            of.redop == RedOp::kAvg ? 1.0f / static_cast<float>(shape.ranks) : 1.0f;
        const auto sum_of = [&](const std::vector<int>& ranks) {
            volatile float sum = given(ranks[0]);
            for (size_t r = 1; r < ranks.size(); ++r) {
                sum = sum + given(ranks[r]);
            }
            return rounded(of.dtype, factor * sum);
        };
        if (algorithm != Algorithm::kHierarchical) {
            std::vector<int> all;
            for (int rank = 0; rank < shape.ranks; ++rank) {
                all.push_back(rank);
            }
            return sum_of(all);
        }
        volatile float sum = sum_of(shape.nodes->ranks_of(0));
        for (int node = 1; node < shape.nodes->nodes(); ++node) {
            sum = sum + sum_of(shape.nodes->ranks_of(node));
        }
        return rounded(of.dtype, sum);
    }

    Bytes random_values(uint64_t count, DType dtype) {
        std::normal_distribution<float> normal;
        Bytes values(count * dtype_bytes(dtype));
        for (size_t i = 0; i < count; ++i) {
            set_element(&values, dtype, i, normal(random_));
        }
        return values;
    }

    uint32_t seed_ = test_seed();
    std::mt19937 random_{seed_};
};

TEST_P(Segments, RawPartsAreSumsAndTheOthersAsAlone) {
    const Case& of = GetParam();
    SCOPED_TRACE("seed " + std::to_string(seed_));
    Ranks ranks(of.hosts);
    const std::string ops = "op = [\"allreduce\", \"reduce\"]";
    const std::string weights = rule("weights", "param = \"2d\"", of.weights);
    const std::string embeddings =
        *of.embeddings == '\0' ? "" : rule("embeddings", "param = \"3d\"", of.embeddings);
    const Config config =
        config_of(rule("norms", "param = \"1d\"", "codec = \"native\"") + weights + embeddings,
                  of.slice_bytes);
    const ParameterRanges parameters = random_parameters();
    CallSignature signature;
    signature.op = of.op;
    signature.dtype = of.dtype;
    signature.redop = of.redop;
    signature.root_or_peer = of.op == Op::kReduce ? 1 : 0;
    signature.ranges_id = 1;
    signature.count = parameters.ranges.back().offset + parameters.ranges.back().count;
    const Plan plan = make_plan(signature, ranks.shape(), config, &parameters);
    ASSERT_TRUE(plan.compressed) << plan.reason;
    ASSERT_EQ(plan.algorithm, of.algorithm) << plan.reason;
    ASSERT_GT(plan.layout.largest_raw_part(), 0);
    const size_t bytes = dtype_bytes(of.dtype);

    // Every run of elements that one rule decides, and a plan of its own for each with a codec.
    struct Part {
        uint64_t offset = 0, count = 0;
        uint8_t dimensions = 0;
        Plan plan;
        std::vector<void*> residuals;
    };
    std::vector<Part> parts;
    for (const ParameterRange& range : parameters.ranges) {
        if (!parts.empty() && parts.back().dimensions == range.dimensions) {
            parts.back().count += range.count;
        } else {
            parts.push_back({range.offset, range.count, range.dimensions, {}, {}});
        }
    }
    for (Part& part : parts) {
        if (part.dimensions == 1) {
            continue;
        }
        CallSignature alone = signature;
        alone.count = part.count;
        alone.ranges_id = 0;
        std::string action = part.dimensions == 2 ? of.weights : of.embeddings;
        Config own = config_of(rule("alone", ops, action), 0);
        part.plan = make_plan(alone, ranks.shape(), own);
        if (!part.plan.compressed || part.plan.algorithm != of.algorithm) {
            // Too small to gain anything by itself: made as if it did.
            part.plan.compressed = true;
            part.plan.algorithm = of.algorithm;
            const Action& asked = own.policy.rules[0].action;
            const AlgorithmDescriptor& descriptor = descriptor_of(of.algorithm);
            part.plan.layout = descriptor.layout({alone, ranks.shape(), asked}, 0);
            const ExchangeSizes sizes = descriptor.sizes(part.plan.layout, alone, ranks.shape());
            part.plan.scratch.bytes = sizes.scratch_bytes;
            part.plan.error_feedback = asked.error_feedback;
            part.plan.residual.bytes =
                asked.error_feedback == ErrorFeedback::kNone ? 0 : 4 * sizes.residual_elems;
        }
        part.residuals = ranks.make_residuals(part.plan);
    }
    const std::vector<void*> residuals = ranks.make_residuals(plan);
    std::vector<float> scalars;
    for (int rank = 0; rank < ranks.size(); ++rank) {
        scalars.push_back(0.3f + static_cast<float>(rank));
    }

    for (int step = 0; step < 3; ++step) {
        std::vector<Bytes> inputs;
        for (int rank = 0; rank < ranks.size(); ++rank) {
            inputs.push_back(random_values(signature.count, of.dtype));
        }
        const std::vector<Bytes> results = ranks.run(plan, inputs, residuals, of.in_place, scalars);
        const auto gets = [&](size_t rank) {
            return of.op == Op::kAllReduce || static_cast<int>(rank) == signature.root_or_peer;
        };
        for (const Part& part : parts) {
            std::vector<Bytes> expected;
            if (part.dimensions == 1) {
                Bytes sums(part.count * bytes);
                for (uint64_t i = 0; i < part.count; ++i) {
                    set_element(
                        &sums, of.dtype, i,
                        raw_sum(ranks.shape(), plan.algorithm, inputs, part.offset + i, scalars));
                }
                expected.assign(inputs.size(), sums);
            } else {
                std::vector<Bytes> own;
                for (const Bytes& input : inputs) {
                    const auto begin =
                        input.begin() + static_cast<std::ptrdiff_t>(part.offset * bytes);
                    own.emplace_back(begin,
                                     begin + static_cast<std::ptrdiff_t>(part.count * bytes));
                }
                expected = ranks.run(part.plan, own, part.residuals, false, scalars);
            }
            for (size_t rank = 0; rank < results.size(); ++rank) {
                if (!gets(rank)) {
                    continue;
                }
                ASSERT_EQ(0, std::memcmp(results[rank].data() + part.offset * bytes,
                                         expected[rank].data(), part.count * bytes))
                    << "step " << step << " rank " << rank << " elements " << part.offset << "+"
                    << part.count << " of " << int{part.dimensions} << " dimensions";
            }
        }
        // What nobody said must not be written: another rank's result of a reduce.
        for (size_t rank = 0; rank < results.size(); ++rank) {
            if (!gets(rank) && !of.in_place) {
                ASSERT_EQ(results[rank], Bytes(results[rank].size(), 0xA5)) << "rank " << rank;
            }
        }
    }
    Ranks::free_all(residuals);
    for (const Part& part : parts) {
        Ranks::free_all(part.residuals);
    }
}

constexpr char kInt4[] = "codec = \"int4\"\nef = \"ef14\"";
constexpr char kInt8[] = "codec = \"int8\"";
constexpr char kEstimated[] = "codec = \"int4\"\nef = \"ef21\"";
constexpr char kTopk[] = "codec = \"topk:fraction=0.2\"";
const std::vector<uint64_t> kOneNode = {1, 1, 1, 1}, kTwoNodes = {1, 1, 2, 2},
                            kUneven = {1, 2, 1, 1, 2};

INSTANTIATE_TEST_SUITE_P(
    Algorithms,
    Segments,
    testing::Values(Case{"two_shot", kOneNode, DType::kFloat32, RedOp::kSum, Op::kAllReduce, kInt4,
                         "", Algorithm::kTwoShot, 0, false},
                    Case{"two_shot_sliced", kOneNode, DType::kBfloat16, RedOp::kAvg, Op::kAllReduce,
                         kInt4, kInt8, Algorithm::kTwoShot, 9000, true},
                    Case{"two_shot_many_slices",
                         {1, 1, 1},
                         DType::kFloat32,
                         RedOp::kPreMulSum,
                         Op::kAllReduce,
                         kInt8,
                         kInt4,
                         Algorithm::kTwoShot,
                         1500,
                         false},
                    Case{"two_shot_half",
                         {1, 1},
                         DType::kFloat16,
                         RedOp::kPreMulSum,
                         Op::kAllReduce,
                         kInt4,
                         kInt8,
                         Algorithm::kTwoShot,
                         20000,
                         true},
                    Case{"two_shot_average", kOneNode, DType::kFloat32, RedOp::kSum, Op::kAllReduce,
                         "codec = \"int4\"\nef = \"ema\"\nresidual = \"fp32\"", kInt8,
                         Algorithm::kTwoShot, 9000, true},
                    Case{"two_shot_estimated", kOneNode, DType::kFloat32, RedOp::kAvg,
                         Op::kAllReduce, kEstimated, kInt8, Algorithm::kTwoShot, 9000, true},
                    Case{"two_shot_estimated_half", kOneNode, DType::kFloat16, RedOp::kPreMulSum,
                         Op::kAllReduce, kEstimated, kEstimated, Algorithm::kTwoShot, 20000, false},
                    Case{"sparse_estimated", kOneNode, DType::kBfloat16, RedOp::kSum,
                         Op::kAllReduce, "codec = \"topk:fraction=0.1\"\nef = \"ef21\"", kTopk,
                         Algorithm::kSparse, 0, false},
                    Case{"gather_estimated",
                         {1, 1, 1},
                         DType::kBfloat16,
                         RedOp::kPreMulSum,
                         Op::kAllReduce,
                         "codec = \"int4\"\nef = \"ef21\"\nalgorithm = \"gather\"",
                         "codec = \"int8\"\nalgorithm = \"gather\"",
                         Algorithm::kGather,
                         20000,
                         true},
                    Case{"reduce", kOneNode, DType::kFloat32, RedOp::kAvg, Op::kReduce, kInt4,
                         kInt8, Algorithm::kTwoShot, 30000, false},
                    Case{"sparse", kOneNode, DType::kFloat32, RedOp::kSum, Op::kAllReduce,
                         "codec = \"int8\"\nef = \"ef14\"",
                         "codec = \"topk:fraction=0.1\"\nef = \"ef14\"", Algorithm::kSparse, 0,
                         true},
                    Case{"gather",
                         {1, 1},
                         DType::kFloat32,
                         RedOp::kAvg,
                         Op::kAllReduce,
                         "codec = \"int4\"\nef = \"ef14\"\nalgorithm = \"gather\"",
                         "codec = \"int8\"\nalgorithm = \"gather\"",
                         Algorithm::kGather,
                         20000,
                         false},
                    Case{"gather_bf16", kOneNode, DType::kBfloat16, RedOp::kPreMulSum,
                         Op::kAllReduce, "codec = \"int2\"\nef = \"ef14\"\nalgorithm = \"gather\"",
                         "", Algorithm::kGather, 0, true},
                    Case{"hierarchical", kTwoNodes, DType::kFloat32, RedOp::kSum, Op::kAllReduce,
                         kInt4, kInt8, Algorithm::kHierarchical, 20000, true},
                    Case{"hierarchical_uneven", kUneven, DType::kBfloat16, RedOp::kAvg,
                         Op::kAllReduce, kInt4, "", Algorithm::kHierarchical, 0, false},
                    Case{"hierarchical_scaled", kTwoNodes, DType::kFloat16, RedOp::kPreMulSum,
                         Op::kAllReduce, kInt4, kInt8, Algorithm::kHierarchical, 9000, false},
                    Case{"hierarchical_intra", kTwoNodes, DType::kFloat32, RedOp::kAvg,
                         Op::kAllReduce, "codec = \"int4\"\nef = \"ef14\"\nintra_codec = \"int8\"",
                         "", Algorithm::kHierarchical, 20000, false},
                    Case{"hierarchical_reduce", kUneven, DType::kFloat32, RedOp::kSum, Op::kReduce,
                         kInt4, kInt8, Algorithm::kHierarchical, 20000, false}),
    [](const auto& info) { return std::string(info.param.name); });

// --- Averages of numbers whose sum no type holds

struct Averaged {
    const char* name;
    std::vector<uint64_t> hosts;
    Op op;
    const char* action;
    Algorithm algorithm;
    double error;           // largest, as a part of the largest number
    double largest = 0.97;  // of the type's range
    size_t equal = 1;       // so many neighbours, as in the rows of a matrix of rank 1
    bool some = false;      // other elements are not sent
};

void PrintTo(const Averaged& of, std::ostream* out) {
    *out << of.name;
}

class Averages : public testing::TestWithParam<Averaged> {};

TEST_P(Averages, OfTheLargestNumbersAreThoseOfFloat64) {
    const Averaged& of = GetParam();
    const uint32_t seed = test_seed();
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    Ranks ranks(of.hosts);
    const size_t all = of.hosts.size();
    const Config config = config_of(
        rule("averages", "op = [\"allreduce\", \"reduce\", \"reducescatter\"]", of.action), 3000);
    for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBfloat16}) {
        SCOPED_TRACE(dtype_name(dtype));
        CallSignature signature;
        signature.op = of.op;
        signature.dtype = dtype;
        signature.redop = RedOp::kAvg;
        signature.count = 1600;
        const Plan plan = make_plan(signature, ranks.shape(), config);
        if (dtype != DType::kFloat32 && !plan.compressed) {
            continue;  // too little to gain
        }
        ASSERT_EQ(plan.algorithm, of.algorithm) << plan.reason;
        const double limit = of.largest * (dtype == DType::kFloat16 ? 65504 : 0x1.FEp127);
        const size_t count = signature.count * (of.op == Op::kReduceScatter ? all : 1);
        std::vector<Bytes> inputs(all, Bytes(count * dtype_bytes(dtype)));
        std::vector<double> expected(count);
        bool alike = false;  // the sign of all ranks, else of the first half
        double sign = 1;
        for (size_t i = 0; i < count; ++i) {
            if (i % of.equal == 0) {
                alike = random() % 4 != 0;
                sign = random() % 2 == 0 ? -1 : 1;
            }
            const double magnitude = limit * (1 - static_cast<double>(i / of.equal % 8) / 16);
            for (size_t rank = 0; rank < all; ++rank) {
                const double by = alike || 2 * rank < all ? sign : -sign;
                set_element(&inputs[rank], dtype, i, static_cast<float>(by * magnitude));
                expected[i] +=
                    static_cast<double>(element(inputs[rank], dtype, i)) / static_cast<double>(all);
            }
        }
        const std::vector<void*> residuals = ranks.make_residuals(plan);
        const std::vector<Bytes> results = ranks.run(plan, inputs, residuals, false, {});
        Ranks::free_all(residuals);
        for (size_t rank = 0; rank < (of.op == Op::kReduce ? 1 : all); ++rank) {
            const size_t first = of.op == Op::kReduceScatter ? rank * signature.count : 0;
            size_t sent = 0;
            for (size_t i = 0; i < signature.count; ++i) {
                const float result = element(results[rank], dtype, i);
                sent += !of.some || result != 0 ? 1 : 0;
                ASSERT_TRUE((of.some && result == 0) ||
                            std::abs(result - expected[first + i]) <= of.error * limit)
                    << "rank " << rank << " element " << i << ": " << result << " for "
                    << expected[first + i];
            }
            ASSERT_GT(5 * sent, signature.count);
        }
    }
}

constexpr char kEight[] = "codec = \"int8:block=32\"\nef = \"ef14\"";
const std::vector<uint64_t> kTwo = {1, 1}, kThree = {1, 1, 1}, kFive = {1, 1, 1, 1, 1};

INSTANTIATE_TEST_SUITE_P(
    Algorithms,
    Averages,
    testing::Values(
        Averaged{"two_shot_of_2", kTwo, Op::kAllReduce, kEight, Algorithm::kTwoShot, 0.02},
        Averaged{"two_shot_of_3", kThree, Op::kAllReduce, "codec = \"bf16\"", Algorithm::kTwoShot,
                 0.01},
        Averaged{"reduce_of_4", kOneNode, Op::kReduce, "codec = \"fp8e4m3\"", Algorithm::kTwoShot,
                 0.1},
        Averaged{"two_shot_of_5", kFive, Op::kAllReduce, "codec = \"int4:block=16\"",
                 Algorithm::kTwoShot, 0.16},
        Averaged{"two_shot_estimated", kThree, Op::kAllReduce,
                 "codec = \"int8:block=32\"\nef = \"ef21\"", Algorithm::kTwoShot, 0.02},
        Averaged{"sparse_of_2", kTwo, Op::kAllReduce, "codec = \"topk:fraction=0.4\"",
                 Algorithm::kSparse, 0.01, 0.97, 1, true},
        Averaged{"sparse_of_5", kFive, Op::kAllReduce, "codec = \"topk:fraction=0.4,values=int8\"",
                 Algorithm::kSparse, 0.02, 0.97, 1, true},
        Averaged{"gather", kThree, Op::kAllReduce,
                 "codec = \"int8:block=32\"\nalgorithm = \"gather\"", Algorithm::kGather, 0.02},
        Averaged{"hierarchical", kUneven, Op::kAllReduce, kEight, Algorithm::kHierarchical, 0.02},
        Averaged{"hierarchical_intra", kTwoNodes, Op::kAllReduce,
                 "codec = \"int8:block=32\"\nintra_codec = \"int8:block=32\"",
                 Algorithm::kHierarchical, 0.03},
        Averaged{"hierarchical_scatter", kTwoNodes, Op::kReduceScatter,
                 "codec = \"int8:block=32\"\nalgorithm = \"hierarchical\"",
                 Algorithm::kHierarchical, 0.02},
        Averaged{"direct", kFive, Op::kReduceScatter, kEight, Algorithm::kDirect, 0.02},
        Averaged{"summable", kThree, Op::kAllReduce,
                 "codec = \"randomk:fraction=0.4\"\nalgorithm = \"summable\"", Algorithm::kSummable,
                 0.01, 0.97, 1, true},
        Averaged{"low_rank", kFive, Op::kAllReduce, "codec = \"powersgd:rank=1,row=40\"",
                 Algorithm::kLowRank, 0.01, 0.05, 40}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace slimwire
