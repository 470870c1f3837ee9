#include "collectives/adaptive/accordion.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <span>
#include <string>
#include <utility>

#include "codecs/base/device_scope.h"
#include "codecs/ops/sketch.h"
#include "collectives/call/hash.h"
#include "collectives/call/training.h"
#include "collectives/communicator/communicator.h"

namespace slimwire {

void AccordionTotals::add(const AccordionDecision& decision) {
    ++windows;
    high += decision.high ? 1 : 0;
    uint64_t words[3] = {hash, 0, decision.high ? uint64_t{1} : 0};
    std::memcpy(&words[1], &decision.square, sizeof words[1]);
    hash = stable_hash({reinterpret_cast<const char*>(words), sizeof words});
    if (last.size() == kRemembered) {
        last.erase(last.begin());
    }
    last.push_back(decision);
}

void AccordionStats::report(ReportFields* fields) const {
    std::vector<ReportFields> all;
    for (const auto& [place, totals] : tensors) {
        std::vector<ReportFields> decisions;
        for (const AccordionDecision& decision : totals.last) {
            decisions.push_back({{"window", decision.window},
                                 {"square", decision.square},
                                 {"high", decision.high}});
        }
        char hash[17];
        std::snprintf(hash, sizeof hash, "%016" PRIx64, totals.hash);
        all.push_back({{"slot", place.first},
                       {"ordinal", place.second},
                       {"windows", totals.windows},
                       {"high_windows", totals.high},
                       {"lr_drops", totals.drops},
                       {"decisions_hash", hash},
                       {"decisions", std::move(decisions)}});
    }
    if (!all.empty()) {
        fields->push_back({"accordion", std::move(all)});
    }
}

std::optional<AccordionRule> accordion_rule(const Action& action) {
    const Value* said = action.find("accordion");
    if (said == nullptr) {
        return std::nullopt;
    }
    AccordionRule rule;
    rule.low = *said->find("low")->codec();
    rule.window = said->find("window")->count();
    rule.ratio_ppm = static_cast<uint32_t>(said->find("ratio")->real() * 1e6 + 0.5);
    rule.hysteresis = static_cast<uint32_t>(said->find("hysteresis")->count());
    for (const Value& drop : std::get<Value::List>(said->find("lr_drops")->held)) {
        rule.lr_drops.push_back(drop.count());
    }
    return rule;
}

bool AccordionControl::due() const noexcept {
    return state_.calls >= (state_.decided + 1) * rule_->window + kLag;
}

AccordionDecision AccordionControl::decide(double energy, double buffers) noexcept {
    const uint64_t window = state_.decided++;
    // A window may have had fewer finite results than another: of the mean.
    const double square = buffers == 0 ? -1 : energy / buffers / buffers;
    const bool known = square >= 0 && square <= 1e300;  // false for NaN
    if (buffers > 0) {
        const double ratio = rule_->ratio_ppm * 1e-6;
        const double least = ratio < 1 ? (1 - ratio) * (1 - ratio) * state_.before : -1;
        const bool quiet = known && state_.before > 0 && square > least &&
                           square < (1 + ratio) * (1 + ratio) * state_.before;
        state_.quiet = quiet ? state_.quiet + 1 : 0;
        state_.high = state_.quiet >= rule_->hysteresis ? 1 : 0;
        state_.before = known ? square : -1;
    }
    if (window < state_.low_through) {
        state_.quiet = 0;
        state_.high = 0;
    }
    const AccordionDecision decision{window, known ? square : -1, state_.high != 0};
    totals_.add(decision);
    return decision;
}

// Low from this call on, to the end of a whole window.
void AccordionControl::drop(uint64_t call) noexcept {
    const uint64_t window = call / rule_->window;
    state_.low_through = call % rule_->window == 0 ? window : window + 1;
    state_.quiet = 0;
    state_.high = 0;
    ++totals_.drops;
}

AccordionControl::Call AccordionControl::next(double learning_rate) noexcept {
    const uint64_t call = state_.calls++;
    if (std::binary_search(rule_->lr_drops.begin(), rule_->lr_drops.end(), call)) {
        drop(call);
    } else if (learning_rate < state_.rate &&
               learning_rate <= 0.5 * state_.rate) {  // zero falls once
        drop(call);
        state_.rate = learning_rate;
    }
    if (learning_rate > state_.rate) {
        state_.rate = learning_rate;
    }
    return {state_.high != 0, call % rule_->window == 0, state_.calls % rule_->window == 0};
}

namespace {

constexpr StateKind kRecord{2};

// A tensor's control and the way of its sums to the host.
struct Tensor {
    explicit Tensor(const AccordionRule& rule) : control(rule) { begin(); }
    AccordionControl control;
    uint64_t path = 0;                          // of its place (StepPosition)
    SketchState* sums = nullptr;                // on the device; null before its first call
    std::shared_ptr<const std::byte[]> loaded;  // what they begin with; null: nothing, or they have
    // Of the windows that ended last, by their numbers. So many went to the host.
    std::shared_ptr<HostValue> copies[AccordionControl::kMostWaiting];
    uint64_t sent = 0;

