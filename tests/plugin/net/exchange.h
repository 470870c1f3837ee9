// Messages between the two engines of an EnginePair, one by one or in grouped receives, for tests
// of the engine. What a message type M must have beside the members of AnyMessage: source() and
// target(), where its bytes are and where they go.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/plugin/net/engine_pair.h"

namespace slimwire::net {

// `memory` holds `expected` at `begin` and `poison` everywhere else.
inline void check_framed(const std::vector<uint8_t>& memory,
                         size_t begin,
                         const std::vector<uint8_t>& expected,
                         uint8_t poison,
                         const std::string& what) {
    std::vector<uint8_t> wanted(memory.size(), poison);
    std::copy(expected.begin(), expected.end(), wanted.begin() + static_cast<ptrdiff_t>(begin));
    const auto wrong = std::mismatch(memory.begin(), memory.end(), wanted.begin()).first;
    ASSERT_EQ(wrong, memory.end())
        << what << ", byte " << wrong - memory.begin() - static_cast<ptrdiff_t>(begin);
}

struct AnyMessage {
    std::vector<uint8_t> data;
    size_t capacity = 0;  // bytes of its receive
    int tag = 5;
    bool write_once = false;
    Memory* from_memory = nullptr;  // registered, or null
    Memory* to_memory = nullptr;
    Request* send = nullptr;
    Request* receive = nullptr;
    bool sent = false, received = false;
    size_t size = 0;  // as the receiver is told

    // On its way again.
    void rewind() {
        send = receive = nullptr;
        sent = received = false;
    }
};

// A message in host memory, with guards around where it goes.
struct Message : AnyMessage {
    static constexpr size_t kGuard = 64;
    static constexpr uint8_t kPoison = 0xC3;

    std::vector<uint8_t> memory;

    Message(std::vector<uint8_t> bytes, size_t more) {
        data = std::move(bytes);
        capacity = data.size() + more;
        memory.assign(capacity + 2 * kGuard, kPoison);
    }

    [[nodiscard]] uint8_t* source() { return data.data(); }
    [[nodiscard]] uint8_t* target() { return memory.data() + kGuard; }

    void check(const std::string& what) const {
        ASSERT_EQ(size, data.size()) << what;
        check_framed(memory, kGuard, data, kPoison, what);
    }
};

// A receive that is not grouped; its request, which may be null.
inline Request* receive_one(
    EnginePair& pair, void* target, size_t capacity, int tag, Memory* memory = nullptr) {
    Request* request = nullptr;
    EXPECT_TRUE(pair.receiver->receive(1, &target, &capacity, &tag, &memory, false, &request).ok());
    return request;
}

// Sends `messages`, at most `depth` at a time on either side, and asks about the newest first:
// completion in any order. The first failure, if there is one.
template <class M>
Status exchange(EnginePair& pair, std::vector<M>& messages, size_t depth) {
    size_t sent = 0, received = 0, sends_done = 0, receives_done = 0;
    Status failure;
    const auto step = [&](Status status) {
        if (failure.ok() && !status.ok()) {
            failure = std::move(status);
        }
        return failure.ok();
    };
    const bool in_time = poll_until([&] {
        if (sent < messages.size() && sent - sends_done < depth) {
            M& m = messages[sent];
            if (!step(
                    pair.sender->send(m.source(), m.data.size(), m.tag, m.from_memory, &m.send))) {
                return true;
            }
            sent += m.send != nullptr ? 1 : 0;
        }
        if (received < messages.size() && received - receives_done < depth) {
            M& m = messages[received];
            void* target = m.target();
            if (!step(pair.receiver->receive(1, &target, &m.capacity, &m.tag, &m.to_memory,
                                             m.write_once, &m.receive))) {
                return true;
            }
            received += m.receive != nullptr ? 1 : 0;
        }
        for (size_t i = sent; i-- > 0;) {
            M& m = messages[i];
            if (!m.sent) {
                if (!step(pair.sender->test(m.send, &m.sent, nullptr))) {
                    return true;
                }
                sends_done += m.sent ? 1 : 0;
            }
        }
        for (size_t i = received; i-- > 0;) {
            M& m = messages[i];
            if (!m.received) {
                if (!step(pair.receiver->test(m.receive, &m.received, &m.size))) {
                    return true;
                }
                receives_done += m.received ? 1 : 0;
            }
        }
        return sends_done == messages.size() && receives_done == messages.size();
    });
    EXPECT_TRUE(in_time) << sends_done << " sends and " << receives_done << " receives of "
                         << messages.size() << " were done in time";
    return failure;
}

// Tags of a grouped receive.
inline constexpr size_t kGroup = 4;

// `messages` by group and tag, kGroup a group; tags are given here. All sends of one tag go first,
// then those of the next: the first groups wait for messages far behind.
template <class M>
Status exchange_groups(EnginePair& pair, std::vector<M>& messages) {
    const size_t groups = messages.size() / kGroup;
    std::vector<size_t> order;
    for (size_t tag = kGroup; tag-- > 0;) {
        for (size_t group = 0; group < groups; ++group) {
            order.push_back(group * kGroup + tag);
            messages[order.back()].tag = static_cast<int>(tag);
        }
    }
    std::vector<Request*> receives(groups);
    std::vector<bool> done(groups);
    size_t sends = 0, sends_done = 0, posted = 0, groups_done = 0;
    Status failure;
    const bool in_time = poll_until([&] {
        if (sends < order.size()) {
            M& m = messages[order[sends]];
            failure = pair.sender->send(m.source(), m.data.size(), m.tag, m.from_memory, &m.send);
            sends += m.send != nullptr ? 1 : 0;
        }
        if (failure.ok() && posted < groups) {
            void* targets[kGroup];
            size_t capacities[kGroup];
            int tags[kGroup];
            Memory* memories[kGroup];
            for (size_t tag = 0; tag < kGroup; ++tag) {
                M& m = messages[posted * kGroup + tag];
                targets[tag] = m.target();
                capacities[tag] = m.capacity;
                tags[tag] = m.tag;
                memories[tag] = m.to_memory;
            }
            failure = pair.receiver->receive(kGroup, targets, capacities, tags, memories, false,
                                             &receives[posted]);
            posted += receives[posted] != nullptr ? 1 : 0;
        }
        for (M& m : messages) {
            if (failure.ok() && m.send != nullptr && !m.sent) {
                failure = pair.sender->test(m.send, &m.sent, nullptr);
                sends_done += m.sent ? 1 : 0;
            }
        }
        for (size_t group = 0; failure.ok() && group < posted; ++group) {
            if (done[group]) {
                continue;
            }
            bool over = false;
            size_t sizes[kGroup];
            failure = pair.receiver->test(receives[group], &over, sizes);
            for (size_t tag = 0; over && tag < kGroup; ++tag) {
                messages[group * kGroup + tag].size = sizes[tag];
            }
            done[group] = over;
            groups_done += over ? 1 : 0;
        }
        return !failure.ok() || (sends_done == messages.size() && groups_done == groups);
    });
    EXPECT_TRUE(in_time) << sends_done << " sends and " << groups_done << " of " << groups
                         << " groups were done in time";
    return failure;
}

}  // namespace slimwire::net
