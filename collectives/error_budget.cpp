#include "collectives/error_budget.h"

#include <algorithm>
#include <span>
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

void ErrorBudgetControl::save(RecordWriter* record) const {
    const auto put_all = [&](const auto& values) {
        record->put(static_cast<uint32_t>(values.size()));
        record->put_bytes(std::as_bytes(std::span(values)));
    };
    record->put(calls_);
    record->put(totals_.probes);
    record->put(totals_.hash);
    record->put(static_cast<int32_t>(totals_.chosen));
    put_all(totals_.squares);
    put_all(totals_.bounds);
    put_all(totals_.refused);
}

bool ErrorBudgetControl::load(RecordReader* record, uint32_t matrices) {
    const auto get_all = [&](auto* values) {
        uint32_t size = 0;
        if (!record->get(&size) || size > record->left() / sizeof(values->front())) {
            return false;
        }
        values->resize(size);
        return record->get_bytes(std::as_writable_bytes(std::span(*values)));
    };
    ErrorBudgetControl loaded(*rule_);
    int32_t chosen = kNative;
    if (!record->get(&loaded.calls_) || !record->get(&loaded.totals_.probes) ||
        !record->get(&loaded.totals_.hash) || !record->get(&chosen) ||
        !get_all(&loaded.totals_.squares) || !get_all(&loaded.totals_.bounds) ||
        !get_all(&loaded.totals_.refused) || chosen < kNative ||
        chosen >= static_cast<int>(rule_->ladder.size()) ||
        std::any_of(loaded.totals_.refused.begin(), loaded.totals_.refused.end(),
                    [&](uint32_t refused) { return refused >= matrices; })) {
        return false;
    }
    loaded.totals_.chosen = chosen;
    *this = std::move(loaded);
    return true;
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

namespace {

size_t measurements(const Plan& plan) noexcept {
    const size_t codecs = plan.budget->ladder.size();
    return codecs + (codecs + 1) * matrices_of(plan);
}

// What the refused matrices of the tensor ask for.
void follow_refused(const CommState& state, Plan* plan, BudgetedTensor* tensor) {
    const ErrorBudgetTotals& totals = tensor->control.totals();
    tensor->partial = totals.refused.empty()
                          ? nullptr
                          : without_refused(*plan_of_rung(plan, totals.chosen), totals.refused,
                                            state, &tensor->more_wire_bytes);
}

void show_totals(CommState* state,
                 Plan* plan,
                 const StepPlace& place,
                 const BudgetedTensor& tensor) {
    state->stats->update([&](CommStats&) {
        ErrorBudgetTotals& totals = plan->stats->budgets[{place.slot, place.ordinal}];
        totals = tensor.control.totals();
        totals.matrices = plan->budget->beats_random ? matrices_of(*plan) : 0;
    });
}

// What was loaded for the tensor.
void go_on(std::span<const std::byte> bytes,
           const CommState& state,
           Plan* plan,
           BudgetedTensor* tensor) {
    RecordReader record(bytes);
    ErrorBudgetControl control = tensor->control;
    if (!control.load(&record, matrices_of(*plan)) ||
        (control.due() && !record.get_bytes(std::as_writable_bytes(
                              std::span(tensor->measured, measurements(*plan)))))) {
        return;
    }
    tensor->control = std::move(control);
    tensor->under_way = tensor->control.due();
    follow_refused(state, plan, tensor);
}

}  // namespace

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
            SLIMWIRE_TRY(
                cuda_status(api, api.host_alloc(&memory, measurements(*plan) * sizeof(Measured), 0),
                            "measurements of max_error"));
            tensor.measured = static_cast<Measured*>(memory);
        }
        SLIMWIRE_TRY(cuda_status(api,
                                 api.event_create_with_flags(&tensor.end, cudaEventDisableTiming),
                                 "event of max_error"));
        const std::vector<std::byte> loaded = state->progress.take(
            {state->lasting_key, plan->facts, place.path, place.ordinal}, StateKind::kErrorBudget);
        if (!loaded.empty()) {
            go_on(loaded, *state, plan, &tensor);
            show_totals(state, plan, place, tensor);
        }
    }
    ++state->sharing_calls;
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
            follow_refused(*state, plan, &tensor);
        } else {
            tensor.control.choose({}, {}, ErrorBudgetControl::kNative, {});
        }
        show_totals(state, plan, place, tensor);
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

void ErrorBudgets::save(const CommState& state, const KeepRecord& keep) const {
    for (const auto& [key, tensor] : tensors_) {
        if (tensor.end == nullptr) {
            continue;  // its first call failed
        }
        RecordWriter record;
        tensor.control.save(&record);
        if (tensor.control.due()) {
            record.put_bytes(std::as_bytes(std::span(tensor.measured, measurements(*key.plan))));
        }
        keep({state.lasting_key, key.plan->facts, tensor.path, key.ordinal},
             StateKind::kErrorBudget, record.take());
    }
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
