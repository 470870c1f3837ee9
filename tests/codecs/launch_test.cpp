// Enqueueing on a device: what reaches the emulator's launch interface, and how failures come back.
#include <gtest/gtest.h>

#include <cstring>

#include "tests/codecs/fixture.h"
#include "tests/codecs/recorded_launch.h"

namespace slimwire::testing {
namespace {

const char* error_text(cudaError_t) {
    return "told by the runtime";
}

class Launch : public RecordedLaunch {
  protected:
    void SetUp() override {
        RecordedLaunch::SetUp();
        api_.get_error_string = error_text;
    }

    cudaStream_t stream_ = reinterpret_cast<cudaStream_t>(uintptr_t{0x40});
};

TEST_F(Launch, ArgumentsAreCopiedAndPointersResolvedWhenTheBodyRuns) {
    const CodecSpec spec = spec_of("int4");
    std::vector<float> input(100, 3.0f);
    std::vector<float> residual(100, 0.5f);
    float factor = 0.5f;
    std::vector<uint8_t> output(256);
    EncodeArgs args =
        encode_args(spec, DType::kFloat32, 100, on_device(input.data()), on_device(output.data()));
    args.residual = on_device(residual.data());
    args.scale_ptr = on_device(&factor);
    args.scale = 2.0f;
    args.chunk_elems = 64;
    args.slot_bytes = 128;
    ASSERT_TRUE(enqueue(api_, spec, args, stream_).ok());
    args = {};
    EXPECT_EQ(launched.stream, stream_);
    EXPECT_EQ(launched.name, "int4");
    set_device_view(shifted_view);
    launched.body(launched.args.data());

    std::vector<float> decoded(100);
    DecodeArgs back = decode_args(spec, DType::kFloat32, 100, on_device(output.data()),
                                  on_device(decoded.data()));
    back.chunk_elems = 64;
    back.slot_bytes = 128;
    ASSERT_TRUE(enqueue(api_, spec, back, stream_).ok());
    launched.body(launched.args.data());
    for (size_t i = 0; i < decoded.size(); ++i) {
        ASSERT_NEAR(decoded[i], 3.5f, 0.3f);
        ASSERT_EQ(decoded[i] + residual[i], 3.5f);
    }

    std::vector<float> sum(64);
    std::vector<uint8_t> reduced(256);
    const DecodeReduceEncodeArgs reduce{.input = on_device(output.data()),
                                        .output = on_device(reduced.data()),
                                        .input_stride = 128,
                                        .count = 36,
                                        .inputs = 2,
                                        .params = spec.params,
                                        .dtype = DType::kFloat32};
    ASSERT_TRUE(enqueue(api_, spec, reduce, stream_).ok());
    launched.body(launched.args.data());
    EXPECT_NE(reduced, std::vector<uint8_t>(256));

    const DecodeReduceArgs add{.input = on_device(output.data()),
                               .output = on_device(sum.data()),
                               .input_stride = 128,
                               .count = 36,
                               .inputs = 2,
                               .scale = 0.5f,
                               .params = spec.params,
                               .dtype = DType::kFloat32};
    ASSERT_TRUE(enqueue(api_, spec, add, stream_).ok());
    launched.body(launched.args.data());
    for (size_t i = 0; i < sum.size(); ++i) {
        ASSERT_NEAR(sum[i], i < 36 ? 3.5f : 0.0f, 0.3f) << i;
    }
}

TEST_F(Launch, OperationsThatACodecLacksAreUnsupported) {
    const Status status = enqueue(api_, spec_of("palette"), DecodeReduceArgs{}, stream_);
    EXPECT_EQ(status.code(), Code::kUnsupported);
    EXPECT_NE(status.message().find("decode_reduce"), std::string::npos);
    DecodeArgs added{};
    added.accumulate = true;
    EXPECT_EQ(enqueue(api_, spec_of("palette"), added, stream_).code(), Code::kUnsupported);
    DecodeArgs scaled{};
    scaled.scale = 0.5f;
    EXPECT_EQ(enqueue(api_, spec_of("int8"), scaled, stream_).code(), Code::kUnsupported);
    EXPECT_EQ(launched.body, nullptr);
}

TEST_F(Launch, RuntimeErrorsComeBackWithTheirText) {
    launched.answer = static_cast<cudaError_t>(709);
    const Status status = enqueue(api_, spec_of("bf16"), DecodeArgs{}, stream_);
    EXPECT_EQ(status.code(), Code::kCudaError);
    EXPECT_NE(status.message().find("told by the runtime"), std::string::npos);
}

// No kernels are linked into this program.
TEST_F(Launch, WithoutKernelsADeviceIsUnsupported) {
    api_.emulator = nullptr;
    for (const CodecSpec& spec : all_specs()) {
        const Status encoded = enqueue(api_, spec, EncodeArgs{}, stream_);
        EXPECT_EQ(encoded.code(), Code::kUnsupported);
        EXPECT_NE(encoded.message().find(spec.codec->name), std::string::npos);
        const Status decoded = enqueue(api_, spec, DecodeArgs{}, stream_);
        EXPECT_EQ(decoded.code(), Code::kUnsupported);
    }
}

}  // namespace
}  // namespace slimwire::testing
