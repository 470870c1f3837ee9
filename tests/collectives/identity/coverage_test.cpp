// How much of a job's bytes each shipped policy compresses: the calls of 200 steps go through the
// code that finds their slots and plans, on a device that is plain memory. Prints a table.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "collectives/dispatch/dispatch.h"
#include "collectives/dispatch/fallback.h"
#include "collectives/dispatch/plan_lookup.h"
#include "collectives/dispatch/session.h"
#include "collectives/identity/parameter_tracker.h"
#include "tests/collectives/identity/ddp/models.h"
#include "tests/support/plain_device.h"

namespace slimwire::test {
namespace {

constexpr int kRanks = 4;
constexpr int kSteps = 200;

// One call of a job, and what its result is where slimwire may read it.
struct Call {
    CallSignature signature;
    std::vector<std::byte> result;
};
using Calls = std::vector<Call>;

CallSignature signature_of(Op op, DType dtype, uint64_t count) {
    CallSignature signature;
    signature.op = op;
    signature.dtype = dtype;
    signature.count = count;
    signature.redop = reduces(op) ? RedOp::kSum : RedOp::kNone;
    return signature;
}

template <class T>
Call integers(Op op, const std::vector<T>& values, uint64_t count) {
    Call call{signature_of(op, sizeof(T) == 8 ? DType::kInt64 : DType::kInt32, count), {}};
    call.result.resize(values.size() * sizeof(T));
    std::memcpy(call.result.data(), values.data(), call.result.size());
    return call;
}

Call floats(Op op, uint64_t count) {
    return {signature_of(op, DType::kFloat32, count), {}};
}

// DDP's calls for a model of matrices and biases whose buckets, once rebuilt, have `sizes`
// parameters each; before, it has one bucket less than that, but at least one.
Calls ddp_job(const std::vector<size_t>& sizes) {
    std::vector<ParameterShape> model;
    size_t total = 0;
    for (const size_t size : sizes) {
        total += size;
    }
    for (size_t i = 0; i < total; ++i) {
        const auto width = static_cast<int64_t>(256 + 16 * i);
        model.push_back(i % 2 == 0 ? contiguous({width, 512}) : contiguous({width}));
    }
    Calls calls = {integers(Op::kAllGather, std::vector<int64_t>(kRanks, total), 1)};
    const std::vector<int64_t> shapes = shapes_tensor(model);
    calls.push_back(integers(Op::kBroadcast, shapes, shapes.size()));
    std::vector<int32_t> indices, counts;
    std::vector<uint64_t> buckets;
    uint64_t all = 0;
    size_t next = total;
    for (const size_t size : sizes) {
        counts.push_back(static_cast<int32_t>(size));
        buckets.push_back(0);
        for (size_t i = 0; i < size; ++i) {
            indices.push_back(static_cast<int32_t>(--next));
            buckets.back() += model[next].count();
        }
        all += buckets.back();
    }
    indices.push_back(static_cast<int32_t>(sizes.size()));
    calls.push_back(floats(Op::kBroadcast, all));
    for (int step = 0; step < kSteps; ++step) {
        if (step == 0) {
            for (size_t i = 0; i + 2 < buckets.size(); ++i) {
                calls.push_back(floats(Op::kAllReduce, buckets[i]));
            }
            calls.push_back(floats(
                Op::kAllReduce, buckets.size() == 1 ? all : buckets.back() + *(buckets.end() - 2)));
            calls.push_back(integers(Op::kBroadcast, indices, indices.size()));
            calls.push_back(integers(Op::kBroadcast, counts, counts.size()));
            continue;
        }
        for (const uint64_t bucket : buckets) {
            calls.push_back(floats(Op::kAllReduce, bucket));
        }
    }
    return calls;
}

// A fully sharded model of equal layers and a root unit: gathered in the forward pass, gathered
// again and reduced in the backward pass.
Calls sharded_job(int layers) {
    constexpr uint64_t kLayer = 1 << 18, kRoot = 3 << 17;
    Calls calls = {floats(Op::kBroadcast, 1 << 20)};
    for (int step = 0; step < kSteps; ++step) {
        calls.push_back(floats(Op::kAllGather, kRoot));
        for (int layer = 0; layer < layers; ++layer) {
            calls.push_back(floats(Op::kAllGather, kLayer));
        }
        for (int layer = 0; layer < layers; ++layer) {
            if (layer > 0) {
                calls.push_back(floats(Op::kAllGather, kLayer));
            }
            calls.push_back(floats(Op::kReduceScatter, kLayer));
        }
        calls.push_back(floats(Op::kReduceScatter, kRoot));
    }
    return calls;
}

// As in a process: a runtime is never destroyed.
Runtime& lasting_runtime() {
    static auto* const all = new std::vector<std::unique_ptr<Runtime>>;
    Runtime& made = *all->emplace_back(std::make_unique<Runtime>());
    made.listener = make_dispatch_state(made);
    return made;
}

struct Covered {
    uint64_t matched = 0, compressed = 0;  // bytes
    int first = -1;                        // matched calls before the first compressed one

