// Messages by an autoencoder that learns from their answers, against an oracle in fp64: what
// arrives, both ways, is by the weights of the step, and these follow Adam on the exact gradients
// of both ends. And answers of low rank, which are projected as what they answer was. One process,
// emulated devices, a policy of the test's own.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "codecs/float16.h"
#include "plugin/capi/slimwire.h"
#include "tests/plugin/oracles.h"
#include "tests/plugin/several_devices.h"

namespace {

using namespace slimwire::test::code;

constexpr size_t kLarge = 30 * kCols + kRaw;  // elements of a message by low rank
constexpr int kNative = 4;                    // messages each way before directions are known

// Before the first NCCL call of the process, which reads it.
constexpr const char* kPolicy =
    "version = 1\n[[rule]]\nname = \"large\"\n"
    "match = { op = [\"send\", \"recv\"], bytes = \"512KiB..\" }\n"
    "codec = \"linear_ae:width=4,row=40\"\n"
    "[[rule]]\nname = \"wide\"\nmatch = { op = [\"send\", \"recv\"], bytes = \"64KiB..\" }\n"
    "codec = \"linear_ae:width=16,row=4096,rate=0.02,average=dp\"\n"
    "[[rule]]\nname = \"factors\"\nmatch = { op = [\"send\", \"recv\"], bytes = \"4KiB..\" }\n"
    "codec = \"powersgd:rank=2,row=40\"\n"
    "[[rule]]\nname = \"stages\"\nmatch = { op = [\"send\", \"recv\"] }\n"
    "codec = \"linear_ae:width=4,row=40,seed=5,rate=0.02,average=dp\"\n"
    "[[rule]]\nname = \"gradients\"\nmatch = { op = \"allreduce\", bytes = \"4KiB..\" }\n"
    "codec = \"int8\"\n";

class LearnedCode : public slimwire::test::TwoDevices {
  protected:
    using Values = slimwire::test::code::Values;
    static constexpr size_t kBuffer = 5000 * kCols;  // elements of a buffer
    LearnedCode() : TwoDevices(kBuffer) {}
    static void SetUpTestSuite() { write_policy(kPolicy); }

    // A message that rank `from` sends to the other's slot; inside a group, or in one of its own.
    void post(const Values& values, int from, size_t slot, bool half) {
        float* const given = send_[from] + slot * kLarge;
        if (half) {
            std::vector<uint16_t> halves;
            for (const double value : values) {
                halves.push_back(slimwire::float_to_bfloat16(static_cast<float>(value)));
            }
            upload(from, given, halves);
        } else {
            upload(from, given, std::vector<float>(values.begin(), values.end()));
        }
        const ncclDataType_t type = half ? ncclBfloat16 : ncclFloat32;
        ASSERT_EQ(ncclSend(given, values.size(), type, 1 - from, comms_[from], nullptr),
                  ncclSuccess);
        ASSERT_EQ(cudaSetDevice(1 - from), cudaSuccess);
        ASSERT_EQ(ncclRecv(recv_[1 - from] + slot * kLarge, values.size(), type, from,
                           comms_[1 - from], nullptr),
                  ncclSuccess);
    }
    void post_alone(const Values& values, int from, size_t slot, bool half) {
        ASSERT_EQ(ncclGroupStart(), ncclSuccess);
        post(values, from, slot, half);
        ASSERT_EQ(ncclGroupEnd(), ncclSuccess);
    }
    Values arrived(int to, size_t slot, bool half, size_t count = kCount) {
        const float* const from = recv_[to] + slot * kLarge;
        if (!half) {
            const std::vector<float> single = download(to, from, count);
            return {single.begin(), single.end()};
        }
        Values values;
        for (const uint16_t bits : download<uint16_t>(to, from, count)) {
            values.push_back(slimwire::bfloat16_to_float(bits));
        }
        return values;
    }

    // A message behind those of a step that nothing answers.
    enum class Beside { kNothing, kNative, kActivation };
    void post_beside(Beside what, const Values& values, bool half) {
        if (what == Beside::kActivation) {
            post(values, 0, 3, half);
        } else if (what == Beside::kNative) {
            post(Values(kCols - 1, 0.5), 0, 3, half);  // no row
        }
    }

