// The weights of autoencoders between ranks (learned_code.h), averaged over the copies of a model:
// with the first collective of a marked step on a communicator of the role that their codec names
// (`average=dp`). All its ranks make that call or none does, so none waits for one that does not
// come. The moments go with the weights: copies have equal bits from then on.
//
// What is averaged all must have. So ranks compare each time what autoencoders they have, and go by
// what was equal kLag times ago. Of that each says whether it still has it; what one lacks all
// leave as it is. They work in scratch that all have reserved; without it nothing is averaged.
#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "codecs/pair_mode.h"
#include "collectives/algorithms/learned_code.h"
#include "collectives/call/log.h"
#include "collectives/call/training.h"
#include "collectives/communicator/communicator.h"
#include "collectives/communicator/graph_memory.h"
#include "collectives/communicator/rank_identities.h"
#include "collectives/feedback/call_hook.h"
#include "collectives/policy/policy_keys.h"
#include "collectives/policy/role.h"

namespace slimwire {
namespace {

constexpr uint64_t kLag = 4;
constexpr const char* kWhat = "average of autoencoders";

using Codes = std::vector<std::shared_ptr<AveragedCode>>;
// A hash of what autoencoders there are, and its complement; the largest of all ranks. In the
// scratch: behind them 1 for each autoencoder that is lacking, else 0, and a word that nobody
// reads; then one autoencoder.
using Words = std::array<uint64_t, 2>;
constexpr size_t kMostCodes = 509;
constexpr uint64_t kWordsBytes = (Words().size() + kMostCodes + 1) * sizeof(uint64_t);

// Of weights, as TakeKeptArgs has it.
constexpr uint64_t padded(uint64_t bytes) noexcept {
    return (bytes + 15) / 16 * 16;
}

// What was compared, and what of it was equal.
struct Comparison {
    struct One {
        uint64_t number = 0;
        Codes codes;
        std::shared_ptr<HostValue> largest;
    };
    uint64_t made = 0;
    std::deque<One> waiting;
    Codes agreed;
};

class CodeAverageExchange final : public Exchange {
  public:
    CodeAverageExchange(const ExchangeContext& context, Comparison* comparison, Codes now)
        : context_(context), comparison_(*comparison), now_(std::move(now)), read_(agree()) {}

    // The words, then one autoencoder after the other.
    [[nodiscard]] int phases() const noexcept override {
        return 1 + static_cast<int>(comparison_.agreed.size());
    }
    [[nodiscard]] bool exchanges(int) const noexcept override { return true; }
    Status kernels(int phase) override;
    Status exchange(int phase) override;
    Status finish(int phase) override;

  private:
    // Waits, which is counted, where what was to be there is not.
    Status agree();
    Status begin();
    [[nodiscard]] uint64_t* lacks(size_t code) const noexcept {
        return reinterpret_cast<uint64_t*>(context_.scratch) + Words().size() + code;
    }
    [[nodiscard]] char* room() const noexcept { return context_.scratch + kWordsBytes; }
    Status reduce(void* buffer, uint64_t count, ncclDataType_t type, ncclRedOp_t op) {
        return all_reduce(context_, buffer, buffer, count, type, op,
                          "ncclAllReduce of autoencoders");
    }

