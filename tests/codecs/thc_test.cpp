// THC's operations: host bodies against the slow words of FORMAT.md, their kernels on the execution
// model of tests/support/cuda_on_host.h, and what they promise to ranks that sum their words.
#include "tests/support/cuda_on_host.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "codecs/base/emulator_abi.h"
#include "codecs/float16.h"
#include "codecs/thc.h"
#include "tests/codecs/low_rank_fixture.h"

#include "codecs/thc.cu"

namespace slimwire::testing {
namespace {

struct ThcJob {
    DType dtype = DType::kFloat32;
    int64_t count = 0;
    int block = 1024;
    int levels = 15;
    int ranks = 2;
    bool fed = true;
    float scale = 1.0f;
    float clip = 1.0f;
    bool average = false;
    uint32_t step = 9;
    int64_t shift = 0;
};

// What one rank has.
struct Rank {
    Guarded input, output;
    std::vector<float> residual;
    std::vector<uint32_t> scales;
    std::vector<uint64_t> words;

    explicit Rank(const ThcJob& job)
        : input(bytes_of(job), job.shift),
          output(bytes_of(job), job.shift),
          residual(guarded(static_cast<size_t>(job.count))),
          scales(static_cast<size_t>(thc_groups(job.count)) + 1, 77),
          words(static_cast<size_t>(thc_words(job.count, job.block, job.levels, job.ranks)) + 1,
                77) {}
    static int64_t bytes_of(const ThcJob& job) {
        return job.count * static_cast<int64_t>(dtype_bytes(job.dtype));
    }
    [[nodiscard]] bool margins_intact() const {
        return input.margins_intact() && output.margins_intact() && margin_intact(residual) &&
               scales.back() == 77 && words.back() == 77;
    }
    bool operator==(const Rank& other) const {
        return input.copy(input.size()) == other.input.copy(other.input.size()) &&
               output.copy(output.size()) == other.output.copy(other.output.size()) &&
               same_bits(residual, other.residual) && scales == other.scales &&
               words == other.words;
    }
};

ThcArgs args_of(const ThcJob& job, Rank& rank, uint32_t number) {
    ThcArgs args{};
    args.input = rank.input.data();
    args.output = rank.output.data();
    args.residual = job.fed ? rank.residual.data() : nullptr;
    args.scales = rank.scales.data();
    args.words = rank.words.data();
    args.scale = job.scale;
    args.result = job.average ? 1.0f / static_cast<float>(job.ranks) : 1.0f;
    args.clip = job.clip;
    args.count = job.count;
    args.block = job.block;
    args.levels = job.levels;
    args.ranks = job.ranks;
    args.dtype = job.dtype;
    args.random = {.seed = 5, .tensor = 3, .rank = number, .step = job.step};
    return args;
}

// --- FORMAT.md, "Summable Hadamard levels", word by word

std::vector<float> rotated(const std::vector<float>& x) {
    if (x.size() == 1) {
        return x;
    }
    const auto middle = x.begin() + static_cast<std::ptrdiff_t>(x.size() / 2);
    const std::vector<float> a = rotated({x.begin(), middle});
    const std::vector<float> b = rotated({middle, x.end()});
    std::vector<float> y;
    std::transform(a.begin(), a.end(), b.begin(), std::back_inserter(y), std::plus<>());
    std::transform(a.begin(), a.end(), b.begin(), std::back_inserter(y), std::minus<>());
    return y;
}

uint32_t drawn(uint32_t rank,
               RandomPurpose purpose,
               uint64_t counter,
               uint32_t step,
               uint32_t last,
               uint64_t word) {
    uint32_t x[4] = {static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32), step,
                     last};
    threefry(x, RandomWords{{5, 3, rank, static_cast<uint32_t>(purpose)}});
    return x[word];
}

class Reference {
  public:
    Reference(const ThcJob& job, uint32_t number) : job_(job), number_(number) {}

