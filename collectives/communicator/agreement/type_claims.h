// Calls whose ends name the element type differently, as f32 and twice as many bf16. NCCL carries
// most such calls; slimwire cannot where one of them is compressed, and the ranks only know their
// own call. So a rank tells the agreement server out of band, at the first call of each kind, which
// type it has ("claims" it), and where the claims of a call differ every rank concerned gets an
// asynchronous error. No call waits for that: one thread of the process sends and hears
// (claim_sender.h). Where data arrives with the first compressed call of a kind, a host function
// holds the stream until its claims are known to be alike, so that no program takes what came for
// data; the others have called by then. Beyond kMostHeld kinds, as jobs have whose counts never
// repeat, none waits for answers: data may be taken before the error. A rank that only sends may be
// far ahead of them, and while its stream were held no other host function might run: it goes on.
//
// Counted are calls that a graph keeps as they were at their capture, while those outside of graphs
// are or become others: those that are native in graphs alone (Plan::capturable), and those that a
// kind of calls begins with, before start_step, in a ramp, without a place in the step, or a
// tensor's first. While those of ranks do not go on, the server compares which ones ranks captured.
//
// An error is logged at once, and the next call on the communicator returns it, too. Types are not
// compared of sums (NCCL itself takes no two types) and of what comes after kMostClaims kinds of
// calls, which take 1.3 MiB at most. A server that is out of reach is as none.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "collectives/call/call.h"
#include "collectives/communicator/agreement/wire.h"

namespace slimwire {

// The claims of one rank of a communicator. Any thread.
class TypeClaims : public std::enable_shared_from_this<TypeClaims> {
  public:
    static constexpr size_t kMostClaims = 1 << 12;
    // Kinds of calls, first ones, for which streams are held; of calls in graphs; of parts of
    // splits.
    static constexpr size_t kMostHeld = 256;

    struct Of {
        AgreementAddress server;
        uint64_t comm_key = 0;
        int ranks = 0, rank = 0;
        uint32_t ops = 0;          // that rules may compress, as bits
        std::string label;         // "rank 3 comm 0123...", for log lines
        uint64_t patience_us = 0;  // for a server, and that a stream waits for an answer
    };
    explicit TypeClaims(Of of) : of_(std::move(of)) {}

    [[nodiscard]] const AgreementAddress& server() const noexcept { return of_.server; }
    // Whether other ranks have calls that must be as this one.
    [[nodiscard]] bool concerns(const CallSignature& signature) const noexcept;
    // At the first call of a kind that is about to be made, and again when the first one is
    // compressed.
    void claim(const CallSignature& signature, bool compressed);
    // How far a call is from what its kind comes to be for good, 0: so many stages of that are to
    // come, it is a tensor's first, its place is not known. In an answer: it is on the one rank.
    static constexpr uint8_t kMostStages = 252, kPlacesDiffer = 253, kTensorsFirst = 254,
                             kUnplaced = 255;
    // Of calls that rules tell apart by what their place says, all in one: the signature's ordinal.
    static constexpr uint32_t kAnyPlace = UINT32_MAX;
    // A call of such a kind; that it never was. What a graph that captured it is to keep as long as
    // it lives; null where it was not captured, or may be as it is. One thread at a time.
    struct GraphCall {
        CallSignature signature;
        bool captured = false;
        bool capturable = true;  // Plan's
        uint8_t way = 0;
    };
    std::shared_ptr<void> count_graph_call(const GraphCall& call);
    void uncount_graph_call(uint64_t key) noexcept;
    // The last call that was counted of the kind, and captured, turns out to be a tensor's first.
    std::shared_ptr<void> is_tensors_first(const CallSignature& signature);
    // Of a kind of calls, at this rank.
    [[nodiscard]] static uint64_t graph_key(const CallSignature& signature) noexcept;
    // The number of a claim of such calls that has no answer yet.
    [[nodiscard]] std::optional<uint32_t> unanswered(const CallSignature& signature);
    // On a stream, behind such a call: waits for the answer, at most Of::patience_us. Where types
    // differ, until the communicator ends, as NCCL's own kernels do that cannot go on.
    void wait(uint32_t number);
    // Why calls on the communicator failed; empty while none did.
    [[nodiscard]] std::string error() {
        const std::lock_guard lock(mutex_);
        return error_;
    }
    // Whether it would say why.
    [[nodiscard]] bool failed() const noexcept { return failed_.load(std::memory_order_acquire); }
    // This rank splits the communicator, with color and key. Returns a number for part(); 0: the
    // rank is in no part, or does not hear who is in it.
    uint32_t splits(int color, int key);
    // Waits so long for who is in this rank's part, `brief` (brief_ranks). False: not heard yet,
    // and empty: never.
    bool part(uint32_t number, uint64_t wait_us, std::vector<int32_t>* brief);
    // Some rank does not tell that it splits: nor does this one any more.
    void splits_untold() {
        const std::lock_guard lock(mutex_);
        telling_splits_ = false;
    }
    // The communicator ends.
    void end();

