// Calls whose ends name the element type differently, as f32 and twice as many bf16. NCCL carries
// most such calls; slimwire cannot where one of them is compressed, and the ranks only know their
// own call. So a rank tells the agreement server out of band, at the first call of each kind, which
// type it has ("claims" it), and where the claims of a call differ every rank concerned gets an
// asynchronous error. No call waits for that: one thread of the process sends and hears. A stream
// with the first compressed call of a kind goes on once its claims are known to be alike, so that
// no program takes what came for data, nor ends while others ask: the others have called by then,
// or it is not for long (Of::patience_us).
//
// Calls that are native in graphs alone (Plan::capturable) are counted, and the server compares
// which one ranks captured first, once a rank whose calls do not go on is asked for errors.
//
// Types are not compared of sums (NCCL itself takes no two types), communicators without a server
// (ncclCommInitAll) and of what comes after kMostClaims kinds of calls. A server that is out of
// reach is as none.
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
    static constexpr size_t kMostClaims = 256;

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
    // A call that is native in graphs alone, and is so now or not; that it never was. One thread at
    // a time.
    void count_graph_call(const CallSignature& signature, bool captured);
    void uncount_graph_call(Op op, int32_t peer) noexcept;
    // The number of a claim of such calls that has no answer yet.
    [[nodiscard]] std::optional<uint32_t> unanswered(const CallSignature& signature);
    // On a stream, behind such a call: waits for the answer, but not long. Where types differ,
    // until the communicator ends, as NCCL's own kernels do that cannot go on.
    void wait(uint32_t number);
    // Why calls on the communicator failed; empty while none did. Asked again and again, asks the
    // server whether calls that do not go on are in a graph elsewhere.
    [[nodiscard]] std::string error();
    // The communicator ends.
    void end();

    // Of the sending thread.
    void answered(const agreement_wire::ClaimRecord& claim,
                  const agreement_wire::MatchRecord& answer);
    void give_up();

  private:
    struct Type {
        DType dtype;
        bool compressed;
        uint32_t number;
    };
    [[nodiscard]] agreement_wire::ClaimRecord record_of(agreement_wire::Claiming what) const;
    void ask_about_graphs();

    const Of of_;
    std::mutex mutex_;  // of all below
    std::condition_variable changed_;
    std::map<std::tuple<Op, int32_t, uint64_t>, std::vector<Type>> known_;
    std::set<uint32_t> open_;  // numbers of claims without an answer
    size_t claims_ = 0;
    bool claiming_ = true, patient_ = true;
    bool ended_ = false;
    std::string error_;
    std::atomic<bool> failed_{false};  // error_ is there
    struct GraphCalls {
        std::atomic<uint64_t> calls{0};
        std::atomic<uint32_t> captured{0};  // the first of them that was, from 1 on; 0: none
    };
    // Of collectives under kAllReduce and 0, of messages by direction and peer; the mutex is held
    // where one is added, and by other threads.
    std::map<std::pair<Op, int32_t>, GraphCalls> graph_calls_;
    uint64_t seen_calls_ = 0, seen_us_ = 0;
    bool told_graphs_ = false;
};

// What cudaLaunchHostFunc() takes to let a stream wait (TypeClaims::wait); frees what it is given.
struct TypeHold {
    std::shared_ptr<TypeClaims> claims;
    uint32_t number;

    static void run(void* hold);
};

}  // namespace slimwire
