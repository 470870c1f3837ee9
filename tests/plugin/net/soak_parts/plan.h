// What a soak of the net plugin does, drawn from a seed: both processes draw the same, so nothing
// but connection handles has to be said between them, and a round is repeated by its seed.
//
// A round has connections of both directions. A connection has lives: it is opened, carries
// messages and is closed, in order or with requests in flight, then the next life begins on the
// same listener.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "codecs/base/status.h"
#include "plugin/net/engine.h"
#include "plugin/net/settings.h"

namespace slimwire::net::soak {

// A number that depends on the seed and the places alone.
[[nodiscard]] uint64_t draw(uint64_t seed, uint64_t a, uint64_t b = 0) noexcept;

enum class End : uint8_t { kInOrder, kSenderLeaves, kReceiverLeaves };

struct LifePlan {
    uint64_t seed = 0;
    int messages = 0;
    End end = End::kInOrder;
    int leave_after = 0;  // messages over at the side that leaves
};

struct ConnectionPlan {
    uint64_t seed = 0;
    int sender = 0;          // rank
    int thread = 0;          // that drives it, on both sides
    size_t most_bytes = 0;   // of a message
    int send_window = 0;     // requests
    int receive_window = 0;  // groups
    bool grouped = false;    // receives in groups of up to 8 with tags
    int lives = 0;
};
[[nodiscard]] LifePlan life_of(const ConnectionPlan& connection, int number) noexcept;

struct RoundPlan {
    uint64_t seed = 0;
    int threads = 0;
    std::string transports;       // of UCX, "" for its own choice
    double rate_bytes_per_s = 0;  // of the throttle, 0: none
    uint64_t latency_us = 0;
    std::vector<ConnectionPlan> connections;
};
[[nodiscard]] RoundPlan plan_round(uint64_t seed);

// Puts a draw of SLIMWIRE_NET_* into the environment of this process and reads it; no other thread
// may be there.
[[nodiscard]] Result<EngineSettings> draw_settings(const RoundPlan& round, int rank);

enum class Kind : uint8_t {
    kBfloat16,
    kFloat16,
    kFloat32,
    kFloat64,
    kFloat8e4m3,
    kFloat8e5m2,
    kNoise,
    kZeros,
    kSmallIntegers,
    kLl,
    kLl128,
    kHalfAndHalf,  // noise, then floats
};
inline constexpr uint64_t kKinds = 12;

struct MessagePlan {
    uint64_t number = 0;  // in its life, in the order of sending
    size_t bytes = 0;
    Kind kind = Kind::kNoise;
    int tag = 0;
    uint64_t id = 0;  // its bytes differ from all others'
};
[[nodiscard]] MessagePlan message_of(const ConnectionPlan& connection,
                                     const LifePlan& life,
                                     int number) noexcept;

// A grouped receive: the messages first .. first + count, and which of them each receive gets.
struct GroupPlan {
    int first = 0;
    int count = 0;
    std::array<int, kMaxGroupedReceives> message{};
};
[[nodiscard]] std::vector<GroupPlan> groups_of(const ConnectionPlan& connection,
                                               const LifePlan& life);

// Writes the bytes of a message.
class Bytes {
  public:
    Bytes();
    void write(const MessagePlan& message, uint8_t* output) const;

  private:
    void tile(Kind kind, uint64_t id, uint8_t* output, size_t bytes) const;
    std::array<std::vector<uint8_t>, kKinds> base_;
};

}  // namespace slimwire::net::soak
