// The library that ships among peers that send garbage: at its listener's door, as senders whose
// handshake is right, and as receivers. Errors come in bounded time, nothing outside a receive is
// written, memory stays bounded, and honest connections go on.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <random>
#include <thread>
#include <vector>

#include "plugin/net/engine/frame.h"
#include "tests/plugin/net/hand_made.h"
#include "tests/plugin/net/proxy.h"
#include "tests/support/seed.h"

namespace slimwire::net {
namespace {

using Clock = std::chrono::steady_clock;

class Garbage : public testing::Test {
  protected:
    void SetUp() override {
        auto opened = InnerTable::open(SLIMWIRE_TEST_NET_PLUGIN);
        ASSERT_TRUE(opened.ok()) << opened.status().message();
        net_ = std::move(opened).value();
        ASSERT_EQ(net_->init(&context_, 1, -1, silent), ncclSuccess);
        ASSERT_EQ(net_->listen(context_, 0, &handle_, &listen_comm_), ncclSuccess);
    }
    void TearDown() override {
        if (listen_comm_ != nullptr) {
            EXPECT_EQ(net_->close_listen(listen_comm_), ncclSuccess);
            EXPECT_EQ(net_->finalize(context_), ncclSuccess);
        }
    }
    // Each stranger is a line, of which there are hundreds.
    static void silent(LogLevel, unsigned long, const char*, int, const char*, ...) {}