    // One message and its answer after another in flight; how far the rows that arrive are off in
    // the first and the last step. `batches`: of a step, all forward before their answers, which
    // come in one group in every other step.
    std::pair<double, double> train(int steps,
                                    int batches,
                                    bool half,
                                    Beside beside = Beside::kNothing) {
        const double tolerance = half ? 0.02 : 2e-4;
        Weights encoder = drawn(), decoder = encoder;
        std::pair<double, double> off;
        int number = 0, sent = 0;
        for (int step = 0; step < steps; ++step) {
            SCOPED_TRACE("step " + std::to_string(step));
            std::vector<Values> given, codes, gradients;
            if (beside == Beside::kActivation) {
                EXPECT_EQ(slimwire_mark_step(static_cast<uint64_t>(step)), SLIMWIRE_OK);
            }
            for (int batch = 0; batch < batches; ++batch) {
                const bool native = sent++ < kNative;
                given.push_back(activation((number + batch) % 50));
                codes.push_back(encoder.numbers(given.back()));
                post_alone(given.back(), 0, static_cast<size_t>(batch), half);
                const Values got = arrived(1, static_cast<size_t>(batch), half);
                const Values expected =
                    native ? given.back() : decoder.rows(codes.back(), given.back());
                EXPECT_LT(distance(got, expected), tolerance * norm(expected));
                (step <= 1 ? off.first : off.second) =
                    distance(got, wanted(given.back())) / norm(given.back());
            }
            EXPECT_EQ(ncclGroupStart(), ncclSuccess);
            post_beside(beside, given[0], half);
            EXPECT_EQ(ncclGroupEnd(), ncclSuccess);
            sent += beside == Beside::kNothing ? 0 : 1;
            const bool grouped = step % 2 == 1;
            for (int batch = 0; batch < batches; ++batch) {
                const auto slot = static_cast<size_t>(batch);
                // Of half the square of what rows are off by, and something for those of no row.
                Values gradient = decoder.rows(codes[slot], given[slot]);
                const Values target = wanted(given[slot]);
                for (size_t i = 0; i < kCount; ++i) {
                    gradient[i] = i < kRows * kCols ? gradient[i] - target[i] : 0.5;
                }
                if (!grouped || batch == 0) {
                    EXPECT_EQ(ncclGroupStart(), ncclSuccess);
                }
                post(gradient, 1, 4 + slot % 4, half);
                if (!grouped || batch == batches - 1) {
                    EXPECT_EQ(ncclGroupEnd(), ncclSuccess);
                }
                gradients.push_back(gradient);
            }
            for (int batch = 0; batch < batches; ++batch, ++number) {
                const auto slot = static_cast<size_t>(batch);
                const Values& gradient = gradients[slot];
                const Values got = arrived(0, 4 + slot % 4, half);
                // With a mark answers catch up with the activations that nothing answered.
                const int answer =
                    beside == Beside::kActivation ? step * (batches + 1) + batch : number;
                if (answer < kNative) {
                    EXPECT_LT(distance(got, gradient), tolerance * norm(gradient));
                    continue;
                }
                const Values w = decoder.numbers(gradient);
                const Values expected = encoder.rows(w, gradient);
                EXPECT_LT(distance(got, expected), tolerance * norm(expected));
                encoder.add(given[slot], w);
                decoder.add(gradient, codes[slot]);
                if (batch == batches - 1) {
                    encoder.step();
                    decoder.step();
                }
            }
        }
        return off;
    }
};

TEST_F(LearnedCode, AsTheOracleSays) {
    const auto [first, last] = train(60, 3, false);
    EXPECT_GT(first, 0.3);
    EXPECT_LT(last, 0.1 * first) << "it learns the rows";
}

TEST_F(LearnedCode, BesideMessagesThatNothingAnswers) {
    for (const Beside beside : {Beside::kNative, Beside::kActivation}) {
        const auto [first, last] = train(12, 3, false, beside);
        EXPECT_LT(last, 0.9 * first);
        TearDown();
        SetUp();
    }
}

// A step after every answer; elements of 16 bits, whose rounding the oracle lacks.
TEST_F(LearnedCode, OfHalves) {
    const auto [first, last] = train(16, 1, true);
    EXPECT_LT(last, first);
}

TEST_F(LearnedCode, RowsAtTheEndOfTheRangeComeFinite) {
    for (const size_t count : {kCount, kLarge}) {
        for (const bool half : {false, true}) {
            for (const double largest : {3.389e38, -3.389e38, 1.0}) {
                const Values given(count, largest);
                post_alone(given, 0, 0, half);
                for (const double value : arrived(1, 0, half, count)) {
                    ASSERT_TRUE(std::isfinite(value)) << count << " of " << largest;
                }
            }
        }
    }
}

TEST_F(LearnedCode, AnswersOfLowRankAreProjectedAsWhatTheyAnswer) {
    constexpr int kBatches = 3;
    int answers = 0;
    for (int step = 0; step < 4; ++step) {
        std::vector<Values> came;
        for (int batch = 0; batch < kBatches; ++batch) {
            post_alone(drawn_values(10 * step + batch, kLarge), 0, static_cast<size_t>(batch),
                       false);
            came.push_back(arrived(1, static_cast<size_t>(batch), false, kLarge));
        }
        for (int batch = 0; batch < kBatches; ++batch, ++answers) {
            const auto slot = static_cast<size_t>(batch);
            const Values gradient = drawn_values(500 + 10 * step + batch, kLarge);
            post_alone(gradient, 1, 4 + slot, false);
            const Values got = arrived(0, 4 + slot, false, kLarge);
            const Values expected = projected(gradient, came[slot]);
            // Before directions are known it has factors of its own.
            EXPECT_EQ(distance(got, expected) < 1e-4 * norm(expected), answers >= kNative)
                << "answer " << answers;
        }
    }
}

TEST_F(LearnedCode, AnswersOfLowRankToWhatIsNotHeldKeepNonFiniteValues) {
    constexpr int kHeld = 64;
    const auto pass = [&](int from, double at_70) {
        Values values(kLarge, 0.25);
        values[70] = at_70;
        post_alone(values, from, 0, false);
        return arrived(1 - from, 0, false, kLarge);
    };
    for (int forward = 0; forward < kNative + kHeld + 3; ++forward) {
        pass(0, 1.0);
    }
    for (int answer = 0; answer < kNative; ++answer) {
        pass(1, 1.0);
    }
    EXPECT_EQ(pass(1, 1.0)[70], 0.0) << "its activation is not held";
    for (const double value : {HUGE_VAL, std::nan("")}) {
        EXPECT_TRUE(std::isnan(pass(1, value)[70]));
    }
}

// What no answer came for a new step forgets, and its memory serves again.
TEST_F(LearnedCode, WhatIsNotAnsweredIsDroppedWithTheStep) {
    size_t before = 0, after = 0;
    for (int step = 0; step < 16; ++step) {
        ASSERT_EQ(slimwire_mark_step(static_cast<uint64_t>(step)), SLIMWIRE_OK);
        for (int batch = 0; batch < 3; ++batch) {
            group([&](int rank) {
                return rank == 0 ? ncclSend(send_[0], kBuffer, ncclFloat32, 1, comms_[0], nullptr)
                                 : ncclRecv(recv_[1], kBuffer, ncclFloat32, 0, comms_[1], nullptr);
            });
        }
        (void)result(0, 1);
        (void)result(1, 1);
        (step == 3 ? before : after) = free_bytes();
    }
    EXPECT_LT(before, after + 4 * kBuffer * sizeof(float));
}

// Two copies of two stages, in one process with one mark of each step for all: what they learn is
// averaged with the first collective of a step among the copies of a stage, native or compressed,
// from the fourth on behind that before which all had it.
class Copies : public slimwire::test::SeveralDevices<4, testing::Test> {
  protected:
    using Values = slimwire::test::code::Values;
    static constexpr int kBatches = 2, kAveraged = kNative / kBatches + 4;
    static constexpr size_t kWide = 5 * 4096;  // elements of a message with more weights

