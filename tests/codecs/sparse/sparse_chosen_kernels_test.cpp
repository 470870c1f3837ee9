// The encoders of topk and threshold, whose thread blocks pass tickets, counts and sums to one
// another in one launch: their sources, run on the host by the execution model of
// tests/support/cuda_on_host.h, equal the host bodies to the byte where that could go wrong.
#include "tests/support/cuda_on_host.h"

#include <algorithm>
#include <cstring>

#include "tests/codecs/fixture.h"

#include "codecs/sparse/masked_values.cu"
#include "codecs/sparse/masked_values.h"
#include "codecs/sparse/sparse_chosen.cu"

namespace slimwire::testing {
namespace {

// More than kSampledElems: topk draws a sample and lists candidates.
constexpr int64_t kSampled = kSampledElems + 3 * kSparseSpan + 77;

class ChosenKernels : public ::testing::Test {
  protected:
    // The plainest host body is the measure.
    void SetUp() override {
        cuda_on_host::Machine::get().seed(seed_);
        ASSERT_TRUE(force_isa(Isa::kScalar).ok());
    }

    // Encodes `input` by both, the kernel in one launch under a fresh nonce, or `nonce`.
    void expect_same(const CodecSpec& spec,
                     DType dtype,
                     const Guarded& input,
                     int64_t count,
                     int64_t chunk,
                     bool residual,
                     const float* threshold = nullptr,
                     uint64_t nonce = 0) {
        SCOPED_TRACE(spec.to_string() + " " + dtype_name(dtype) + " count " +
                     std::to_string(count) + " chunk " + std::to_string(chunk) + " residual " +
                     std::to_string(residual) + " seed " + std::to_string(seed_));
        const bool top = std::string(spec.codec->name) == "topk";
        const int64_t slot = slot_for(spec.encoded_bytes(dtype, chunk));
        const int64_t chunks = (count + chunk - 1) / chunk;
        Guarded expected(chunks * slot);
        Guarded encoded(chunks * slot);
        std::vector<float> expected_left(static_cast<size_t>(count), 0.125f);
        std::vector<float> left = expected_left;
        EncodeArgs args = encode_args(spec, dtype, count, input.data(), expected.data());
        args.residual = residual ? expected_left.data() : nullptr;
        args.chunk_elems = chunk;
        args.slot_bytes = slot;
        args.max_blocks = max_blocks_;
        args.threshold_ptr = threshold;
        spec.codec->host.encode(args);
        args.output = encoded.data();
        args.residual = residual ? left.data() : nullptr;
        const int64_t bytes =
            top ? SparseCuda<SparseKind::kTopK>::workspace_bytes(spec.params, dtype, count, chunk)
                : SparseCuda<SparseKind::kThreshold>::workspace_bytes(spec.params, dtype, count,
                                                                      chunk);
        args.workspace = workspace_of(bytes);
        nonce = nonce == 0 ? next_nonce() : nonce;
        const int64_t launches = cuda_on_host::Machine::get().launches();
        ASSERT_EQ(top ? launch_chosen<SparseKind::kTopK>(args, nonce, nullptr)
                      : launch_chosen<SparseKind::kThreshold>(args, nonce, nullptr),
                  cudaSuccess);
        ASSERT_EQ(cuda_on_host::Machine::get().launches(), launches + 1);
        ASSERT_TRUE(encoded.copy(encoded.size()) == expected.copy(expected.size()));
        ASSERT_TRUE(encoded.margins_intact() && workspace_->margins_intact());
        ASSERT_EQ(std::memcmp(left.data(), expected_left.data(), left.size() * sizeof(float)), 0);
    }

    // The same one as long as its size is the same; it holds anything at first.
    void* workspace_of(int64_t bytes) {
        if (workspace_ == nullptr || workspace_->size() != bytes) {
            workspace_ = std::make_unique<Guarded>(bytes);
            for (int64_t i = 0; i < bytes; ++i) {
                workspace_->data()[i] = static_cast<uint8_t>(random_());
            }
        }
        return workspace_->data();
    }

    // Gaussian, with a factor that depends on the place.
    template <class Factor>
    Guarded input_of(DType dtype, int64_t count, Factor factor) {
        Guarded input = random_input(dtype, count, 1.0, random_);
        const std::vector<float> values = values_of(input, dtype, count);
        for (int64_t i = 0; i < count; ++i) {
            reference::set_element(input.data(), dtype, i,
                                   values[static_cast<size_t>(i)] * factor(i));
        }
        return input;
    }
    Guarded gaussian(DType dtype, int64_t count) {
        return input_of(dtype, count, [](int64_t) { return 1.0f; });
    }

