// How much of a stock job's bytes each shipped policy compresses: the calls of 200 steps go through
// the code that finds their slots and plans, on a device that is plain memory. The table stands in
// tests/bench/results/README.md.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <tuple>
#include <vector>

#include "collectives/dispatch/dispatch.h"
#include "collectives/dispatch/fallback.h"
#include "collectives/dispatch/plan_lookup.h"
#include "collectives/dispatch/session.h"
#include "collectives/identity/parameter_tracker.h"
#include "tests/collectives/identity/stock_jobs.h"
#include "tests/support/plain_device.h"

namespace slimwire::test {
namespace {

constexpr int kSteps = 200;
constexpr int kRank = 1;

// As in a process: a runtime is never destroyed.
Runtime& lasting_runtime() {
    static auto* const all = new std::vector<std::unique_ptr<Runtime>>;
    Runtime& made = *all->emplace_back(std::make_unique<Runtime>());
    made.listener = make_dispatch_state(made);
    return made;
}

struct Covered {
    uint64_t eligible = 0, matched = 0, compressed = 0;  // bytes of messages
    uint64_t native_wire = 0, wire = 0;                  // of all calls
    int first = -1;  // matched calls before the first compressed

    [[nodiscard]] double of_matched() const {
        return static_cast<double>(compressed) / static_cast<double>(matched);
    }
    [[nodiscard]] double of_eligible() const {
        return static_cast<double>(compressed) / static_cast<double>(eligible);
    }
    [[nodiscard]] double less() const {
        return static_cast<double>(native_wire) / static_cast<double>(wire);
    }
};

// Whether a codec could take it.
bool eligible(const CallSignature& signature) {
    const bool numbers = signature.dtype == DType::kFloat32 || signature.dtype == DType::kFloat16 ||
                         signature.dtype == DType::kBfloat16;
    return numbers && signature.redop != RedOp::kMax;
}

// `auto` without a calibration, and with a link that is not known.
uint64_t least_bytes(const Action& action) {
    return action.auto_bytes ? kLeastBytesOfUnknown : action.min_bytes;
}

// A rank's communicators by one policy.
class CoverageJob {
  public:
    CoverageJob(Policy policy, const std::vector<StockComm>& comms) {
        runtime_.use_device(plain_device());
        runtime_.config.policy = std::move(policy);
        for (const StockComm& comm : comms) {
            add(comm);
        }
    }
    ~CoverageJob() {
        for (Session* state : states_) {
            if (state->tracker != nullptr) {
                state->tracker->end(runtime_.api(), 0, false, &runtime_.device_memory);
            }
        }
    }
    Covered play(const StockCalls& calls) {
        Covered covered;
        for (const StockCall& call : calls) {
            Session* const state = states_[call.comm];
            const uint64_t sent = native_wire_bytes(call.signature, state->shape.ranks, kRank);
            const std::optional<uint64_t> made = make(call, state);
            const bool compressed = made.has_value();
            covered.native_wire += sent;
            covered.wire += made.value_or(sent);
            const uint64_t bytes = message_bytes(call.signature, state->shape.ranks);
            covered.eligible += eligible(call.signature) ? bytes : 0;
            if (!a_rule_takes(call.signature, *state)) {
                EXPECT_FALSE(compressed);
                continue;
            }
            covered.first = covered.first < 0 && compressed ? matched_ : covered.first;
            ++matched_;
            covered.matched += bytes;
            covered.compressed += compressed ? bytes : 0;
        }
        return covered;
    }

