// NCCL's proxy as a net plugin sees it (src/transport/net.cc of 2.28): listen, connect and accept
// by polling, one registered buffer of some slots on each side, isend and irecv that may say "try
// again", test until done, a slot used again at once. Both directions of a stream of messages that
// are the same for everybody who knows the seed, so that sender and receiver may be threads or
// processes.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "plugin/net/chain/inner_table.h"
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
inline std::vector<uint8_t> message_of(const Traffic& traffic, int number) {
    const size_t bytes = bytes_of(traffic, number);
    constexpr size_t kBlock = 4 << 20;
    if (bytes > 4 * kBlock) {  // drawing a gibibyte takes longer than sending it
        Traffic small = traffic;
        small.most_bytes = kBlock;
        small.ragged = false;
        const std::vector<uint8_t> block = message_of(small, number);
        std::vector<uint8_t> data(bytes);
        for (size_t at = 0; at < bytes; at += kBlock) {
            std::memcpy(data.data() + at, block.data(), std::min(kBlock, bytes - at));
            data[at] = static_cast<uint8_t>(at / kBlock);  // no two blocks are alike
        }
        return data;
    }
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

inline Outcome bad(ncclResult_t result, int messages, std::string what) {
    return {result, messages, std::move(what)};
}

}  // namespace proxy_detail

inline Outcome send_stream(InnerTable& net,
                           void* comm,
                           const Traffic& traffic,
                           const StopAt& stop = {}) {
    using namespace proxy_detail;
    const size_t stride = traffic.most_bytes + kMargin;
    const auto slots = static_cast<size_t>(traffic.window);
    std::vector<uint8_t> buffer(stride * slots);
    void* mhandle = nullptr;
    ncclResult_t result = net.reg_mr(comm, buffer.data(), buffer.size(), kPtrHost, &mhandle);
    if (result != ncclSuccess) {
        return bad(result, 0, "regMr of the sender");
    }
    std::vector<Step> steps(slots);
    std::mt19937 random(traffic.seed);
    int posted = 0, over = 0;
    Watch watch;
    Outcome outcome;
    while (over < traffic.messages && outcome.what.empty() && outcome.result == ncclSuccess) {
        Step& next = steps[static_cast<size_t>(posted) % slots];
        if (posted < traffic.messages && next.over) {
            uint8_t* const data = buffer.data() + stride * (static_cast<size_t>(posted) % slots);
            if (next.number != posted) {
                const std::vector<uint8_t> message = message_of(traffic, posted);
                if (!message.empty()) {
                    std::memcpy(data, message.data(), message.size());
                }
                next.number = posted;
            }
            result = net.isend(comm, data, bytes_of(traffic, posted), 0, mhandle, &next.request);
            if (result != ncclSuccess) {
                outcome = bad(result, over, "");
                break;
            }
            if (next.request != nullptr) {
                next.over = false;
                ++posted;
                watch.moved();
            }
        }
        for (size_t i = 0; i < slots; ++i) {  // in any order
            const size_t slot = (i + random()) % slots;
            Step& step = steps[slot];
            int done = 0, size = 0;
            if (step.over) {
                continue;
            }
            result = net.test(step.request, &done, &size);
            if (result != ncclSuccess) {
                outcome = bad(result, over, "");
                break;
            }
            if (done != 0) {
                step.over = true;
                std::memset(buffer.data() + stride * slot, kPoison, stride);  // ours again
                ++over;
                watch.moved();
                if (stop && stop(over)) {
                    return {ncclSuccess, over, ""};
                }
            }
        }
        if (watch.expired()) {
            outcome = bad(ncclSuccess, over, "the sender does not move");
        }
        std::this_thread::yield();
    }
    outcome.messages = over;
    result = net.dereg_mr(comm, mhandle);
    if (result != ncclSuccess && outcome.result == ncclSuccess) {
        outcome.what = "deregMr of the sender";
    }
    return outcome;
}

inline Outcome receive_stream(InnerTable& net,
                              void* comm,
                              const Traffic& traffic,
                              const StopAt& stop = {}) {
    using namespace proxy_detail;
    const size_t most = traffic.most_bytes + (traffic.ragged ? 4096 : 0);
    const size_t stride = most + kMargin;
    const auto slots = static_cast<size_t>(traffic.window);
    std::vector<uint8_t> buffer(stride * slots, kPoison);
    void* mhandle = nullptr;
    ncclResult_t result = net.reg_mr(comm, buffer.data(), buffer.size(), kPtrHost, &mhandle);
    if (result != ncclSuccess) {
        return bad(result, 0, "regMr of the receiver");
    }
    std::vector<Step> steps(slots);
    std::mt19937 random(traffic.seed + 1);
    int posted = 0, over = 0;
    Watch watch;
    Outcome outcome;
    while (over < traffic.messages && outcome.what.empty() && outcome.result == ncclSuccess) {
        Step& next = steps[static_cast<size_t>(posted) % slots];
        if (posted < traffic.messages && next.over) {
            void* data = buffer.data() + stride * (static_cast<size_t>(posted) % slots);
            const size_t bytes = bytes_of(traffic, posted);
            next.capacity = posted % 3 == 0 ? bytes : posted % 3 == 1 ? most : bytes + 1;
            next.capacity = std::min(next.capacity, most);
            const int tag = 0;
            // As for LL and LL128, where the completion may come early but must come.
            next.request =
                posted % 7 == 4 || posted % 7 == 5 ? kOptionalReceiveCompletion : nullptr;
            result = net.irecv(comm, 1, &data, &next.capacity, &tag, &mhandle, &next.request);
            if (result != ncclSuccess) {
                outcome = bad(result, over, "");
                break;
            }
            if (next.request != nullptr) {
                next.number = posted;
                next.over = false;
                ++posted;
                watch.moved();
            }
        }
        for (size_t i = 0; i < slots && outcome.what.empty(); ++i) {
            const size_t slot = (i + random()) % slots;
            Step& step = steps[slot];
            int done = 0, size = -1;
            if (step.over) {
                continue;
            }
            result = net.test(step.request, &done, &size);
            if (result != ncclSuccess) {
                outcome = bad(result, over, "");
                break;
            }
            if (done == 0) {
                continue;
            }
            const std::vector<uint8_t> wanted = message_of(traffic, step.number);
            uint8_t* const data = buffer.data() + stride * slot;
            const std::string name = "message " + std::to_string(step.number) + " of seed " +
                                     std::to_string(traffic.seed) + " (" +
                                     std::to_string(wanted.size()) + " bytes)";
            if (static_cast<size_t>(size) != wanted.size()) {
                outcome.what = name + " is said to have " + std::to_string(size);
            } else if (!wanted.empty() && std::memcmp(data, wanted.data(), wanted.size()) != 0) {
                outcome.what = name + " came with other bytes";
            }
            for (size_t at = step.capacity; at < stride && outcome.what.empty(); ++at) {
                if (data[at] != kPoison) {
                    outcome.what = name + ": something was written behind its receive";
                }
            }
            std::memset(data, kPoison, stride);
            step.over = true;
            ++over;
            watch.moved();
            if (stop && stop(over)) {
                return {ncclSuccess, over, outcome.what};
            }
        }
        if (watch.expired()) {
            outcome = bad(ncclSuccess, over, "the receiver does not move");
        }
        std::this_thread::yield();
    }
    outcome.messages = over;
    result = net.dereg_mr(comm, mhandle);
    if (result != ncclSuccess && outcome.result == ncclSuccess) {
        outcome.what = "deregMr of the receiver";
    }
    return outcome;
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
