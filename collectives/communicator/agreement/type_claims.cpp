#include "collectives/communicator/agreement/type_claims.h"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <utility>

#include "collectives/call/log.h"
#include "collectives/communicator/agreement/claim_sender.h"
#include "collectives/plan/plan.h"
#include "collectives/policy/policy_keys.h"

namespace slimwire {

using namespace agreement_wire;

namespace {

// When a call was captured that is now another outside of graphs, and what to do about it.
std::pair<const char*, const char*> early_text(uint8_t way) {
    switch (way) {
        case TypeClaims::kUnplaced:
            return {"while its place in the step was not known",
                    "mark steps (slimwire_mark_step), or capture it some steps later"};
        case TypeClaims::kTensorsFirst:
            return {"at its tensor's first call", "make that call outside of graphs"};
        default:
            return {"before its rule's start_step, or in its ramp", "capture it behind that"};
    }
}

// Behind the call's name; `rank`: " rank 0" of the answer's two.
std::string graphs_text(uint8_t way, const std::string (&rank)[2]) {
    if (way == 0) {
        return "native in a graph of" + rank[0] + " and compressed outside of graphs on" + rank[1] +
               "; all ranks capture calls of a rule with pair=mask or one of " + uncaptured_keys() +
               ", or none do";
    }
    if (way == TypeClaims::kPlacesDiffer) {
        return "without a place in the step on" + rank[0] + ", and has one on" + rank[1] +
               ", as the order of calls tells it, in which replays of graphs are not seen; mark " +
               "steps (slimwire_mark_step), or capture on all ranks";
    }
    const auto [when, instead] = early_text(way);
    return "in a graph of" + rank[0] + " as it was captured " + when +
           ", and another one outside of graphs on" + rank[1] + "; " + instead +
           ", or on all ranks";
}

// "recv of 400000 bytes from rank 0"
std::string text_of(const ClaimRecord& claim) {
    std::string text =
        std::string(op_name(claim.op)) + " of " + std::to_string(claim.bytes) + " bytes";
    const std::string rank = " rank " + std::to_string(claim.root_or_peer);
    switch (claim.op) {
        case Op::kSend:
            return text + " to" + rank;
        case Op::kRecv:
            return text + " from" + rank;
        case Op::kBroadcast:
        case Op::kScatter:
            return text + " from root" + rank.substr(5);
        case Op::kGather:
            return text + " to root" + rank.substr(5);
        default:
            return text;
    }
}

}  // namespace

bool TypeClaims::concerns(const CallSignature& signature) const noexcept {
    return (of_.ops >> static_cast<int>(signature.op) & 1) != 0 && !reduces(signature.op) &&
           signature.count > 0 && signature.root_or_peer >= 0 &&
           signature.root_or_peer < of_.ranks &&
           !(is_point_to_point(signature.op) && signature.root_or_peer == of_.rank);
}

ClaimRecord TypeClaims::record_of(Claiming what) const {
    ClaimRecord record{};
    record.magic = kClaimMagic;
    record.version = kAgreementVersion;
    record.what = what;
    record.token = of_.server.token;
    record.comm_key = of_.comm_key;
    record.ranks = of_.ranks;
    record.rank = of_.rank;
    return record;
}

void TypeClaims::claim(const CallSignature& signature, bool compressed) {
    const uint64_t bytes = signature.count * dtype_bytes(signature.dtype);
    const std::lock_guard lock(mutex_);
    if (!claiming_ || ended_) {
        return;
    }
    std::vector<Type>& types = known_[{signature.op, signature.root_or_peer, bytes}];
    auto own = std::find_if(types.begin(), types.end(),
                            [&](const Type& type) { return type.dtype == signature.dtype; });
    if (own != types.end() && (own->alike || own->compressed || !compressed)) {
        return;
    }
    ClaimSender& sender = ClaimSender::instance();
    if (own == types.end()) {
        if (claims_ >= kMostClaims) {
            claiming_ = false;
            log_line(LogLevel::kInfo, of_.label + ": element types are compared of the first " +
                                          std::to_string(kMostClaims) +
                                          " kinds of calls; later ones of this rank are not");
            sender.post(shared_from_this(), record_of(Claiming::kNoMore), of_.patience_us);
            return;
        }
        ++claims_;
        own = types.insert(types.end(), Type{signature.dtype, false, false, claims_ <= kMostHeld});
    }
    const uint32_t replaced = own->number;
    open_.erase(replaced);
    own->compressed = compressed;
    own->number = sender.next_number();
    open_.insert(own->number);
    ClaimRecord record = record_of(Claiming::kType);
    record.op = signature.op;
    record.dtype = signature.dtype;
    record.compressed = compressed ? 1 : 0;
    record.bytes = bytes;
    record.number = own->number;
    record.root_or_peer = signature.root_or_peer;
    record.nth = static_cast<uint32_t>(own - types.begin());
    sender.post(shared_from_this(), record, of_.patience_us, replaced);
}

std::optional<uint32_t> TypeClaims::unanswered(const CallSignature& signature) {
    const std::lock_guard lock(mutex_);
    const auto types = known_.find(
        {signature.op, signature.root_or_peer, signature.count * dtype_bytes(signature.dtype)});
    if (types == known_.end() || !patient_ || ended_) {
        return std::nullopt;
    }
    const auto own = std::find_if(types->second.begin(), types->second.end(),
                                  [&](const Type& type) { return type.dtype == signature.dtype; });
    const bool waits = own != types->second.end() && own->holds &&
                       (open_.count(own->number) != 0 || !error_.empty());
    return waits ? std::optional(own->number) : std::nullopt;
}

void TypeClaims::wait(uint32_t number) {
    std::unique_lock lock(mutex_);
    const auto known = [&] { return open_.count(number) == 0 || !error_.empty() || ended_; };
    if (patient_ && !changed_.wait_for(lock, std::chrono::microseconds(of_.patience_us), known)) {
        patient_ = false;
        log_line(LogLevel::kWarn, of_.label + ": a call waited " +
                                      std::to_string(of_.patience_us / 1000) +
                                      " ms to hear which element type other ranks name; none " +
                                      "waits for that again");
    }
    if (!patient_) {
        return;
    }
    changed_.wait(lock, [&] { return error_.empty() || ended_; });
}

uint64_t TypeClaims::graph_key(const CallSignature& signature) noexcept {
    if (!is_point_to_point(signature.op)) {
        return hash_of(signature) >> 32 << 32;
    }
    CallSignature of_both = signature;
    of_both.op = Op::kSend;
    of_both.root_or_peer = 0;
    return (hash_of(of_both) >> 32 << 32) | static_cast<uint32_t>(signature.root_or_peer) << 1 |
           (signature.op == Op::kSend ? 1 : 0);
}

std::shared_ptr<void> TypeClaims::count_graph_call(const GraphCall& call) {
    const uint64_t key = graph_key(call.signature);
    auto found = graph_calls_.find(key);
    if (found == graph_calls_.end()) {
        if (graph_calls_.size() >= kMostHeld) {
            return nullptr;
        }
        {
            const std::lock_guard lock(mutex_);
            found = graph_calls_.try_emplace(key).first;
            found->second.signature = call.signature;
        }
        ClaimSender::instance().watch(shared_from_this());
    }
    GraphCalls& of = found->second;
    const uint32_t number = of.calls.fetch_add(1) + 1;
    // Others of any place may be as they were.
    const bool went_on = call.signature.ordinal == kAnyPlace && number > 1 && of.way == 0;
    of.way = went_on ? 0 : call.way;
    if (call.captured && call.way != 0) {
        return of.begins_early(call.way);
    }
    if (call.captured && !call.capturable && of.captured == 0) {
        of.captured = number;
    }
    return nullptr;
}

void TypeClaims::uncount_graph_call(uint64_t key) noexcept {
    const auto found = graph_calls_.find(key);
    if (found == graph_calls_.end()) {
        return;  // of more kinds than are counted
    }
    GraphCalls& of = found->second;
    const uint32_t number = of.calls.fetch_sub(1);
    of.captured = of.captured == number ? 0 : of.captured.load();
    of.early = of.early == number ? 0 : of.early.load();
}

std::shared_ptr<void> TypeClaims::is_tensors_first(const CallSignature& signature) {
    const auto found = graph_calls_.find(graph_key(signature));
    return found != graph_calls_.end() ? found->second.begins_early(kTensorsFirst) : nullptr;
}

bool TypeClaims::ask_about_graphs() {
    constexpr uint64_t kLongUs = 60'000'000;  // then only a rank tells that may be the cause
    const std::lock_guard lock(mutex_);
    if (graph_calls_.empty() || !claiming_ || ended_ || !error_.empty()) {
        return false;
    }
    const auto count = [&] {
        return std::accumulate(
            graph_calls_.begin(), graph_calls_.end(), uint64_t{0},
            [](uint64_t calls, const auto& kind) { return calls + kind.second.calls; });
    };
    const uint64_t calls = count();
    const bool captured = std::any_of(
        graph_calls_.begin(), graph_calls_.end(),
        [](const auto& kind) { return kind.second.captured != 0 || kind.second.suspect() != 0; });
    const uint64_t now = now_us();
    if (std::exchange(seen_calls_, calls) != calls) {
        seen_us_ = told_us_ = now;
    }
    if (calls == 0 || now - told_us_ < kStuckUs || (!captured && now - seen_us_ > kLongUs)) {
        return true;
    }
    std::vector<ClaimRecord> records;
    for (const auto& [key, of] : graph_calls_) {
        ClaimRecord& record = records.emplace_back(record_of(Claiming::kGraphs));
        record.op = of.signature.op;
        record.dtype = of.signature.dtype;
        record.root_or_peer = of.signature.root_or_peer;
        record.bytes = of.signature.count * dtype_bytes(of.signature.dtype);
        record.kind = static_cast<uint32_t>(key >> 32);
        record.calls = of.calls;
        record.captured = of.captured;
        record.early = of.suspect();
        record.early_way = of.early_way;
        record.way = of.way;
    }
    if (count() != calls) {
        return true;  // a call came meanwhile, of which the records may say the half
    }
    told_us_ = now;
    told_graphs_ = true;
    ClaimSender& sender = ClaimSender::instance();
    for (ClaimRecord& record : records) {
        record.number = sender.next_number();
        sender.post(shared_from_this(), record, of_.patience_us);
    }
    return true;
}

uint32_t TypeClaims::splits(int color, int key) {
    const std::lock_guard lock(mutex_);
    if (!telling_splits_ || ended_) {
        return 0;
    }
    ClaimRecord record = record_of(Claiming::kSplit);
    record.root_or_peer = color;
    record.bytes = static_cast<uint64_t>(key);
    record.kind = ++splits_;
    if (color >= 0) {
        open_.insert(record.number = ClaimSender::instance().next_number());
    }
    if (parts_.size() > kMostHeld) {  // that nobody asked for
        parts_.erase(parts_.begin());
    }
    ClaimSender::instance().post(shared_from_this(), record, of_.patience_us);
    return record.number;
}

bool TypeClaims::part(uint32_t number, uint64_t wait_us, std::vector<int32_t>* brief) {
    std::unique_lock lock(mutex_);
    const auto heard = [&] { return open_.count(number) == 0; };
    if (!changed_.wait_for(lock, std::chrono::microseconds(wait_us), heard)) {
        return false;
    }
    if (auto known = parts_.extract(number)) {
        *brief = std::move(known.mapped());
    }
    return true;
}

void TypeClaims::end() {
    const std::lock_guard lock(mutex_);
    if (!ended_ && (!open_.empty() || !claiming_ || told_graphs_)) {
        ClaimSender::instance().post(shared_from_this(), record_of(Claiming::kEnd),
                                     of_.patience_us);
    }
    ended_ = true;
    open_.clear();
    changed_.notify_all();
}

uint32_t TypeClaims::answered(const ClaimRecord& claim,
                              const MatchRecord& answer,
                              std::vector<int32_t> part) {
    const std::lock_guard lock(mutex_);
    uint32_t moot = 0;
    open_.erase(claim.number);
    if (answer.matched == Matched::kPart) {
        parts_[claim.number] = std::move(part);
    }
    if (answer.matched == Matched::kAlike && claim.what == Claiming::kType) {
        // All ranks have claimed, and the server forgets it: another claim, that the call is now
        // compressed, would wait for theirs in vain where those came before.
        Type& own = known_.at({claim.op, claim.root_or_peer, claim.bytes})[claim.nth];
        own.alike = true;
        moot = own.number;
        open_.erase(moot);
    }
    changed_.notify_all();
    if (answer.matched != Matched::kDiffer || ended_ || !error_.empty()) {
        return moot;
    }
    const std::string rank[2] = {" rank " + std::to_string(answer.ranks[0]),
                                 " rank " + std::to_string(answer.ranks[1])};
    const auto side = [&](int i) {
        return std::string(dtype_name(answer.dtypes[i])) + " on" + rank[i];
    };
    error_ = of_.label + ": " + text_of(claim) + " is " +
             (claim.what == Claiming::kGraphs
                  ? graphs_text(answer.way, rank)
                  : side(0) + " and " + side(1) +
                        "; ranks of a call that may be compressed must name the same type");
    failed_.store(true, std::memory_order_release);
    log_line(LogLevel::kError, error_);
    return moot;
}

void TypeClaims::give_up() {
    const std::lock_guard lock(mutex_);
    claiming_ = telling_splits_ = false;
    open_.clear();
    changed_.notify_all();
}

void TypeHold::run(void* hold) {
    const std::unique_ptr<TypeHold> own(static_cast<TypeHold*>(hold));
    own->claims->wait(own->number);
}

}  // namespace slimwire