    void step(ThcStep step, Rank& rank) const {
        const std::vector<float> input = values_of(rank.input, job_.dtype, job_.count);
        size_t word = 0;
        for (int64_t group = 0; group * 1024 < job_.count; ++group) {
            const int64_t begin = group * 1024;
            const int64_t present = std::min<int64_t>(1024, job_.count - begin);
            std::vector<float> p;
            for (int64_t i = begin; i < begin + present; ++i) {
                p.push_back(job_.scale * input[static_cast<size_t>(i)]);
                p.back() += job_.fed ? rank.residual[static_cast<size_t>(i)] : 0.0f;
            }
            while (p.size() % static_cast<size_t>(job_.block) != 0) {
                p.push_back(0.0f);
            }
            const std::vector<float> y = forward(group, p);
            uint32_t& scale = rank.scales[static_cast<size_t>(group)];
            if (step == ThcStep::kMeasure) {
                float largest = 0.0f;
                for (const float value : y) {
                    largest = std::isfinite(value) && std::isfinite(largest)
                                  ? std::max(largest, std::abs(value))
                                  : NAN;
                }
                scale = std::isnan(largest) ? 0x7FC00000u : std::bit_cast<uint32_t>(largest);
                continue;
            }
            const float agreed = std::bit_cast<float>(scale);
            const bool poisoned = !std::isfinite(agreed);
            const float reach = poisoned || job_.clip * agreed < 0x1p-100f ? 0 : job_.clip * agreed;
            const size_t fields = static_cast<size_t>(
                64 / std::bit_width(static_cast<unsigned>(job_.levels * job_.ranks)));
            const size_t number = (y.size() + fields - 1) / fields;
            const auto place = [&](size_t i) { return std::pair(word + i % number, i / number); };
            const int width = std::bit_width(static_cast<unsigned>(job_.levels * job_.ranks));
            if (step == ThcStep::kQuantise) {
                std::fill_n(rank.words.begin() + static_cast<std::ptrdiff_t>(word), number, 0);
                std::vector<float> sent(y.size(), 0.0f);
                for (size_t i = 0; reach > 0 && i < y.size(); ++i) {
                    const uint32_t level = level_of(y[i], reach, static_cast<uint64_t>(begin) + i);
                    rank.words[place(i).first] += uint64_t{level}
                                                  << (place(i).second * static_cast<size_t>(width));
                    sent[i] = static_cast<float>(2 * static_cast<int>(level) - job_.levels) *
                              (reach / static_cast<float>(job_.levels));
                }
                sent = reach > 0 ? backward(group, sent) : sent;
                for (size_t i = 0; !poisoned && job_.fed && i < static_cast<size_t>(present); ++i) {
                    if (std::isfinite(p[i] - sent[i])) {
                        rank.residual[static_cast<size_t>(begin) + i] = p[i] - sent[i];
                    }
                }
            } else {
                std::vector<float> sums(y.size(), 0.0f);
                for (size_t i = 0; reach > 0 && i < y.size(); ++i) {
                    const uint64_t sum = rank.words[place(i).first] >>
                                             (place(i).second * static_cast<size_t>(width)) &
                                         ((uint64_t{1} << width) - 1);
                    sums[i] =
                        static_cast<float>(2 * static_cast<int>(sum) - job_.levels * job_.ranks) *
                        (reach / static_cast<float>(job_.levels));
                }
                sums = reach > 0 ? backward(group, sums) : sums;
                for (int64_t i = 0; i < present; ++i) {
                    const float result =
                        job_.average ? 1.0f / static_cast<float>(job_.ranks) : 1.0f;
                    put(rank, begin + i, poisoned ? NAN : result * sums[static_cast<size_t>(i)]);
                }
            }
            word += number;
        }
    }

