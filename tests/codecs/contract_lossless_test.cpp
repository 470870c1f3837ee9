// Lossless codecs: every element type comes back, factor and residual are not looked at, lengths
// are within the bound and told by the check.
#include <random>

#include "tests/codecs/contract.h"

namespace slimwire::testing {
namespace {

// Bytes of a float-like distribution, of random bits, and mostly zero, cut to whole elements, at
// any place that the type allows.
std::vector<Guarded> inputs_of(DType dtype, int64_t count, std::mt19937& random) {
    const int64_t bytes = count * static_cast<int64_t>(dtype_bytes(dtype));
    const int64_t shift = random() % 16 / dtype_bytes(dtype) * dtype_bytes(dtype);
    const bool plain = dtype == DType::kFloat32 || dtype == DType::kFloat16;
    std::vector<Guarded> inputs;
    inputs.push_back(random_input(plain ? dtype : DType::kBfloat16, plain ? count : (bytes + 1) / 2,
                                  1.0, random, shift));
    for (const uint32_t one_in : {1u, 10u}) {
        inputs.emplace_back(bytes, shift);
        for (int64_t i = 0; i < bytes; ++i) {
            const bool zero = i / static_cast<int64_t>(dtype_bytes(dtype)) % one_in != 0;
            inputs.back().data()[i] = zero ? uint8_t{0} : static_cast<uint8_t>(random());
        }
    }
    return inputs;
}

class Lossless : public Contract {
  protected:
    // Encodes `count` elements; the bytes and what was reported.
    std::vector<uint8_t> encoding_of(
        const CodecSpec& spec, DType dtype, const uint8_t* input, int64_t count, uint32_t* status) {
        const int64_t bound = spec.encoded_bytes(dtype, count);
        const int64_t slot = slot_for(bound);
        Guarded bytes(slot);
        std::vector<float> residual(static_cast<size_t>(count), 0.5f);
        const float factor = 3.0f;
        EncodeArgs to_encode = encode_args(spec, dtype, count, input, bytes.data());
        to_encode.residual = residual.data();
        to_encode.scale_ptr = &factor;
        to_encode.scale = 0.25f;
        to_encode.status = status;
        spec.codec->host.encode(to_encode);
        EXPECT_TRUE(bytes.margins_intact() && bytes.untouched_from(bound));
        EXPECT_EQ(std::count(residual.begin(), residual.end(), 0.5f), count);
        const auto used = check_encoding(spec, dtype, count, bytes.data(), slot);
        EXPECT_TRUE(used.ok()) << used.status().message();
        const int64_t size = used.ok() ? used.value() : 0;
        EXPECT_LE(size, bound);
        EXPECT_TRUE(bytes.untouched_from(size)) << size;
        EXPECT_TRUE(spec.traits(dtype).variable_size || size == bound);
        return bytes.copy(size);
    }

    // Encodes and decodes; what an encoder calls too small for its slot may come back otherwise.
    void expect_round_trip(const CodecSpec& spec,
                           DType dtype,
                           const uint8_t* input,
                           int64_t count) {
        const int64_t bytes = count * static_cast<int64_t>(dtype_bytes(dtype));
        uint32_t status = 0;
        std::vector<uint8_t> encoding = encoding_of(spec, dtype, input, count, &status);
        ASSERT_TRUE(status == 0 || (status == kStatusOverflow && spec.params.slot > 0)) << status;
        encoding.resize((encoding.size() + 15) / 16 * 16);  // not a byte beyond the slot
        Guarded output(bytes);
        uint32_t decode_status = 0;
        DecodeArgs to_decode = decode_args(spec, dtype, count, encoding.data(), output.data());
        to_decode.slot_bytes = static_cast<int64_t>(encoding.size());
        to_decode.status = &decode_status;
        spec.codec->host.decode(to_decode);
        ASSERT_TRUE(output.margins_intact());
        ASSERT_EQ(decode_status & kStatusCorrupt, 0u);
        if (status == 0) {
            ASSERT_EQ(std::memcmp(output.data(), input, static_cast<size_t>(bytes)), 0) << count;
        }
    }
};

TEST_F(Lossless, EveryTypeAndSizeComesBackToTheBit) {
    int seen = 0;
    for_lossless([&](const CodecSpec& spec, DType dtype) {
        ++seen;
        for (const int64_t count : edge_sizes(spec, dtype)) {
            for (const Guarded& input : inputs_of(dtype, count, random_)) {
                expect_round_trip(spec, dtype, input.data(), count);
            }
        }
    });
    EXPECT_GT(seen, 0) << "no lossless codec in the registry";
}

TEST_F(Lossless, ChunksAreIndependent) {
    for_lossless([&](const CodecSpec& spec, DType dtype) {
        const auto element_bytes = static_cast<int64_t>(dtype_bytes(dtype));
        const int64_t chunk = spec.granule(dtype);
        const int64_t count = 2 * chunk + 5;
        const int64_t slot = slot_for(spec.encoded_bytes(dtype, chunk));
        const Guarded input = std::move(inputs_of(dtype, count, random_)[2]);
        Guarded output(4 * slot);  // three chunks hold elements
        uint32_t status = 0;
        EncodeArgs to_encode = encode_args(spec, dtype, count, input.data(), output.data());
        to_encode.chunk_elems = chunk;
        to_encode.slot_bytes = slot;
        to_encode.status = &status;
        spec.codec->host.encode(to_encode);
        ASSERT_TRUE(output.margins_intact() && output.untouched_from(3 * slot));
        for (int64_t c = 0; c < 3; ++c) {
            const int64_t elems = std::min(chunk, count - c * chunk);
            uint32_t alone_status = 0;
            const std::vector<uint8_t> alone = encoding_of(
                spec, dtype, input.data() + c * chunk * element_bytes, elems, &alone_status);
            ASSERT_EQ(std::memcmp(alone.data(), output.data() + c * slot, alone.size()), 0);
        }
        Guarded decoded(count * element_bytes);
        DecodeArgs to_decode = decode_args(spec, dtype, count, output.data(), decoded.data());
        to_decode.chunk_elems = chunk;
        to_decode.slot_bytes = slot;
        spec.codec->host.decode(to_decode);
        ASSERT_TRUE(decoded.margins_intact());
        if (status == 0) {
            ASSERT_EQ(decoded.copy(decoded.size()), input.copy(decoded.size()));
        }
    });
}

}  // namespace
}  // namespace slimwire::testing