    uint32_t seed_ = test_seed();
    std::mt19937 random_{seed_};
    int32_t max_blocks_ = 0;
    std::unique_ptr<Guarded> workspace_;
};

// However few thread blocks there are, none waits for what only a later one would bring.
TEST_F(ChosenKernels, EveryNumberOfThreadBlocksEqualsTheHostBodies) {
    const int64_t count = 4 * kSparseSpan + 1000;
    for (const char* text : {"topk:fraction=0.02", "topk:fraction=0.3,values=int4",
                             "threshold:threshold=2,fraction=0.04,values=int8",
                             "threshold:threshold=1.5,fraction=0.1"}) {
        for (const int32_t blocks : {1, 2, 3, 5, 32}) {
            if (!sampled(random_)) {
                continue;
            }
            max_blocks_ = blocks;
            const Guarded input = gaussian(DType::kBfloat16, count);
            expect_same(spec_of(text), DType::kBfloat16, input, count, count, false);
            expect_same(spec_of(text), DType::kBfloat16, input, count, kSparseSpan + 512, true);
            ASSERT_FALSE(HasFailure());
        }
    }
}

// A graph replays a launch with the numbers it was captured with, in the workspace it left.
TEST_F(ChosenKernels, TheSameLaunchMayRunAgain) {
    const int64_t count = 5 * kSparseSpan;
    const uint64_t nonce = next_nonce();
    for (const char* text : {"topk:fraction=0.02,values=int8", "threshold:threshold=1,values=int8",
                             "threshold:threshold=2,fraction=0.2"}) {
        for (int run = 0; run < 3; ++run) {
            const Guarded input = input_of(DType::kFloat32, count, [&](int64_t i) {
                return run == 1 && i % 977 == 0 ? INFINITY : 1.0f + static_cast<float>(run);
            });
            expect_same(spec_of(text), DType::kFloat32, input, count, count, true, nullptr, nonce);
            ASSERT_FALSE(HasFailure());
        }
    }
}

// The guess of a cut is too high, the lists of candidates are too short, or all is well.
TEST_F(ChosenKernels, SamplesThatMisleadAndListsWithoutRoom) {
    const int64_t step = kSampled / kSampleEights / 8 * 8;
    for (const DType dtype : {DType::kBfloat16, DType::kFloat32}) {
        for (const char* text :
             {"topk:fraction=0.1", "topk:fraction=0.01", "topk:fraction=0.00001"}) {
            if (!sampled(random_)) {
                continue;
            }
            const CodecSpec spec = spec_of(text);
            const Guarded sampled_ones =
                input_of(dtype, kSampled, [&](int64_t i) { return i % step < 2 ? 1000.0f : 1.0f; });
            expect_same(spec, dtype, sampled_ones, kSampled, kSampled, false);
            const Guarded crowded = input_of(
                dtype, kSampled, [](int64_t i) { return i / kPartElems == 3 ? 1000.0f : 1.0f; });
            expect_same(spec, dtype, crowded, kSampled, kSampled, random_() % 2 == 0);
            const Guarded even = gaussian(dtype, kSampled);
            expect_same(spec, dtype, even, kSampled, kSampled, random_() % 2 == 0);
            ASSERT_FALSE(HasFailure());
        }
    }
}

// All elements equal: ties from the first to the last; all zero; nothing that survives.
TEST_F(ChosenKernels, TiesZerosAndNothing) {
    const int64_t count = 3 * kSparseSpan + 41;
    for (const DType dtype : kFloatTypes) {
        for (const float value : {1.0f, 0.0f}) {
            Guarded input(count * static_cast<int64_t>(dtype_bytes(dtype)));
            for (int64_t i = 0; i < count; ++i) {
                reference::set_element(input.data(), dtype, i, value);
            }
            for (const char* text :
                 {"topk:fraction=0.4", "topk:fraction=0.01,values=int8", "topk:fraction=1",
                  "threshold:threshold=0,fraction=0.5", "threshold:threshold=1,fraction=0.1",
                  "threshold:threshold=5,fraction=0.2,values=int4"}) {
                if (!sampled(random_)) {
                    continue;
                }
                expect_same(spec_of(text), dtype, input, count, count, random_() % 2 == 0);
                ASSERT_FALSE(HasFailure());
            }
        }
    }
}

// More NaN than find room: the cut is NaN, and infinities below it neither enter a residual.
TEST_F(ChosenKernels, ACutAmongNaN) {
    const int64_t count = kSparseSpan + 300;
    for (const DType dtype : kFloatTypes) {
        const Guarded input = input_of(dtype, count, [](int64_t i) {
            return i % 3 == 0 ? NAN : i % 3 == 1 ? INFINITY : 1.0f;
        });
        for (const char* text : {"topk:fraction=0.1", "topk:fraction=0.5", "topk:fraction=0.9",
                                 "topk:fraction=0.2,values=int8", "threshold:fraction=0.2"}) {
            expect_same(spec_of(text), dtype, input, count, count, true);
            expect_same(spec_of(text), dtype, input, count, count, false);
            ASSERT_FALSE(HasFailure());
        }
    }
}

// Elements whose address is no multiple of 16.
TEST_F(ChosenKernels, AnyAlignment) {
    const int64_t count = 2 * kSparseSpan + 9;
    for (const int64_t shift : {1, 3, 7}) {
        const Guarded input = random_input(DType::kFloat16, count, 1.0, random_, 2 * shift);
        expect_same(spec_of("topk:fraction=0.02"), DType::kFloat16, input, count, count, false);
        expect_same(spec_of("threshold:threshold=2,fraction=0.2"), DType::kFloat16, input, count,
                    count, false);
        ASSERT_FALSE(HasFailure());
    }
}

TEST_F(ChosenKernels, ThresholdOfTheDevicePrevails) {
    const CodecSpec spec = spec_of("threshold:threshold=1e30,fraction=0.2");
    for (const float threshold : {1.75f, -1.0f, NAN, 0.0f, INFINITY}) {
        for (const DType dtype : kFloatTypes) {
            const int64_t count = 5000;
            expect_same(spec, dtype, gaussian(dtype, count), count, count, true, &threshold);
            expect_same(spec, dtype, gaussian(dtype, count), count, count, false, &threshold);
            ASSERT_FALSE(HasFailure());
        }
    }
}

// An answer: the values at the positions of an encoding, zero elsewhere, and nothing where the
// receiver does not hold that one. Host bodies and kernels to the byte.
class MaskedValues : public ChosenKernels {
  protected:
    static constexpr uint32_t kNumber = 7;

