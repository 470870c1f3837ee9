// Messages by an autoencoder that learns from their answers, against an oracle in fp64: what
// arrives, both ways, is by the weights of the step, and these follow Adam on the exact gradients
// of both ends; so all-to-alls and the pair of all-gather and reduce-scatter, by weights of all
// ranks. And answers of low rank, which are projected as what they answer was. One process,
// emulated devices, a policy of the test's own.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "codecs/float16.h"
#include "codecs/low_rank/low_rank.h"
#include "plugin/capi/slimwire.h"
#include "tests/plugin/several_devices.h"

namespace {

constexpr size_t kRows = 3, kCols = 40, kRaw = 17, kWidth = 4;
constexpr size_t kCount = kRows * kCols + kRaw;
constexpr size_t kLarge = 30 * kCols + kRaw;  // elements of a message by low rank
constexpr double kRate = 0.02;
constexpr int kNative = 4;  // messages each way before directions are known

using Values = std::vector<double>;

// Of one end: columns, one after the other, and what Adam knows of them.
struct Weights {
    Values at = Values(kCols * kWidth), first = at, second = at, sum = at;
    double steps = 0;

    [[nodiscard]] double of(size_t column, size_t k) const { return at[k * kCols + column]; }
    void add(const Values& rows, const Values& numbers) {
        for (size_t i = 0; i < kRows; ++i) {
            for (size_t j = 0; j < kCols; ++j) {
                for (size_t k = 0; k < kWidth; ++k) {
                    sum[k * kCols + j] += rows[i * kCols + j] * numbers[i * kWidth + k];
                }
            }
        }
    }
    void step() {
        ++steps;
        for (size_t i = 0; i < at.size(); ++i) {
            first[i] = 0.9 * first[i] + 0.1 * sum[i];
            second[i] = 0.999 * second[i] + 0.001 * sum[i] * sum[i];
            at[i] -= kRate * first[i] / (1 - std::pow(0.9, steps)) /
                     (std::sqrt(second[i] / (1 - std::pow(0.999, steps))) + 1e-8);
            sum[i] = 0;
        }
    }
    [[nodiscard]] Values numbers(const Values& rows) const {
        Values out(kRows * kWidth);
        for (size_t i = 0; i < kRows; ++i) {
            for (size_t k = 0; k < kWidth; ++k) {
                for (size_t j = 0; j < kCols; ++j) {
                    out[i * kWidth + k] += rows[i * kCols + j] * of(j, k);
                }
            }
        }
        return out;
    }
    // `raw`: whose elements of no row come as they are.
    [[nodiscard]] Values rows(const Values& numbers, const Values& raw) const {
        Values out = raw;
        for (size_t i = 0; i < kRows; ++i) {
            for (size_t j = 0; j < kCols; ++j) {
                out[i * kCols + j] = 0;
                for (size_t k = 0; k < kWidth; ++k) {
                    out[i * kCols + j] += numbers[i * kWidth + k] * of(j, k);
                }
            }
        }
        return out;
    }
};

// As both ends draw them.
Weights drawn(uint64_t seed = 5) {
    const slimwire::MatrixShape shape{0, kRows, kCols}, transposed{0, kCols, kRows};
    std::vector<float> zeros(kCols * kWidth), weights(kCols * kWidth);
    slimwire::LowRankArgs args{};
    args.left = args.right = weights.data();
    args.state = zeros.data();
    args.rank = args.state_rank = kWidth;
    args.matrices = 1;
    args.random.seed = seed;
    args.list[0] = slimwire::low_rank_layout({&shape, 1}, kWidth).matrices[0];
    slimwire::begin_low_rank_on_host(args);
    args.list[0] = slimwire::low_rank_layout({&transposed, 1}, kWidth).matrices[0];
    slimwire::orthogonalise_on_host(args);
    Weights out;
    std::copy(weights.begin(), weights.end(), out.at.begin());
    return out;
}

// Rows of a space of few dimensions, which both ends can learn.
Values activation(int number) {
    Values out(kCount);
    for (size_t i = 0; i < kCount; ++i) {
        const double row = static_cast<double>(i / kCols) + 3.0 * number;
        const double column = static_cast<double>(i % kCols);
        for (int k = 0; k < static_cast<int>(kWidth); ++k) {
            out[i] += std::sin(1.3 * (k + 1) * row + k) * std::cos((k + 2) * 0.33 * column) /
                      std::sqrt(kCols);
        }
    }
    return out;
}

// What the rows that arrive are to be: a function of the same rank of those given. That rows come
// as they are would teach the encoder nothing at first, whose gradient is then at right angles to
// it.
Values wanted(const Values& given) {
    Values out = given;
    for (size_t i = 0; i < kRows * kCols; ++i) {
        out[i] = given[i / kCols * kCols + (i + 7) % kCols];
    }
    return out;
}

double distance(const Values& a, const Values& b) {
    double sum = 0;
    for (size_t i = 0; i < a.size(); ++i) {
        sum += (a[i] - b[i]) * (a[i] - b[i]);
    }
    return std::sqrt(sum);
}
double norm(const Values& a) {
    return distance(a, Values(a.size()));
}

// Before the first NCCL call of the process, which reads it.
constexpr const char* kPolicy =
    "version = 1\n[[rule]]\nname = \"large\"\n"
    "match = { op = [\"send\", \"recv\"], bytes = \"512KiB..\" }\n"
    "codec = \"linear_ae:width=4,row=40\"\n"
    "[[rule]]\nname = \"factors\"\nmatch = { op = [\"send\", \"recv\"], bytes = \"4KiB..\" }\n"
    "codec = \"powersgd:rank=2,row=40\"\n"
    "[[rule]]\nname = \"stages\"\nmatch = { op = [\"send\", \"recv\"] }\n"
    "codec = \"linear_ae:width=4,row=40,seed=5,rate=0.02,average=dp\"\n"
    "[[rule]]\nname = \"tables\"\nmatch = { op = \"alltoall\" }\nforward_calls = 2\n"
    "codec = \"linear_ae:width=4,row=40,seed=5,rate=0.02\"\n"
    "[[rule]]\nname = \"sequence\"\nforward_calls = 2\n"
    "match = { op = [\"allgather\", \"reducescatter\"] }\n"
    "codec = \"linear_ae:width=4,row=40,seed=6,rate=0.02\"\n"
    "[[rule]]\nname = \"gradients\"\nmatch = { op = \"allreduce\", bytes = \"4KiB..\" }\n"
    "codec = \"int8\"\n";

class LearnedCode : public slimwire::test::SeveralDevices<2> {
  protected:
    LearnedCode() : SeveralDevices(8 * kLarge * sizeof(float)) {}
    static void SetUpTestSuite() { write_policy(kPolicy); }