  private:
    void add(const StockComm& comm) {
        auto state = std::make_unique<Session>();
        state->comm = reinterpret_cast<ncclComm_t>(state.get());
        state->nccl = &runtime_.libraries.first();
        state->memory = &runtime_.memory;
        state->device_memory = &runtime_.device_memory;
        state->stats = std::make_shared<CommStats>();
        state->rank = kRank;
        state->shape.ranks = comm.ranks;
        state->shape.scope = comm.scope;
        state->shape.go = true;
        if (runtime_.config.policy.wants_steps()) {
            state->places = std::make_unique<TensorSlots>(training_);
            state->skipped_steps = std::make_unique<SkippedSteps>(Pinned());
        }
        if (runtime_.config.policy.wants_parameters()) {
            state->tracker = std::make_shared<ParameterTracker>(nullptr);
        }
        states_.push_back(state.get());
        runtime_.comms.add(std::move(state));
    }
    bool a_rule_takes(const CallSignature& signature, const Session& state) const {
        const uint64_t bytes = message_bytes(signature, state.shape.ranks);
        for (const Rule& rule : runtime_.config.policy.rules) {
            if (rule.action.codec.has_value() && bytes >= least_bytes(rule.action) &&
                matches_call(rule.match, signature, bytes, state.shape.ranks, state.shape.scope)) {
                return true;
            }
        }
        return false;
    }
    // What this rank sends of it, if it is compressed.
    std::optional<uint64_t> make(const StockCall& made, Session* state) {
        static std::vector<std::byte> buffer(64);
        CollectiveCall call;
        call.signature = made.signature;
        call.send = buffer.data();
        call.recv =
            made.result.empty() ? buffer.data() : const_cast<std::byte*>(made.result.data());
        if (state->tracker != nullptr) {
            state->tracker->group_begins();
            const Result<uint32_t> carried = state->tracker->next(runtime_.api(), *state, call);
            EXPECT_TRUE(carried.ok()) << carried.status().message();
            call.signature.ranges_id = carried.ok() ? carried.value() : 0;
            state->tracker->group_ends(true);
            EXPECT_TRUE(state->tracker->launched(runtime_.api(), *state).ok());
        }
        PlanEntry* entry = plan_of(runtime_, state, call.signature, true);
        AskedPlace place;
        if (entry != nullptr && entry->plan->asks_place()) {
            EXPECT_TRUE(find_placed_plan(runtime_, state, &call, &entry, &place).ok());
        }
        if (entry == nullptr || !entry->plan->compressed) {
            if (!place.asked) {
                (void)follow_native(runtime_, call, state);
            }
            return std::nullopt;
        }
        const Result<std::optional<FallbackReason>> fallback =
            check_fallback(runtime_, call, state, *entry, &place);
        EXPECT_TRUE(fallback.ok());
        if (!fallback.ok() || fallback.value().has_value()) {
            return std::nullopt;
        }
        return wire_bytes_of(*entry->plan, state->shape, kRank);
    }

    Runtime& runtime_ = lasting_runtime();
    const Training training_;
    std::vector<Session*> states_;
    int matched_ = 0;
};

// Of the bytes that a rule matches, what is compressed at least.
double least_share(const std::string& policy, const StockJob& job) {
    const bool has_shapes = job.name.starts_with("DDP");
    if (!has_shapes && (policy == "powersgd" || policy == "accordion")) {
        return 0;  // it asks for matrices
    }
    if (job.name == "vLLM TP" && policy == "dct-pipeline") {
        return 0;  // logits go one way, and nothing answers them
    }
    return 0.95;
}

std::string text_of(const char* format, double value) {
    char text[32];
    std::snprintf(text, sizeof text, format, value);
    return text;
}

TEST(Coverage, EveryShippedPolicyCompressesNearlyAllThatItsRulesMatch) {
    const std::filesystem::path folder =
        std::filesystem::path(std::getenv("SOURCE_ROOT")) / "tools/policies";
    std::vector<std::string> policies;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
        if (entry.path().extension() == ".toml" && entry.path().stem() != "off") {
            policies.push_back(entry.path().stem());
        }
    }
    std::sort(policies.begin(), policies.end());
    std::string head = "| job | policy for it | bytes", rule = "\n|---|---|---", rows;
    for (const std::string& policy : policies) {
        head += " | " + policy;
        rule += "|---";
    }
    for (const StockJob& job : stock_jobs(kSteps)) {
        std::string ratio, shares;
        for (const std::string& name : policies) {
            Result<Policy> policy = load_policy_file((folder / (name + ".toml")).string());
            ASSERT_TRUE(policy.ok()) << policy.status().message();
            const Covered covered =
                CoverageJob(std::move(policy).value(), job.comms).play(job.calls);
            shares += " |";
            if (name == job.policy) {
                ratio = "1/" + text_of("%.1f", covered.less());
            }
            if (covered.matched == 0) {
                continue;
            }
            shares += text_of(" %.0f", 100 * covered.of_eligible());
            EXPECT_GE(covered.of_matched(), least_share(name, job)) << name << ", " << job.name;
            if (job.name == "DDP, 1 bucket") {
                EXPECT_LE(covered.first, 2) << name << ": from the third step on";
            }
        }
        rows += "\n| " + job.name + " | " + job.policy + " | " + ratio + shares + " |";
    }
    const std::string table = head + " |" + rule + "|" + rows + "\n";
    std::ostringstream document;
    document << std::ifstream(folder / "../../tests/bench/results/README.md").rdbuf();
    EXPECT_NE(document.str().find(table), std::string::npos)
        << "tests/bench/results/README.md has another table than this:\n"
        << table;
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
        CoverageJob job(std::move(policy).value(), {{4, Scope::kInterNode}});
        const Covered covered =
            job.play(StockCalls(kSteps, call_of(Op::kAllReduce, DType::kFloat32, 1 << 18)));
        EXPECT_EQ(covered.first, 2) << keys;
        EXPECT_EQ(covered.compressed, covered.matched / kSteps * (kSteps - 2)) << keys;
    }
}