    [[nodiscard]] double percent() const {
        return 100.0 * static_cast<double>(compressed) / static_cast<double>(matched);
    }
};

// A job on one communicator by one policy.
class Job {
  public:
    explicit Job(Policy policy) {
        runtime_.use_device(plain_device());
        runtime_.config.policy = std::move(policy);
        auto state = std::make_unique<Session>();
        state->comm = reinterpret_cast<ncclComm_t>(this);
        state->nccl = &runtime_.libraries.first();
        state->memory = &runtime_.memory;
        state->device_memory = &runtime_.device_memory;
        state->stats = std::make_shared<CommStats>();
        state->shape.ranks = kRanks;
        state->shape.go = true;
        if (runtime_.config.policy.wants_steps()) {
            state->places = std::make_unique<TensorSlots>(training_);
            state->skipped_steps = std::make_unique<SkippedSteps>(Pinned());
        }
        if (runtime_.config.policy.wants_parameters()) {
            state->tracker = std::make_shared<ParameterTracker>(nullptr);
        }
        state_ = state.get();
        runtime_.comms.add(std::move(state));
    }
    ~Job() {
        if (state_->tracker != nullptr) {
            state_->tracker->end(runtime_.api(), 0, false, &runtime_.device_memory);
        }
    }
    Covered play(const Calls& calls) {
        Covered covered;
        for (const Call& call : calls) {
            const bool compressed = make(call);
            if (!a_rule_takes(call.signature)) {
                EXPECT_FALSE(compressed);
                continue;
            }
            const uint64_t bytes = message_bytes(call.signature, kRanks);
            covered.first = covered.first < 0 && compressed ? matched_ : covered.first;
            ++matched_;
            covered.matched += bytes;
            covered.compressed += compressed ? bytes : 0;
        }
        return covered;
    }