    // What arrives of `values` that rank `from` sends.
    void post(const Values& values, int from, size_t slot, bool half) {
        std::vector<float> single(values.begin(), values.end());
        std::vector<uint16_t> halves;
        for (const float value : single) {
            halves.push_back(slimwire::float_to_bfloat16(value));
        }
        const size_t at = slot * kLarge * sizeof(float), count = values.size();
        ASSERT_EQ(cudaSetDevice(from), cudaSuccess);
        ASSERT_EQ(cudaMemcpy(static_cast<char*>(send_[from]) + at,
                             half ? static_cast<const void*>(halves.data()) : single.data(),
                             count * (half ? 2 : 4), cudaMemcpyHostToDevice),
                  cudaSuccess);
        const ncclDataType_t type = half ? ncclBfloat16 : ncclFloat32;
        ASSERT_EQ(ncclSend(static_cast<char*>(send_[from]) + at, count, type, 1 - from,
                           comms_[from], nullptr),
                  ncclSuccess);
        ASSERT_EQ(cudaSetDevice(1 - from), cudaSuccess);
        ASSERT_EQ(ncclRecv(static_cast<char*>(recv_[1 - from]) + at, count, type, from,
                           comms_[1 - from], nullptr),
                  ncclSuccess);
    }
    Values arrived(int to, size_t slot, bool half, size_t count = kCount) {
        std::vector<float> single(count);
        std::vector<uint16_t> halves(count);
        EXPECT_EQ(cudaSetDevice(to), cudaSuccess);
        EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
        EXPECT_EQ(cudaMemcpy(half ? static_cast<void*>(halves.data()) : single.data(),
                             static_cast<char*>(recv_[to]) + slot * kLarge * sizeof(float),
                             count * (half ? 2 : 4), cudaMemcpyDeviceToHost),
                  cudaSuccess);
        for (size_t i = 0; half && i < count; ++i) {
            single[i] = slimwire::bfloat16_to_float(halves[i]);
        }
        return {single.begin(), single.end()};
    }

