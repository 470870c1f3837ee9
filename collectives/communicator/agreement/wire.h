// Bytes of the agreement's messages, and the socket helpers of its two sides. Both machines are
// little-endian (checked).
#pragma once

#include <bit>
#include <cstdint>
#include <string>
#include <vector>

#include "collectives/call/call.h"
#include "collectives/communicator/agreement/agreement.h"

namespace slimwire::agreement_wire {

static_assert(std::endian::native == std::endian::little);

inline constexpr uint64_t kMagic = 0x6f6c6c6548776c53ull;  // "SlwHello"
inline constexpr uint32_t kMaxText = 4096;
// Of more ranks than these one has the whole text of a verdict, the others as much of it.
inline constexpr int32_t kRanksWithText = 64;
inline constexpr uint32_t kShortText = 40;
inline constexpr uint32_t kMaxSettings = 4096;
inline constexpr uint32_t kMaxHelloText = kMaxText + 1 + kMaxSettings;

struct HelloHeader {
    uint64_t magic;
    uint32_t version;
    uint32_t text_bytes;  // error, native_reason, a zero and settings follow
    uint64_t token;
    uint64_t config_hash;
    int32_t ranks;
    int32_t rank;
    uint32_t error_bytes;  // of text_bytes
    uint32_t process;      // process id
};
static_assert(sizeof(HelloHeader) == 48);

struct AnswerHeader {
    uint64_t magic;
    uint32_t version;
    uint32_t verdict;
    uint32_t text_bytes;  // follow; 0 where the ranks go
    int32_t whole_at;     // the rank that has the whole text, where this is its beginning; else -1
};
// The process that made the id sends one to each rank of the largest job.
static_assert(sizeof(AnswerHeader) == 24);

inline constexpr uint64_t kClaimMagic = 0x6d69616c43776c53ull;  // "SlwClaim"

// Of a rank: the type of a kind of call; that it claims nothing more on a communicator; that it
// ends the communicator; how many calls of a kind it made that a graph may keep as they were; that
// it splits the communicator.
enum class Claiming : uint8_t { kType, kNoMore, kEnd, kGraphs, kSplit };

// A rank tells kGraphs so often while it makes no such calls.
inline constexpr uint64_t kStuckUs = 2'000'000;

struct ClaimRecord {
    uint64_t magic;
    uint32_t version;
    Claiming what;
    // This and what stands below of the call: 0 but with kType and kGraphs, and with kSplit
    // `bytes`, which is the key, `root_or_peer` the color and `kind` which split it is.
    Op op;
    DType dtype;
    uint8_t compressed;  // 1: some such call is, at this rank; 0 with kGraphs
    uint64_t token;
    uint64_t comm_key;
    uint64_t bytes;   // count * size of the type
    uint32_t number;  // in the answer; 0: none
    int32_t ranks;
    int32_t rank;
    int32_t root_or_peer;
    uint32_t
        nth;  // of the types that such calls of so many bytes have, by first use; 0 with kGraphs
    // Below: 0 but with kGraphs. Hash of what else tells kinds of calls apart.
    uint32_t kind;
    uint32_t calls;
    // The first of these calls, from 1 on, that was captured and is native in graphs alone; that
    // was captured before its kind came to be what it is for good, and may be replayed; 0: none.
    uint32_t captured;
    uint32_t early;
    // How far that one, and the last call, was from that (type_claims.h).
    uint8_t early_way;
    uint8_t way;
    uint8_t reserved[2];
};
static_assert(sizeof(ClaimRecord) == 80);

// kSoFar: alike to the root's, while others are to come; another answer follows. kPart: the ranks
// of the split that are in the same part follow, `ranks[0]` numbers (brief_ranks).
enum class Matched : uint8_t { kAlike, kDiffer, kUnknown, kSoFar, kPart };
inline constexpr size_t kMostBrief = 10;

struct MatchRecord {
    uint64_t magic;
    uint32_t number;
    Matched matched;
    DType dtypes[2];  // with kDiffer of a type, of these ranks
    uint8_t way;      // with kDiffer of graphs, ClaimRecord::early_way; 0: native in graphs alone
    int32_t ranks[2];
};
static_assert(sizeof(MatchRecord) == 24);

// Not sent late for being small, closes on exec, no SIGPIPE; returns -1 with errno.
int open_socket(uint8_t family);
[[nodiscard]] uint64_t now_us();
// Connects before `deadline_us`; an error begins with address and port.
Result<int> connect_to(const AgreementAddress& address,
                       uint64_t deadline_us,
                       const AgreementClient::Stop& stop);
// Waits for `events` of poll(); false on expiry or when `stop`, asked every 50 ms, says so.
bool wait_for(int socket, short events, uint64_t deadline_us, const AgreementClient::Stop& stop);
// Reads or writes exactly `bytes` before `deadline_us`; false on error, EOF, expiry or stop.
bool read_all(
    int socket, void* data, size_t bytes, uint64_t deadline_us, const AgreementClient::Stop& stop);
bool write_all(int socket, const void* data, size_t bytes, uint64_t deadline_us);
[[nodiscard]] std::string encode_hello(const Hello& hello, uint64_t token);
// With `whole_at` the beginning of the text, else all of it.
[[nodiscard]] std::string encode_answer(const Agreement& answer, int32_t whole_at = -1);
// Ranks in at most kMostBrief numbers: themselves, or where they are more the first one and how
// often that and what came before are to be repeated, at which distance, as in a grid. Empty where
// that does not tell them.
[[nodiscard]] std::vector<int32_t> brief_ranks(const std::vector<int32_t>& ranks);
// The other way round, of so many ranks; empty where they are not so many.
[[nodiscard]] std::vector<int32_t> ranks_in_brief(const std::vector<int32_t>& brief, size_t count);

}  // namespace slimwire::agreement_wire