    Copies() : SeveralDevices(kWide) {}
    static void SetUpTestSuite() { write_policy(kPolicy); }
    void SetUp() override {
        SeveralDevices::SetUp();
        split(
            pipes_, [](int rank) { return rank / 2; }, nullptr);
        split(
            copies_, [](int rank) { return rank % 2; }, "dp");
    }
    void TearDown() override {
        for (int rank = 0; rank < ranks(); ++rank) {
            for (ncclComm_t const comm : {pipes_[rank], copies_[rank]}) {
                EXPECT_TRUE(comm == nullptr || ncclCommDestroy(comm) == ncclSuccess);
            }
        }
        SeveralDevices::TearDown();
    }
    // A step of each copy by an activation of its own, and that as its gradient.
    void learn(int step, size_t count) {
        ASSERT_EQ(slimwire_mark_step(static_cast<uint64_t>(step)), SLIMWIRE_OK);
        for (int copy = 0; copy < 2; ++copy) {
            Values values(count);
            for (size_t i = 0; i < count; ++i) {
                values[i] = std::sin(0.7 * static_cast<double>(i) + step + 100 * copy);
            }
            pass(values, 2 * copy);
            pass(values, 2 * copy + 1);
        }
    }
    void split(ncclComm_t* parts, int (*color)(int), const char* name) {
        ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
        config.commName = name;
        group([&](int rank) {
            return ncclCommSplit(comms_[rank], color(rank), rank, &parts[rank], &config);
        });
    }
    // What arrives at the other stage of its copy.
    std::vector<float> pass(const Values& values, int from) {
        const int to = from ^ 1;
        upload(from, send_[from], std::vector<float>(values.begin(), values.end()));
        EXPECT_EQ(ncclGroupStart(), ncclSuccess);
        EXPECT_EQ(ncclSend(send_[from], values.size(), ncclFloat32, to % 2, pipes_[from], nullptr),
                  ncclSuccess);
        EXPECT_EQ(cudaSetDevice(to), cudaSuccess);
        EXPECT_EQ(ncclRecv(recv_[to], values.size(), ncclFloat32, from % 2, pipes_[to], nullptr),
                  ncclSuccess);
        EXPECT_EQ(ncclGroupEnd(), ncclSuccess);
        return result(to, values.size());
    }
    void sum_gradients(size_t count) {
        group([&](int rank) {
            return ncclAllReduce(send_[rank], recv_[rank], count, ncclFloat32, ncclSum,
                                 copies_[rank], nullptr);
        });
    }