    // One message and its answer after another in flight; how far the rows that arrive are off in
    // the first and the last step. `batches`: of a step, all forward before their answers.
    std::pair<double, double> train(int steps, int batches, bool half) {
        const double tolerance = half ? 0.02 : 2e-4;
        Weights encoder = drawn(), decoder = encoder;
        std::pair<double, double> off;
        int number = 0;
        for (int step = 0; step < steps; ++step) {
            SCOPED_TRACE("step " + std::to_string(step));
            std::vector<Values> given, codes;
            for (int batch = 0; batch < batches; ++batch) {
                const bool native = number + batch < kNative;
                given.push_back(activation((number + batch) % 50));
                codes.push_back(encoder.numbers(given.back()));
                EXPECT_EQ(ncclGroupStart(), ncclSuccess);
                post(given.back(), 0, static_cast<size_t>(batch), half);
                EXPECT_EQ(ncclGroupEnd(), ncclSuccess);
                const Values got = arrived(1, static_cast<size_t>(batch), half);
                const Values expected =
                    native ? given.back() : decoder.rows(codes.back(), given.back());
                EXPECT_LT(distance(got, expected), tolerance * norm(expected));
                (step <= 1 ? off.first : off.second) =
                    distance(got, wanted(given.back())) / norm(given.back());
            }
            for (int batch = 0; batch < batches; ++batch, ++number) {
                const auto slot = static_cast<size_t>(batch);
                // Of half the square of what rows are off by, and something for those of no row.
                Values gradient = decoder.rows(codes[slot], given[slot]);
                const Values target = wanted(given[slot]);
                for (size_t i = 0; i < kCount; ++i) {
                    gradient[i] = i < kRows * kCols ? gradient[i] - target[i] : 0.5;
                }
                EXPECT_EQ(ncclGroupStart(), ncclSuccess);
                post(gradient, 1, 4 + slot % 4, half);
                EXPECT_EQ(ncclGroupEnd(), ncclSuccess);
                const Values got = arrived(0, 4 + slot % 4, half);
                if (number < kNative) {
                    EXPECT_LT(distance(got, gradient), tolerance * norm(gradient));
                    continue;
                }
                const Values answer = decoder.numbers(gradient);
                const Values expected = encoder.rows(answer, gradient);
                EXPECT_LT(distance(got, expected), tolerance * norm(expected));
                encoder.add(given[slot], answer);
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

TEST_P(LearnedCode, AsTheOracleSays) {
    const auto [first, last] = train(60, 3, false);
    EXPECT_GT(first, 0.3);
    EXPECT_LT(last, 0.1 * first) << "it learns the rows";
}

// A step after every answer; elements of 16 bits, whose rounding the oracle lacks.
TEST_P(LearnedCode, OfHalves) {
    const auto [first, last] = train(16, 1, true);
    EXPECT_LT(last, first);
}

// On the columns of two rows' worth of factors of what arrived; elements of no row as they are.
Values projected(const Values& gradient, const Values& arrived) {
    constexpr size_t kTall = 30;
    std::vector<Values> basis;
    for (size_t column = 0; column < kCols && basis.size() < 2; column += 9) {
        Values next(kTall);
        for (size_t i = 0; i < kTall; ++i) {
            next[i] = arrived[i * kCols + column];
        }
        for (int again = 0; again < 2; ++again) {
            for (const Values& one : basis) {
                double product = 0;
                for (size_t i = 0; i < kTall; ++i) {
                    product += one[i] * next[i];
                }
                for (size_t i = 0; i < kTall; ++i) {
                    next[i] -= product * one[i];
                }
            }
        }
        const double length = norm(next);
        for (double& value : next) {
            value /= length;
        }
        basis.push_back(next);
    }
    Values out = gradient;
    for (size_t j = 0; j < kCols; ++j) {
        Values column(kTall);
        for (const Values& one : basis) {
            double product = 0;
            for (size_t i = 0; i < kTall; ++i) {
                product += one[i] * gradient[i * kCols + j];
            }
            for (size_t i = 0; i < kTall; ++i) {
                column[i] += product * one[i];
            }
        }
        for (size_t i = 0; i < kTall; ++i) {
            out[i * kCols + j] = column[i];
        }
    }
    return out;
}

TEST_P(LearnedCode, RowsAtTheEndOfTheRangeComeFinite) {
    for (const size_t count : {kCount, kLarge}) {
        for (const bool half : {false, true}) {
            for (const double largest : {3.389e38, -3.389e38, 1.0}) {
                const Values given(count, largest);
                ASSERT_EQ(ncclGroupStart(), ncclSuccess);
                post(given, 0, 0, half);
                ASSERT_EQ(ncclGroupEnd(), ncclSuccess);
                for (const double value : arrived(1, 0, half, count)) {
                    ASSERT_TRUE(std::isfinite(value)) << count << " of " << largest;
                }
            }
        }
    }
}

TEST_P(LearnedCode, AnswersOfLowRankAreProjectedAsWhatTheyAnswer) {
    constexpr int kBatches = 3;
    const auto drawn_values = [](int seed) {
        Values out(kLarge);
        for (size_t i = 0; i < kLarge; ++i) {
            out[i] = std::sin(1.7 * static_cast<double>(i + 1) * (seed + 1) +
                              0.3 * static_cast<double>(i * i % 97));
        }
        return out;
    };
    int answers = 0;
    for (int step = 0; step < 4; ++step) {
        std::vector<Values> came;
        for (int batch = 0; batch < kBatches; ++batch) {
            ASSERT_EQ(ncclGroupStart(), ncclSuccess);
            post(drawn_values(10 * step + batch), 0, static_cast<size_t>(batch), false);
            ASSERT_EQ(ncclGroupEnd(), ncclSuccess);
            came.push_back(arrived(1, static_cast<size_t>(batch), false, kLarge));
        }
        for (int batch = 0; batch < kBatches; ++batch, ++answers) {
            const auto slot = static_cast<size_t>(batch);
            const Values gradient = drawn_values(500 + 10 * step + batch);
            ASSERT_EQ(ncclGroupStart(), ncclSuccess);
            post(gradient, 1, 4 + slot, false);
            ASSERT_EQ(ncclGroupEnd(), ncclSuccess);
            const Values got = arrived(0, 4 + slot, false, kLarge);
            const Values expected = projected(gradient, came[slot]);
            // Before directions are known it has factors of its own.
            EXPECT_EQ(distance(got, expected) < 1e-4 * norm(expected), answers >= kNative)
                << "answer " << answers;
        }
    }
}

// What no answer came for a new step forgets, and its memory serves again.
TEST_P(LearnedCode, WhatIsNotAnsweredIsDroppedWithTheStep) {
    constexpr size_t kHuge = 5000 * kCols;
    float* buffers[2] = {};
    for (int rank = 0; rank < 2; ++rank) {
        ASSERT_EQ(cudaSetDevice(rank), cudaSuccess);
        ASSERT_EQ(cudaMalloc(reinterpret_cast<void**>(&buffers[rank]), kHuge * sizeof(float)),
                  cudaSuccess);
        ASSERT_EQ(cudaMemset(buffers[rank], 0, kHuge * sizeof(float)), cudaSuccess);
    }
    size_t all = 0, before = 0, after = 0;
    for (int step = 0; step < 16; ++step) {
        ASSERT_EQ(slimwire_mark_step(static_cast<uint64_t>(step)), SLIMWIRE_OK);
        for (int batch = 0; batch < 3; ++batch) {
            ASSERT_EQ(ncclGroupStart(), ncclSuccess);
            ASSERT_EQ(ncclSend(buffers[0], kHuge, ncclFloat32, 1, comms_[0], nullptr), ncclSuccess);
            ASSERT_EQ(ncclRecv(buffers[1], kHuge, ncclFloat32, 0, comms_[1], nullptr), ncclSuccess);
            ASSERT_EQ(ncclGroupEnd(), ncclSuccess);
        }
        for (int rank = 0; rank < 2; ++rank) {
            ASSERT_EQ(cudaSetDevice(rank), cudaSuccess);
            ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
        }
        ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
        ASSERT_EQ(cudaMemGetInfo(step == 3 ? &before : &after, &all), cudaSuccess);
    }
    EXPECT_LT(before, after + 4 * kHuge * sizeof(float));
    for (float* const buffer : buffers) {
        EXPECT_EQ(cudaFree(buffer), cudaSuccess);
    }
}

INSTANTIATE_TEST_SUITE_P(Ranks, LearnedCode, testing::Values(2));

// Two copies of two stages, in one process with one mark of each step for all: what they learn is
// averaged with the first collective of a step among the copies of a stage, native or compressed,
// from the fourth on behind that before which all had it.
class Copies : public slimwire::test::SeveralDevices<4> {
  protected:
    static constexpr int kBatches = 2, kAveraged = kNative / kBatches + 4;

    Copies() : SeveralDevices(8 * kLarge * sizeof(float)) {}
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
            EXPECT_EQ(ncclCommDestroy(pipes_[rank]), ncclSuccess);
            EXPECT_EQ(ncclCommDestroy(copies_[rank]), ncclSuccess);
        }
        SeveralDevices::TearDown();
    }
    void split(ncclComm_t* parts, int (*color)(int), const char* name) {
        ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
        config.commName = name;
        ASSERT_EQ(ncclGroupStart(), ncclSuccess);
        for (int rank = 0; rank < ranks(); ++rank) {
            ASSERT_EQ(ncclCommSplit(comms_[rank], color(rank), rank, &parts[rank], &config),
                      ncclSuccess);
        }
        ASSERT_EQ(ncclGroupEnd(), ncclSuccess);
    }
    // What arrives at the other stage of its copy.
    std::vector<float> pass(const Values& values, int from) {
        const std::vector<float> given(values.begin(), values.end());
        const int to = from ^ 1;
        std::vector<float> got(given.size());
        EXPECT_EQ(cudaSetDevice(from), cudaSuccess);
        EXPECT_EQ(cudaMemcpy(send_[from], given.data(), given.size() * sizeof(float),
                             cudaMemcpyHostToDevice),
                  cudaSuccess);
        EXPECT_EQ(ncclGroupStart(), ncclSuccess);
        EXPECT_EQ(ncclSend(send_[from], given.size(), ncclFloat32, to % 2, pipes_[from], nullptr),
                  ncclSuccess);
        EXPECT_EQ(cudaSetDevice(to), cudaSuccess);
        EXPECT_EQ(ncclRecv(recv_[to], given.size(), ncclFloat32, from % 2, pipes_[to], nullptr),
                  ncclSuccess);
        EXPECT_EQ(ncclGroupEnd(), ncclSuccess);
        EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
        EXPECT_EQ(
            cudaMemcpy(got.data(), recv_[to], got.size() * sizeof(float), cudaMemcpyDeviceToHost),
            cudaSuccess);
        return got;
    }
    void sum_gradients(size_t count) {
        ASSERT_EQ(ncclGroupStart(), ncclSuccess);
        for (int rank = 0; rank < ranks(); ++rank) {
            ASSERT_EQ(cudaSetDevice(rank), cudaSuccess);
            ASSERT_EQ(ncclAllReduce(send_[rank], recv_[rank], count, ncclFloat32, ncclSum,
                                    copies_[rank], nullptr),
                      ncclSuccess);
        }
        ASSERT_EQ(ncclGroupEnd(), ncclSuccess);
    }

    ncclComm_t pipes_[4] = {}, copies_[4] = {};
};

void average(Weights* one, Weights* other) {
    for (Values Weights::*const of : {&Weights::at, &Weights::first, &Weights::second}) {
        for (size_t i = 0; i < one->at.size(); ++i) {
            (one->*of)[i] = (other->*of)[i] = ((one->*of)[i] + (other->*of)[i]) / 2;
        }
    }
}

TEST_P(Copies, LearnAsTheOracleSays) {
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

INSTANTIATE_TEST_SUITE_P(Ranks, Copies, testing::Values(4));

// Collectives and their answers, newest first, by one E and one D of all ranks.
enum class Shared { kAllToAll, kAllGather, kReduceScatter };

class Collectives : public slimwire::test::SeveralDevices<3> {
  protected:
    static constexpr int kForward = 2;  // calls before their answers come
    using Blocks = std::vector<Values>;

    Collectives() : SeveralDevices(3 * kCount * sizeof(float)) {}
    static void SetUpTestSuite() { write_policy(kPolicy); }

    static Shared answer_to(Shared op) {
        return op == Shared::kAllGather       ? Shared::kReduceScatter
               : op == Shared::kReduceScatter ? Shared::kAllGather
                                              : op;
    }
    static size_t given_blocks(Shared op) {
        return op == Shared::kAllGather ? 1 : static_cast<size_t>(ranks());
    }
    // What reaches a rank as its block of what all give.
    static Values at(Shared op, const std::vector<Blocks>& given, size_t rank, size_t block) {
        if (op != Shared::kReduceScatter) {
            return given[block][op == Shared::kAllGather ? 0 : rank];
        }
        Values sum(given[0][0].size());
        for (const Blocks& one : given) {
            for (size_t i = 0; i < sum.size(); ++i) {
                sum[i] += one[rank][i];
            }
        }
        return sum;
    }
    static std::vector<Blocks> map(const std::vector<Blocks>& given, const Weights& weights) {
        std::vector<Blocks> out = given;
        for (Blocks& blocks : out) {
            for (Values& block : blocks) {
                block = weights.numbers(block);
            }
        }
        return out;
    }
    static std::vector<Blocks> drawn_blocks(Shared op, int number) {
        std::vector<Blocks> given(static_cast<size_t>(ranks()));
        for (size_t rank = 0; rank < given.size(); ++rank) {
            for (size_t block = 0; block < given_blocks(op); ++block) {
                given[rank].push_back(
                    activation(static_cast<int>((7 * rank + 3 * block) % 11) + number));
            }
        }
        return given;
    }
    std::vector<Blocks> call(Shared op, const std::vector<Blocks>& given) {
        EXPECT_EQ(ncclGroupStart(), ncclSuccess);
        for (int rank = 0; rank < ranks(); ++rank) {
            std::vector<float> all;
            for (const Values& block : given[static_cast<size_t>(rank)]) {
                all.insert(all.end(), block.begin(), block.end());
            }
            EXPECT_EQ(cudaSetDevice(rank), cudaSuccess);
            EXPECT_EQ(cudaMemcpy(send_[rank], all.data(), all.size() * sizeof(float),
                                 cudaMemcpyHostToDevice),
                      cudaSuccess);
            const void* const from = send_[rank];
            void* const to = recv_[rank];
            EXPECT_EQ(op == Shared::kAllToAll
                          ? ncclAlltoAll(from, to, kCount, ncclFloat32, comms_[rank], nullptr)
                      : op == Shared::kAllGather
                          ? ncclAllGather(from, to, kCount, ncclFloat32, comms_[rank], nullptr)
                          : ncclReduceScatter(from, to, kCount, ncclFloat32, ncclSum, comms_[rank],
                                              nullptr),
                      ncclSuccess);
        }
        EXPECT_EQ(ncclGroupEnd(), ncclSuccess);
        std::vector<Blocks> out(static_cast<size_t>(ranks()));
        for (int rank = 0; rank < ranks(); ++rank) {
            EXPECT_EQ(cudaSetDevice(rank), cudaSuccess);
            EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
            for (size_t block = 0; block < given_blocks(answer_to(op)); ++block) {
                std::vector<float> got(kCount);
                EXPECT_EQ(cudaMemcpy(got.data(), static_cast<float*>(recv_[rank]) + block * kCount,
                                     kCount * sizeof(float), cudaMemcpyDeviceToHost),
                          cudaSuccess);
                out[static_cast<size_t>(rank)].emplace_back(got.begin(), got.end());
            }
        }
        return out;
    }
    // That all get what the numbers say, of all but what an all-to-all gives itself.
    static void expect(const std::vector<Blocks>& got,
                       Shared op,
                       const std::vector<Blocks>& given,
                       const std::vector<Blocks>& numbers,
                       const Weights& weights) {
        for (size_t rank = 0; rank < got.size(); ++rank) {
            for (size_t block = 0; block < got[rank].size(); ++block) {
                const Values raw = at(op, given, rank, block);
                const bool own = op == Shared::kAllToAll && rank == block;
                const Values expected = own ? raw : weights.rows(at(op, numbers, rank, block), raw);
                EXPECT_LT(distance(got[rank][block], expected), 2e-4 * norm(expected))
                    << "rank " << rank << " block " << block;
            }
        }
    }
    // Gradients of weights from blocks of rows and the numbers that came for them.
    static void learn(Weights* weights,
                      Shared op,
                      const std::vector<Blocks>& rows,
                      const std::vector<Blocks>& numbers) {
        for (size_t rank = 0; rank < rows.size(); ++rank) {
            for (size_t block = 0; block < rows[rank].size(); ++block) {
                if (op != Shared::kAllToAll || rank != block) {
                    weights->add(rows[rank][block], at(answer_to(op), numbers, rank, block));
                }
            }
        }
    }
};

TEST_P(Collectives, LearnAsTheOracleSays) {
    uint64_t step = 0;
    Weights codes[2][2] = {{drawn(5), drawn(5)}, {drawn(6), drawn(6)}};
    for (const Shared forward : {Shared::kAllToAll, Shared::kAllGather, Shared::kReduceScatter}) {
        SCOPED_TRACE("operation " + std::to_string(static_cast<int>(forward)));
        const Shared answer = answer_to(forward);
        auto& [encoder, decoder] = codes[forward == Shared::kAllToAll ? 0 : 1];
        const Values before = encoder.at;
        for (const uint64_t last = step + 5; step < last; ++step) {
            SCOPED_TRACE("step " + std::to_string(step));
            ASSERT_EQ(slimwire_mark_step(step), SLIMWIRE_OK);
            std::vector<std::vector<Blocks>> given, numbers;
            for (int one = 0; one < kForward; ++one) {
                given.push_back(drawn_blocks(forward, static_cast<int>(step) + 5 * one));
                numbers.push_back(map(given.back(), encoder));
                expect(call(forward, given.back()), forward, given.back(), numbers.back(), decoder);
            }
            for (int one = kForward; one-- > 0;) {
                const auto of = static_cast<size_t>(one);
                const std::vector<Blocks> gradient =
                    drawn_blocks(answer, 20 + static_cast<int>(step) + 5 * one);
                const std::vector<Blocks> back = map(gradient, decoder);
                expect(call(answer, gradient), answer, gradient, back, encoder);
                learn(&encoder, forward, given[of], back);
                learn(&decoder, answer, gradient, numbers[of]);
            }
            encoder.step();
            decoder.step();
        }
        EXPECT_GT(distance(encoder.at, before), 0.1);
        // An evaluation goes forward by what was learnt, and teaches nothing.
        ASSERT_EQ(slimwire_mark_phase(SLIMWIRE_EVALUATION), SLIMWIRE_OK);
        for (int one = 0; one < 3; ++one) {
            const std::vector<Blocks> given = drawn_blocks(forward, 40 + one);
            expect(call(forward, given), forward, given, map(given, encoder), decoder);
        }
        ASSERT_EQ(slimwire_mark_phase(SLIMWIRE_TRAINING), SLIMWIRE_OK);
    }
}

INSTANTIATE_TEST_SUITE_P(Ranks, Collectives, testing::Values(2, 3));

}  // namespace
