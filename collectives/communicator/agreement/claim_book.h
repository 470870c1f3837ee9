// The server's half of comparing element types (type_claims.h): which ranks claim which type for
// the same call, whether they are alike, and who is to hear that. Used by the thread of server.cpp.
//
// Ranks claim a type when they first use it for an operation, a root or peer and a number of bytes.
// What one calls in turn with several types the others do, too, so the n-th type of each is
// compared. Types that differ are an error where one of the calls is compressed.
//
// Of calls that a graph keeps as they were (type_claims.h) ranks whose calls do not go on tell how
// many they made, and which one they captured first: the same one on all of them, or a call that is
// native in graphs alone is native on some ranks only. One that was captured early is replayed as
// it was; where ranks that do not go on made other numbers of calls, and those of the other one are
// no longer so, these have met. The same call is never one of those with a place on some ranks
// only.
//
// Of a split each rank hears, once all told their color and key, who is in its part.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "collectives/communicator/agreement/wire.h"

namespace slimwire {

class ClaimBook {
  public:
    using ClaimRecord = agreement_wire::ClaimRecord;
    using MatchRecord = agreement_wire::MatchRecord;

    // All that it keeps at a time; what comes beyond is answered as not known.
    static constexpr size_t kMostClaims = 1 << 16;
    static constexpr size_t kMostComms = 1 << 12;
    // Claims whose rank ended the communicator, or is gone, are compared so much longer: another
    // rank may be about to make its call.
    static constexpr uint64_t kKeptUs = 60000000;

    struct Answer {
        uint64_t to;  // connection
        MatchRecord record;
        std::vector<int32_t> part = {};  // of kPart, what follows
    };
    // A record that came over connection `from`, which is not 0, at `now_us`; what is to be
    // answered is added. False: malformed.
    bool take(uint64_t from,
              const ClaimRecord& record,
              uint64_t now_us,
              std::vector<Answer>* answers);
    // The connection is closed.
    void gone(uint64_t from, uint64_t now_us);
    [[nodiscard]] size_t claims() const noexcept { return claims_; }

  private:
    struct Said {
        DType dtype = DType::kFloat32;
        bool compressed = false;
        bool answered = false;
        bool so_far = false;  // was told kSoFar
        uint32_t number = 0;
        uint64_t from = 0;         // 0: nobody hears an answer
        uint64_t orphaned_us = 0;  // when that came to be
    };
    // Operation, sender or root, receiver, bytes, which type.
    using Kind = std::tuple<Op, int32_t, int32_t, uint64_t, uint32_t>;
    struct Entry {
        std::map<int32_t, Said> said;  // by rank
        bool differs = false;
        int32_t ranks[2] = {};  // the first that do
        DType dtypes[2] = {};
    };
    // What a rank told with kGraphs.
    struct Graphs {
        uint32_t calls = 0, captured = 0, early = 0;
        uint8_t early_way = 0, way = 0;
        uint64_t told_us = 0;
    };
    // As MatchRecord::way; empty: a graph of `one` is no trouble for `other`.
    [[nodiscard]] static std::optional<uint8_t> differ(const Graphs& one, const Graphs& other);
    struct GraphKind {
        std::map<int32_t, Graphs> told;  // by rank
        bool differs = false;            // two ranks do, until one of them ends
        uint8_t way = 0;
        int32_t ranks[2] = {};
    };
    // A split that not all ranks have told yet.
    struct Splitting {
        struct Told {
            int32_t color;
            int64_t key;
            uint32_t number;
            uint64_t from;
        };
        std::map<int32_t, Told> told;  // by rank
        uint64_t told_us = 0;
    };
    struct Comm {
        int32_t ranks = 0;
        std::set<int32_t> silent;  // claim nothing more
        std::map<Kind, Entry> entries;
        // By sender and receiver, of collectives -1, -1, and kind.
        std::map<std::tuple<int32_t, int32_t, uint32_t>, GraphKind> graphs;
        std::map<uint32_t, Splitting> splits;  // by which one it is

        [[nodiscard]] bool empty() const {
            return entries.empty() && silent.empty() && graphs.empty() && splits.empty();
        }
    };
    using CommId = std::pair<uint64_t, uint64_t>;  // token and key

    static size_t wanted(const Comm& comm, const Kind& kind) noexcept;
    static Kind kind_of(const ClaimRecord& record) noexcept;
    static int32_t partner_of(const Kind& kind, int32_t rank) noexcept;
    static std::map<int32_t, Said>::const_iterator reference(const Kind& kind,
                                                             const Entry& entry) noexcept;
    static void compare(const Kind& kind, Entry* entry) noexcept;
    static std::optional<agreement_wire::Matched> matched(const Comm& comm,
                                                          const Kind& kind,
                                                          const Entry& entry,
                                                          int32_t rank);
    static bool settle(const Comm& comm,
                       const Kind& kind,
                       Entry* entry,
                       std::vector<Answer>* answers);
    void claim(uint64_t from, const ClaimRecord& record, Comm* comm, std::vector<Answer>* answers);
    static void take_graphs(uint64_t from,
                            const ClaimRecord& record,
                            uint64_t now_us,
                            Comm* comm,
                            std::vector<Answer>* answers);
    void take_split(uint64_t from,
                    const ClaimRecord& record,
                    uint64_t now_us,
                    Comm* comm,
                    std::vector<Answer>* answers);
    void sweep(uint64_t now_us);

    std::map<CommId, Comm> comms_;
    size_t claims_ = 0;
    uint64_t swept_us_ = 0;
};

}  // namespace slimwire
