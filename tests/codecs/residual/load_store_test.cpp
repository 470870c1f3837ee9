// Stored residuals: the host bodies against the slow words of FORMAT.md, their kernels on the
// execution model of tests/support/cuda_on_host.h against the host bodies, what is left alone, and
// that nothing is lost on average.
#include "tests/support/cuda_on_host.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "codecs/codec.h"
#include "codecs/residual/load_store.h"
#include "tests/codecs/fixture.h"

#include "codecs/residual/load_store.cu"

namespace slimwire::testing {
namespace {

constexpr ResidualType kTypes[] = {ResidualType::kFloat32, ResidualType::kBfloat16,
                                   ResidualType::kInt8};

// A store of `elems` elements that begins with zeros, with poison behind it.
struct Stored {
    ResidualType type;
    int64_t elems;
    std::vector<uint8_t> bytes;

    Stored(ResidualType of, int64_t count)
        : type(of), elems(count), bytes(stored_residual_bytes(of, count) + 64, 0) {
        std::fill(bytes.end() - 64, bytes.end(), uint8_t{0xA5});
    }
    StoredResiduals run(int64_t first) { return {bytes.data(), elems, first, type}; }
    std::vector<float> take(int64_t first, int64_t count) {
        std::vector<float> values(static_cast<size_t>(count));
        load_residual_on_host({.stored = run(first), .output = values.data(), .count = count});
        return values;
    }
    void put(int64_t first,
             const std::vector<float>& left,
             float keep,
             float take,
             const RandomKey& random) {
        store_residual_on_host({.stored = run(first),
                                .input = left.data(),
                                .count = static_cast<int64_t>(left.size()),
                                .keep = keep,
                                .take = take,
                                .random = random});
    }
};

float bfloat16_up(double x) {
    int exponent = 0;
    const double fraction = std::frexp(x, &exponent);
    return static_cast<float>(std::ldexp(std::ceil(std::ldexp(fraction, 8)), exponent - 8));
}

// The byte that element `i` of the tensor draws, by FORMAT.md.
uint32_t byte_of(int64_t i, const RandomKey& random) {
    uint32_t x[4] = {static_cast<uint32_t>(i / 16), 0, 0,
                     random.step + (random.step_ptr != nullptr ? *random.step_ptr : 0)};
    threefry(x, RandomWords{{random.seed, random.tensor, random.rank, 5}});
    return x[i % 16 / 4] >> (8 * (i % 4)) & 0xFF;
}

// What a run reads as after put: an oracle in doubles, from the values before.
std::vector<float> expected(ResidualType type,
                            const std::vector<float>& old,
                            const std::vector<float>& left,
                            float keep,
                            float take,
                            int64_t first,
                            const RandomKey& random) {
    std::vector<float> next(old.size());
    for (size_t i = 0; i < old.size(); ++i) {
        volatile float kept = keep * old[i], taken = take * left[i], sum = kept + taken;
        const bool same = std::memcmp(&old[i], &left[i], sizeof(float)) == 0;
        next[i] = same || !std::isfinite(sum) ? old[i] : static_cast<float>(sum);
    }
    if (type == ResidualType::kFloat32) {
        return next;
    }
    std::vector<float> stored = next;
    for (size_t begin = 0; begin < next.size(); begin += 64) {
        const size_t end = std::min(begin + 64, next.size());
        float largest = 0;
        for (size_t i = begin; i < end; ++i) {
            largest = std::max(largest, std::abs(next[i]));
        }
        if (std::memcmp(&next[begin], &old[begin], (end - begin) * sizeof(float)) == 0) {
            continue;
        }
        volatile float quotient = largest / 127.0f;
        const float scale =
            std::clamp(bfloat16_up(static_cast<double>(quotient)), 0x1p-126f, 0x1.02p121f);
        for (size_t i = begin; i < end; ++i) {
            const uint32_t byte = byte_of(first + static_cast<int64_t>(i), random);
            const double part = (2.0 * byte + 1) / 512;
            if (type == ResidualType::kInt8) {
                volatile float ratio = next[i] / scale;
                volatile float moved = ratio + static_cast<float>(part);
                const double code =
                    std::clamp(std::floor(static_cast<double>(moved)), -127.0, 127.0);
                stored[i] =
                    largest == 0 ? 0.0f : static_cast<float>(code * static_cast<double>(scale));
                continue;
            }
            // Steps of bf16 at |x|, subnormals included.
            int exponent = 0;
            (void)std::frexp(next[i], &exponent);
            const double step = std::ldexp(1.0, std::max(exponent - 8, -133));
            const double steps = std::abs(static_cast<double>(next[i])) / step;
            const double rounded = std::min(std::floor(steps + part) * step, 3.3895313892515355e38);
            stored[i] = std::copysign(static_cast<float>(rounded), next[i]);
        }
    }
    return stored;
}

class Feedback : public ::testing::Test {
  protected:
    void SetUp() override { cuda_on_host::Machine::get().seed(seed_); }

