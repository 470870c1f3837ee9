// The kernel sources of the sparsifiers, run on the host by the execution model of
// tests/support/cuda_on_host.h, equal the host bodies to the byte: encodings, residuals, decoded
// elements and the status, also of damaged bytes, in one launch and in two. What topk and threshold
// alone have: sparse_chosen_kernels_test.cpp.
#include "tests/support/cuda_on_host.h"

#include <algorithm>
#include <cstring>

#include "tests/codecs/fixture.h"

#include "codecs/sparse/sparse_chosen.cu"
#include "codecs/sparse/sparse_groups.cu"
#include "codecs/sparse/sparse_runs.cu"

namespace slimwire::testing {
namespace {

struct Kernels {
    CudaOps ops;
    int64_t (*workspace_bytes)(const CodecParams&, DType, int64_t, int64_t);
};

Kernels kernels_of(const CodecSpec& spec) {
    const std::string name = spec.codec->name;
    const auto chosen = [](auto of) {
        return Kernels{{of.encode, of.decode, nullptr}, of.workspace_bytes};
    };
    if (name == "topk") {
        return chosen(SparseCuda<SparseKind::kTopK>{});
    }
    if (name == "threshold") {
        return chosen(SparseCuda<SparseKind::kThreshold>{});
    }
    if (name == "randomk") {
        return {SparseCuda<SparseKind::kRuns>::kOps, nullptr};
    }
    using Groups = SparseCuda<SparseKind::kGroups>;
    return {Groups::kOps, Groups::workspace_bytes};
}

// Elements of one launch and of several, and a count for each.
constexpr int64_t kLarge = 2 * 65536 + 8192 + 77;

class SparseKernels : public ::testing::Test {
  protected:
    void SetUp() override { cuda_on_host::Machine::get().seed(seed_); }

    // Gaussian, many of them equal, some zero; `hostile`: with what is not finite, here and there.
    Guarded input_of(DType dtype, int64_t count, bool hostile) {
        const auto element_bytes = static_cast<int64_t>(dtype_bytes(dtype));
        Guarded input = random_input(dtype, count, 1.0, random_, hostile ? element_bytes : 0);
        for (int64_t i = 0; i < count; ++i) {
            if (random_() % 5 == 0) {
                reference::set_element(input.data(), dtype, i, random_() % 2 == 0 ? 2.0f : -1.0f);
            } else if (hostile && random_() % 3000 == 0) {
                const float specials[] = {INFINITY, -INFINITY, NAN, 1e-40f, 3.4e38f, 65519.0f};
                reference::set_element(input.data(), dtype, i, specials[random_() % 6]);
            } else if (hostile && i / 3000 % 4 == 1) {
                reference::set_element(input.data(), dtype, i, 0.0f);
            }
        }
        return input;
    }

    // The workspace holds anything before.
    uint8_t* workspace_for(int64_t bytes) {
        workspace_.resize(static_cast<size_t>(bytes / 8 + 2));
        for (uint64_t& word : workspace_) {
            word = random_() * 0x100000001ull;
        }
        auto* begin = reinterpret_cast<uint8_t*>(workspace_.data());
        return begin + (16 - reinterpret_cast<uintptr_t>(begin) % 16) % 16;
    }

