// Whether ranks make the same calls of the operations that copy: to NCCL the type of a message is
// no more than its bytes, while a compressed one is sent in one form and awaited in that form.
// Where the ends differ one would wait for bytes that never come, or read others.
//
// Both ends of a *lane* count its calls and foresee each one's kind by the two before. A rank tells
// the other end, over the notice board, of a call that is not as foreseen; so in a job that repeats
// itself nothing travels, and an end that hears of a call which it made otherwise knows that both
// differ. A compressed call that was not foreseen waits on its stream until the other end has told
// of the same, a second at most. Native calls are all of one kind. From the first captured call on
// a lane is not looked at: how often a graph is launched nobody sees.
//
// One object a communicator. made() and await() are for the thread that makes calls; it takes a
// lock for calls that are not as foreseen. The rest is for any thread.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <atomic>
#include <compare>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "codecs/base/device.h"
#include "collectives/call/call.h"
#include "collectives/communicator/agreement/agreement.h"

namespace slimwire {

// Calls that must be alike on two ranks, as one of them sees them; the other end's is the same with
// the last bit flipped. Collectives are compared around the ring of all ranks.
enum class Lane : uint32_t { kToPeer, kFromPeer, kToNext, kFromPrevious };

// What both ends must name alike; all zero for a native call.
struct CallKind {
    uint64_t count = 0;
    int32_t root = 0;
    uint8_t op = 0;  // a receive's is that of its send
    uint8_t dtype = 0;
    uint8_t compressed = 0;
    uint8_t reserved = 0;
    auto operator<=>(const CallKind&) const = default;
};

// As it travels: little-endian, without gaps.
struct CallNotice {
    enum What : uint32_t { kCall, kUnchecked, kDiffer };
    uint64_t token = 0;  // of the address it goes to: proof that it is meant
    uint64_t comm_key = 0;
    uint64_t place = 0;  // of the call in its lane, from 0
    CallKind kind;
    int32_t from = 0, to = 0;     // ranks
    uint32_t lane = 0, what = 0;  // the receiver's lane
};
static_assert(sizeof(CallNotice) == 56);

class CallChecks : public std::enable_shared_from_this<CallChecks> {
  public:
    using Post = void (*)(const AgreementAddress& to, const CallNotice& notice);
    // `ops`: bits of operations that rules may compress; `ranks`: where each is.
    CallChecks(std::string where,
               uint64_t comm_key,
               int rank,
               uint32_t ops,
               std::vector<AgreementAddress> ranks,
               Post post);

    // Whether calls like this are compared.
    [[nodiscard]] bool looks_at(const CallSignature& signature) const noexcept;
    // The next call, compressed or not; before it is launched.
    void made(const CallSignature& signature, bool compressed, bool captured);
    // Enqueues the wait of a compressed call that was not foreseen.
    Status await(const DeviceApi& api, const CallSignature& signature, cudaStream_t stream);

    void take(const CallNotice& notice);
    // Compares anew what others told; whether some of it is of calls still to come here.
    bool look();
    // Once ranks differ, all calls of the communicator fail with this.
    [[nodiscard]] bool failed() const noexcept { return failed_.load(std::memory_order_acquire); }
    [[nodiscard]] Status failure() const;
    // The communicator ends: nothing waits any more.
    void end() noexcept;

    [[nodiscard]] uint64_t comm_key() const noexcept { return comm_key_; }
    [[nodiscard]] int rank() const noexcept { return rank_; }

  private:
    using LaneKey = std::pair<Lane, int>;  // with the rank at the other end
    struct Lanes {
        std::array<LaneKey, 2> keys;
        int count;
        [[nodiscard]] const LaneKey* begin() const noexcept { return keys.data(); }
        [[nodiscard]] const LaneKey* end() const noexcept { return keys.data() + count; }
    };
    // The calls of this rank in a lane.
    struct Sequence {
        std::array<CallKind, 2> before;
        std::map<std::array<CallKind, 2>, CallKind> next;  // absent: the same again
        std::atomic<uint64_t> made{0};
        std::atomic<bool> alone{false};  // something of `own` is not answered
    };
    // What was not foreseen, by either end; guarded.
    struct Compared {
        Sequence* sequence = nullptr;  // null: no call yet
        std::deque<std::pair<uint64_t, CallKind>> own, theirs;
        bool unchecked = false;
    };
    struct Wait;
    [[nodiscard]] Lanes lanes_of(const CallSignature& signature) const noexcept;
    void count(const LaneKey& lane, const CallKind& kind, bool captured);
    void tell(const LaneKey& lane, CallNotice::What what, uint64_t place, CallKind kind) const;
    void compare(const LaneKey& lane, Compared* compared);
    void fail(const LaneKey& lane, const std::string& what);
    void leave_unchecked(Compared* compared);
    static void answered(Compared* compared);
    static void wait(void* wait) noexcept;

    const std::string where_;
    const uint64_t comm_key_;
    const int rank_;
    const uint32_t ops_;
    const std::vector<AgreementAddress> ranks_;
    const Post post_;
    std::map<LaneKey, Sequence> sequences_;  // of the calling thread

    mutable std::mutex mutex_;  // of all below
    std::condition_variable changed_;
    std::map<LaneKey, Compared> lanes_;
    std::atomic<bool> failed_{false};
    std::string why_;
    bool ended_ = false;
};

}  // namespace slimwire
