// The kernel sources themselves, compiled by the host compiler and run by the execution model of
// tests/support/cuda_on_host.h, equal the host bodies to the byte: encodings, residuals and decoded
// elements, over sizes, chunks, alignments and special values.
#include "tests/support/cuda_on_host.h"

#include <algorithm>
#include <cstring>
#include <map>

#include "tests/codecs/fixture.h"

#include "codecs/block_float/block_float.cu"
#include "codecs/block_int/int2.cu"
#include "codecs/block_int/int4.cu"
#include "codecs/block_int/int8.cu"
#include "codecs/bounded/bounded.cu"
#include "codecs/cast/cast.cu"
#include "codecs/quantizers/quantizers.cu"

namespace slimwire::testing {
namespace {

const std::map<std::string, CudaOps> kKernels = {
    {"bf16", Launchers<CastKernels<DType::kBfloat16>>::kOps},
    {"fp16", Launchers<CastKernels<DType::kFloat16>>::kOps},
    {"fp8e4m3", Launchers<BlockFloatKernels<Fp8e4m3>>::kOps},
    {"fp8e5m2", Launchers<BlockFloatKernels<Fp8e5m2>>::kOps},
    {"mxfp4", Launchers<BlockFloatKernels<MxFp4>>::kOps},
    {"nvfp4", Launchers<BlockFloatKernels<NvFp4>>::kOps},
    {"sign", Launchers<QuantizerKernels<QuantizerRule::kSign>>::kOps},
    {"ternary", Launchers<QuantizerKernels<QuantizerRule::kLevels>>::kOps},
    {"natural", Launchers<QuantizerKernels<QuantizerRule::kPowers>>::kOps},
    {"qsgd", Launchers<QuantizerKernels<QuantizerRule::kLevels>>::kOps},
    {"bounded", Launchers<BoundedKernels>::kOps},
    {"int8", Launchers<BlockIntKernels<8>>::kOps},
    {"int4", Launchers<BlockIntKernels<4>>::kOps},
    {"int2", Launchers<BlockIntKernels<2>>::kOps},
};

class KernelsOnHost : public ::testing::Test {
  protected:
    void SetUp() override { cuda_on_host::Machine::get().seed(seed_); }

    template <class Body>
    void for_all(Body body) {
        for (const CodecSpec& spec : all_specs()) {
            const auto found = kKernels.find(spec.codec->name);
            const CodecTraits traits = spec.traits(DType::kFloat32);
            if (traits.lossless || traits.poison_elems == 0) {
                continue;  // palette has none; sparse_kernels_test.cpp
            }
            ASSERT_NE(found, kKernels.end()) << spec.codec->name << " is not in this test";
            for (const DType dtype : kFloatTypes) {
                if (!sampled(random_)) {
                    continue;
                }
                SCOPED_TRACE(spec.to_string() + " " + dtype_name(dtype) + " seed " +
                             std::to_string(seed_));
                body(spec, found->second, dtype);
                if (HasFailure()) {
                    return;
                }
            }
        }
    }

    // Random values with zeros, extremes and, with `hostile`, random bits, non-finite ones and now
    // and then all of them near the type's end.
    Guarded input_of(DType dtype, int64_t count, bool hostile, int64_t misalignment) {
        const double end = dtype == DType::kFloat16 ? 9000.0 : 4e37;
        const double magnitude = hostile && random_() % 3 == 0 ? end : 1.0;
        Guarded input = random_input(dtype, count, magnitude, random_, misalignment);
        for (int64_t i = 0; hostile && i < count; ++i) {
            const int64_t element_bytes = static_cast<int64_t>(dtype_bytes(dtype));
            if (random_() % 97 == 0) {
                for (int64_t b = 0; b < element_bytes; ++b) {
                    input.data()[i * element_bytes + b] = static_cast<uint8_t>(random_());
                }
            } else if (i / 300 % 3 == 1) {
                reference::set_element(input.data(), dtype, i, 0.0f);
            } else if (random_() % 211 == 0) {
                const float specials[] = {INFINITY, -INFINITY, NAN,      1e-40f,
                                          3.38e38f, -65504.0f, 65519.0f, 3.4e38f};
                reference::set_element(input.data(), dtype, i, specials[random_() % 8]);
            }
        }
        return input;
    }