  private:
    [[nodiscard]] float sign(int64_t group, size_t i) const {
        const uint32_t word = drawn(0, RandomPurpose::kSigns, static_cast<uint64_t>(group),
                                    job_.step, static_cast<uint32_t>(i / 128), i % 128 / 32);
        return (word >> (i % 32) & 1) != 0 ? -1.0f : 1.0f;
    }
    [[nodiscard]] std::vector<float> by_blocks(const std::vector<float>& x) const {
        std::vector<float> y;
        for (auto from = x.begin(); from != x.end(); from += job_.block) {
            const std::vector<float> block = rotated({from, from + job_.block});
            y.insert(y.end(), block.begin(), block.end());
        }
        return y;
    }
    [[nodiscard]] std::vector<float> forward(int64_t group, std::vector<float> x) const {
        for (size_t i = 0; i < x.size(); ++i) {
            x[i] = x[i] / static_cast<float>(job_.block) * sign(group, i);
        }
        return by_blocks(x);
    }
    [[nodiscard]] std::vector<float> backward(int64_t group, const std::vector<float>& y) const {
        std::vector<float> x = by_blocks(y);
        for (size_t i = 0; i < x.size(); ++i) {
            x[i] *= sign(group, i);
        }
        return x;
    }
    [[nodiscard]] uint32_t level_of(float y, float reach, uint64_t element) const {
        const float middle = static_cast<float>(job_.levels) / 2;
        const float product = y * (middle / reach);
        const float place = std::clamp(product + middle, 0.0f, static_cast<float>(job_.levels));
        const uint32_t word =
            drawn(number_, RandomPurpose::kEncode, element / 4, job_.step, 0, element % 4);
        const float down = std::floor(place);
        return static_cast<uint32_t>(down) +
               (static_cast<double>(place - down) * 0x1p24 > static_cast<double>(word >> 8) ? 1
                                                                                            : 0);
    }
    void put(Rank& rank, int64_t i, float value) const {
        uint8_t* const to = rank.output.data() + i * static_cast<int64_t>(dtype_bytes(job_.dtype));
        const uint32_t whole = std::isnan(value) ? 0x7FC00000u : std::bit_cast<uint32_t>(value);
        const uint16_t half =
            job_.dtype == DType::kFloat16 ? float_to_float16(value) : float_to_bfloat16(value);
        job_.dtype == DType::kFloat32 ? std::memcpy(to, &whole, 4) : std::memcpy(to, &half, 2);
    }

