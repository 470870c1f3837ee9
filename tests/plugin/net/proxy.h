// NCCL's proxy as a net plugin sees it (src/transport/net.cc of 2.28): listen, connect and accept
// by polling, one registered buffer of some slots on each side, isend and irecv that may say "try
// again", test until done, a slot used again at once. Both directions of a stream of messages that
// are the same for everybody who knows the seed, so that sender and receiver may be threads or
// processes.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "plugin/net/wrapped/inner_table.h"
#include "tests/plugin/net/messages.h"

namespace slimwire::net {

// A stream: what each message is follows from seed and number.
struct Traffic {
    uint32_t seed = 1;
    int messages = 100;
    size_t most_bytes = 1 << 20;
    int window = 8;  // requests under way, NCCL_STEPS
    // Other sizes than the largest one, and receives that are larger than their message.
    bool ragged = true;
    int damaged = -1;  // a message of which the sender changes a bit; -1: none
};

inline size_t bytes_of(const Traffic& traffic, int number) {
    if (!traffic.ragged) {
        return traffic.most_bytes;
    }
    std::mt19937 random(traffic.seed * 7919 + static_cast<uint32_t>(number));
    constexpr size_t kSizes[] = {0, 1, 2, 8, 100, 4047, 4048, 4096, 32767, 32768, 65536, 131072};
    const uint32_t draw = random() % 20;
    if (draw < 12) {
        return std::min(kSizes[draw], traffic.most_bytes);
    }
    return draw < 16 ? traffic.most_bytes : random() % (traffic.most_bytes + 1);
}

// Floats, noise, NCCL's flagged protocols, zeros.
inline std::vector<uint8_t> drawn_message(const Traffic& traffic, int number, size_t bytes) {
    std::mt19937 random(traffic.seed + static_cast<uint32_t>(number) * 104729);
    switch (number % 7) {
        case 0:
        case 1:
            return gaussian_bytes(DType::kBfloat16, bytes, random);
        case 2:
            return gaussian_bytes(DType::kFloat32, bytes, random);
        case 3:
            return random_bytes(bytes, random);
        case 4: {
            auto data = ll_message(bytes, static_cast<uint32_t>(number), random);
            data.resize(bytes);
            return data;
        }
        case 5: {
            auto data = ll128_message(bytes, static_cast<uint64_t>(number), random);
            data.resize(bytes);
            return data;
        }
        default:
            return std::vector<uint8_t>(bytes);
    }
}

// Calls take(where, bytes) for message `number` part by part, until it says false. Ten megabytes
// and more are one part again and again, no two alike: drawing them takes longer than sending them.
template <class Take>
bool take_message(const Traffic& traffic, int number, Take&& take) {
    constexpr size_t kBlock = 256 << 10;
    const size_t bytes = bytes_of(traffic, number);
    const bool repeats = bytes > 4 * kBlock;
    std::vector<uint8_t> block = drawn_message(traffic, number, repeats ? kBlock : bytes);
    bool goes_on = true;
    for (size_t at = 0; at < bytes && goes_on; at += block.size()) {
        if (repeats) {
            const auto part = static_cast<uint16_t>(at / kBlock);
            std::memcpy(block.data(), &part, sizeof part);
        }
        goes_on =
            take(at, std::span<const uint8_t>(block).first(std::min(block.size(), bytes - at)));
    }
    return goes_on;
}

// How a stream ended. `what` is empty if all was as it should be.
struct Outcome {
    ncclResult_t result = ncclSuccess;
    int messages = 0;  // that are over
    std::string what;
};

// Called after each message with how many are over; true ends the stream there.
using StopAt = std::function<bool(int)>;

// Ends streams that do not move: a plugin must not hang.
class Watch {
  public:
    void moved() { last_ = std::chrono::steady_clock::now(); }
    [[nodiscard]] bool expired() const {
        return std::chrono::steady_clock::now() - last_ > std::chrono::seconds(60);
    }

