#include "collectives/communicator/calls/call_checks.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "collectives/call/log.h"

namespace slimwire {
namespace {

// With a peer that tells of no call. It may be as late with the call itself, so nothing is wrong
// yet; a network that lets no notices through must not stop a job, nor one host function another.
constexpr std::chrono::seconds kPatience{1};

std::string text_of(const CallKind& kind) {
    return kind.compressed == 0 ? "a native call"
                                : std::string(op_name(static_cast<Op>(kind.op))) + " of " +
                                      std::to_string(kind.count) + " " +
                                      dtype_name(static_cast<DType>(kind.dtype)) + ", compressed";
}

}  // namespace

// One on a stream.
struct CallChecks::Wait {
    std::shared_ptr<CallChecks> checks;
    Lanes lanes;
    std::array<uint64_t, 2> made;  // calls of each that must be answered
};

CallChecks::CallChecks(std::string where,
                       uint64_t comm_key,
                       int rank,
                       uint32_t ops,
                       std::vector<AgreementAddress> ranks,
                       Post post)
    : where_(std::move(where)),
      comm_key_(comm_key),
      rank_(rank),
      ops_(ops),
      ranks_(std::move(ranks)),
      post_(post) {}

bool CallChecks::looks_at(const CallSignature& signature) const noexcept {
    const int ranks = static_cast<int>(ranks_.size());
    const int root = signature.root_or_peer;
    return (ops_ >> static_cast<unsigned>(signature.op) & 1u) != 0 && signature.count != 0 &&
           root >= 0 && root < ranks && (!is_point_to_point(signature.op) || root != rank_);
}

CallChecks::Lanes CallChecks::lanes_of(const CallSignature& signature) const noexcept {
    const int ranks = static_cast<int>(ranks_.size());
    if (signature.op == Op::kSend) {
        return {{LaneKey{Lane::kToPeer, signature.root_or_peer}}, 1};
    }
    if (signature.op == Op::kRecv) {
        return {{LaneKey{Lane::kFromPeer, signature.root_or_peer}}, 1};
    }
    return {{LaneKey{Lane::kToNext, (rank_ + 1) % ranks},
             LaneKey{Lane::kFromPrevious, (rank_ + ranks - 1) % ranks}},
            2};
}

void CallChecks::made(const CallSignature& signature, bool compressed, bool captured) {
    CallKind kind;
    if (compressed) {
        kind.count = signature.count;
        kind.root = is_point_to_point(signature.op) ? 0 : signature.root_or_peer;
        kind.op = static_cast<uint8_t>(signature.op == Op::kRecv ? Op::kSend : signature.op);
        kind.dtype = static_cast<uint8_t>(signature.dtype);
        kind.compressed = 1;
    }
    for (const LaneKey& lane : lanes_of(signature)) {
        count(lane, kind, captured);
    }
}

void CallChecks::count(const LaneKey& lane, const CallKind& kind, bool captured) {
    auto found = sequences_.find(lane);
    if (found == sequences_.end()) {
        found = sequences_.try_emplace(lane).first;
        const std::lock_guard lock(mutex_);
        lanes_[lane].sequence = &found->second;
    }
    Sequence& sequence = found->second;
    const uint64_t place = sequence.made.load(std::memory_order_relaxed);
    if (captured) {
        const std::lock_guard lock(mutex_);
        Compared& compared = lanes_[lane];
        if (!std::exchange(compared.unchecked, true)) {
            leave_unchecked(&compared);
            tell(lane, CallNotice::kUnchecked, place, {});
        }
        return;
    }
    const auto next = sequence.next.find(sequence.before);
    if (kind != (next != sequence.next.end() ? next->second : sequence.before[1])) {
        sequence.next[sequence.before] = kind;
        const std::lock_guard lock(mutex_);
        Compared& compared = lanes_[lane];
        if (!compared.unchecked) {
            compared.own.emplace_back(place, kind);
            sequence.alone = true;
            tell(lane, CallNotice::kCall, place, kind);
            compare(lane, &compared);
        }
    }
    sequence.before = {sequence.before[1], kind};
    sequence.made.store(place + 1, std::memory_order_release);
}

void CallChecks::tell(const LaneKey& lane,
                      CallNotice::What what,
                      uint64_t place,
                      CallKind kind) const {
    const AgreementAddress& to = ranks_[static_cast<size_t>(lane.second)];
    CallNotice notice;
    notice.token = to.token;
    notice.comm_key = comm_key_;
    notice.place = place;
    notice.kind = kind;
    notice.from = rank_;
    notice.to = lane.second;
    notice.lane = static_cast<uint32_t>(lane.first) ^ 1u;
    notice.what = what;
    post_(to, notice);
}

void CallChecks::answered(Compared* compared) {
    if (compared->own.empty() && compared->sequence != nullptr) {
        compared->sequence->alone = false;
    }
}

void CallChecks::leave_unchecked(Compared* compared) {
    compared->unchecked = true;
    compared->own.clear();
    compared->theirs.clear();
    answered(compared);
    changed_.notify_all();
}

// Both ends foresee alike as long as they are alike, so what was not foreseen must be, too.
void CallChecks::compare(const LaneKey& lane, Compared* compared) {
    while (!failed_ && !compared->theirs.empty()) {
        const auto& [place, kind] = compared->theirs.front();
        const uint64_t made = compared->sequence == nullptr
                                  ? 0
                                  : compared->sequence->made.load(std::memory_order_acquire);
        if (compared->own.empty() && made <= place) {
            break;  // still to come
        }
        const bool here = !compared->own.empty() && compared->own.front().first == place;
        if (!here || compared->own.front().second != kind) {
            fail(lane, "call " + std::to_string(place) + " is " + text_of(kind) + " on rank " +
                           std::to_string(lane.second) + " and " +
                           (here ? text_of(compared->own.front().second) : "another") +
                           " on this one");
            break;
        }
        compared->own.pop_front();
        compared->theirs.pop_front();
        answered(compared);
        changed_.notify_all();
    }
}

void CallChecks::fail(const LaneKey& lane, const std::string& what) {
    static constexpr const char* kLanes[] = {"messages to it", "messages from it",
                                             "collectives that copy", "collectives that copy"};
    why_ = where_ + ": ranks " + std::to_string(rank_) + " and " + std::to_string(lane.second) +
           " differ in " + kLanes[static_cast<size_t>(lane.first)] + ": " + what +
           "; both ends must name the same type and count";
    failed_.store(true, std::memory_order_release);
    log_line(LogLevel::kError, why_);
    tell(lane, CallNotice::kDiffer, 0, {});
    // Where all take part all hear of it, each from one beside.
    if (lane.first == Lane::kToNext || lane.first == Lane::kFromPrevious) {
        const int ranks = static_cast<int>(ranks_.size());
        tell({Lane::kToNext, (rank_ + 1) % ranks}, CallNotice::kDiffer, 0, {});
        tell({Lane::kFromPrevious, (rank_ + ranks - 1) % ranks}, CallNotice::kDiffer, 0, {});
    }
    changed_.notify_all();
}

void CallChecks::take(const CallNotice& notice) {
    if (notice.lane > static_cast<uint32_t>(Lane::kFromPrevious) || notice.from < 0 ||
        static_cast<size_t>(notice.from) >= ranks_.size()) {
        return;
    }
    const LaneKey lane{static_cast<Lane>(notice.lane), notice.from};
    const std::lock_guard lock(mutex_);
    if (failed_ || ended_) {
        return;
    }
    Compared& compared = lanes_[lane];
    if (notice.what == CallNotice::kDiffer) {
        fail(lane, "so that rank has found");
    } else if (notice.what == CallNotice::kUnchecked) {
        leave_unchecked(&compared);
    } else if (!compared.unchecked) {
        compared.theirs.emplace_back(notice.place, notice.kind);
        compare(lane, &compared);
    }
}

bool CallChecks::look() {
    const std::lock_guard lock(mutex_);
    bool waits = false;
    for (auto& [lane, compared] : lanes_) {
        compare(lane, &compared);
        waits |= !compared.theirs.empty();
    }
    return waits && !failed_ && !ended_;
}

Status CallChecks::await(const DeviceApi& api,
                         const CallSignature& signature,
                         cudaStream_t stream) {
    if (!looks_at(signature)) {
        return {};
    }
    auto wait = std::make_unique<Wait>(Wait{nullptr, lanes_of(signature), {}});
    bool alone = false;
    for (int i = 0; i < wait->lanes.count; ++i) {
        const auto found = sequences_.find(wait->lanes.keys[static_cast<size_t>(i)]);
        if (found != sequences_.end()) {
            wait->made[static_cast<size_t>(i)] = found->second.made;
            alone |= found->second.alone.load(std::memory_order_acquire);
        }
    }
    if (!alone) {
        return {};
    }
    wait->checks = shared_from_this();
    SLIMWIRE_TRY(cuda_status(api, api.launch_host_func(stream, CallChecks::wait, wait.get()),
                             "wait for the other end of a call"));
    (void)wait.release();  // wait()'s
    return {};
}

void CallChecks::wait(void* argument) noexcept {
    const std::unique_ptr<Wait> own(static_cast<Wait*>(argument));
    CallChecks& checks = *own->checks;
    std::unique_lock lock(checks.mutex_);
    const auto answered = [&] {
        bool all = true;
        for (int i = 0; i < own->lanes.count; ++i) {
            const auto at = static_cast<size_t>(i);
            const Compared& compared = checks.lanes_[own->lanes.keys[at]];
            all &= compared.own.empty() || compared.own.front().first >= own->made[at];
        }
        return checks.ended_ || (all && !checks.failed_);
    };
    // After a difference nothing that comes is what was meant.
    if (!checks.changed_.wait_for(lock, kPatience, [&] { return answered() || checks.failed_; }) ||
        !checks.failed_) {
        return;
    }
    checks.changed_.wait(lock, answered);
}

Status CallChecks::failure() const {
    const std::lock_guard lock(mutex_);
    return failed_ ? Status(Code::kInvalidUsage, why_) : Status();
}

void CallChecks::end() noexcept {
    const std::lock_guard lock(mutex_);
    ended_ = true;
    changed_.notify_all();
}

}  // namespace slimwire