    ExchangeContext context_;
    Comparison& comparison_;
    Codes now_;
    const Status read_;            // agree()'s
    std::vector<float*> weights_;  // of those agreed on; null: no more there
};

Status CodeAverageExchange::agree() {
    const Communicator& state = context_.state;
    std::deque<Comparison::One>& waiting = comparison_.waiting;
    while (!waiting.empty() && waiting.front().number + kLag <= comparison_.made) {
        Comparison::One& one = waiting.front();
        SLIMWIRE_TRY(await_value(context_.api, state, state.objects.copies, *one.largest,
                                 "hashes of autoencoders"));
        Words largest{};
        std::memcpy(largest.data(), one.largest->bytes.data(), sizeof largest);
        if (largest[0] == ~largest[1]) {
            comparison_.agreed = std::move(one.codes);
        } else {
            log_once(LogLevel::kWarn, "autoencoders of copies",
                     "copies of a model do not have the same autoencoders of messages: until they "
                     "do, those that came last are not averaged");
        }
        waiting.pop_front();
    }
    return {};
}

Status CodeAverageExchange::begin() {
    SLIMWIRE_TRY(Status(read_));
    uint64_t hash = stable_hash("autoencoders");
    for (const std::shared_ptr<AveragedCode>& code : now_) {
        hash = mix_key(hash, code->kind());
    }
    std::vector<uint64_t> words = {hash, ~hash};
    for (const std::shared_ptr<AveragedCode>& code : comparison_.agreed) {
        SLIMWIRE_TRY_ASSIGN(float* const weights, code->begin(context_.api, context_.work));
        weights_.push_back(weights);
        words.push_back(weights == nullptr ? 1 : 0);
    }
    words.push_back(0);
    const size_t bytes = words.size() * sizeof words[0];
    const std::shared_ptr<std::byte[]> kept(new std::byte[bytes]);
    std::memcpy(kept.get(), words.data(), bytes);
    return context_.state.objects.copies.to_device(context_.api, context_.scratch, kept, bytes,
                                                   context_.work);
}

Status CodeAverageExchange::kernels(int phase) {
    if (phase == 0) {
        return begin();
    }
    const auto at = static_cast<size_t>(phase) - 1;
    const uint64_t bytes = padded(comparison_.agreed[at]->bytes());
    return weights_[at] != nullptr
               ? copy_on_device(context_.api, room(), weights_[at], bytes, context_.work, kWhat)
               : clear_on_device(context_.api, room(), bytes, context_.work, kWhat);
}

Status CodeAverageExchange::exchange(int phase) {
    return phase == 0
               ? reduce(context_.scratch, Words().size() + weights_.size(), ncclUint64, ncclMax)
               : reduce(room(),
                        comparison_.agreed[static_cast<size_t>(phase) - 1]->bytes() / sizeof(float),
                        ncclFloat32, ncclAvg);
}

Status CodeAverageExchange::finish(int phase) {
    const Communicator& state = context_.state;
    if (phase == 0) {
        comparison_.waiting.push_back(
            {comparison_.made++, std::move(now_), std::make_shared<HostValue>(sizeof(Words))});
        return state.objects.copies.to_host(context_.api, context_.scratch,
                                            comparison_.waiting.back().largest, context_.work);
    }
    const auto at = static_cast<size_t>(phase) - 1;
    if (weights_[at] == nullptr) {
        return {};
    }
    AveragedCode& code = *comparison_.agreed[at];
    TakeKeptArgs take{};
    take.number = reinterpret_cast<const uint32_t*>(lacks(at));
    take.output = weights_[at];
    take.misses = reinterpret_cast<uint32_t*>(lacks(weights_.size()));
    take.bytes = static_cast<int64_t>(padded(code.bytes()));
    take.held = 2;
    take.numbers[1] = 1;
    take.kept[0] = room();
    take.kept[1] = weights_[at];
    SLIMWIRE_TRY(enqueue(context_.api, take, context_.work));
    const CallSignature facts{Op::kAllReduce, DType::kFloat32, RedOp::kAvg, 0,
                              code.bytes() / sizeof(float)};
    return code.averaged(context_.api, context_.work,
                         native_wire_bytes(facts, state.shape.ranks, state.rank));
}

class CodeAverage final : public CallHook {
  public:
    explicit CodeAverage(uint32_t roles) : roles_(roles) {}

    void made(const DeviceApi&, Communicator* communicator) override {
        const std::optional<Role> role = role_of(communicator->shape.name);
        averages_ = role.has_value() && (roles_ >> static_cast<uint32_t>(*role) & 1u) != 0;
        role_ = role.value_or(Role::kData);
        call_.compressed = true;
        call_.signature = {Op::kAllReduce, DType::kFloat32, RedOp::kAvg, 0, 1};
    }
    const Plan* call_behind(const CallSite& site, const Plan* plan) override;
    std::unique_ptr<Exchange> exchange(const ExchangeContext& context,
                                       const PlanEntry*,
                                       ExchangeRoom*) override {
        return std::make_unique<CodeAverageExchange>(context, &comparison_,
                                                     codes_of(context.state));
    }
    Status save(const Communicator& communicator,
                const ReadMemory&,
                const KeepRecord& keep) const override {
        RecordWriter record;
        for (const std::shared_ptr<AveragedCode>& code : comparison_.agreed) {
            record.put(code->kind());
            record.put(code->bytes());
        }
        if (!comparison_.agreed.empty()) {
            keep(agreed_of(communicator), StateKind::kMessages, record.take());
        }
        return {};
    }