    SumLimit limit() {
        return random_() % 2 == 0 ? SumLimit()
                                  : SumLimit{0.3f * (1.0f + random_() % 4),
                                             random_() % 2 == 0 ? kNoSumLimit : 1.5f};
    }

    // Of any content.
    Guarded workspace_of(const CodecSpec& spec, DType dtype, int64_t count, int64_t chunk) {
        Guarded workspace(spec.workspace_bytes(dtype, count, chunk));
        for (int64_t i = 0; i < workspace.size(); ++i) {
            workspace.data()[i] = static_cast<uint8_t>(random_());
        }
        return workspace;
    }

    uint32_t seed_ = test_seed();
    uint32_t steps_ = 41;
    RandomKey key_ = {.seed = seed_, .tensor = 9, .rank = 2, .step = 1, .step_ptr = &steps_};
    std::mt19937 random_{seed_};
};

TEST_F(KernelsOnHost, EncodeAndDecodeEqualTheHostBodies) {
    for_all([&](const CodecSpec& spec, const CudaOps& cuda, DType dtype) {
        const int64_t element_bytes = static_cast<int64_t>(dtype_bytes(dtype));
        const int64_t granule = spec.granule(dtype);
        for (const int64_t count :
             {int64_t{1}, int64_t{7}, int64_t{255}, granule, granule + 1, int64_t{4099}}) {
            for (const bool hostile : {false, true}) {
                const int64_t shift = hostile ? element_bytes * (1 + random_() % 7) : 0;
                const Guarded input = input_of(dtype, count, hostile, shift);
                const int64_t chunk = hostile ? 2 * granule : count;
                const int64_t chunks = (count + chunk - 1) / chunk;
                const int64_t slot = slot_for(spec.encoded_bytes(dtype, chunk));
                Guarded expected(chunks * slot);
                Guarded encoded(chunks * slot);
                std::vector<float> residual(static_cast<size_t>(count), 0.25f);
                std::vector<float> expected_residual = residual;
                Guarded factor(element_bytes);
                reference::set_element(factor.data(), dtype, 0, 1.5f);
                EncodeArgs args = encode_args(spec, dtype, count, input.data(), expected.data());
                args.residual = hostile ? expected_residual.data() : nullptr;
                args.scale_ptr = hostile ? factor.data() : nullptr;
                args.scale = 0.5f;
                args.chunk_elems = chunk;
                args.slot_bytes = slot;
                args.random = key_;
                spec.codec->host.encode(args);
                Guarded workspace = workspace_of(spec, dtype, count, chunk);
                args.workspace = workspace.data();
                args.output = encoded.data();
                args.residual = hostile ? residual.data() : nullptr;
                ASSERT_EQ(cuda.encode(args, nullptr), cudaSuccess);
                ASSERT_EQ(encoded.copy(encoded.size()), expected.copy(expected.size()))
                    << "count " << count << " hostile " << hostile;
                ASSERT_TRUE(encoded.margins_intact() && workspace.margins_intact());
                ASSERT_EQ(std::memcmp(residual.data(), expected_residual.data(),
                                      residual.size() * sizeof(float)),
                          0);

                for (const bool accumulate : {false, true}) {
                    Guarded host_output = input;
                    Guarded output(input.size(), shift);
                    std::memcpy(output.data(), input.data(), static_cast<size_t>(input.size()));
                    DecodeArgs back =
                        decode_args(spec, dtype, count, encoded.data(), host_output.data());
                    back.chunk_elems = chunk;
                    back.slot_bytes = slot;
                    back.accumulate = accumulate;
                    back.sum_limit = limit();
                    spec.codec->host.decode(back);
                    back.output = output.data();
                    ASSERT_EQ(cuda.decode(back, nullptr), cudaSuccess);
                    ASSERT_EQ(output.copy(output.size()), host_output.copy(host_output.size()))
                        << "count " << count << " accumulate " << accumulate;
                    ASSERT_TRUE(output.margins_intact());
                }
            }
        }
    });
}

TEST_F(KernelsOnHost, DecodeReduceEncodeEqualsTheHostBody) {
    for_all([&](const CodecSpec& spec, const CudaOps& cuda, DType dtype) {
        if (random_() % 3 != 0) {  // one type of three, another one for each seed
            return;
        }
        for (const int64_t count : {int64_t{3}, int64_t{256}, int64_t{5003}}) {
            for (const int32_t inputs : {1, 3, 6}) {
                const int64_t slot = slot_for(spec.encoded_bytes(dtype, count));
                Guarded sources(slot * inputs);
                for (int32_t i = 0; i < inputs; ++i) {
                    const Guarded input = input_of(dtype, count, i == 1, 0);
                    const Encoded encoded = encode(spec, dtype, input, count);
                    std::memcpy(sources.data() + i * slot, encoded.bytes.data(),
                                static_cast<size_t>(encoded.size));
                }
                if (inputs == 1) {  // bytes that no encoder wrote
                    for (int64_t i = 0; i < slot; ++i) {
                        sources.data()[i] = static_cast<uint8_t>(random_());
                    }
                }
                for (const bool feedback : {false, true}) {
                    Guarded expected(slot);
                    Guarded output(slot);
                    std::vector<float> residual(static_cast<size_t>(count), 0.125f);
                    std::vector<float> expected_residual = residual;
                    DecodeReduceEncodeArgs args{
                        .input = sources.data(),
                        .output = expected.data(),
                        .residual = feedback ? expected_residual.data() : nullptr,
                        .input_stride = slot,
                        .count = count,
                        .inputs = inputs,
                        .scale = 1.0f / static_cast<float>(inputs),
                        .params = spec.params,
                        .dtype = dtype,
                        .input_scale = feedback ? 0.3f : 1.0f,
                        .sum_limit = limit(),
                        .random = key_};
                    spec.codec->host.decode_reduce_encode(args);
                    Guarded workspace = workspace_of(spec, dtype, count, count);
                    args.workspace = workspace.data();
                    args.output = output.data();
                    args.residual = feedback ? residual.data() : nullptr;
                    ASSERT_EQ(cuda.decode_reduce_encode(args, nullptr), cudaSuccess);
                    ASSERT_EQ(output.copy(slot), expected.copy(slot)) << count << " x " << inputs;
                    ASSERT_TRUE(output.margins_intact());
                    ASSERT_EQ(residual, expected_residual);
                }
            }
        }
    });
}

TEST_F(KernelsOnHost, DecodeReduceEqualsTheHostBody) {
    for_all([&](const CodecSpec& spec, const CudaOps& cuda, DType dtype) {
        const int64_t element_bytes = static_cast<int64_t>(dtype_bytes(dtype));
        for (const int64_t count : {int64_t{3}, int64_t{256}, int64_t{5003}}) {
            const int32_t inputs = 1 + static_cast<int32_t>(random_() % 9);
            const int64_t slot = slot_for(spec.encoded_bytes(dtype, count));
            Guarded sources(slot * inputs);
            for (int32_t i = 0; i < inputs; ++i) {
                const Guarded input = input_of(dtype, count, i == 1, 0);
                const Encoded encoded = encode(spec, dtype, input, count);
                std::memcpy(sources.data() + i * slot, encoded.bytes.data(),
                            static_cast<size_t>(encoded.size));
            }
            for (int64_t i = 0; inputs == 1 && i < slot; ++i) {  // bytes that no encoder wrote
                sources.data()[i] = static_cast<uint8_t>(random_());
            }
            const int64_t shift = element_bytes * (random_() % 2 * (random_() % 8));
            Guarded expected(count * element_bytes, shift);
            Guarded output(count * element_bytes, shift);
            const SumLimit sum_limit = limit();
            (void)decode_reduce(spec, dtype, sources.data(), inputs, count, 0.3f, expected, 0.7f,
                                sum_limit);
            ASSERT_EQ(cuda.decode_reduce({.input = sources.data(),
                                          .output = output.data(),
                                          .input_stride = slot,
                                          .count = count,
                                          .inputs = inputs,
                                          .scale = 0.3f,
                                          .params = spec.params,
                                          .dtype = dtype,
                                          .input_scale = 0.7f,
                                          .sum_limit = sum_limit,
                                          .max_blocks = static_cast<int32_t>(random_() % 3)},
                                         nullptr),
                      cudaSuccess);
            ASSERT_EQ(output.copy(output.size()), expected.copy(expected.size()))
                << count << " x " << inputs << " shifted " << shift;
            ASSERT_TRUE(output.margins_intact());
        }
    });
}

}  // namespace
}  // namespace slimwire::testing
