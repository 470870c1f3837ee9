#include "collectives/error_budget.h"

#include <algorithm>
#include <string>
#include <utility>

#include "codecs/base/device_scope.h"
#include "codecs/codec.h"
#include "collectives/comm_state.h"
#include "collectives/factor_probe.h"

namespace slimwire {
namespace {

// A sample of a large tensor: as many runs, evenly apart, of as many elements.
constexpr uint64_t kRuns = 8;
constexpr uint64_t kRunElems = 32768;

uint64_t aligned(uint64_t bytes) noexcept {
    return (bytes + 255) / 256 * 256;
}

uint64_t sampled(uint64_t count) noexcept {
    return std::min(count, kRuns * kRunElems);
}

// Where in the scratch what lies, from its begin.
struct ProbeRoom {
    uint64_t work = 0, sample, decoded, encoded, workspace, end;

    ProbeRoom(const std::vector<CodecSpec>& ladder, DType dtype, uint64_t count) {
        const auto elems = static_cast<int64_t>(sampled(count));
        const uint64_t bytes = aligned(sampled(count) * dtype_bytes(dtype));
        uint64_t largest = 0, most = 0;
        for (const CodecSpec& codec : ladder) {
            largest = std::max(largest, static_cast<uint64_t>(codec.encoded_bytes(dtype, elems)));
            most = std::max(most, static_cast<uint64_t>(codec.workspace_bytes(
                                      dtype, elems, chunk_of(codec, dtype, elems))));
        }
        sample = aligned(sizeof(MeasureWork));
        decoded = sample + bytes;
        encoded = decoded + bytes;
        workspace = encoded + aligned(largest);
        end = workspace + aligned(most);
    }
    // One chunk that holds all elements.
    static int64_t chunk_of(const CodecSpec& codec, DType dtype, int64_t elems) {
        const int64_t granule = codec.granule(dtype);
        return (elems + granule - 1) / granule * granule;
    }
};

// What is encoded and decoded is off by this.
Probed found_of_runs(const Measured* measured, size_t codecs) {
    Probed found;
    for (size_t i = 0; i < codecs; ++i) {
        const Measured& of = measured[i];
        if (of.nonfinite != 0) {
            return {};
        }
        found.squares.push_back(of.square_sum > 0 ? of.error_square_sum / of.square_sum : 0);
    }
    return found;
}

}  // namespace

int ErrorBudgetControl::next() noexcept {
    return calls_++ % rule_->every == 0 ? kProbe : totals_.chosen;
}

bool ErrorBudgetControl::due() const noexcept {
    const uint64_t probes = (calls_ + rule_->every - 1) / rule_->every;
    return probes > totals_.probes;
}

void ErrorBudgetControl::decide(const std::vector<double>& squares,
                                const std::vector<double>& bounds) {
    int chosen = totals_.chosen;
    if (!squares.empty()) {
        const double most = static_cast<double>(rule_->max_error_ppm) / 1e6;
        chosen = kNative;
        for (size_t i = squares.size(); i-- > 0;) {
            if (squares[i] <= (bounds.empty() ? most * most : bounds[i])) {
                chosen = static_cast<int>(i);
            }
        }
    }
    totals_.add(squares, bounds, chosen);
}

void ErrorBudgetControl::choose(const std::vector<double>& squares,
                                const std::vector<double>& bounds,
                                int rung,
                                const std::vector<uint32_t>& refused) {
    totals_.add(squares, bounds, squares.empty() ? totals_.chosen : rung, refused);
}

uint64_t probe_bytes(const std::vector<CodecSpec>& ladder, DType dtype, uint64_t count) {
    return ProbeRoom(ladder, dtype, count).end;
}

Plan* plan_of_rung(Plan* plan, int rung) noexcept {
    if (rung == ErrorBudgetControl::kProbe) {
        return plan->probe.get();
    }
    const auto at = static_cast<size_t>(rung);
    return at < plan->ladder.size() ? plan->ladder[at].get() : plan;
}

Plan* BudgetedCall::plan_of(Plan* plan) const noexcept {
    return rung != ErrorBudgetControl::kProbe && partial != nullptr ? partial.get()
                                                                    : plan_of_rung(plan, rung);
}

Result<BudgetedCall> ErrorBudgets::next(const DeviceApi& api,
                                        CommState* state,
                                        Plan* plan,
                                        const StepPlace& place) {
    const size_t codecs = plan->budget->ladder.size();
    BudgetedTensor& tensor =
        tensors_.try_emplace({plan, place.slot, place.ordinal}, *plan->budget).first->second;
    if (tensor.path != place.path) {
        // A tensor of another step.
        tensor.control = ErrorBudgetControl(*plan->budget);
        tensor.partial = nullptr;
        tensor.path = place.path;
        tensor.under_way = false;
    }
    if (tensor.end == nullptr) {
        const DeviceScope device(api, state->device);
        void* memory = nullptr;
        if (tensor.measured == nullptr) {
            SLIMWIRE_TRY(cuda_status(
                api,
                api.host_alloc(&memory,
                               (codecs + (codecs + 1) * matrices_of(*plan)) * sizeof(Measured), 0),
                "measurements of max_error"));
            tensor.measured = static_cast<Measured*>(memory);
        }
        SLIMWIRE_TRY(cuda_status(api,
                                 api.event_create_with_flags(&tensor.end, cudaEventDisableTiming),
                                 "event of max_error"));
    }
    if (tensor.control.due()) {
        if (!std::exchange(tensor.under_way, false)) {
            return Status(Code::kInvalidUsage,
                          "a tensor with 'max_error' in one group with its call of a step before, "
                          "whose result decides how it travels");
        }
        SLIMWIRE_TRY(
            cuda_status(api, api.event_synchronize(tensor.end), "wait for a probe of max_error"));
        const Probed found = plan->probe->factored.empty()
                                 ? found_of_runs(tensor.measured, codecs)
                                 : found_of_factors(tensor.measured, *plan);
        if (!plan->budget->beats_random) {
            tensor.control.decide(found.squares, found.bounds);
        } else if (!found.squares.empty()) {
            tensor.control.choose(found.squares, found.bounds, found.chosen.rung,
                                  found.chosen.refused);
            tensor.partial =
                found.chosen.refused.empty()
                    ? nullptr
                    : without_refused(*plan_of_rung(plan, found.chosen.rung), found.chosen.refused,
                                      *state, &tensor.more_wire_bytes);
        } else {
            tensor.control.choose({}, {}, ErrorBudgetControl::kNative, {});
        }
        state->stats->update([&](CommStats&) {
            ErrorBudgetTotals& totals = plan->stats->budgets[{place.slot, place.ordinal}];
            totals = tensor.control.totals();
            totals.matrices = plan->budget->beats_random ? matrices_of(*plan) : 0;
        });
    }
    return BudgetedCall{&tensor, tensor.control.next(), tensor.partial, tensor.more_wire_bytes};
}

Status ErrorBudgets::measure(const DeviceApi& api,
                             const Plan& plan,
                             const void* result,
                             char* scratch,
                             BudgetedTensor* tensor,
                             cudaStream_t stream) {
    if (!plan.factored.empty()) {
        SLIMWIRE_TRY(measure_factors(api, plan, result, scratch, tensor->measured,
                                     tensor->control.totals().probes, stream));
        SLIMWIRE_TRY(cuda_status(api, api.event_record(tensor->end, stream), "end of a probe"));
        tensor->under_way = true;
        return {};
    }
    const std::vector<CodecSpec>& ladder = plan.budget->ladder;
    const DType dtype = plan.facts.dtype;
    const uint64_t element = dtype_bytes(dtype);
    const ProbeRoom room(ladder, dtype, plan.facts.count);
    const auto elems = static_cast<int64_t>(sampled(plan.facts.count));
    const bool whole = static_cast<uint64_t>(elems) == plan.facts.count;
    const uint64_t runs = whole ? 1 : kRuns;
    const uint64_t run = static_cast<uint64_t>(elems) / runs;
    for (uint64_t i = 0; i < runs; ++i) {
        const uint64_t from = runs == 1 ? 0 : i * (plan.facts.count - run) / (runs - 1);
        SLIMWIRE_TRY(cuda_status(api,
                                 api.memcpy_async(scratch + room.sample + i * run * element,
                                                  static_cast<const char*>(result) + from * element,
                                                  run * element, cudaMemcpyDeviceToDevice, stream),
                                 "sample of max_error"));
    }
    SLIMWIRE_TRY(cuda_status(api,
                             api.memset_async(scratch + room.work, 0, sizeof(MeasureWork), stream),
                             "sample of max_error"));
    for (size_t i = 0; i < ladder.size(); ++i) {
        const CodecSpec& codec = ladder[i];
        const int64_t chunk = ProbeRoom::chunk_of(codec, dtype, elems);
        const int64_t slot = (codec.encoded_bytes(dtype, elems) + 15) / 16 * 16;
        EncodeArgs encode{};
        encode.input = scratch + room.sample;
        encode.output = scratch + room.encoded;
        encode.scale = 1.0f;
        encode.count = elems;
        encode.chunk_elems = chunk;
        encode.slot_bytes = slot;
        encode.params = codec.params;
        encode.dtype = dtype;
        encode.random = plan.random;
        encode.random.rank = 0;
        encode.random.step = static_cast<uint32_t>(tensor->control.totals().probes);
        encode.workspace = scratch + room.workspace;
        SLIMWIRE_TRY(enqueue(api, codec, encode, stream));
        DecodeArgs decode{};
        decode.input = scratch + room.encoded;
        decode.output = scratch + room.decoded;
        decode.count = elems;
        decode.chunk_elems = chunk;
        decode.slot_bytes = slot;
        decode.params = codec.params;
        decode.dtype = dtype;
        decode.workspace = scratch + room.workspace;
        SLIMWIRE_TRY(enqueue(api, codec, decode, stream));
        MeasureArgs measure{};
        measure.input = scratch + room.sample;
        measure.other = scratch + room.decoded;
        measure.work = reinterpret_cast<MeasureWork*>(scratch + room.work);
        measure.result = tensor->measured + i;
        measure.count = elems;
        measure.scale = 1.0f;
        measure.dtype = dtype;
        measure.mark = 1;
        SLIMWIRE_TRY(enqueue(api, measure, stream));
    }
    SLIMWIRE_TRY(cuda_status(api, api.event_record(tensor->end, stream), "end of a probe"));
    tensor->under_way = true;
    return {};
}

void ErrorBudgets::release(const DeviceApi& api, bool idle) noexcept {
    for (auto& [key, tensor] : tensors_) {
        if (tensor.end != nullptr) {
            tolerate(api, api.event_destroy(tensor.end));
        }
        if (tensor.measured != nullptr && idle) {
            tolerate(api, api.free_host(tensor.measured));
        }
    }
    tensors_.clear();
}

}  // namespace slimwire