    ThcJob job_;
    uint32_t number_;
};

constexpr ThcStep kThcSteps[] = {ThcStep::kMeasure, ThcStep::kQuantise, ThcStep::kRestore};

void on_host(ThcStep step, const ThcArgs& args) {
    constexpr void (*kBodies[])(const ThcArgs&) = {measure_thc_on_host, quantise_thc_on_host,
                                                   restore_thc_on_host};
    kBodies[static_cast<size_t>(step)](args);
}
void on_model(ThcStep step, const ThcArgs& args) {
    constexpr cudaError_t (*kLaunchers[])(const ThcArgs&, cudaStream_t) = {
        measure_thc_on_cuda, quantise_thc_on_cuda, restore_thc_on_cuda};
    ASSERT_EQ(kLaunchers[static_cast<size_t>(step)](args, nullptr), cudaSuccess);
}

// What the two all-reduces do.
void agree(std::vector<Rank>& ranks) {
    std::vector<uint32_t> largest = ranks[0].scales;
    for (const Rank& rank : ranks) {
        for (size_t g = 0; g < largest.size(); ++g) {
            largest[g] = std::max(largest[g], rank.scales[g]);
        }
    }
    for (Rank& rank : ranks) {
        rank.scales = largest;
    }
}
void add_up(std::vector<Rank>& ranks) {
    std::vector<uint64_t> sums(ranks[0].words.size(), 0);
    for (const Rank& rank : ranks) {
        std::transform(sums.begin(), sums.end(), rank.words.begin(), sums.begin(), std::plus<>());
    }
    sums.back() = 77;
    for (Rank& rank : ranks) {
        rank.words = sums;
    }
}
// A call of all ranks by the host bodies.
void call(const ThcJob& job, std::vector<Rank>& ranks) {
    for (const ThcStep step : kThcSteps) {
        for (uint32_t r = 0; r < ranks.size(); ++r) {
            on_host(step, args_of(job, ranks[r], r));
        }
        if (step == ThcStep::kMeasure) {
            agree(ranks);
        } else if (step == ThcStep::kQuantise) {
            add_up(ranks);
        }
    }
}
void set_input(const ThcJob& job, Rank& rank, double magnitude, std::mt19937& random) {
    const Guarded fresh = random_input(job.dtype, job.count, magnitude, random, job.shift);
    std::memcpy(rank.input.data(), fresh.data(), static_cast<size_t>(fresh.size()));
}

class Thc : public ::testing::Test {
  protected:
    void TearDown() override { ASSERT_TRUE(force_isa(all_isas().back()).ok()); }
    std::mt19937 random_{test_seed()};
};

TEST_F(Thc, EveryTypeBlockAndSizeGivesTheBitsOfTheFormat) {
    const int64_t counts[] = {1, 31, 33, 1000, 1024, 1025, 3000, 4097};
    const int blocks[] = {32, 64, 128, 256, 512, 1024};
    int which = 0;
    for (const DType dtype : kFloatTypes) {
        for (const int64_t count : counts) {
            ThcJob job{.dtype = dtype, .count = count};
            job.block = blocks[which % 6];
            job.levels = which % 5 == 0 ? 255 : which % 5 == 1 ? 1 : which % 5 == 2 ? 4 : 15;
            job.ranks = 1 + which % 4;
            job.fed = which % 3 != 1;
            job.scale = which % 2 == 0 ? 1.0f : 0.3f;
            job.clip = which % 4 == 2 ? 0.6f : 1.0f;
            job.average = which % 2 == 1;
            job.shift = which % 2 * static_cast<int64_t>(dtype_bytes(dtype));
            SCOPED_TRACE(std::string(dtype_name(dtype)) + " count " + std::to_string(count) +
                         " situation " + std::to_string(which));
            std::vector<Rank> ranks(static_cast<size_t>(job.ranks), Rank(job));
            for (Rank& rank : ranks) {
                set_input(job, rank, which % 7 == 3 ? 1e-35 : 0.5, random_);
                for (int64_t i = 0; i < count; ++i) {
                    rank.residual[static_cast<size_t>(i)] = 0.01f * static_cast<float>(i % 13);
                }
            }
            if (which % 5 == 3) {  // on one rank
                const auto bytes = static_cast<int64_t>(dtype_bytes(dtype));
                std::memset(ranks[0].input.data() + (count - 1) * bytes, 0xFF,
                            static_cast<size_t>(bytes));
            }
            for (const ThcStep step : kThcSteps) {
                SCOPED_TRACE(static_cast<int>(step));
                for (uint32_t r = 0; r < ranks.size(); ++r) {
                    const Rank before = ranks[r];
                    Rank device = before;
                    Reference(job, r).step(step, ranks[r]);
                    for (const Isa isa : all_isas()) {
                        SCOPED_TRACE(isa_name(isa));
                        ASSERT_TRUE(force_isa(isa).ok());
                        Rank host = before;
                        on_host(step, args_of(job, host, r));
                        ASSERT_TRUE(host == ranks[r]);
                        ASSERT_TRUE(host.margins_intact());
                    }
                    if (sampled(random_)) {
                        ThcArgs args = args_of(job, device, r);
                        args.max_blocks = static_cast<int32_t>(random_() % 4);
                        on_model(step, args);
                        ASSERT_TRUE(device == ranks[r]) << "the kernel";
                        ASSERT_TRUE(device.margins_intact());
                    }
                }
                if (step == ThcStep::kMeasure) {
                    agree(ranks);
                } else if (step == ThcStep::kQuantise) {
                    add_up(ranks);
                }
            }
            for (const Rank& rank : ranks) {
                ASSERT_EQ(rank.output.copy(rank.output.size()),
                          ranks[0].output.copy(rank.output.size()));
            }
            ++which;
        }
    }
}

TEST_F(Thc, FieldsAddUpWithoutACarry) {
    EXPECT_EQ(thc_words(1024, 1024, 15, 2), 86);    // 5 bits, 12 a word
    EXPECT_EQ(thc_words(1024, 1024, 15, 4), 103);   // 6 bits, 10
    EXPECT_EQ(thc_words(1024, 1024, 15, 8), 114);   // 7 bits, 9
    EXPECT_EQ(thc_words(1024, 1024, 15, 17), 128);  // 8 bits, 8
    EXPECT_EQ(thc_words(2049, 32, 15, 8), 2 * 114 + 4);
    EXPECT_EQ(thc_words(1, 1024, 15, 8), 114);
    EXPECT_EQ(thc_words(0, 1024, 15, 8), 0);
    EXPECT_EQ(thc_groups(0), 0);
    EXPECT_EQ(thc_groups(1025), 2);
    // A spike makes every |y| the reach: all ranks are at level 0 or their largest in every field.
    for (const int count : {2, 3, 4, 8, 17, 64}) {
        ThcJob job{.count = 1024, .block = 32, .ranks = count, .fed = false};
        std::vector<Rank> ranks(static_cast<size_t>(count), Rank(job));
        for (Rank& rank : ranks) {
            for (int64_t i = 0; i < job.count; ++i) {
                reinterpret_cast<float*>(rank.input.data())[i] = i % 32 == 0 ? 1.0f : 0.0f;
            }
        }
        call(job, ranks);
        for (int64_t i = 0; i < job.count; ++i) {
            ASSERT_NEAR(reinterpret_cast<const float*>(ranks[0].output.data())[i],
                        i % 32 == 0 ? static_cast<float>(count) : 0.0f, 1e-4)
                << i;
        }
    }
}

TEST_F(Thc, TheSumIsUnbiased) {
    // 10^6 draws of levels: the mean error of a direction that the data has, in standard errors.
    ThcJob job{.count = 1 << 20, .ranks = 2, .fed = false};
    std::vector<Rank> ranks(2, Rank(job));
    std::vector<double> sum(static_cast<size_t>(job.count), 0.0);
    for (Rank& rank : ranks) {
        set_input(job, rank, 0.5, random_);
        const std::vector<float> values = values_of(rank.input, job.dtype, job.count);
        std::transform(sum.begin(), sum.end(), values.begin(), sum.begin(), std::plus<>());
    }
    call(job, ranks);
    const std::vector<float> got = values_of(ranks[0].output, job.dtype, job.count);
    double along = 0, square = 0, errors = 0, norm = 0;
    for (size_t i = 0; i < sum.size(); ++i) {
        const double error = got[i] - sum[i];
        along += error * sum[i];
        square += error * error * sum[i] * sum[i];
        errors += error * error;
        norm += sum[i] * sum[i];
    }
    EXPECT_LT(std::abs(along), 4.5 * std::sqrt(square));
    EXPECT_LT(std::sqrt(errors / norm), 0.25);
    EXPECT_GT(std::sqrt(errors / norm), 0.05);  // levels were rounded at all
}

TEST_F(Thc, LevelsAreUnbiased) {
    const ThcDraw draw = thc_draw({.seed = test_seed(), .tensor = 3, .rank = 1, .step = 9}, 0);
    constexpr int kDraws = 1 << 20;
    for (const float y : {-0.97f, -0.4f, 0.01f, 0.35f, 0.999f}) {
        const double place = (static_cast<double>(y) + 1.0) * 7.5;
        double sum = 0;
        for (uint64_t i = 0; i < kDraws; i += 4) {
            uint32_t x[4];
            thc_rounding(draw, i / 4, x);
            for (const uint32_t word : x) {
                sum += thc_level(y, 7.5f, 15, word);
            }
        }
        const double part = place - std::floor(place);
        EXPECT_LT(std::abs(sum / kDraws - place),
                  5.0 * std::sqrt(part * (1.0 - part) / kDraws) + 1e-5)
            << y;
    }
}

TEST_F(Thc, ResidualsHoldWhatWasNotSent) {
    for (const float clip : {1.0f, 0.5f}) {
        ThcJob job{.count = 5000, .ranks = 3, .clip = clip};
        std::vector<Rank> ranks(3, Rank(job));
        std::vector<double> given(static_cast<size_t>(job.count), 0.0);
        std::vector<double> delivered = given;
        for (Rank& rank : ranks) {
            set_input(job, rank, 0.5, random_);
        }
        constexpr int kCalls = 60;
        for (uint32_t step = 0; step < kCalls; ++step) {
            job.step = step;
            for (Rank& rank : ranks) {
                const std::vector<float> values = values_of(rank.input, job.dtype, job.count);
                std::transform(given.begin(), given.end(), values.begin(), given.begin(),
                               std::plus<>());
            }
            call(job, ranks);
            const std::vector<float> got = values_of(ranks[0].output, job.dtype, job.count);
            std::transform(delivered.begin(), delivered.end(), got.begin(), delivered.begin(),
                           std::plus<>());
        }
        double far = 0, norm = 0;
        for (size_t i = 0; i < given.size(); ++i) {
            double rest = 0;
            for (const Rank& rank : ranks) {
                rest += rank.residual[i];
            }
            ASSERT_NEAR(given[i], delivered[i] + rest, 1e-3) << i;
            far += (given[i] - delivered[i]) * (given[i] - delivered[i]);
            norm += given[i] * given[i];
        }
        EXPECT_LT(std::sqrt(far / norm), 0.05) << "of the mean over " << kCalls << " calls";
    }
}

TEST_F(Thc, WhatIsNotFiniteIsNanEverywhereAndLeavesNoTrace) {
    for (const float hostile :
         {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
          -std::numeric_limits<float>::infinity()}) {
        const ThcJob job{.count = 3000, .ranks = 3};
        std::vector<Rank> ranks(3, Rank(job));
        for (Rank& rank : ranks) {
            set_input(job, rank, 0.5, random_);
            std::fill_n(rank.residual.begin(), job.count, 0.25f);
        }
        reinterpret_cast<float*>(ranks[1].input.data())[1500] = hostile;
        call(job, ranks);
        for (const Rank& rank : ranks) {
            const std::vector<float> got = values_of(rank.output, job.dtype, job.count);
            for (size_t i = 0; i < got.size(); ++i) {
                const bool hit = i / 1024 == 1;
                ASSERT_EQ(std::isnan(got[i]), hit) << i;
                ASSERT_TRUE(std::isfinite(rank.residual[i])) << i;
                ASSERT_TRUE(!hit || rank.residual[i] == 0.25f) << i;
            }
        }
    }
}

TEST_F(Thc, InPlaceAndZerosAndTheLargestNumbers) {
    const ThcJob job{.count = 2048, .ranks = 2, .fed = false};
    std::vector<Rank> apart(2, Rank(job));
    for (Rank& rank : apart) {
        set_input(job, rank, 0.5, random_);
    }
    std::vector<Rank> in_place = apart;
    call(job, apart);
    for (const ThcStep step : kThcSteps) {
        for (uint32_t r = 0; r < 2; ++r) {
            ThcArgs args = args_of(job, in_place[r], r);
            args.output = in_place[r].input.data();
            on_host(step, args);
        }
        step == ThcStep::kMeasure    ? agree(in_place)
        : step == ThcStep::kQuantise ? add_up(in_place)
                                     : void();
    }
    EXPECT_EQ(in_place[1].input.copy(8192), apart[0].output.copy(8192));

    std::vector<Rank> zeros(2, Rank(job));
    for (Rank& rank : zeros) {
        std::memset(rank.input.data(), 0, 8192);
    }
    // Numbers so large that they must not be added up before they are divided by the block.
    auto* const huge = reinterpret_cast<float*>(zeros[0].input.data());
    std::fill_n(huge, 1024, std::numeric_limits<float>::max() / 4);
    call(job, zeros);
    const std::vector<float> got = values_of(zeros[1].output, job.dtype, job.count);
    EXPECT_TRUE(std::none_of(got.begin(), got.end(), [](float x) { return std::isnan(x); }));
    EXPECT_TRUE(std::all_of(got.begin() + 1024, got.end(), [](float x) { return x == 0.0f; }));
}

TEST_F(Thc, AStepIsOneLaunch) {
    const ThcJob job{.count = 100, .ranks = 1};
    static int launches;
    launches = 0;
    EmulatorApi emulator{
        .size = sizeof(EmulatorApi),
        .launch =
            [](cudaStream_t, void (*body)(const void*), const void* args, size_t, const char*) {
                ++launches;
                body(args);
                return cudaSuccess;
            },
        .device_view = nullptr,
        .node_of_device = nullptr};
    DeviceApi api;
    api.emulator = &emulator;
    Rank expected(job);
    set_input(job, expected, 0.5, random_);
    Rank rank = expected;
    for (const ThcStep step : kThcSteps) {
        on_host(step, args_of(job, expected, 0));
        ASSERT_TRUE(enqueue(api, step, args_of(job, rank, 0), nullptr).ok());
    }
    EXPECT_EQ(launches, 3);
    EXPECT_TRUE(rank == expected);
}

}  // namespace
}  // namespace slimwire::testing
