#include "tests/plugin/net/soak_parts/plan.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "tests/plugin/net/messages.h"

namespace slimwire::net::soak {
namespace {

constexpr size_t kBaseBytes = 1 << 20;

// Places of draws, so that one does not depend on another.
enum Place : uint64_t {
    kThreads = 1,
    kTransport,
    kRate,
    kLatency,
    kCount,
    kShape,
    kDirection,
    kThread,
    kLives,
    kMessages,
    kEnd,
    kLeave,
    kSize,
    kSizeDetail,
    kKindBegin,
    kKindChoice,
    kTag,
    kGroup,
    kSettings,
    kConnection,
    kLife,
    kId,
};

int between(uint64_t drawn, int least, int most) {
    return least + static_cast<int>(drawn % static_cast<uint64_t>(most - least + 1));
}

template <class T, size_t N>
T one_of(uint64_t drawn, const T (&choices)[N]) {
    return choices[drawn % N];
}

size_t size_of(const ConnectionPlan& connection, const LifePlan& life, uint64_t number) {
    const uint64_t detail = draw(life.seed, kSizeDetail, number);
    const uint64_t kind = draw(life.seed, kSize, number) % 20;
    size_t bytes = 0;
    if (kind < 8) {
        bytes = 128 << 10;
    } else if (kind < 13) {
        bytes = 1 << 20;
    } else if (kind < 15) {
        bytes = detail % (size_t{8} << 20 | 1);
    } else if (kind < 17) {
        bytes = detail % 8193;
    } else if (kind < 19) {
        bytes = detail % ((256 << 10) + 1);
    } else {
        bytes = one_of(detail, {0, 1, 7, 4047, 4048, 4049, 32767, 32768, 131071, 131073});
    }
    return std::min(bytes, connection.most_bytes);
}

// The kind stays for some messages and then changes.
Kind kind_of(const LifePlan& life, uint64_t number) {
    const uint64_t stretch = 1 + draw(life.seed, kKindBegin) % 24;
    return static_cast<Kind>(draw(life.seed, kKindChoice, number / stretch) % kKinds);
}

int group_size(const LifePlan& life, uint64_t group) {
    return between(draw(life.seed, kGroup, group), 1, kMaxGroupedReceives);
}

void set(const char* name, const std::string& value) {
    if (value.empty()) {
        unsetenv(name);
    } else {
        setenv(name, value.c_str(), 1);
    }
}

std::vector<uint8_t> base_of(Kind kind, std::mt19937& random) {
    switch (kind) {
        case Kind::kBfloat16:
            return gaussian_bytes(DType::kBfloat16, kBaseBytes, random);
        case Kind::kFloat16:
            return gaussian_bytes(DType::kFloat16, kBaseBytes, random);
        case Kind::kFloat32:
        case Kind::kLl:
        case Kind::kLl128:
        case Kind::kHalfAndHalf:
            return gaussian_bytes(DType::kFloat32, kBaseBytes, random);
        case Kind::kFloat64:
            return gaussian_bytes(DType::kFloat64, kBaseBytes, random);
        case Kind::kFloat8e4m3:
            return gaussian_bytes(DType::kFloat8e4m3, kBaseBytes, random);
        case Kind::kFloat8e5m2:
            return gaussian_bytes(DType::kFloat8e5m2, kBaseBytes, random);
        case Kind::kNoise:
            return random_bytes(kBaseBytes, random);
        case Kind::kZeros:
            return std::vector<uint8_t>(kBaseBytes);
        case Kind::kSmallIntegers: {
            std::vector<uint8_t> data(kBaseBytes);
            for (size_t at = 0; at < data.size(); at += 4) {
                data[at] = static_cast<uint8_t>(random() % 100);
            }
            return data;
        }
    }
    return {};
}

}  // namespace

uint64_t draw(uint64_t seed, uint64_t a, uint64_t b) noexcept {
    uint64_t x = seed + a * 0x9E3779B97F4A7C15 + b * 0xD1B54A32D192ED03;
    for (int round = 0; round < 2; ++round) {
        x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9;
        x = (x ^ x >> 27) * 0x94D049BB133111EB;
        x ^= x >> 31;
    }
    return x;
}

LifePlan life_of(const ConnectionPlan& connection, int number) noexcept {
    LifePlan life;
    life.seed = draw(connection.seed, kLife, static_cast<uint64_t>(number));
    const int most = connection.most_bytes > (size_t{1} << 20) ? 30 : 120;
    life.messages = between(draw(life.seed, kMessages), 0, most);
    const uint64_t end = draw(life.seed, kEnd) % 8;
    life.end = end == 0 ? End::kSenderLeaves : end == 1 ? End::kReceiverLeaves : End::kInOrder;
    life.leave_after = between(draw(life.seed, kLeave), 0, life.messages);
    return life;
}

RoundPlan plan_round(uint64_t seed) {
    RoundPlan round;
    round.seed = seed;
    round.threads = between(draw(seed, kThreads), 1, 3);
    round.transports = draw(seed, kTransport) % 5 == 0 ? "posix,cma" : "";
    round.rate_bytes_per_s =
        one_of(draw(seed, kRate), {0.0, 0.0, 0.0, 125e6, 125e6, 312.5e6, 1.25e9});
    round.latency_us = one_of<uint64_t>(draw(seed, kLatency), {0, 0, 0, 50, 2000});
    const int count = between(draw(seed, kCount), 2, 8);
    for (int i = 0; i < count; ++i) {
        ConnectionPlan made;
        made.seed = draw(seed, kConnection, static_cast<uint64_t>(i));
        made.sender = i < 2 ? i : between(draw(made.seed, kDirection), 0, 1);
        made.thread = between(draw(made.seed, kThread), 0, round.threads - 1);
        const uint64_t shape = draw(made.seed, kShape) % 20;
        made.grouped = shape >= 17;
        made.most_bytes = size_t{shape < 10   ? 1024u
                                 : shape < 14 ? 8192u
                                 : shape < 17 ? 128u
                                              : 512u}
                          << 10;
        made.send_window = shape < 10 ? 8 : shape < 14 ? 3 : shape < 17 ? 32 : 16;
        made.receive_window = made.grouped ? 2 : made.send_window;
        made.lives = between(draw(made.seed, kLives), 1, 4);
        round.connections.push_back(made);
    }
    return round;
}

Result<EngineSettings> draw_settings(const RoundPlan& round, int rank) {
    uint64_t place = 64 * static_cast<uint64_t>(rank);
    const auto next = [&] { return draw(round.seed, kSettings, ++place); };
    const std::string codec = next() % 10 == 0 ? "off" : "palette";
    set("SLIMWIRE_NET_CODEC", codec + (next() % 10 == 0 ? "" : ",checksum"));
    set("SLIMWIRE_NET_THREADS", one_of<const char*>(next(), {"", "1", "2", "4"}));
    const size_t usual = EngineSettings{}.piece_bytes;
    const auto piece_bytes =
        one_of<size_t>(next(), {usual, usual, 4 << 10, 20 << 10, 64 << 10, 512 << 10, 4 << 20});
    set("SLIMWIRE_NET_MIN_BYTES", one_of<const char*>(next(), {"", "", "0", "5000", "200KiB"}));
    SLIMWIRE_TRY_ASSIGN(EngineSettings settings, read_engine_settings());
    settings.piece_bytes = piece_bytes;
    settings.rate_bytes_per_s = round.rate_bytes_per_s;
    settings.latency_ns = static_cast<uint64_t>(round.latency_us) * 1000;
    return settings;
}

MessagePlan message_of(const ConnectionPlan& connection,
                       const LifePlan& life,
                       int number) noexcept {
    const auto at = static_cast<uint64_t>(number);
    MessagePlan message;
    message.number = at;
    message.bytes = size_of(connection, life, at);
    message.kind = kind_of(life, at);
    // Few tags, so that some stand twice in a group.
    message.tag = connection.grouped ? between(draw(life.seed, kTag, at), 100, 109) : 7;
    message.id = draw(life.seed, kId, at) | 1;
    return message;
}

std::vector<GroupPlan> groups_of(const ConnectionPlan& connection, const LifePlan& life) {
    std::vector<GroupPlan> groups;
    for (int first = 0; first < life.messages;) {
        GroupPlan group;
        group.first = first;
        group.count = connection.grouped
                          ? std::min(group_size(life, groups.size()), life.messages - first)
                          : 1;
        for (int i = 0; i < group.count; ++i) {
            group.message[static_cast<size_t>(i)] = first + i;
        }
        // In another order than they are sent in; those of one tag keep theirs.
        for (int i = group.count - 1; i > 0; --i) {
            const auto other =
                draw(life.seed, kGroup, draw(life.seed, kTag, static_cast<uint64_t>(first + i))) %
                static_cast<uint64_t>(i + 1);
            std::swap(group.message[static_cast<size_t>(i)], group.message[other]);
        }
        const auto begin = group.message.begin();
        const auto end = begin + group.count;
        for (auto each = begin; each != end; ++each) {
            for (auto later = each + 1; later != end; ++later) {
                if (*later < *each && message_of(connection, life, *later).tag ==
                                          message_of(connection, life, *each).tag) {
                    std::swap(*later, *each);
                }
            }
        }
        groups.push_back(group);
        first += group.count;
    }
    return groups;
}

Bytes::Bytes() {
    std::mt19937 random(20261122);
    for (uint64_t kind = 0; kind < kKinds; ++kind) {
        base_[kind] = base_of(static_cast<Kind>(kind), random);
    }
}

void Bytes::tile(Kind kind, uint64_t id, uint8_t* output, size_t bytes) const {
    const std::vector<uint8_t>& base = base_[static_cast<size_t>(kind)];
    size_t from = id % (base.size() / 64) * 64;
    for (size_t at = 0; at < bytes;) {
        const size_t part = std::min(bytes - at, base.size() - from);
        std::memcpy(output + at, base.data() + from, part);
        at += part;
        from = 0;
    }
}

void Bytes::write(const MessagePlan& message, uint8_t* output) const {
    const size_t bytes = message.bytes;
    if (message.kind == Kind::kHalfAndHalf) {
        const size_t half = bytes / 2 / 8 * 8;
        tile(Kind::kNoise, message.id, output, half);
        tile(Kind::kFloat32, message.id, output + half, bytes - half);
    } else {
        tile(message.kind, message.id, output, bytes);
    }
    if (message.kind == Kind::kLl) {
        const auto flag = static_cast<uint32_t>(message.number + 1);
        for (size_t at = 4; at + sizeof flag <= bytes; at += 8) {
            std::memcpy(output + at, &flag, sizeof flag);
        }
    } else if (message.kind == Kind::kLl128) {
        const uint64_t flag = message.number + 1;
        for (size_t at = 120; at + sizeof flag <= bytes; at += 128) {
            std::memcpy(output + at, &flag, sizeof flag);
        }
    }
    // At the begin, where both protocols have data.
    const size_t stamp = std::min<size_t>(bytes, 4);
    for (size_t i = 0; i < stamp; ++i) {
        output[i] = static_cast<uint8_t>(message.id >> 8 * i);
    }
}

}  // namespace slimwire::net::soak
