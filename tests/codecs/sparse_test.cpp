// What the sparsifiers promise beyond the contract: which elements are sent, that sent and kept are
// complementary, capacities, forms of the positions, linear sums, corrupt input.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "codecs/sparse.h"
#include "tests/codecs/fixture.h"

namespace slimwire::testing {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr DType kFp32 = DType::kFloat32;

class Sparse : public ::testing::Test {
  protected:
    void TearDown() override {
        for (const Isa isa : all_isas()) {
            ASSERT_TRUE(force_isa(isa).ok());  // the best one again
        }
    }
    // Runs `body` for each instruction set.
    template <class Body>
    void on_every_isa(Body body) {
        for (const Isa isa : all_isas()) {
            ASSERT_TRUE(force_isa(isa).ok());
            SCOPED_TRACE(std::string(isa_name(isa)) + " seed " + std::to_string(seed_));
            body();
        }
    }

    uint32_t seed_ = test_seed();
    std::mt19937 random_{seed_};
};

Guarded buffer_of(const std::vector<float>& values, DType dtype = kFp32) {
    Guarded buffer(static_cast<int64_t>(values.size() * dtype_bytes(dtype)));
    for (size_t i = 0; i < values.size(); ++i) {
        reference::set_element(buffer.data(), dtype, static_cast<int64_t>(i), values[i]);
    }
    return buffer;
}

std::vector<float> decoded_of(const CodecSpec& spec, const Encoded& encoded, int64_t count) {
    Guarded output(4 * count);
    decode(spec, kFp32, encoded.bytes.data(), count, output);
    return values_of(output, kFp32, count);
}

// What `values` decode to.
std::vector<float> sent_of(const CodecSpec& spec,
                           const std::vector<float>& values,
                           std::vector<float>* residual = nullptr) {
    const auto count = static_cast<int64_t>(values.size());
    return decoded_of(spec, encode(spec, kFp32, buffer_of(values), count, residual), count);
}

uint32_t word_of(const Encoded& encoded, int word) {
    uint32_t value = 0;
    std::memcpy(&value, encoded.bytes.data() + 4 * word, 4);
    return value;
}

bool decodes_corrupt(const CodecSpec& spec, const uint8_t* bytes, int64_t count) {
    uint32_t status = 0;
    Guarded output(4 * count);
    spec.codec->host.decode({.input = bytes,
                             .output = output.data(),
                             .count = count,
                             .chunk_elems = count,
                             .slot_bytes = slot_for(spec.encoded_bytes(kFp32, count)),
                             .params = spec.params,
                             .dtype = kFp32,
                             .accumulate = false,
                             .status = &status});
    EXPECT_TRUE(output.margins_intact());
    return status == kStatusCorrupt;
}

// Fractions that make every form of positions the cheapest for 3 * 65536 + 77 elements.
constexpr int64_t kFormCount = 3 * 65536 + 77;
constexpr std::pair<const char*, IndexForm> kForms[] = {
    {"0.3", IndexForm::kBitmap},
    {"0.01", IndexForm::kLocal8},
    {"0.001", IndexForm::kLocal16},
    {"0.1", IndexForm::kGaps},
};

TEST_F(Sparse, TiesGoToTheLowerPosition) {
    on_every_isa([&] {
        for (const char* text : {"topk:fraction=0.25", "blocktopk:block=16,kept=4"}) {
            const std::vector<float> values = {1, -2, 2, 1, -2, 2, 0, 2, 2, -2, 1, 2, 2, 2, 2, 2};
            const std::vector<float> expected = {0, -2, 2, 0, -2, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
            EXPECT_EQ(sent_of(spec_of(text), values), expected) << text;
        }
        std::vector<float> equal(20000, 3.0f);
        const std::vector<float> sent = sent_of(spec_of("topk:fraction=0.3"), equal);
        std::fill(equal.begin() + 6000, equal.end(), 0.0f);
        EXPECT_EQ(sent, equal);
    });
}

TEST_F(Sparse, TopKSendsExactlyTheLargestAndTellsTheSmallestOfThem) {
    on_every_isa([&] {
        for (const DType dtype : kFloatTypes) {
            const CodecSpec spec = spec_of("topk:fraction=0.02");
            const int64_t count = 30011;
            const Guarded input = random_input(dtype, count, 0.1, random_);
            std::vector<float> magnitudes = values_of(input, dtype, count);
            for (float& v : magnitudes) {
                v = std::abs(v);
            }
            std::sort(magnitudes.begin(), magnitudes.end(), std::greater<>());
            const Encoded encoded = encode(spec, dtype, input, count);
            EXPECT_EQ(word_of(encoded, 0), 600u);
            EXPECT_EQ(std::bit_cast<float>(word_of(encoded, 2)), magnitudes[599]);
            EXPECT_EQ(word_of(encoded, 1),
                      std::count_if(magnitudes.begin(), magnitudes.end(),
                                    [&](float v) { return v >= magnitudes[599]; }));
        }
    });
}

TEST_F(Sparse, ZerosAndMoreKeptThanThereAre) {
    on_every_isa([&] {
        for (const char* text :
             {"topk:fraction=1", "threshold:threshold=0,fraction=1", "blocktopk:block=16,kept=16",
              "rowtopk:row=37,kept=37", "randomk:fraction=1"}) {
            const CodecSpec spec = spec_of(text);
            for (const int64_t count : {1, 5, 100, 9000}) {
                EXPECT_EQ(sent_of(spec, std::vector<float>(static_cast<size_t>(count))),
                          std::vector<float>(static_cast<size_t>(count)));
                const Guarded input = random_input(kFp32, count, 1.0, random_);
                std::vector<float> residual(static_cast<size_t>(count));
                const Encoded encoded = encode(spec, kFp32, input, count, &residual);
                EXPECT_EQ(decoded_of(spec, encoded, count), values_of(input, kFp32, count)) << text;
                EXPECT_EQ(residual, std::vector<float>(static_cast<size_t>(count)));
            }
        }
    });
}

// What is sent and what is kept back are complementary: their sum is p, exactly.
TEST_F(Sparse, SentAndResidualAreComplementary) {
    on_every_isa([&] {
        for (const char* text : {"threshold:threshold=0.5,fraction=0.9",
                                 "threshold:threshold=0.5,fraction=0.2", "topk:fraction=0.05",
                                 "blocktopk", "rowtopk:row=100,kept=7", "randomk:fraction=0.1"}) {
            const CodecSpec spec = spec_of(text);
            const int64_t count = 10007;
            std::vector<float> p =
                values_of(random_input(kFp32, count, 1.0, random_), kFp32, count);
            p[17] = 0.5f;
            p[18] = std::nextafter(0.5f, 0.0f);
            std::vector<float> residual(p.size());
            const std::vector<float> sent = sent_of(spec, p, &residual);
            for (size_t i = 0; i < p.size(); ++i) {
                ASSERT_EQ(sent[i] + residual[i], p[i]) << text << " at " << i;
                ASSERT_TRUE(sent[i] == 0 || residual[i] == 0) << text << " at " << i;
            }
            if (spec.params.fraction == 0.9f) {
                EXPECT_EQ(sent[17], 0.5f);
                EXPECT_EQ(sent[18], 0.0f);
            }
        }
    });
}

TEST_F(Sparse, ThresholdStopsAtItsCapacityAndCountsAllSurvivors) {
    on_every_isa([&] {
        const CodecSpec spec = spec_of("threshold:threshold=2,fraction=0.1");
        std::vector<float> p(1000);
        for (size_t i = 0; i < p.size(); i += 3) {
            p[i] = -2.0f;
        }
        std::vector<float> residual(p.size());
        const Encoded encoded = encode(spec, kFp32, buffer_of(p), 1000, &residual);
        EXPECT_EQ(word_of(encoded, 0), 100u);
        EXPECT_EQ(word_of(encoded, 1), 334u);
        const std::vector<float> sent = decoded_of(spec, encoded, 1000);
        for (size_t i = 0; i < p.size(); ++i) {
            ASSERT_EQ(sent[i], i < 300 ? p[i] : 0);
            ASSERT_EQ(residual[i], i < 300 ? 0 : p[i]);
        }
    });
}

TEST_F(Sparse, ThresholdOfTheDevicePrevailsAndATopKEncodingProvidesOne) {
    on_every_isa([&] {
        const int64_t count = 5000;
        const Guarded input = random_input(kFp32, count, 1.0, random_);
        const CodecSpec top = spec_of("topk:fraction=0.05");
        const Encoded largest = encode(top, kFp32, input, count);
        float threshold = 0;
        std::memcpy(&threshold, largest.bytes.data() + 8, 4);
        const CodecSpec spec = spec_of("threshold:threshold=1e30,fraction=0.2");
        for (const float t : {threshold, kNan, -1.0f}) {
            Guarded output(slot_for(spec.encoded_bytes(kFp32, count)));
            spec.codec->host.encode({.input = input.data(),
                                     .output = output.data(),
                                     .residual = nullptr,
                                     .scale_ptr = nullptr,
                                     .scale = 1.0f,
                                     .count = count,
                                     .chunk_elems = count,
                                     .slot_bytes = output.size(),
                                     .params = spec.params,
                                     .dtype = kFp32,
                                     .threshold_ptr = &t});
            uint32_t header[2];
            std::memcpy(header, output.data(), 8);
            EXPECT_EQ(header[0], t == threshold ? 250u : 1000u);
            EXPECT_EQ(header[1], t == threshold ? 250u : 5000u);
        }
    });
}

TEST_F(Sparse, NonFiniteBeyondTheCapacityIsReportedInBand) {
    on_every_isa([&] {
        for (const char* values : {"native", "int8", "int4"}) {
            const CodecSpec spec =
                spec_of(std::string("threshold:threshold=1,fraction=0.01,values=") + values);
            for (const float special : {kNan, kInfinity, -kInfinity}) {
                std::vector<float> p(9000, 1.0f);
                p[8999] = special;
                std::vector<float> residual(p.size(), 0.25f);
                const std::vector<float> sent = sent_of(spec, p, &residual);
                EXPECT_TRUE(std::isnan(sent[0]));
                EXPECT_TRUE(std::all_of(sent.begin() + 1, sent.end(),
                                        [](float v) { return std::isfinite(v); }));
                EXPECT_EQ(residual[8999], 0.25f);
                EXPECT_EQ(residual[8998], 1.25f);
            }
        }
    });
}

TEST_F(Sparse, NonFiniteOutsideEveryDrawnRunMakesTheFirstValueNaN) {
    on_every_isa([&] {
        for (const char* values : {"native", "int8", "int4"}) {
            const CodecSpec spec = spec_of(std::string("randomk:fraction=0.05,values=") + values);
            const std::vector<float> clean(6400, 1.0f);
            const std::vector<float> drawn = sent_of(spec, clean);
            const auto at =
                static_cast<size_t>(std::find(drawn.begin(), drawn.end(), 0.0f) - drawn.begin());
            std::vector<float> p = clean;
            p[at] = kInfinity;
            std::vector<float> residual(p.size(), 0.5f);
            const std::vector<float> sent = sent_of(spec, p, &residual);
            const auto first = static_cast<size_t>(
                std::find_if(drawn.begin(), drawn.end(), [](float v) { return v != 0; }) -
                drawn.begin());
            EXPECT_TRUE(std::isnan(sent[first]));
            EXPECT_EQ(residual[first], 1.5f);  // as if it had not been sent
            EXPECT_EQ(residual[at], 0.5f);
        }
    });
}

TEST_F(Sparse, FormOfPositionsFollowsFromCountAndCapacity) {
    on_every_isa([&] {
        for (const auto& [fraction, form] : kForms) {
            for (const char* name : {"topk", "threshold"}) {
                const CodecSpec spec = spec_of(std::string(name) + ":fraction=" + fraction);
                const Guarded input = random_input(kFp32, kFormCount, 1.0, random_);
                const std::vector<float> p = values_of(input, kFp32, kFormCount);
                const Encoded encoded = encode(spec, kFp32, input, kFormCount);
                EXPECT_EQ(word_of(encoded, 3), static_cast<uint32_t>(form)) << fraction;
                if (std::string(name) == "topk") {  // the reference sorts
                    ASSERT_EQ(encoded.bytes.copy(encoded.size), *reference::encode(spec, p));
                }
                EXPECT_EQ(decoded_of(spec, encoded, kFormCount),
                          reference::decode(spec, encoded.bytes.data(), kFormCount));
                EXPECT_TRUE(
                    check_encoding(spec, kFp32, kFormCount, encoded.bytes.data(), encoded.size)
                        .ok());
            }
        }
    });
}

// Elements of few magnitudes over several spans of 8192, so that the cut of topk has more ties than
// it keeps and the capacity of threshold ends inside a span, with something non-finite behind.
TEST_F(Sparse, TiesAndCapacityEndInsideASpanOfHalfPrecisionElements) {
    constexpr int64_t kCount = 5 * 8192 + 300;
    for (const DType dtype : {DType::kBfloat16, DType::kFloat16}) {
        for (const int levels : {1, 2, 8, 1000}) {
            std::vector<float> p(kCount);
            for (float& x : p) {
                const auto level = static_cast<float>(random_() % static_cast<unsigned>(levels));
                x = (random_() % 2 == 0 ? 1.0f : -1.0f) * (1.0f + level / 8.0f);
            }
            p[3 * 8192 + 77] = kNan;
            p[kCount - 500] = -kInfinity;
            for (const char* text : {"topk:fraction=", "threshold:threshold=1.125,fraction="}) {
                for (const char* rest : {"0.01", "0.1", "0.3", "0.75", "0.001", "0.02,values=int8",
                                         "0.6,values=int4"}) {
                    const CodecSpec spec = spec_of(std::string(text) + rest);
                    const Guarded input = buffer_of(p, dtype);
                    const std::vector<float> exact = values_of(input, dtype, kCount);
                    const auto expected = reference::encode(spec, exact, {}, dtype);
                    on_every_isa([&] {
                        SCOPED_TRACE(spec.to_string() + " " + dtype_name(dtype) + " levels " +
                                     std::to_string(levels));
                        const Encoded encoded = encode(spec, dtype, input, kCount);
                        EXPECT_EQ(encoded.bytes.copy(encoded.size), *expected);
                    });
                }
            }
        }
    }
}

TEST_F(Sparse, WholeSegmentsAndLongGapsKeepTheirPositions) {
    on_every_isa([&] {
        for (const auto& [fraction, form] : kForms) {
            const CodecSpec spec =
                spec_of(std::string("threshold:threshold=1,fraction=") + fraction);
            const int64_t room = static_cast<int64_t>(spec.params.fraction * kFormCount);
            std::vector<float> p(kFormCount);
            for (int64_t i = 0; i < room / 2; ++i) {  // dense from the end, one at the beginning
                p[p.size() - 1 - static_cast<size_t>(i)] = 2.0f;
            }
            p[3] = -1.0f;
            const Encoded encoded = encode(spec, kFp32, buffer_of(p), kFormCount);
            EXPECT_EQ(encoded.bytes.copy(encoded.size), *reference::encode(spec, p));
            EXPECT_EQ(decoded_of(spec, encoded, kFormCount), p) << fraction;
        }
    });
}

TEST_F(Sparse, RandomRunsOfEqualSeedAndStepAddUp) {
    on_every_isa([&] {
        const CodecSpec spec = spec_of("randomk:fraction=0.1,seed=9");
        EXPECT_TRUE(spec.traits(kFp32).linear);
        const int64_t count = 3011;
        std::vector<float> total(static_cast<size_t>(count));
        std::vector<float> wire;
        Encoded sum = encode(spec, kFp32, random_input(kFp32, count, 1.0, random_), count);
        for (uint32_t rank = 0; rank < 3; ++rank) {
            const Guarded input = random_input(kFp32, count, 1.0, random_);
            const Encoded encoded = encode(spec, kFp32, input, count, nullptr, 1.0f, nullptr,
                                           {.seed = rank, .tensor = 5, .rank = rank, .step = 77});
            const std::vector<float> decoded = decoded_of(spec, encoded, count);
            if (rank == 0) {
                sum = encoded;
            }
            for (int64_t i = 0; i < count; ++i) {
                total[static_cast<size_t>(i)] += decoded[static_cast<size_t>(i)];
            }
            for (int64_t at = 16; rank > 0 && at < sum.size; at += 4) {
                reference::set_element(sum.bytes.data(), kFp32, at / 4,
                                       reference::element(sum.bytes.data(), kFp32, at / 4) +
                                           reference::element(encoded.bytes.data(), kFp32, at / 4));
            }
        }
        EXPECT_EQ(decoded_of(spec, sum, count), total);
        EXPECT_GT(std::count_if(total.begin(), total.end(), [](float v) { return v != 0; }), 250);
    });
}

TEST_F(Sparse, RandomRunsChangeWithSeedStepTensorAndChunkButNotWithRank) {
    const int64_t count = 20000;
    const std::vector<float> ones(static_cast<size_t>(count), 1.0f);
    const auto drawn = [&](const char* text, const RandomKey& key) {
        const CodecSpec spec = spec_of(text);
        return decoded_of(
            spec, encode(spec, kFp32, buffer_of(ones), count, nullptr, 1.0f, nullptr, key), count);
    };
    const RandomKey key = {.seed = 1, .tensor = 2, .rank = 3, .step = 4};
    const auto base = drawn("randomk:seed=1", key);
    EXPECT_EQ(drawn("randomk:seed=1", {.seed = 8, .tensor = 2, .rank = 9, .step = 4}), base);
    EXPECT_NE(drawn("randomk:seed=2", key), base);
    EXPECT_NE(drawn("randomk:seed=1", {.seed = 1, .tensor = 3, .rank = 3, .step = 4}), base);
    EXPECT_NE(drawn("randomk:seed=1", {.seed = 1, .tensor = 2, .rank = 3, .step = 5}), base);
    // Over many steps every element is sent about as often.
    std::vector<int> times(static_cast<size_t>(count) / 32);
    for (uint32_t step = 0; step < 600; ++step) {
        const auto sent = drawn("randomk:fraction=0.1", {.seed = 0, .tensor = 0, .step = step});
        for (size_t run = 0; run < times.size(); ++run) {
            times[run] += sent[run * 32] != 0 ? 1 : 0;
        }
    }
    EXPECT_GT(*std::min_element(times.begin(), times.end()), 25);
    EXPECT_LT(*std::max_element(times.begin(), times.end()), 110);
}

TEST_F(Sparse, SourcesWithOtherRunsAreNotAddedSilently) {
    on_every_isa([&] {
        const CodecSpec spec = spec_of("randomk:fraction=0.1");
        const int64_t count = 3200;
        const int64_t slot = slot_for(spec.encoded_bytes(kFp32, count));
        Guarded sources(2 * slot);
        for (uint32_t i = 0; i < 2; ++i) {
            const Encoded encoded = encode(spec, kFp32, random_input(kFp32, count, 1.0, random_),
                                           count, nullptr, 1.0f, nullptr, {.step = i});
            std::memcpy(sources.data() + i * slot, encoded.bytes.data(),
                        static_cast<size_t>(encoded.size));
        }
        uint32_t status = 0;
        Guarded output(slot);
        std::vector<float> residual(static_cast<size_t>(count), 0.5f);
        spec.codec->host.decode_reduce_encode({.input = sources.data(),
                                               .output = output.data(),
                                               .residual = residual.data(),
                                               .input_stride = slot,
                                               .count = count,
                                               .inputs = 2,
                                               .scale = 1.0f,
                                               .params = spec.params,
                                               .dtype = kFp32,
                                               .status = &status});
        EXPECT_EQ(status, kStatusCorrupt);
        Guarded decoded(4 * count);
        decode(spec, kFp32, output.data(), count, decoded);
        const std::vector<float> values = values_of(decoded, kFp32, count);
        EXPECT_EQ(std::count_if(values.begin(), values.end(), [](float v) { return v == v; }),
                  count - 320);
        EXPECT_EQ(residual, std::vector<float>(static_cast<size_t>(count), 0.5f));
    });
}

TEST_F(Sparse, CorruptTablesCountsAndPositionsAreReported) {
    struct Damage {
        const char* spec;
        int64_t at;  // byte; from the end when negative
        uint8_t value;
        const char* complaint;
    };
    // 20000 elements: three spans.
    const Damage damages[] = {
        {"topk:fraction=0.01", 1, 0xFF, "room for 200"},
        {"topk:fraction=0.01", 0, 199, "room for 200"},
        {"threshold:threshold=2,fraction=0.01", 12, 3, "header word 3"},
        {"topk:fraction=0.01", 13, 2, "header word 3"},
        {"topk:fraction=0.01", 17, 1, "do not ascend"},
        {"topk:fraction=0.01", 16 + 40 + 3, 1, "do not ascend"},
        {"topk:fraction=0.01", 16 + 8, 255, "exceed"},
        {"topk:fraction=0.01", 16 + 4, 255, "counts exceed"},
        {"topk:fraction=0.3", 32, 0, "number of ones"},
        {"topk:fraction=0.3", 32 + 2499, 0xFF, "number of ones"},
        {"blocktopk:block=64,kept=4", 3, 0, "group 0: positions do not ascend"},
        {"blocktopk:block=64,kept=4", 4, 64, "group 1: positions do not ascend or leave"},
        {"rowtopk:row=500,kept=2", 3, 0xFF, "group 0"},
        {"blocktopk:block=16,kept=9", 0, 0, "number of ones"},
        {"randomk", 12, 1, "header word 3"},
    };
    on_every_isa([&] {
        const int64_t count = 20000;
        std::mt19937 same(1);  // the damage must differ from what was there
        const Guarded input = random_input(kFp32, count, 1.0, same);
        for (const Damage& damage : damages) {
            SCOPED_TRACE(std::string(damage.spec) + " byte " + std::to_string(damage.at));
            const CodecSpec spec = spec_of(damage.spec);
            Encoded encoded = encode(spec, kFp32, input, count);
            const auto check = [&](int64_t size) {
                return check_encoding(spec, kFp32, count, encoded.bytes.data(), size);
            };
            ASSERT_TRUE(check(encoded.size).ok()) << check(encoded.size).status().message();
            EXPECT_FALSE(decodes_corrupt(spec, encoded.bytes.data(), count));
            EXPECT_NE(check(encoded.size - 1).status().message().find("truncated"),
                      std::string::npos);
            encoded.bytes.data()[damage.at] = damage.value;
            ASSERT_FALSE(check(encoded.size).ok());
            EXPECT_NE(check(encoded.size).status().message().find(damage.complaint),
                      std::string::npos)
                << check(encoded.size).status().message();
            EXPECT_TRUE(std::string(damage.complaint) == "room for 200" && damage.at == 0
                            ? true
                            : decodes_corrupt(spec, encoded.bytes.data(), count));
        }
    });
}

// Whatever passes check() decodes without complaint, and what does not stays inside the output.
TEST_F(Sparse, DamagedBytesPassTheCheckOnlyIfTheyDecodeCleanly) {
    on_every_isa([&] {
        for (const char* text :
             {"topk:fraction=0.01", "topk:fraction=0.001", "topk:fraction=0.1", "topk:fraction=0.3",
              "threshold:threshold=2.5,fraction=0.02", "blocktopk:block=32,kept=3,values=int4",
              "rowtopk:row=1000,kept=5", "blocktopk:block=16,kept=7", "randomk"}) {
            const CodecSpec spec = spec_of(text);
            const int64_t count = 70001;
            const Encoded clean =
                encode(spec, kFp32, random_input(kFp32, count, 1.0, random_), count);
            for (int round = 0; round < 60; ++round) {
                Encoded damaged = clean;
                const int64_t reach =
                    round % 2 == 0 ? std::min<int64_t>(clean.size, 400) : clean.size;
                for (int hit = 0; hit <= round % 3; ++hit) {
                    damaged.bytes.data()[random_() % static_cast<uint64_t>(reach)] ^=
                        static_cast<uint8_t>(1u << random_() % 8);
                }
                const bool passes =
                    check_encoding(spec, kFp32, count, damaged.bytes.data(), damaged.size).ok();
                const bool corrupt = decodes_corrupt(spec, damaged.bytes.data(), count);
                ASSERT_FALSE(passes && corrupt) << text << " seed " << seed_;
            }
        }
    });
}

TEST_F(Sparse, IntegerValuesAreBlockIntegersOfTheSentElements) {
    on_every_isa([&] {
        const int64_t count = 6400;
        const Guarded input = random_input(kFp32, count, 1.0, random_);
        const std::vector<float> p = values_of(input, kFp32, count);
        for (const char* integers : {"int8", "int4"}) {
            const CodecSpec native = spec_of("blocktopk:block=64,kept=3");
            const CodecSpec spec =
                spec_of(std::string("blocktopk:block=64,kept=3,values=") + integers);
            const std::vector<float> exact = sent_of(native, p);
            std::vector<float> packed;
            for (const float v : exact) {
                if (v != 0) {
                    packed.push_back(v);
                }
            }
            ASSERT_EQ(packed.size(), 300u);
            const CodecSpec blocks = spec_of(integers);
            const Encoded encoded = encode(blocks, kFp32, buffer_of(packed), 300);
            const std::vector<float> expected = decoded_of(blocks, encoded, 300);
            size_t next = 0;
            const std::vector<float> sent = sent_of(spec, p);
            for (size_t i = 0; i < p.size(); ++i) {
                ASSERT_EQ(sent[i], exact[i] != 0 ? expected[next++] : 0.0f);
            }
        }
    });
}

TEST(SparseSpec, SizesAreThoseOfTheFormat) {
    // 16 header, 40 * 2 table, 100 positions at 96 (up to 208), 100 bf16.
    EXPECT_EQ(spec_of("topk").encoded_bytes(DType::kBfloat16, 10000), 208 + 200);
    // One block of 128 kept: 128 bytes of positions, two blocks of codes, two scales.
    EXPECT_EQ(spec_of("blocktopk:kept=2,values=int8").encoded_bytes(DType::kBfloat16, 64 * 128),
              128 + 128 + 4);
    EXPECT_EQ(spec_of("randomk:fraction=0.01").encoded_bytes(DType::kFloat32, 32 * 1000),
              16 + 10 * 32 * 4);
    EXPECT_EQ(spec_of("threshold").encoded_bytes(DType::kFloat32, 0), 0);
    EXPECT_EQ(spec_of("rowtopk").granule(DType::kFloat32), 1024);
}

TEST(SparseSpec, ErrorsNameTheRange) {
    const std::pair<const char*, std::vector<const char*>> cases[] = {
        {"topk:fraction=0", {"fraction=0", "0.000001 to 1"}},
        {"topk:fraction=1.5", {"fraction=1.5"}},
        {"topk:fraction=nan", {"fraction=nan"}},
        {"topk:kept=3", {"unknown parameter \"kept\"", "fraction = a decimal"}},
        {"topk:values=int2", {"values=int2", "native, int8 or int4"}},
        {"blocktopk:block=16,kept=17", {"kept=17", "from 1 to 16", "block"}},
        {"rowtopk:row=8", {"kept=16", "from 1 to 8", "row"}},
        {"rowtopk:row=16385", {"row=16385", "2 to 16384"}},
        {"threshold:threshold=-1", {"threshold=-1", "0 to 3.4e38"}},
        {"randomk:seed=4294967296", {"seed=4294967296", "below 2^32"}},
    };
    for (const auto& [text, parts] : cases) {
        const auto spec = parse_codec(text);
        ASSERT_FALSE(spec.ok()) << text;
        for (const char* part : parts) {
            EXPECT_NE(spec.status().message().find(part), std::string::npos)
                << text << " -> " << spec.status().message() << " lacks " << part;
        }
    }
    EXPECT_EQ(spec_of("rowtopk:kept=2,row=8").to_string(), "rowtopk:row=8,kept=2");
    EXPECT_EQ(spec_of("topk:fraction=0.010").to_string(), "topk");
}

}  // namespace
}  // namespace slimwire::testing