    void expect_honest_stream(uint32_t seed) {
        void *send = nullptr, *receive = nullptr;
        ncclResult_t sent = ncclSuccess, received = ncclSuccess;
        std::thread accepting([&] { receive = accept_polling(*net_, listen_comm_, &received); });
        WireHandle handle = handle_;
        send = connect_polling(*net_, context_, &handle, &sent);
        accepting.join();
        ASSERT_EQ(sent, ncclSuccess);
        ASSERT_EQ(received, ncclSuccess);
        const Traffic traffic{.seed = seed, .messages = 12, .most_bytes = 100'000};
        Outcome there;
        std::thread other([&] { there = receive_stream(*net_, receive, traffic); });
        const Outcome here = send_stream(*net_, send, traffic);
        other.join();
        for (const Outcome& outcome : {here, there}) {
            EXPECT_EQ(outcome.result, ncclSuccess);
            EXPECT_EQ(outcome.what, "");
        }
        EXPECT_EQ(net_->close_send(send), ncclSuccess);
        EXPECT_EQ(net_->close_recv(receive), ncclSuccess);
    }
    static long peak_kib() {
        rusage usage{};
        getrusage(RUSAGE_SELF, &usage);
        return usage.ru_maxrss;
    }

    std::unique_ptr<InnerTable> net_;
    void *context_ = nullptr, *listen_comm_ = nullptr;
    WireHandle handle_{};
    std::mt19937 random_{test_seed()};
};

std::vector<uint8_t> random_some(std::mt19937& random, size_t most) {
    std::vector<uint8_t> bytes(random() % (most + 1));
    std::generate(bytes.begin(), bytes.end(), [&] { return static_cast<uint8_t>(random()); });
    return bytes;
}

// One knock: noise, a part of a hello, a hello with noise in it; then it waits, leaves or resets.
void knock_with_garbage(const WireHandle& handle, std::mt19937& random) {
    const SocketAddress address = address_of(handle).value();
    const Socket socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (connect(socket.fd(), &address.any, sizeof address.v4) != 0) {
        return;
    }
    Hello hello{kWireMagic, kWireVersion, 0, handle.cookie};
    auto* const bytes = reinterpret_cast<uint8_t*>(&hello);
    std::vector<uint8_t> words = random_some(random, 2000);
    switch (random() % 3) {
        case 0:
            break;
        case 1:
            words.assign(bytes, bytes + random() % sizeof hello);
            break;
        default:  // never right: the byte is another one
            bytes[random() % offsetof(Hello, reserved)] ^= static_cast<uint8_t>(1 + random() % 255);
            words.assign(bytes, bytes + sizeof hello);
    }
    static_cast<void>(send_some(socket.fd(), words.data(), words.size()));
    if (random() % 2 == 0) {
        std::this_thread::sleep_for(std::chrono::microseconds(random() % 3000));
    }
    if (random() % 3 == 0) {
        const linger reset{1, 0};
        setsockopt(socket.fd(), SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
    }
}

TEST_F(Garbage, AtTheDoorDisturbsNobodyWhoseHelloIsRight) {
    std::atomic<bool> over{false};
    std::atomic<int> knocks{0};
    std::thread strangers([&] {
        std::mt19937 random(test_seed() + 1);
        while (!over) {
            knock_with_garbage(handle_, random);
            ++knocks;
        }
    });
    const auto end = Clock::now() + std::chrono::seconds(60);
    for (uint32_t round = 0; (round < 10 || knocks < 300) && Clock::now() < end; ++round) {
        expect_honest_stream(test_seed() + round);
        if (HasFailure()) {
            break;
        }
    }
    over = true;
    strangers.join();
    EXPECT_GE(knocks, 300);
}

// Sends as no engine does. Ends early where the receiver has ended the connection.
void send_garbage(HandMadeSender& sender, std::mt19937& random) {
    uint64_t numbers[kLanes] = {};
    uint64_t sequence = 0;
    Status status;
    const int messages = 1 + static_cast<int>(random() % 12);
    for (int i = 0; i < messages && status.ok(); ++i) {
        if (random() % 3 == 0) {
            const std::vector<uint8_t> data = random_some(random, 200'000);
            status = sender.send(Lane::kData, numbers[1]++, data.data(), data.size());
            continue;
        }
        std::vector<uint8_t> message = random_some(random, kControlBytes);
        if (random() % 8 != 0 && message.size() >= sizeof(Frame)) {
            // What a sender would say, one part of it wild every second time.
            Frame frame{};
            frame.magic = kFrameMagic;
            frame.version = kFrameVersion;
            frame.kind = static_cast<FrameKind>(1 + random() % 4);
            frame.flags = static_cast<uint8_t>(random() % 2);
            frame.element = DType::kBfloat16;
            frame.sequence = sequence++;
            frame.bytes = frame.kind == FrameKind::kInline ? message.size() - sizeof(Frame)
                                                           : random() % 200'000;
            frame.tag = 0;
            frame.piece_bytes = frame.kind == FrameKind::kCoded ? kLeastPieceBytes : 0;
            if (random() % 2 == 0) {
                reinterpret_cast<uint8_t*>(&frame)[random() % offsetof(Frame, check)] ^=
                    static_cast<uint8_t>(1 + random() % 255);
            }
            write_frame(frame, message.data());
        }
        status = sender.send(Lane::kControl, numbers[0]++, message.data(), message.size());
    }
    if (random() % 3 == 0) {
        // As if nothing had been sent. What is promised and does not come is waited for.
        static_cast<void>(sender.say_goodbye({kByeMagic, {0, 0}}));
    }
}

TEST_F(Garbage, FromASenderIsAnErrorOfItsConnectionOnly) {
    constexpr size_t kReceives = 8, kBytes = 100'000, kMargin = 256;
    constexpr uint8_t kPoison = 0xd7;
    const long before_kib = peak_kib();
    int errors = 0;
    constexpr int kTrials = 80;
    for (int trial = 0; trial < kTrials; ++trial) {
        auto sender = std::make_unique<HandMadeSender>();
        Status status = sender->say_hello(handle_);
        ASSERT_TRUE(status.ok()) << status.message();
        ncclResult_t result = ncclSuccess;
        void* const comm = accept_polling(*net_, listen_comm_, &result);
        ASSERT_NE(comm, nullptr);
        status = sender->hear_answer();
        ASSERT_TRUE(status.ok()) << status.message();

        std::vector<uint8_t> memory(kReceives * (kBytes + kMargin), kPoison);
        void* mhandle = nullptr;
        ASSERT_EQ(net_->reg_mr(comm, memory.data(), memory.size(), kPtrHost, &mhandle),
                  ncclSuccess);
        std::thread wild([&, seed = random_()] {
            std::mt19937 random(seed);
            send_garbage(*sender, random);
            sender.reset();  // leaves: whatever it announced does not come
        });
        void* requests[kReceives] = {};
        size_t open = 0;
        const auto end = Clock::now() + std::chrono::seconds(20);
        for (size_t i = 0; i < kReceives && result == ncclSuccess && Clock::now() < end;) {
            void* data = memory.data() + i * (kBytes + kMargin);
            const size_t bytes = kBytes;
            const int tag = 0;
            requests[i] = nullptr;
            result = net_->irecv(comm, 1, &data, &bytes, &tag, &mhandle, &requests[i]);
            if (requests[i] != nullptr) {
                ++i;
                ++open;
            }
        }
        while (result == ncclSuccess && open > 0 && Clock::now() < end) {
            for (void*& request : requests) {
                int done = 0, size = -1;
                if (request == nullptr || result != ncclSuccess) {
                    continue;
                }
                result = net_->test(request, &done, &size);
                if (done != 0) {
                    EXPECT_LE(static_cast<size_t>(size), kBytes);
                    request = nullptr;
                    --open;
                }
            }
        }
        wild.join();
        EXPECT_LT(Clock::now(), end) << "trial " << trial << " hangs, seed " << test_seed();
        errors += result != ncclSuccess ? 1 : 0;
        EXPECT_EQ(net_->dereg_mr(comm, mhandle), ncclSuccess);
        EXPECT_EQ(net_->close_recv(comm), ncclSuccess);
        for (size_t i = 0; i < kReceives; ++i) {
            const auto margin =
                memory.begin() + static_cast<ptrdiff_t>(i * (kBytes + kMargin) + kBytes);
            ASSERT_TRUE(
                std::all_of(margin, margin + kMargin, [](uint8_t b) { return b == kPoison; }))
                << "behind receive " << i << " of trial " << trial << ", seed " << test_seed();
        }
        if (trial % 20 == 0) {
            expect_honest_stream(static_cast<uint32_t>(trial));
        }
    }
    EXPECT_GT(errors, kTrials * 3 / 4);
    // Messages that nobody asked for are held, up to a bound, for one connection at a time.
    EXPECT_LT(peak_kib() - before_kib, 700 << 10);
}

// A receiver whose answer is right and whose credits are not.
TEST_F(Garbage, FromAReceiverIsAnErrorOrHarmless) {
    int errors = 0;
    for (int trial = 0; trial < 30; ++trial) {
        HandMadeReceiver receiver;
        WireHandle handle{};
        Status status = receiver.listen(&handle);
        ASSERT_TRUE(status.ok()) << status.message();
        void* comm = nullptr;
        bool answered = false;
        ASSERT_TRUE(poll_until([&] {
            if (!answered) {
                status = receiver.attend(&answered);
            }
            return !status.ok() || net_->connect(context_, 0, &handle, &comm) != ncclSuccess ||
                   (answered && comm != nullptr);
        }));
        ASSERT_TRUE(status.ok()) << status.message();
        ASSERT_NE(comm, nullptr);
        std::vector<uint8_t> data(100'000, 1);
        void* mhandle = nullptr;
        ASSERT_EQ(net_->reg_mr(comm, data.data(), data.size(), kPtrHost, &mhandle), ncclSuccess);
        ncclResult_t result = ncclSuccess;
        void* requests[32] = {};
        const auto go_on = [&] {
            for (void*& request : requests) {
                int done = 0, size = 0;
                if (result == ncclSuccess && request == nullptr) {
                    result = net_->isend(comm, data.data(), data.size(), 0, mhandle, &request);
                } else if (result == ncclSuccess) {
                    result = net_->test(request, &done, &size);
                    request = done != 0 ? nullptr : request;
                }
            }
        };
        const auto end = Clock::now() + std::chrono::milliseconds(100);
        while (result == ncclSuccess && Clock::now() < end) {
            const std::vector<uint8_t> words = random_some(random_, 200);
            receiver.say(words.data(), words.size());
            go_on();
        }
        errors += result != ncclSuccess ? 1 : 0;
        receiver.hang_up();
        const auto limit = Clock::now() + std::chrono::seconds(20);
        while (result == ncclSuccess && Clock::now() < limit) {
            go_on();
        }
        EXPECT_EQ(result, ncclRemoteError);
        EXPECT_EQ(net_->dereg_mr(comm, mhandle), ncclSuccess);
        EXPECT_EQ(net_->close_send(comm), ncclSuccess);
    }
    EXPECT_GT(errors, 27);
    expect_honest_stream(7);
}

}  // namespace
}  // namespace slimwire::net