    // Of the sending thread, now and then: asks the server whether calls that do not go on are in a
    // graph elsewhere. Whether to do so again.
    bool ask_about_graphs();
    // Of that thread. Returns the number of a claim that needs no answer now, or 0.
    uint32_t answered(const agreement_wire::ClaimRecord& claim,
                      const agreement_wire::MatchRecord& answer,
                      std::vector<int32_t> part);
    void give_up();

  private:
    struct Type {
        DType dtype;
        bool compressed;
        bool alike;  // on all ranks, for good
        bool holds;  // streams, until that is known
        uint32_t number = 0;
    };
    [[nodiscard]] agreement_wire::ClaimRecord record_of(agreement_wire::Claiming what) const;

    const Of of_;
    std::mutex mutex_;  // of all below
    std::condition_variable changed_;
    std::map<std::tuple<Op, int32_t, uint64_t>, std::vector<Type>> known_;
    std::set<uint32_t> open_;                         // numbers of claims without an answer
    std::map<uint32_t, std::vector<int32_t>> parts_;  // that are known, by number
    uint32_t splits_ = 0;
    bool telling_splits_ = true;
    size_t claims_ = 0;
    bool claiming_ = true, patient_ = true;
    bool ended_ = false;
    std::string error_;
    std::atomic<bool> failed_{false};  // error_ is there
    struct GraphCalls {                // as ClaimRecord's; of those that change `calls` is first
        CallSignature signature;
        std::atomic<uint32_t> calls{0}, captured{0}, early{0};
        std::atomic<uint8_t> early_way{0}, way{0};
        // Those of `early` hold it.
        std::shared_ptr<void> graphs = std::make_shared<char>();

        // The first one counts: graphs of later ones come to be wrong when that does, or after it.
        [[nodiscard]] std::shared_ptr<void> begins_early(uint8_t as) noexcept {
            if (early == 0) {
                early_way = as;
                early = calls.load();
            }
            return graphs;
        }
        // Of `early`, while calls of a graph or the next ones may yet be as that one was.
        [[nodiscard]] uint32_t suspect() const noexcept {
            return graphs.use_count() > 1 || way != 0 ? early.load() : 0;
        }
    };
    // By graph_key(); the mutex is held where one is added, and by other threads.
    std::map<uint64_t, GraphCalls> graph_calls_;
    uint64_t seen_calls_ = 0, seen_us_ = 0, told_us_ = 0;
    bool told_graphs_ = false;
};

// What cudaLaunchHostFunc() takes to let a stream wait (TypeClaims::wait); frees what it is given.
struct TypeHold {
    std::shared_ptr<TypeClaims> claims;
    uint32_t number;

    static void run(void* hold);
};

}  // namespace slimwire