    ncclComm_t pipes_[4] = {}, copies_[4] = {};
};

// The copy that goes on keeps its weights: what the other one lacks is no average.
TEST_F(Copies, WhatOneLacksIsNotAveraged) {
    for (int step = 0; step < kNative + 6; ++step) {
        learn(step, kCount);
        sum_gradients(8);
    }
    EXPECT_EQ(pass(activation(7), 0), pass(activation(7), 2));
    for (const int rank : {0, 1}) {
        ASSERT_EQ(cudaSetDevice(rank), cudaSuccess);
        ASSERT_EQ(ncclCommDestroy(std::exchange(pipes_[rank], nullptr)), ncclSuccess);
    }
    const std::vector<float> before = pass(activation(7), 2);
    for (int step = 50; step < 57; ++step) {
        ASSERT_EQ(slimwire_mark_step(static_cast<uint64_t>(step)), SLIMWIRE_OK);
        sum_gradients(8);
        EXPECT_EQ(pass(activation(7), 2), before) << step;
    }
}

// Over two communicators of copies at once, each on a stream of its own.
TEST_F(Copies, AveragesOverSeveralCommunicatorsGoOneAfterTheOther) {
    ncclComm_t more[4] = {};
    split(
        more, [](int rank) { return rank % 2; }, "edp");
    cudaStream_t streams[4][2] = {};
    for (int rank = 0; rank < ranks(); ++rank) {
        ASSERT_EQ(cudaSetDevice(rank), cudaSuccess);
        for (cudaStream_t& stream : streams[rank]) {
            ASSERT_EQ(cudaStreamCreate(&stream), cudaSuccess);
        }
    }
    const auto sum = [&](int comm) {
        on_all([&](int rank) {
            float* const buffer = send_[rank] + 100 * comm;
            return ncclAllReduce(buffer, buffer, 8, ncclFloat32, ncclSum,
                                 comm == 0 ? copies_[rank] : more[rank], streams[rank][comm]);
        });
    };
    const auto wait = [](void* until) {
        while (!static_cast<std::atomic<bool>*>(until)->load()) {
            std::this_thread::yield();
        }
    };
    for (const bool grouped : {true, false}) {
        // By the last two steps there are averages: the second one waits for the first. In a group
        // either may be the first.
        bool waits[2] = {true, true};
        for (int step = 0; step < 13; ++step) {
            const int held = step == 12 ? 1 : 0;
            learn(step, kWide);
            std::atomic<bool> go{false};
            for (int rank = 0; rank < ranks(); ++rank) {
                ASSERT_EQ(cudaSetDevice(rank), cudaSuccess);
                ASSERT_EQ(cudaLaunchHostFunc(streams[rank][held], wait, &go), cudaSuccess);
            }
            ASSERT_EQ(ncclGroupStart(), ncclSuccess);
            sum(0);
            if (!grouped) {
                ASSERT_EQ(ncclGroupEnd(), ncclSuccess);
                ASSERT_EQ(ncclGroupStart(), ncclSuccess);
            }
            sum(1);
            ASSERT_EQ(ncclGroupEnd(), ncclSuccess);
            for (int poll = 0; step >= 11 && poll < 100; ++poll) {
                std::this_thread::sleep_for(std::chrono::milliseconds(1));
                waits[held] &= cudaStreamQuery(streams[0][1 - held]) == cudaErrorNotReady;
            }
            go = true;
        }
        EXPECT_TRUE(waits[0] || (grouped && waits[1]));
        const Values values(kWide, 0.5);
        EXPECT_EQ(pass(values, 0), pass(values, 2)) << (grouped ? "in a group" : "one by one");
    }
    for (int rank = 0; rank < ranks(); ++rank) {
        ASSERT_EQ(cudaSetDevice(rank), cudaSuccess);
        ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
        EXPECT_EQ(ncclCommDestroy(more[rank]), ncclSuccess);
        for (cudaStream_t const stream : streams[rank]) {
            EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
        }
    }
}

void average(Weights* one, Weights* other) {
    for (Values Weights::*const of : {&Weights::at, &Weights::first, &Weights::second}) {
        for (size_t i = 0; i < one->at.size(); ++i) {
            (one->*of)[i] = (other->*of)[i] = ((one->*of)[i] + (other->*of)[i]) / 2;
        }
    }
}

TEST_F(Copies, LearnAsTheOracleSays) {
    Weights encoders[2] = {drawn(), drawn()}, decoders[2] = {drawn(), drawn()};
    const auto expect = [](const std::vector<float>& got, const Values& expected) {
        EXPECT_LT(distance({got.begin(), got.end()}, expected), 2e-4 * norm(expected));
    };
    int number = 0;
    for (int step = 0; step < kAveraged + 6; ++step, number += kBatches) {
        SCOPED_TRACE("step " + std::to_string(step));
        ASSERT_EQ(slimwire_mark_step(static_cast<uint64_t>(step)), SLIMWIRE_OK);
        const bool native = number < kNative;
        for (int copy = 0; copy < 2; ++copy) {
            std::vector<Values> given, codes;
            for (int batch = 0; batch < kBatches; ++batch) {
                given.push_back(activation((number + batch + 17 * copy) % 50));
                codes.push_back(encoders[copy].numbers(given.back()));
                expect(pass(given.back(), 2 * copy),
                       native ? given.back() : decoders[copy].rows(codes.back(), given.back()));
            }
            for (int batch = 0; batch < kBatches; ++batch) {
                const auto at = static_cast<size_t>(batch);
                Values gradient = decoders[copy].rows(codes[at], given[at]);
                const Values target = wanted(given[at]);
                for (size_t i = 0; i < kRows * kCols; ++i) {
                    gradient[i] -= target[i];
                }
                const Values answer = decoders[copy].numbers(gradient);
                expect(pass(gradient, 2 * copy + 1),
                       native ? gradient : encoders[copy].rows(answer, gradient));
                encoders[copy].add(given[at], answer);
                decoders[copy].add(gradient, codes[at]);
            }
            for (Weights* const weights : {&encoders[copy], &decoders[copy]}) {
                native ? weights->sum.assign(weights->sum.size(), 0) : weights->step();
            }
        }
        EXPECT_EQ(distance(encoders[0].at, encoders[1].at) > 0, !native) << "each by its own data";
        sum_gradients(step % 2 == 0 ? 8 : 1024);
        sum_gradients(8);  // another collective of the step averages nothing
        if (step >= kAveraged) {
            average(&encoders[0], &encoders[1]);
            average(&decoders[0], &decoders[1]);
        }
    }
    EXPECT_EQ(pass(activation(7), 0), pass(activation(7), 2)) << "to the bit";
}

}  // namespace