    // With nothing that copies on their way bring.
    void begin() {
        for (std::shared_ptr<HostValue>& copy : copies) {
            copy = std::make_shared<HostValue>(sizeof(SketchState));
        }
        sent = 0;
        loaded = nullptr;
    }
    [[nodiscard]] HostValue& copy_of(uint64_t window) const noexcept {
        return *copies[window % AccordionControl::kMostWaiting];
    }
};

// The call's own phases, then its result is added to the window's sketch on the codec stream, and
// at the end of a window the sums go to the host. Of a reduce-scatter each rank has a part of the
// result: one more phase adds up the ranks' sketches, 8 KiB, so that all decide by the norm of the
// whole. Scratch and sums are the call's own until the next call of the communicator.
class SketchedExchange final : public Exchange {
  public:
    SketchedExchange(const ExchangeContext& context,
                     CallStats* stats,
                     const Choice& choice,
                     Exchange* call) noexcept
        : context_(context),
          stats_(stats),
          tensor_(*static_cast<Tensor*>(choice.tensor)),
          first_(choice.first),
          last_(choice.last),
          call_(call) {}

    [[nodiscard]] int phases() const noexcept override {
        return call_->phases() + (sums_over_ranks() ? 1 : 0);
    }
    [[nodiscard]] bool exchanges(int phase) const noexcept override {
        return phase == call_->phases() || call_->exchanges(phase);
    }
    Status kernels(int phase) override;
    Status exchange(int phase) override;
    Status finish(int phase) override;

  private:
    [[nodiscard]] bool sums_over_ranks() const noexcept {
        return last_ && context_.plan.signature.op == Op::kReduceScatter;
    }
    Status add_result();
    Status send_to_host();