    void compare(const CodecSpec& spec, DType dtype, int64_t count, int64_t chunk, bool hostile) {
        SCOPED_TRACE(spec.to_string() + " " + dtype_name(dtype) + " count " +
                     std::to_string(count) + " chunk " + std::to_string(chunk) + " hostile " +
                     std::to_string(hostile) + " seed " + std::to_string(seed_));
        const Kernels kernels = kernels_of(spec);
        const Guarded input = input_of(dtype, count, hostile);
        const int64_t chunks = (count + chunk - 1) / chunk;
        const int64_t slot = slot_for(spec.encoded_bytes(dtype, chunk));
        Guarded expected(chunks * slot);
        Guarded encoded(chunks * slot);
        std::vector<float> residual(static_cast<size_t>(count), 0.25f);
        std::vector<float> expected_residual = residual;
        const bool one_way = hostile || count % 2 == 1;
        EncodeArgs args = encode_args(spec, dtype, count, input.data(), expected.data());
        args.residual = one_way ? expected_residual.data() : nullptr;
        args.scale = one_way ? 0.5f : 1.0f;
        args.chunk_elems = chunk;
        args.slot_bytes = slot;
        args.random = {.seed = 1, .tensor = 9, .rank = 2, .step = seed_};
        args.max_blocks = static_cast<int32_t>(random_() % 6);
        spec.codec->host.encode(args);
        args.output = encoded.data();
        args.residual = one_way ? residual.data() : nullptr;
        args.workspace =
            workspace_for(kernels.workspace_bytes == nullptr
                              ? 0
                              : kernels.workspace_bytes(spec.params, dtype, count, chunk));
        ASSERT_EQ(kernels.ops.encode(args, nullptr), cudaSuccess);
        ASSERT_TRUE(encoded.copy(encoded.size()) == expected.copy(expected.size()));
        ASSERT_TRUE(encoded.margins_intact());
        ASSERT_EQ(
            std::memcmp(residual.data(), expected_residual.data(), residual.size() * sizeof(float)),
            0);
        for (int damage = 0; damage < 3; ++damage) {
            for (int hit = 0; hit < damage * 3; ++hit) {
                encoded.data()[random_() %
                               static_cast<uint64_t>(
                                   hit % 2 == 0 ? encoded.size() : std::min<int64_t>(slot, 200))] ^=
                    static_cast<uint8_t>(1u << random_() % 8);
            }
            decode_both(spec, kernels, dtype, count, chunk, slot, encoded, input, damage % 2 == 1);
        }
    }

    void decode_both(const CodecSpec& spec,
                     const Kernels& kernels,
                     DType dtype,
                     int64_t count,
                     int64_t chunk,
                     int64_t slot,
                     const Guarded& encoded,
                     const Guarded& input,
                     bool accumulate) {
        Guarded host_output = input;
        Guarded output(input.size(), static_cast<int64_t>(dtype_bytes(dtype)));
        std::memcpy(output.data(), input.data(), static_cast<size_t>(input.size()));
        uint32_t host_status = 0;
        uint32_t status = 0;
        DecodeArgs back = decode_args(spec, dtype, count, encoded.data(), host_output.data());
        back.chunk_elems = chunk;
        back.slot_bytes = slot;
        back.accumulate = accumulate;
        back.scale = spec.sums() ? 1.0f : 0.3f;
        back.status = &host_status;
        spec.codec->host.decode(back);
        back.output = output.data();
        back.status = &status;
        ASSERT_EQ(kernels.ops.decode(back, nullptr), cudaSuccess);
        ASSERT_TRUE(output.copy(output.size()) == host_output.copy(host_output.size()));
        ASSERT_TRUE(output.margins_intact());
        ASSERT_EQ(status, host_status);
    }