  private:
    static LastingTensor agreed_of(const Communicator& communicator) noexcept {
        return {communicator.checkpoint_key, {}, kAveragedCodes, 0};
    }
    // That there is scratch for.
    [[nodiscard]] Codes codes_of(const Communicator& communicator) const;
    // Goes on with what was agreed on in an earlier process; what this rank lacks of it is gone.
    void take_up(const CallSite& site);
    static void undo(Communicator*, uint64_t self, uint64_t mark) noexcept {
        pointer_of<CodeAverage>(self)->mark_ = mark;
    }

    const uint32_t roles_;
    bool averages_ = false;
    Role role_ = Role::kData;
    uint64_t mark_ = 0;  // of the last average
    bool begun_ = false;
    Comparison comparison_;
    Plan call_;
};

bool has_scratch(uint64_t bytes, const Communicator& communicator) {
    const std::string reason = why_no_scratch(kWordsBytes + padded(bytes), communicator.shape);
    if (!reason.empty()) {
        log_once(LogLevel::kWarn, "scratch for averages",
                 "copies of a model do not average autoencoders of messages: " + reason);
    }
    return reason.empty();
}

Codes CodeAverage::codes_of(const Communicator& communicator) const {
    Codes codes = AveragedCodes::instance().of(communicator.device, static_cast<int>(role_));
    std::erase_if(codes, [&](const std::shared_ptr<AveragedCode>& code) {
        return !has_scratch(code->bytes(), communicator);
    });
    codes.resize(std::min(codes.size(), kMostCodes));
    return codes;
}

void CodeAverage::take_up(const CallSite& site) {
    const std::vector<std::byte> loaded =
        site.progress.take(agreed_of(site.communicator), StateKind::kMessages);
    const Codes now = codes_of(site.communicator);
    RecordReader record(loaded);
    uint64_t kind = 0, bytes = 0;
    for (size_t at = 0; record.get(&kind) && record.get(&bytes); ++at) {
        if (!has_scratch(bytes, site.communicator)) {
            continue;
        }
        const bool has = at < now.size() && now[at]->kind() == kind && now[at]->bytes() == bytes;
        comparison_.agreed.push_back(has ? now[at]
                                         : std::make_shared<AveragedCode>(kind, nullptr, bytes));
    }
}

const Plan* CodeAverage::call_behind(const CallSite& site, const Plan*) {
    const Training& training = training_state();
    const uint64_t mark = training.marks.load(std::memory_order_acquire);
    if (!averages_ || mark == mark_ || !training.training() ||
        is_point_to_point(site.call.signature.op) || !has_scratch(0, site.communicator)) {
        return nullptr;
    }
    // A replay would not know which step it is in.
    const Result<bool> captured = capturing(site.api, site.call.stream);
    if (!captured.ok() || captured.value()) {
        return nullptr;
    }
    site.note(undo, word_of(this), mark_);
    mark_ = mark;
    if (!std::exchange(begun_, true)) {
        take_up(site);
    }
    call_.scratch.bytes = kWordsBytes;
    for (const Codes& codes :
         {comparison_.agreed,
          comparison_.waiting.empty() ? Codes() : comparison_.waiting.front().codes}) {
        for (const std::shared_ptr<AveragedCode>& code : codes) {
            call_.scratch.bytes =
                std::max(call_.scratch.bytes, kWordsBytes + padded(code->bytes()));
        }
    }
    return &call_;
}

std::unique_ptr<CallHook> make_code_average(const Policy& policy) {
    const uint32_t roles = averaged_roles(policy);
    return roles != 0 ? std::make_unique<CodeAverage>(roles) : nullptr;
}

uint64_t average_scratch(const Policy& policy, const PlanShape& shape) {
    const std::optional<Role> role = role_of(shape.name);
    uint64_t bytes = 0;
    for (const Rule& rule : policy.rules) {
        const std::optional<CodecSpec>& codec = rule.action.codec;
        if (role.has_value() && codec.has_value() && autoencodes(*codec) &&
            averaged_role(codec->params) == static_cast<int>(*role)) {
            constexpr uint32_t kLongest = 16384;  // of rows that are told later
            const uint64_t row = learns_rows(rule) ? kLongest : codec->params.row;
            const uint64_t weights = row * codec->params.kept;
            bytes = std::max(bytes, kWordsBytes + padded(3 * weights * sizeof(float)));
        }
    }
    return bytes;
}

}  // namespace

const HookKind kCodeAverageHook{nullptr, nullptr, true, make_code_average, average_scratch};

}  // namespace slimwire