    ExchangeContext context_;
    CallStats* stats_;
    Tensor& tensor_;
    const bool first_, last_;  // of the window
    Exchange* call_;
};

Status SketchedExchange::kernels(int phase) {
    return phase < call_->phases() ? call_->kernels(phase) : Status();
}

Status SketchedExchange::exchange(int phase) {
    if (phase < call_->phases()) {
        return call_->exchange(phase);
    }
    SketchState& sums = *tensor_.sums;
    constexpr const char* kWhat = "ncclAllReduce of sketches";
    SLIMWIRE_TRY(
        all_reduce(context_, sums.cells, sums.cells, kSketchCells, ncclFloat32, ncclSum, kWhat));
    SLIMWIRE_TRY(all_reduce(context_, &sums.buffers, &sums.buffers, 1, ncclUint32, ncclSum, kWhat));
    constexpr CallSignature kSums{Op::kAllReduce, DType::kFloat32, RedOp::kSum, 0,
                                  kSketchCells + 1};
    stats_->count_control(
        native_wire_bytes(kSums, context_.state.shape.ranks, context_.state.rank));
    return {};
}

Status SketchedExchange::finish(int phase) {
    if (phase < call_->phases()) {
        SLIMWIRE_TRY(call_->finish(phase));
        if (phase + 1 == call_->phases()) {
            SLIMWIRE_TRY(add_result());
        }
    }
    return last_ && phase + 1 == phases() ? send_to_host() : Status();
}

Status SketchedExchange::add_result() {
    const DeviceApi& api = context_.api;
    const CallSignature& signature = context_.plan.signature;
    SketchState* const sums = tensor_.sums;
    if (const auto loaded = std::exchange(tensor_.loaded, nullptr)) {
        SLIMWIRE_TRY(context_.state.objects.copies.to_device(api, sums, loaded, sizeof(SketchState),
                                                             context_.work));
    }
    if (first_) {
        SLIMWIRE_TRY(
            clear_on_device(api, sums, sizeof(SketchState), context_.work, "a window's begin"));
    }
    const auto count = static_cast<int64_t>(signature.count);
    const bool part = signature.op == Op::kReduceScatter;
    return enqueue(api,
                   SketchArgs{.input = context_.call.recv,
                              .state = sums,
                              .workspace = context_.scratch,
                              .count = count,
                              .first_row = part ? context_.state.rank * sketch_rows(count) : 0,
                              .dtype = signature.dtype},
                   context_.work);
}

Status SketchedExchange::send_to_host() {
    const uint64_t window = tensor_.sent++;
    return context_.state.objects.copies.to_host(
        context_.api, tensor_.sums, tensor_.copies[window % AccordionControl::kMostWaiting],
        context_.work);
}

Status make_memory(const DeviceApi& api, Communicator* state, Tensor* tensor) {
    const DeviceScope device(api, state->device);
    void* memory = nullptr;
    SLIMWIRE_TRY(
        cuda_status(api,
                    state->device_memory->allocate_anyhow(api, state->device, sizeof(SketchState),
                                                          &memory, state->objects.home),
                    "accordion's sums"));
    tensor->sums = static_cast<SketchState*>(memory);
    if (state->memory != nullptr) {
        state->memory->take(state->device, sizeof(SketchState));  // planned (memory())
    }
    return {};
}

// What was loaded for the tensor, whose memory no work uses yet.
void go_on(std::span<const std::byte> bytes, Tensor* tensor) {
    RecordReader record(bytes);
    AccordionControl control = tensor->control;
    SketchState sums;
    if (!control.load(&record) || !record.get(&sums) ||
        control.waiting() > AccordionControl::kMostWaiting) {
        return;
    }
    const uint64_t sent = control.decided() + control.waiting();
    for (uint64_t window = control.decided(); window < sent; ++window) {
        SketchState copy;
        if (!record.get(&copy)) {
            return;
        }
        HostValue& value = tensor->copy_of(window);
        std::memcpy(value.bytes.data(), &copy, sizeof copy);
        value.there = true;
    }
    const std::shared_ptr<std::byte[]> loaded(new std::byte[sizeof sums]);
    std::memcpy(loaded.get(), &sums, sizeof sums);
    tensor->loaded = loaded;
    tensor->control = std::move(control);
    tensor->sent = sent;
}

// What a window came to, which the host waits for where it is not there.
Result<SketchState> sums_of(const CallSite& site, const Tensor& tensor, uint64_t window) {
    if (window >= tensor.sent) {
        return Status(Code::kInvalidUsage,
                      "a tensor with 'accordion' in one group with its calls of steps before, "
                      "whose results decide how it travels");
    }
    const HostValue& value = tensor.copy_of(window);
    SLIMWIRE_TRY(await_value(site.api, site.communicator, site.communicator.objects.copies, value,
                             "the sums of a window"));
    SketchState sums;
    std::memcpy(&sums, value.bytes.data(), sizeof sums);
    return sums;
}

class Accordion final : public Controller {
  public:
    Accordion(const PlanEntry& entry, const AccordionPlan& rule)
        : entry_(entry), plan_(entry.plan.get()), rule_(rule) {}

    Result<Choice> choose(const CallSite& site) override;
    std::unique_ptr<Exchange> wrap(const ExchangeContext& context,
                                   const Choice& choice,
                                   Exchange* call) override {
        return choice.tensor == nullptr ? nullptr
                                        : std::make_unique<SketchedExchange>(
                                              context, entry_.stats_of(context.plan), choice, call);
    }
    Status save(const Communicator& communicator,
                const ReadMemory& read,
                const KeepRecord& keep) const override;
    void release(const DeviceApi& api,
                 Communicator* communicator,
                 Retirement* left) noexcept override;

  private:
    static void undo(Communicator*, uint64_t tensor, uint64_t progress) noexcept {
        pointer_of<Tensor>(tensor)->control.uncount();
        --pointer_of<Progress>(progress)->replicated_calls;
    }