    // An encoding of other elements, and the answer of `gradient` to it by both.
    void make(const char* codec, DType dtype, int64_t count, const char* fraction) {
        spec_ = spec_of(std::string(codec) + ":pair=mask,fraction=" + fraction);
        dtype_ = dtype;
        count_ = count;
        frame_ = MaskedFrame::of(spec_.params, dtype, count);
        infinite_ = random_() % 3 == 0;
        const Guarded forward = gaussian(dtype, count);
        gradient_ = std::make_unique<Guarded>(input_of(dtype, count, [&](int64_t i) {
            return infinite_ && i == count / 2 ? INFINITY : 1.0f;
        }));
        Guarded sent(frame_.bytes);
        EncodeArgs to_encode = encode_args(spec_, dtype, count, forward.data(), sent.data());
        to_encode.slot_bytes = slot_for(frame_.bytes);
        spec_.codec->host.encode(to_encode);
        kept_ = decoded(sent);
        mask_ = std::make_unique<Guarded>(frame_.mask_bytes());
        std::memcpy(mask_->data(), sent.data(), static_cast<size_t>(mask_->size()));
    }
    std::vector<float> decoded(const Guarded& encoding) {
        Guarded output(count_ * static_cast<int64_t>(dtype_bytes(dtype_)));
        uint32_t status = 0;
        DecodeArgs to_decode = decode_args(spec_, dtype_, count_, encoding.data(), output.data());
        to_decode.slot_bytes = slot_for(frame_.bytes);
        to_decode.status = &status;
        spec_.codec->host.decode(to_decode);
        EXPECT_EQ(status, 0u);
        return values_of(output, dtype_, count_);
    }
    // The answer, by both; `mask`: null for none.
    void gather(const void* mask) {
        Guarded expected(frame_.bytes);
        answer_ = std::make_unique<Guarded>(frame_.bytes);
        std::memset(expected.data(), 0, static_cast<size_t>(frame_.bytes));
        std::memset(answer_->data(), 0, static_cast<size_t>(frame_.bytes));
        GatherMaskedArgs args{
            mask, gradient_->data(), expected.data(), count_, spec_.params, dtype_, kNumber};
        gather_masked_on_host(args);
        args.frame = answer_->data();
        ASSERT_EQ(gather_masked_on_cuda(args, nullptr), cudaSuccess);
        ASSERT_TRUE(answer_->copy(frame_.bytes) == expected.copy(frame_.bytes));
        ASSERT_TRUE(answer_->margins_intact() && expected.margins_intact());
    }
    // By a receiver that holds this one, and another.
    void join(uint32_t held) {
        Guarded joined(frame_.bytes), by_kernel(frame_.bytes);
        const Guarded other(frame_.mask_bytes());
        uint32_t misses[2] = {};
        JoinMaskedArgs args{joined.data(), &misses[0], count_, spec_.params, dtype_, 2, {}, {}};
        args.numbers[0] = 1000;
        args.masks[0] = other.data();
        args.numbers[1] = held;
        args.masks[1] = mask_->data();
        std::memcpy(joined.data(), answer_->data(), static_cast<size_t>(frame_.bytes));
        std::memcpy(by_kernel.data(), answer_->data(), static_cast<size_t>(frame_.bytes));
        join_masked_on_host(args);
        args.frame = by_kernel.data();
        args.misses = &misses[1];
        ASSERT_EQ(join_masked_on_cuda(args, nullptr), cudaSuccess);
        ASSERT_TRUE(joined.copy(frame_.bytes) == by_kernel.copy(frame_.bytes));
        ASSERT_TRUE(by_kernel.margins_intact());
        EXPECT_EQ(misses[0], held == kNumber ? 0u : 1u);
        EXPECT_EQ(misses[1], misses[0]);
        const std::vector<float> got = decoded(joined);
        const std::vector<float> all = values_of(*gradient_, dtype_, count_);
        const auto nan = std::find_if(got.begin(), got.end(), [](float x) { return x != x; });
        EXPECT_EQ(nan != got.end(), infinite_);
        const auto told = static_cast<size_t>(nan - got.begin());
        EXPECT_TRUE(!infinite_ || told == 0 || frame_.plan.kind == SparseKind::kRuns);
        for (size_t i = 0; i < got.size(); ++i) {
            if (i != told) {
                ASSERT_EQ(got[i], held == kNumber && kept_[i] != 0 ? all[i] : 0.0f) << i;
            }
        }
    }