  private:
    std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

namespace proxy_detail {

struct Step {
    int number = -1;
    void* request = nullptr;
    bool over = true;
    size_t capacity = 0;
};

inline constexpr size_t kMargin = 64;
inline constexpr uint8_t kPoison = 0xd7;

// A stream over one connection: `give(step, number, data, mhandle)` hands request `number` with its
// place in the buffer over, `finish(step, size, data)` says what is wrong about one that is over.
template <class Give, class Finish>
Outcome run_stream(InnerTable& net,
                   void* comm,
                   const Traffic& traffic,
                   const StopAt& stop,
                   const char* who,
                   size_t most_bytes,
                   uint32_t seed,
                   Give&& give,
                   Finish&& finish) {
    const size_t stride = most_bytes + kMargin;
    const auto slots = static_cast<size_t>(traffic.window);
    std::vector<uint8_t> buffer(stride * slots, kPoison);
    void* mhandle = nullptr;
    ncclResult_t result = net.reg_mr(comm, buffer.data(), buffer.size(), kPtrHost, &mhandle);
    if (result != ncclSuccess) {
        return {result, 0, std::string("regMr of the ").append(who)};
    }
    std::vector<Step> steps(slots);
    std::mt19937 random(seed);
    int posted = 0, over = 0;
    Watch watch;
    Outcome outcome;
    bool stopped = false;
    while (over < traffic.messages && outcome.what.empty() && outcome.result == ncclSuccess &&
           !stopped) {
        const size_t place = static_cast<size_t>(posted) % slots;
        Step& next = steps[place];
        if (posted < traffic.messages && next.over) {
            result = give(next, posted, buffer.data() + stride * place, mhandle);
            if (result != ncclSuccess) {
                outcome = {result, over, ""};
                break;
            }
            if (next.request != nullptr) {
                next.over = false;
                ++posted;
                watch.moved();
            }
        }
        for (size_t i = 0; i < slots && outcome.what.empty() && !stopped; ++i) {  // in any order
            const size_t slot = (i + random()) % slots;
            Step& step = steps[slot];
            int done = 0, size = -1;
            if (step.over) {
                continue;
            }
            result = net.test(step.request, &done, &size);
            if (result != ncclSuccess) {
                outcome = {result, over, ""};
                break;
            }
            if (done == 0) {
                continue;
            }
            uint8_t* const data = buffer.data() + stride * slot;
            outcome.what = finish(step, size, std::span<const uint8_t>(data, stride));
            std::memset(data, kPoison, stride);  // ours again
            step.over = true;
            ++over;
            watch.moved();
            stopped = stop && stop(over);
        }
        if (watch.expired()) {
            outcome = {ncclSuccess, over, std::string("the ").append(who).append(" does not move")};
        }
        std::this_thread::yield();
    }
    outcome.messages = over;
    result = net.dereg_mr(comm, mhandle);
    if (result != ncclSuccess && outcome.result == ncclSuccess) {
        outcome.what = std::string("deregMr of the ").append(who);
    }
    return outcome;
}

}  // namespace proxy_detail

inline Outcome send_stream(InnerTable& net,
                           void* comm,
                           const Traffic& traffic,
                           const StopAt& stop = {}) {
    using namespace proxy_detail;
    const auto give = [&](Step& next, int number, uint8_t* data, void* mhandle) {
        if (next.number != number) {  // else it lies there since it was not taken
            take_message(traffic, number, [&](size_t at, std::span<const uint8_t> part) {
                std::memcpy(data + at, part.data(), part.size());
                return true;
            });
            if (number == traffic.damaged && bytes_of(traffic, number) > 0) {
                data[bytes_of(traffic, number) / 2] ^= 0x10;
            }
            next.number = number;
        }
        return net.isend(comm, data, bytes_of(traffic, number), 0, mhandle, &next.request);
    };
    const auto finish = [](const Step&, int, std::span<const uint8_t>) { return std::string(); };
    return run_stream(net, comm, traffic, stop, "sender", traffic.most_bytes, traffic.seed, give,
                      finish);
}

inline Outcome receive_stream(InnerTable& net,
                              void* comm,
                              const Traffic& traffic,
                              const StopAt& stop = {}) {
    using namespace proxy_detail;
    const size_t most = traffic.most_bytes + (traffic.ragged ? 4096 : 0);
    const auto give = [&](Step& next, int number, void* data, void* mhandle) {
        const size_t bytes = bytes_of(traffic, number);
        next.capacity = number % 3 == 0 ? bytes : number % 3 == 1 ? most : bytes + 1;
        next.capacity = std::min(next.capacity, most);
        next.number = number;
        const int tag = 0;
        // As for LL and LL128, where the completion may come early but must come.
        next.request = number % 7 == 4 || number % 7 == 5 ? kOptionalReceiveCompletion : nullptr;
        return net.irecv(comm, 1, &data, &next.capacity, &tag, &mhandle, &next.request);
    };
    const auto finish = [&](const Step& step, int size, std::span<const uint8_t> data) {
        const size_t wanted = bytes_of(traffic, step.number);
        const std::string name = "message " + std::to_string(step.number) + " of seed " +
                                 std::to_string(traffic.seed) + " (" + std::to_string(wanted) +
                                 " bytes)";
        if (static_cast<size_t>(size) != wanted) {
            return name + " is said to have " + std::to_string(size);
        }
        if (!take_message(traffic, step.number, [&](size_t at, std::span<const uint8_t> part) {
                return std::memcmp(data.data() + at, part.data(), part.size()) == 0;
            })) {
            return name + " came with other bytes";
        }
        const std::span<const uint8_t> behind = data.subspan(step.capacity);  // a margin at least
        const bool clean = behind[0] == kPoison &&
                           std::memcmp(behind.data(), behind.data() + 1, behind.size() - 1) == 0;
        return clean ? std::string() : name + ": something was written behind its receive";
    };
    return run_stream(net, comm, traffic, stop, "receiver", most, traffic.seed + 1, give, finish);
}

// NCCL's log, on stderr as a user sees it with NCCL_DEBUG=WARN.
inline void log_to_stderr(
    LogLevel level, unsigned long, const char*, int, const char* format, ...) {
    if (level == kLogWarn) {
        va_list arguments;
        va_start(arguments, format);
        std::vfprintf(stderr, (std::string(format) + "\n").c_str(), arguments);
        va_end(arguments);
    }
}

// Polls as NCCL does; null after a failure, or 60 seconds.
inline void* connect_polling(InnerTable& net, void* context, void* handle, ncclResult_t* result) {
    const Watch watch;
    void* comm = nullptr;
    while (comm == nullptr && !watch.expired()) {
        *result = net.connect(context, 0, handle, &comm);
        if (*result != ncclSuccess) {
            return nullptr;
        }
        std::this_thread::yield();
    }
    return comm;
}

inline void* accept_polling(InnerTable& net, void* listen_comm, ncclResult_t* result) {
    const Watch watch;
    void* comm = nullptr;
    while (comm == nullptr && !watch.expired()) {
        *result = net.accept(listen_comm, &comm);
        if (*result != ncclSuccess) {
            return nullptr;
        }
        std::this_thread::yield();
    }
    return comm;
}

}  // namespace slimwire::net