    const PlanEntry& entry_;
    const Plan* plan_;
    const AccordionPlan rule_;
    std::map<std::pair<uint32_t, uint32_t>, Tensor> tensors_;  // by slot and ordinal of the place
};

// A tensor's first call goes on with what was loaded for it.
Result<Choice> Accordion::choose(const CallSite& site) {
    const DeviceApi& api = site.api;
    const StepPosition& place = site.place;
    Tensor& tensor = tensors_.try_emplace({place.slot, place.ordinal}, rule_.rule).first->second;
    if (tensor.path != place.path) {
        // A tensor of another step: what the one before was owed is gone, too.
        tensor.control = AccordionControl(rule_.rule);
        tensor.path = place.path;
        tensor.begin();
    }
    if (tensor.sums == nullptr) {
        SLIMWIRE_TRY(make_memory(api, &site.communicator, &tensor));
        const std::vector<std::byte> loaded = site.progress.take(
            {site.communicator.checkpoint_key, plan_->signature, place.path, place.ordinal},
            kRecord);
        go_on(loaded, &tensor);
    }
    ++site.progress.replicated_calls;
    if (tensor.control.due()) {
        SLIMWIRE_TRY_ASSIGN(const SketchState sums,
                            sums_of(site, tensor, tensor.control.decided()));
        const bool part = plan_->signature.op == Op::kReduceScatter;
        tensor.control.decide(sketch_energy(sums), static_cast<double>(sums.buffers) /
                                                       (part ? site.communicator.shape.ranks : 1));
        CommStats& all = *site.communicator.stats;
        AccordionStats& stats = all.feature<AccordionStats>(entry_.stats);
        all.update([&](CommStats&) {
            stats.tensors[{place.slot, place.ordinal}] = tensor.control.totals();
        });
    }
    const double rate = training_state().learning_rate.load(std::memory_order_relaxed);
    const AccordionControl::Call at = tensor.control.next(rate);
    site.note(undo, word_of(&tensor), word_of(&site.progress));
    return Choice{at.high ? nullptr : rule_.low, &tensor, at.first, at.last};
}

Status Accordion::save(const Communicator& communicator,
                       const ReadMemory& read,
                       const KeepRecord& keep) const {
    for (const auto& [place, tensor] : tensors_) {
        if (tensor.sums == nullptr) {
            continue;  // its first call failed
        }
        RecordWriter record;
        tensor.control.save(&record);
        SketchState sums;
        if (tensor.loaded != nullptr) {
            std::memcpy(&sums, tensor.loaded.get(), sizeof sums);
        } else {
            SLIMWIRE_TRY(read(tensor.sums, std::as_writable_bytes(std::span(&sums, 1))));
        }
        record.put(sums);
        for (uint64_t i = 0; i < tensor.control.waiting(); ++i) {
            std::memcpy(&sums, tensor.copy_of(tensor.control.decided() + i).bytes.data(),
                        sizeof sums);
            sums.skipped = 0;  // of a reduce-scatter this rank's part has its own
            record.put(sums);
        }
        keep({communicator.checkpoint_key, plan_->signature, tensor.path, place.second}, kRecord,
             record.take());
    }
    return {};
}

void Accordion::release(const DeviceApi&, Communicator* state, Retirement* left) noexcept {
    for (auto& [key, tensor] : tensors_) {
        if (tensor.sums != nullptr && state->memory != nullptr) {
            state->memory->give_back(state->device, sizeof(SketchState));
        }
        left->add(tensor.sums);
    }
    tensors_.clear();
}

}  // namespace

std::unique_ptr<Controller> AccordionPlan::make(const PlanEntry& entry,
                                                const Communicator&,
                                                Progress*) const {
    return std::make_unique<Accordion>(entry, *this);
}

namespace {

ControllerMemory memory(const Action& action, const CallSignature& signature) {
    if (action.find("accordion") == nullptr) {
        return {};
    }
    const auto count = static_cast<int64_t>(signature.count);
    return {static_cast<uint64_t>(sketch_workspace_bytes(count)), sizeof(SketchState)};
}

std::string add(const PlanRequest& request, Plan* plan) {
    const std::optional<AccordionRule> rule = accordion_rule(request.action);
    if (!rule.has_value() || rule->window == 0) {
        return {};
    }
    if (!plan->needs_slot) {
        return "accordion without places in the step";
    }
    Plan low = request.after([&](Action* action) {
        action->codec = rule->low;
        // It has the memory, and no variants of its own.
        for (auto& [key, value] : action->features) {
            if (key == "accordion") {
                *value.find("window") = value_of(uint64_t{0});
            }
        }
    });
    const std::string text = "accordion's low " + rule->low.to_string();
    if (!low.compressed) {
        return text + " would not do: " + low.reason;
    }
    if (!residuals_alike(low, *plan)) {
        return text + " keeps residuals otherwise than its codec";
    }
    low.reason += ", low compression of its accordion";
    plan->reason += ", high compression of its accordion";
    auto made = std::make_shared<AccordionPlan>();
    made->rule = *rule;
    made->low = std::make_shared<Plan>(std::move(low));
    plan->variants.push_back(made->low);
    plan->controlled_by.push_back(std::move(made));
    return {};
}

}  // namespace

const ControllerKind kByGradientNorm{add, memory};

}  // namespace slimwire