    uint32_t seed_ = test_seed();
    std::mt19937 random_{seed_};
    std::vector<uint64_t> workspace_;
};

// Small messages, each chunk a thread block: ragged sizes, all types.
TEST_F(SparseKernels, OneLaunchEqualsTheHostBodies) {
    for (const char* text :
         {"topk:fraction=0.1", "topk:fraction=0.01,values=int8", "topk:fraction=0.3,values=int4",
          "threshold:threshold=2,fraction=0.05", "threshold:threshold=1,fraction=0.5,values=int8",
          "blocktopk", "blocktopk:block=16,kept=9,values=int4", "blocktopk:block=512,kept=20",
          "rowtopk:row=77,kept=13,values=int8", "rowtopk:row=1000,kept=3", "randomk:fraction=0.1",
          "randomk:fraction=0.03,values=int8", "randomk:fraction=0.3,values=int4"}) {
        const CodecSpec spec = spec_of(text);
        for (const DType dtype : kFloatTypes) {
            const int64_t granule = spec.granule(dtype);
            for (const int64_t count : {int64_t{1}, int64_t{300}, granule + 1, int64_t{9001}}) {
                if (!sampled(random_)) {
                    continue;
                }
                compare(spec, dtype, count, count, false);
                compare(spec, dtype, count, 3 * granule, true);
                if (HasFailure()) {
                    return;
                }
            }
        }
    }
}

// Large messages, some of which take two launches; every form of positions.
TEST_F(SparseKernels, LargeMessagesEqualTheHostBodies) {
    for (const char* text :
         {"topk:fraction=0.3", "topk:fraction=0.01,values=int8", "topk:fraction=0.001",
          "topk:fraction=0.1", "threshold:threshold=1.5,fraction=0.1",
          "threshold:threshold=2.2,fraction=0.02", "blocktopk:block=64,kept=3,values=int8",
          "rowtopk:row=3001,kept=700", "randomk:fraction=0.02,values=int8", "randomk"}) {
        if (!sampled(random_)) {
            continue;
        }
        const CodecSpec spec = spec_of(text);
        compare(spec, DType::kBfloat16, kLarge, kLarge, false);
        compare(spec, DType::kFloat32, kLarge, kLarge, true);
        if (HasFailure()) {
            return;
        }
    }
}

TEST_F(SparseKernels, SumsEqualTheHostBodies) {
    for (const char* text :
         {"blocktopk", "blocktopk:block=32,kept=5,values=int8", "rowtopk:row=300,kept=100",
          "rowtopk:row=77,kept=3,values=int4", "rowtopk:row=1501,kept=90", "randomk:fraction=0.1",
          "randomk:fraction=0.2,values=int8"}) {
        const CodecSpec spec = spec_of(text);
        const Kernels kernels = kernels_of(spec);
        for (const DType dtype : {DType::kFloat32, DType::kBfloat16}) {
            for (const int64_t count :
                 {int64_t{3}, int64_t{5003}, dtype == DType::kFloat32 ? kLarge : 77}) {
                for (const int32_t inputs : {1, count == kLarge ? 2 : 3}) {
                    if (!sampled(random_)) {
                        continue;
                    }
                    SCOPED_TRACE(spec.to_string() + " " + dtype_name(dtype) + " count " +
                                 std::to_string(count) + " seed " + std::to_string(seed_));
                    const int64_t slot = slot_for(spec.encoded_bytes(dtype, count));
                    Guarded sources(slot * inputs);
                    for (int32_t i = 0; i < inputs; ++i) {
                        const Guarded input = input_of(dtype, count, i == 1);
                        const Encoded encoded = encode(spec, dtype, input, count);
                        std::memcpy(sources.data() + i * slot, encoded.bytes.data(),
                                    static_cast<size_t>(encoded.size));
                    }
                    if (inputs == 1) {  // damaged
                        sources.data()[random_() % 16] ^= 1;
                    } else if (random_() % 3 == 0) {  // of randomk: another choice
                        sources.data()[slot + static_cast<int64_t>(random_() % 12)] ^= 1;
                    }
                    Guarded expected(slot);
                    Guarded output(slot);
                    std::vector<float> residual(static_cast<size_t>(count), 0.125f);
                    std::vector<float> expected_residual = residual;
                    uint32_t host_status = 0;
                    uint32_t status = 0;
                    DecodeReduceEncodeArgs args{.input = sources.data(),
                                                .output = expected.data(),
                                                .residual = expected_residual.data(),
                                                .input_stride = slot,
                                                .count = count,
                                                .inputs = inputs,
                                                .scale = 1.0f / static_cast<float>(inputs),
                                                .params = spec.params,
                                                .dtype = dtype,
                                                .input_scale = 0.3f,
                                                .sum_limit = {inputs == 2 ? 0.5f : kNoSumLimit,
                                                              inputs == 2 ? 1.5f : kNoSumLimit},
                                                .status = &host_status};
                    spec.codec->host.decode_reduce_encode(args);
                    args.output = output.data();
                    args.residual = residual.data();
                    args.status = &status;
                    args.workspace = workspace_for(
                        kernels.workspace_bytes == nullptr
                            ? 0
                            : kernels.workspace_bytes(spec.params, dtype, count, count));
                    ASSERT_EQ(kernels.ops.decode_reduce_encode(args, nullptr), cudaSuccess);
                    ASSERT_TRUE(output.copy(slot) == expected.copy(slot));
                    ASSERT_TRUE(output.margins_intact());
                    ASSERT_EQ(residual, expected_residual);
                    ASSERT_EQ(status, host_status);

                    const auto element_bytes = static_cast<int64_t>(dtype_bytes(dtype));
                    Guarded summed(count * element_bytes, element_bytes * (random_() % 2));
                    Guarded elements = summed;
                    // Unsent elements are scale * 0, also where that is not +0.
                    const float scale = inputs == 2 ? -2.5f : inputs == 3 ? 0.3f : INFINITY;
                    host_status = decode_reduce(spec, dtype, sources.data(), inputs, count, scale,
                                                summed, 0.7f, {0.9f});
                    status = 0;
                    ASSERT_EQ(kernels.ops.decode_reduce(
                                  {.input = sources.data(),
                                   .output = elements.data(),
                                   .input_stride = slot,
                                   .count = count,
                                   .inputs = inputs,
                                   .scale = scale,
                                   .params = spec.params,
                                   .dtype = dtype,
                                   .input_scale = 0.7f,
                                   .sum_limit = {0.9f},
                                   .workspace = args.workspace,
                                   .status = &status,
                                   .max_blocks = static_cast<int32_t>(random_() % 3)},
                                  nullptr),
                              cudaSuccess);
                    ASSERT_TRUE(elements.copy(elements.size()) == summed.copy(summed.size()));
                    ASSERT_TRUE(elements.margins_intact());
                    ASSERT_EQ(status, host_status);
                }
            }
        }
    }
}

TEST_F(SparseKernels, AMissingWorkspaceIsRefused) {
    for (const char* text : {"topk", "threshold", "blocktopk:values=int8"}) {
        const CodecSpec spec = spec_of(text);
        const Guarded input = input_of(DType::kFloat32, 500, false);
        Guarded output(slot_for(spec.encoded_bytes(DType::kFloat32, 500)));
        EncodeArgs args = encode_args(spec, DType::kFloat32, 500, input.data(), output.data());
        args.slot_bytes = output.size();
        EXPECT_EQ(kernels_of(spec).ops.encode(args, nullptr), cudaErrorInvalidValue) << text;
        EXPECT_TRUE(output.untouched_from(0));
    }
}

// Also those that complete a run, which no element has.
TEST_F(SparseKernels, SourcesOfAnotherChoiceMakeEveryValueNaN) {
    const CodecSpec spec = spec_of("randomk:fraction=0.5");
    for (const int64_t count : {int64_t{1}, int64_t{40}, int64_t{5003}}) {
        const Guarded input = input_of(DType::kFloat16, count, false);
        const Encoded encoded = encode(spec, DType::kFloat16, input, count);
        const int64_t slot = slot_for(encoded.size);
        Guarded sources(2 * slot);
        for (int64_t i = 0; i < 2; ++i) {
            std::memcpy(sources.data() + i * slot, encoded.bytes.data(),
                        static_cast<size_t>(encoded.size));
        }
        sources.data()[slot] ^= 1;  // the step
        for (const bool kernel : {false, true}) {
            Guarded output(slot);
            const DecodeReduceEncodeArgs args{.input = sources.data(),
                                              .output = output.data(),
                                              .input_stride = slot,
                                              .count = count,
                                              .inputs = 2,
                                              .params = spec.params,
                                              .dtype = DType::kFloat16};
            if (kernel) {
                ASSERT_EQ(kernels_of(spec).ops.decode_reduce_encode(args, nullptr), cudaSuccess);
            } else {
                spec.codec->host.decode_reduce_encode(args);
            }
            for (int64_t i = 16; i < encoded.size; i += 2) {
                uint16_t value = 0;
                std::memcpy(&value, output.data() + i, 2);
                ASSERT_GT(value & 0x7FFF, 0x7C00) << "count " << count << " byte " << i;
            }
        }
    }
}

}  // namespace
}  // namespace slimwire::testing