  private:
    bool a_rule_takes(const CallSignature& signature) const {
        const uint64_t bytes = message_bytes(signature, kRanks);
        for (const Rule& rule : runtime_.config.policy.rules) {
            if (rule.action.codec.has_value() && bytes >= rule.action.min_bytes &&
                matches_call(rule.match, signature, bytes, kRanks, state_->shape.scope)) {
                return true;
            }
        }
        return false;
    }
    // Whether it is compressed.
    bool make(const Call& made) {
        static std::vector<std::byte> buffer(64);
        CollectiveCall call;
        call.signature = made.signature;
        call.send = buffer.data();
        call.recv =
            made.result.empty() ? buffer.data() : const_cast<std::byte*>(made.result.data());
        if (state_->tracker != nullptr) {
            state_->tracker->group_begins();
            const Result<uint32_t> carried = state_->tracker->next(runtime_.api(), *state_, call);
            EXPECT_TRUE(carried.ok()) << carried.status().message();
            call.signature.ranges_id = carried.ok() ? carried.value() : 0;
            state_->tracker->group_ends(true);
            EXPECT_TRUE(state_->tracker->launched(runtime_.api(), *state_).ok());
        }
        PlanEntry* entry = plan_of(runtime_, state_, call.signature, true);
        AskedPlace place;
        if (entry != nullptr && entry->plan->asks_place()) {
            EXPECT_TRUE(find_placed_plan(runtime_, state_, &call, &entry, &place).ok());
        }
        if (entry == nullptr || !entry->plan->compressed) {
            if (!place.asked) {
                (void)follow_native(runtime_, call, state_);
            }
            return false;
        }
        const Result<std::optional<FallbackReason>> fallback =
            check_fallback(runtime_, call, state_, *entry, &place);
        EXPECT_TRUE(fallback.ok());
        return fallback.ok() && !fallback.value().has_value();
    }

    Runtime& runtime_ = lasting_runtime();
    const Training training_;
    Session* state_;
    int matched_ = 0;
};

TEST(Coverage, EveryShippedPolicyCompressesNearlyAllThatItsRulesMatch) {
    const struct {
        const char* name;
        Calls calls;
    } jobs[] = {{"one bucket", ddp_job({6})},
                {"four buckets", ddp_job({2, 3, 5, 4})},
                {"sharded, 24 layers", sharded_job(24)},
                {"sharded, 4 layers", sharded_job(4)}};
    std::vector<std::filesystem::path> files;
    for (const auto& entry : std::filesystem::directory_iterator(
             std::string(std::getenv("SOURCE_ROOT")) + "/tools/policies")) {
        files.push_back(entry.path());
    }
    std::sort(files.begin(), files.end());
    std::printf("bytes compressed of those that a rule matches, %d steps\n%-18s", kSteps, "policy");
    for (const auto& job : jobs) {
        std::printf(" %20s", job.name);
    }
    std::printf("\n");
    int covering = 0;
    for (const std::filesystem::path& file : files) {
        std::printf("%-18s", file.stem().c_str());
        for (const auto& job : jobs) {
            Result<Policy> policy = load_policy_file(file.string());
            ASSERT_TRUE(policy.ok()) << policy.status().message();
            const Covered covered = Job(std::move(policy).value()).play(job.calls);
            if (covered.matched == 0) {
                std::printf(" %20s", "none");
                continue;
            }
            ++covering;
            std::printf(" %18.1f %%", covered.percent());
            EXPECT_GE(covered.percent(), 95.0) << file.stem() << ", " << job.name;
            if (job.name == std::string("one bucket")) {
                EXPECT_LE(covered.first, 2) << file.stem() << ": from the third step on";
            }
        }
        std::printf("\n");
    }
    EXPECT_GE(covering, 20);
}

// The same without DDP's table: the program says nothing but its calls.
TEST(Coverage, OneAllReduceAStepIsCompressedFromTheThirdOn) {
    for (const char* keys :
         {"error_feedback = \"ef14\"\naverage_every = 10",
          "error_feedback = \"ef14\"\naccordion = { low = \"int8\", window = 9 }",
          "error_feedback = \"ef21\""}) {
        Result<Policy> policy = parse_policy(
            std::string("version = 1\n[[rule]]\nname = \"sums\"\nmatch = { op = \"allreduce\" }\n"
                        "codec = \"int4\"\n") +
                keys,
            "p.toml");
        ASSERT_TRUE(policy.ok()) << policy.status().message();
        Job job(std::move(policy).value());
        const Covered covered = job.play(Calls(kSteps, floats(Op::kAllReduce, 1 << 18)));
        EXPECT_EQ(covered.first, 2) << keys;
        EXPECT_EQ(covered.compressed, covered.matched / kSteps * (kSteps - 2)) << keys;
    }
}

}  // namespace
}  // namespace slimwire::test