    // Gaussian, in blocks of different size, with zeros and extremes.
    std::vector<float> values(int64_t count) {
        std::normal_distribution<float> gaussian;
        std::vector<float> drawn(static_cast<size_t>(count));
        const float specials[] = {0.0f, -0.0f, 1e-40f, 3.4e38f, -3.4e38f, 1e-30f, 127.0f};
        for (size_t i = 0; i < drawn.size(); ++i) {
            drawn[i] = std::ldexp(gaussian(random_), static_cast<int>(i / 100 % 7) * 5 - 15);
            if (random_() % 19 == 0) {
                drawn[i] = specials[random_() % std::size(specials)];
            } else if (i / 64 % 5 == 3) {
                drawn[i] = 0.0f;
            }
        }
        return drawn;
    }
    RandomKey key() {
        ++steps_;
        return {.seed = seed_, .tensor = 7, .rank = 1, .step = 3, .step_ptr = &steps_};
    }

    uint32_t seed_ = test_seed();
    uint32_t steps_ = 0;
    std::mt19937 random_{seed_};
};

TEST_F(Feedback, HostAndKernelsEqualTheSlowWords) {
    for (const ResidualType type : kTypes) {
        for (const int64_t count : {1, 7, 63, 64, 65, 130, 255, 257, 1000}) {
            SCOPED_TRACE("type " + std::to_string(static_cast<int>(type)) + " count " +
                         std::to_string(count) + " seed " + std::to_string(seed_));
            const int64_t first = type == ResidualType::kFloat32 ? 3 : 128;
            const int64_t elems = first + (count + 63) / 64 * 64 + 64;
            Stored host(type, elems), kernel(type, elems);
            for (const auto& [keep, take] :
                 {std::pair(0.0f, 1.0f), {0.8f, 1.0f - 0.8f}, {1.0f, 1.0f}}) {
                const std::vector<float> old = host.take(first, count);
                std::vector<float> left = values(count);
                // What the encoder left alone, by blocks and one by one.
                for (size_t i = 0; i < left.size(); ++i) {
                    left[i] = i / 64 % 3 == 1 || i % 11 == 5 ? old[i] : left[i];
                }
                const RandomKey random = key();
                host.put(first, left, keep, take, random);
                const std::vector<float> now = host.take(first, count);
                const std::vector<float> wanted =
                    expected(type, old, left, keep, take, first, random);
                for (size_t i = 0; i < now.size(); ++i) {
                    ASSERT_EQ(now[i], wanted[i]) << "element " << i << " of " << left[i];
                    ASSERT_TRUE(std::isfinite(now[i]));
                }
                ASSERT_EQ(store_residual_on_cuda({.stored = kernel.run(first),
                                                  .input = left.data(),
                                                  .count = count,
                                                  .keep = keep,
                                                  .take = take,
                                                  .random = random},
                                                 nullptr),
                          cudaSuccess);
                ASSERT_EQ(kernel.bytes, host.bytes);
                std::vector<float> taken(now.size(), -1.0f);
                ASSERT_EQ(load_residual_on_cuda(
                              {.stored = kernel.run(first), .output = taken.data(), .count = count},
                              nullptr),
                          cudaSuccess);
                ASSERT_EQ(std::memcmp(taken.data(), now.data(), taken.size() * sizeof(float)), 0);
            }
        }
    }
}

// The nearest bf16, ties away from zero, in doubles.
float bfloat16_near(double x) {
    int exponent = 0;
    (void)std::frexp(x, &exponent);
    const double step = std::ldexp(1.0, std::max(exponent - 8, -133));
    const double rounded = std::min(std::floor(std::abs(x) / step + 0.5) * step, 0x1.fep127);
    return static_cast<float>(std::copysign(rounded, x));
}

TEST_F(Feedback, InOtherUnitsEveryValueIsTimesTheFactor) {
    for (const ResidualType type : kTypes) {
        for (const float factor :
             {2.0f, 0.5f, 0x1p15f, 0x1p-24f, 3.0f, 0.1f, 0x1p120f, 0x1p-120f}) {
            for (const int64_t elems : {64, 192, 4096}) {
                SCOPED_TRACE(::testing::Message()
                             << static_cast<int>(type) << " " << factor << " " << elems);
                Stored host(type, elems);
                host.put(0, values(elems), 0.0f, 1.0f, key());
                const std::vector<uint8_t> before = host.bytes;
                const std::vector<float> old = host.take(0, elems);
                rescale_residual_on_host({.stored = host.run(0), .factor = factor});
                const std::vector<float> now = host.take(0, elems);
                for (size_t i = 0; i < now.size(); ++i) {
                    const double exact = static_cast<double>(old[i]) * static_cast<double>(factor);
                    double wanted = std::clamp(exact, -0x1.fffffep127, 0x1.fffffep127);
                    if (type == ResidualType::kBfloat16) {
                        // The product is rounded to fp32 first.
                        wanted = static_cast<double>(
                            bfloat16_near(static_cast<double>(static_cast<float>(wanted))));
                    } else if (type == ResidualType::kInt8) {
                        const auto code = static_cast<int8_t>(before[i]);
                        uint16_t bits = 0;
                        std::memcpy(&bits, &before[static_cast<size_t>(elems) + i / 64 * 2], 2);
                        const auto scale = static_cast<double>(of_bfloat16_residual(bits));
                        const auto other = static_cast<float>(
                            std::clamp(scale * static_cast<double>(factor), 0.0, 0x1p127));
                        wanted = scale == 0 ? 0
                                            : code * std::clamp(static_cast<double>(bfloat16_near(
                                                                    static_cast<double>(other))),
                                                                0x1p-126, 0x1.02p121);
                    }
                    ASSERT_EQ(now[i], static_cast<float>(wanted))
                        << "element " << i << " " << old[i];
                }
                Stored kernel(type, elems);
                kernel.bytes = before;
                ASSERT_EQ(
                    rescale_residual_on_cuda({.stored = kernel.run(0), .factor = factor}, nullptr),
                    cudaSuccess);
                ASSERT_EQ(kernel.bytes, host.bytes);
            }
        }
    }
}

TEST_F(Feedback, WhatWasLeftAloneKeepsItsBytes) {
    for (const ResidualType type : kTypes) {
        Stored store(type, 640);
        store.put(0, values(600), 0.0f, 1.0f, key());
        for (const float keep : {0.0f, 0.8f}) {
            const std::vector<uint8_t> before = store.bytes;
            store.put(0, store.take(0, 600), keep, 1.0f - keep, key());
            EXPECT_EQ(store.bytes, before);
        }
    }
}

// The mean of many roundings is the value, within the noise of the draws: small elements beside
// large ones do not vanish. Draws differ by step and by place.
TEST_F(Feedback, NothingIsLostOnAverage) {
    constexpr int kTimes = 4000;
    for (const ResidualType type : {ResidualType::kBfloat16, ResidualType::kInt8}) {
        std::vector<float> left(64);
        for (size_t i = 0; i < left.size(); ++i) {
            left[i] = 0.001f * static_cast<float>(i) + 1.0f / 3;
        }
        left[0] = 100.0f;
        std::vector<double> sums(64);
        std::vector<float> first_time;
        for (int i = 0; i < kTimes; ++i) {
            Stored store(type, 64);
            store.put(0, left, 0.0f, 1.0f, key());
            const std::vector<float> now = store.take(0, 64);
            for (size_t k = 0; k < now.size(); ++k) {
                sums[k] += static_cast<double>(now[k]);
            }
        }
        const double step = type == ResidualType::kInt8 ? 100.0 / 127 : 1.0 / 512;
        for (size_t k = 1; k < sums.size(); ++k) {
            // Half a step is the standard deviation of one draw at most; bytes are 1/256 coarse.
            EXPECT_NEAR(sums[k] / kTimes, static_cast<double>(left[k]),
                        step * (5 * 0.5 / std::sqrt(kTimes) + 1.0 / 256));
        }
    }
}

// An encoder between taking and putting: blocks with a value that is not finite keep their bytes,
// and nothing else does.
TEST_F(Feedback, BlocksThatWereNotFiniteKeepTheirBytes) {
    constexpr int64_t kCount = 320;
    const CodecSpec codec = parse_codec("int4:block=64").value();
    for (const ResidualType type : {ResidualType::kBfloat16, ResidualType::kInt8}) {
        for (const float keep : {0.0f, 0.8f}) {
            Stored store(type, kCount);
            std::vector<float> x(kCount), residual;
            for (int step = 0; step < 4; ++step) {
                for (size_t i = 0; i < x.size(); ++i) {
                    x[i] = std::sin(static_cast<float>(i + 1) * 0.3f) + static_cast<float>(step);
                }
                x[70] = step == 2 ? NAN : x[70];
                x[200] = step == 2 ? -INFINITY : x[200];
                const std::vector<uint8_t> before = store.bytes;
                residual = store.take(0, kCount);
                Guarded encoded(slot_for(codec.encoded_bytes(DType::kFloat32, kCount)));
                EncodeArgs args{};
                args.input = x.data();
                args.output = encoded.data();
                args.residual = residual.data();
                args.scale = 1.0f;
                args.count = args.chunk_elems = kCount;
                args.slot_bytes = slot_for(codec.encoded_bytes(DType::kFloat32, kCount));
                args.params = codec.params;
                args.dtype = DType::kFloat32;
                codec.codec->host.encode(args);
                store.put(0, residual, keep, 1.0f - keep, key());
                const auto bytes = static_cast<int64_t>(stored_residual_bytes(type, 64) -
                                                        (type == ResidualType::kInt8 ? 2 : 0));
                for (int64_t block = 0; block < kCount / 64; ++block) {
                    const bool poisoned = step == 2 && (block == 1 || block == 3);
                    EXPECT_EQ(
                        std::memcmp(store.bytes.data() + block * bytes,
                                    before.data() + block * bytes, static_cast<size_t>(bytes)) == 0,
                        poisoned)
                        << "block " << block << " step " << step;
                }
                for (const float value : store.take(0, kCount)) {
                    ASSERT_TRUE(std::isfinite(value));
                }
            }
        }
    }
}

TEST_F(Feedback, BytesAnElement) {
    EXPECT_EQ(stored_residual_bytes(ResidualType::kFloat32, 6400), 4u * 6400);
    EXPECT_EQ(stored_residual_bytes(ResidualType::kBfloat16, 6400), 2u * 6400);
    EXPECT_EQ(stored_residual_bytes(ResidualType::kInt8, 6400), 6600u);
}

}  // namespace
}  // namespace slimwire::testing