// Of each communicator of a job that marks nothing.
std::vector<std::unique_ptr<TensorSlots>> slots_of(const StockJob& job) {
    static const Training training;
    std::vector<std::unique_ptr<TensorSlots>> slots;
    for (size_t i = 0; i < job.comms.size(); ++i) {
        slots.push_back(std::make_unique<TensorSlots>(training));
    }
    return slots;
}

// Once known, steps of jobs that gather their parameters in each begin there, one by one, and are
// counted from the job's first on.
TEST(Coverage, StepsOfShardedJobsBeginByGathers) {
    int found = 0;
    for (const StockJob& job : stock_jobs(kSteps)) {
        const auto places = slots_of(job);
        CommStats stats;
        std::vector<std::vector<uint64_t>> begins(job.comms.size());
        for (const StockCall& call : job.calls) {
            TensorSlots& slots = *places[call.comm];
            if (!is_point_to_point(call.signature.op) &&
                slots.next(call.signature, nullptr, 0, &stats).begins) {
                begins[call.comm].push_back(slots.gathered().steps);
            }
        }
        // The communicator, and how many steps ended when the last one began: Megatron gathers
        // behind each, DeepSpeed once before the first.
        const std::map<std::string, std::pair<size_t, int>> sharding = {
            {"FSDP1", {0, kSteps - 1}},        {"FSDP2", {0, kSteps - 1}},
            {"HSDP", {0, kSteps - 1}},         {"FSDP2, TP", {1, kSteps - 1}},
            {"DeepSpeed ZeRO-3", {1, kSteps}}, {"Megatron TP, DP", {1, kSteps}}};
        if (const auto of = sharding.find(job.name); of != sharding.end()) {
            const auto& [comm, last] = of->second;
            const std::vector<uint64_t>& counted = begins.at(comm);
            ASSERT_GE(counted.size(), kSteps - 20u) << job.name;
            std::vector<uint64_t> wanted(counted.size());
            std::iota(wanted.begin(), wanted.end(), last + 1 - counted.size());
            EXPECT_EQ(counted, wanted) << job.name;
            ++found;
        } else if (job.name.starts_with("DDP") || job.name.starts_with("DeepSpeed ZeRO-")) {
            EXPECT_TRUE(begins.at(0).empty()) << job.name << " gathers none, or behind the step";
        }
    }
    EXPECT_EQ(found, 6);
}

// Why a plain DDP job that marks no steps is not saved (dispatch/ring/state_ring.h): its weights
// come once, as it is made; after a step nothing of the model but gradients, and buffers if it has
// any, so that no print of later weights can be taken, or found again.
TEST(Coverage, DdpBringsItsWeightsOnce) {
    int found = 0;
    for (const StockJob& job : stock_jobs(kSteps)) {
        if (!job.name.starts_with("DDP")) {
            continue;
        }
        uint64_t weights = 0, again = 0;
        bool trains = false;
        for (const StockCall& call : job.calls) {
            const Op op = call.signature.op;
            const DType dtype = call.signature.dtype;
            const uint64_t count = call.signature.count;
            trains |= op == Op::kAllReduce && dtype == DType::kFloat32 && count >= weights / 64;
            if (op == Op::kAllReduce || dtype != DType::kFloat32) {
                continue;
            }
            weights = trains ? weights : std::max(weights, count);
            again += trains && count >= weights / 64 ? 1 : 0;
        }
        EXPECT_GT(weights, 1000000u) << job.name;
        EXPECT_EQ(again, 0u) << job.name;
        ++found;
    }
    EXPECT_EQ(found, 5);
}

// Residuals go by places: each call of a step has the same one in every step, and no other has it.
TEST(Coverage, CallsOfRecordedStepsKeepPlacesOfTheirOwn) {
    for (const StockJob& job : stock_jobs(kSteps)) {
        if (job.step_calls == 0 || job.name.starts_with("DDP")) {
            continue;  // DDP's go by its table
        }
        SCOPED_TRACE(job.name);
        const auto places = slots_of(job);
        CommStats stats;
        using Place = std::tuple<size_t, Op, uint64_t, uint32_t, uint32_t>;
        std::vector<std::optional<Place>> wanted(job.step_calls);
        std::set<Place> taken;
        const size_t learned = job.calls.size() - kSteps / 2 * job.step_calls;
        for (size_t i = 0; i < job.calls.size(); ++i) {
            const auto& [signature, result, comm] = job.calls[i];
            if (is_point_to_point(signature.op)) {
                continue;
            }
            const StepPosition found = places[comm]->next(signature, nullptr, 0, &stats);
            if (i < learned || !eligible(signature) || signature.count == 1) {
                continue;
            }
            const Place place = {comm, signature.op, signature.count, found.slot, found.ordinal};
            ASSERT_TRUE(found.known());
            std::optional<Place>& before = wanted[(i - learned) % job.step_calls];
            ASSERT_TRUE(before.has_value() ? before == place : taken.insert(place).second);
            before = place;
        }
    }
}

}  // namespace
}  // namespace slimwire::test