    CodecSpec spec_;
    DType dtype_ = DType::kFloat32;
    int64_t count_ = 0;
    MaskedFrame frame_ = {};
    bool infinite_ = false;
    std::vector<float> kept_;  // of the encoding
    std::unique_ptr<Guarded> mask_, gradient_, answer_;
};

TEST_F(MaskedValues, AreThoseAtThePositionsOfAnEncoding) {
    const std::pair<int64_t, const char*> cases[] = {{1, "1"},
                                                     {300, "0.05"},
                                                     {kSparseSpan + 17, "0.3"},
                                                     {kSparseSpan, "1"},
                                                     {3 * kSparseSpan + 5, "0.1"},
                                                     {2 * kSparseWide + 77, "0.05"},
                                                     {kSparseWide + 77, "0.001"}};
    for (const char* codec : {"topk", "randomk"}) {
        for (const auto& [count, fraction] : cases) {
            for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBfloat16}) {
                SCOPED_TRACE(std::string(codec) + " " + fraction + " of " + std::to_string(count) +
                             " " + dtype_name(dtype) + " seed " + std::to_string(seed_));
                make(codec, dtype, count, fraction);
                gather(mask_->data());
                join(kNumber);
                join(kNumber + 1);
                gather(nullptr);  // no value is sent
                MaskTrailer trailer;
                std::memcpy(&trailer, answer_->data() + frame_.trailer, sizeof(trailer));
                EXPECT_EQ(trailer.number, kNoMask);
                EXPECT_EQ(trailer.non_finite != 0, infinite_);
                ASSERT_FALSE(HasFailure());
            }
        }
    }
}

}  // namespace
}  // namespace slimwire::testing
