#include "tests/codecs/fixture.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <map>
#include <mutex>
#include <new>
#include <utility>

namespace slimwire::testing {
namespace {

constexpr size_t kMargin = 256;
constexpr uint8_t kPattern = 0xA5;
constexpr size_t kPage = 4096;

// Pages that nothing has at the moment, by their bytes; behind each is one without any rights.
struct FreePages {
    std::mutex mutex;
    std::map<size_t, std::vector<uint8_t*>> of;
};
FreePages& free_pages() {
    static auto* const pages = new FreePages;
    return *pages;
}

uint8_t* take_pages(size_t bytes) {
    {
        const std::lock_guard lock(free_pages().mutex);
        std::vector<uint8_t*>& free = free_pages().of[bytes];
        if (!free.empty()) {
            uint8_t* const pages = free.back();
            free.pop_back();
            return pages;
        }
    }
    void* const mapped =
        mmap(nullptr, bytes + kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) {
        throw std::bad_alloc();
    }
    auto* const pages = static_cast<uint8_t*>(mapped);
    EXPECT_EQ(mprotect(pages + bytes, kPage, PROT_NONE), 0);
    return pages;
}

}  // namespace

std::vector<CodecSpec> all_specs() {
    std::vector<CodecSpec> specs;
    size_t count = 0;
    const CodecDescriptor* const* table = codec_table(&count);
    for (size_t i = 0; i < count; ++i) {
        for (const char* variant : {"",
                                    ":block=16",
                                    ":block=128,scale=fp32",
                                    ":block=2048",
                                    ":rounding=stochastic",
                                    ":block=32,rounding=stochastic",
                                    ":scale=ceil",
                                    ":scale=ceil,rounding=stochastic",
                                    ":scale=l2,block=32",
                                    ":scale=max,levels=6,block=512",
                                    ":scale=max,levels=20,rounding=nearest",
                                    ":levels=1,block=16",
                                    ":scale=clip,block=2048",
                                    ":bits=4",
                                    ":bits=4,rounding=nearest,block=32",
                                    ":block=64,kept=9,values=int8",
                                    ":row=77,kept=13,values=int4",
                                    ":fraction=0.3,values=int8",
                                    ":fraction=0.1,values=int4",
                                    ":slot=0.9",
                                    ":saturate=true"}) {
            auto spec = parse_codec(table[i]->name + std::string(variant));
            if (spec.ok()) {
                specs.push_back(spec.value());
            }
        }
    }
    // Rotations of block integers, each width with other combinations, what coarse
    // quantisers round to the nearest, and bounds with room for few blocks and for all.
    for (const char* text :
         {"int8:rotate=64", "int4:rotate=32,block=32,rounding=stochastic",
          "int4:rotate=128,block=16,seed=5", "int2:rotate=256,block=2048,scale=fp32",
          "int8:rotate=512,block=256,rounding=stochastic", "int4:rotate=512,seed=4294967295",
          "int8:rotate=512,block=2048", "int2:rotate=64,block=32", "ternary:rounding=nearest",
          "natural:rounding=nearest,block=2048", "bounded:error=0.3,capacity=0.03",
          "bounded:error=0.000001,capacity=2"}) {
        auto spec = parse_codec(text);
        EXPECT_TRUE(spec.ok()) << spec.status().message();
        specs.push_back(spec.value());
    }
    return specs;
}

CodecSpec spec_of(const std::string& text) {
    auto spec = parse_codec(text);
    EXPECT_TRUE(spec.ok()) << spec.status().message();
    return spec.value();
}

double overflows_from(const CodecSpec& spec) {
    const bool half = static_cast<DType>(spec.params.target) == DType::kFloat16;
    return half && spec.params.scale_type == 0 ? 65520.0 : std::numeric_limits<double>::infinity();
}

std::vector<Isa> all_isas() {
    std::vector<Isa> isas;
    for (int i = 0; i < kIsaCount; ++i) {
        if (isa_supported(static_cast<Isa>(i))) {
            isas.push_back(static_cast<Isa>(i));
        }
    }
    return isas;
}

bool sampled([[maybe_unused]] std::mt19937& random) {
#ifdef __SANITIZE_ADDRESS__
    return random() % 4 == 0;
#else
    return true;
#endif
}

void Guarded::Return::operator()(uint8_t* pages) const {
    const std::lock_guard lock(free_pages().mutex);
    free_pages().of[bytes].push_back(pages);
}

Guarded::Guarded(int64_t bytes, int64_t misalignment) : bytes_(bytes), misalignment_(misalignment) {
    const size_t taken = static_cast<size_t>(bytes) + static_cast<size_t>(misalignment) + 63;
    const size_t mapped = (taken + kMargin + kPage - 1) / kPage * kPage;
    pages_ = std::unique_ptr<uint8_t, Return>(take_pages(mapped), Return{mapped});
    begin_ = (mapped - taken + 63) / 64 * 64 + static_cast<size_t>(misalignment);
    std::memset(data() - kMargin, kPattern, mapped - begin_ + kMargin);
}

Guarded::Guarded(const Guarded& other) : Guarded(other.bytes_, other.misalignment_) {
    std::memcpy(data(), other.data(), static_cast<size_t>(bytes_));
}

Guarded& Guarded::operator=(Guarded other) noexcept {
    std::swap(pages_, other.pages_);
    std::swap(begin_, other.begin_);
    std::swap(bytes_, other.bytes_);
    std::swap(misalignment_, other.misalignment_);
    return *this;
}

bool Guarded::margins_intact() const {
    const auto pattern = [](uint8_t byte) { return byte == kPattern; };
    const uint8_t* const end = pages_.get() + pages_.get_deleter().bytes;
    return std::all_of(data() - kMargin, data(), pattern) &&
           std::all_of(data() + bytes_, end, pattern);
}

bool Guarded::untouched_from(int64_t from) const {
    return std::all_of(data() + from, data() + bytes_,
                       [](uint8_t byte) { return byte == kPattern; });
}

int64_t slot_for(int64_t bytes) {
    return (bytes + 15) / 16 * 16 + 32;
}

Guarded random_input(
    DType dtype, int64_t count, double magnitude, std::mt19937& random, int64_t misalignment) {
    Guarded buffer(count * static_cast<int64_t>(dtype_bytes(dtype)), misalignment);
    std::normal_distribution<double> normal(0.0, magnitude);
    for (int64_t i = 0; i < count; ++i) {
        reference::set_element(buffer.data(), dtype, i, static_cast<float>(normal(random)));
    }
    return buffer;
}

std::vector<float> values_of(const Guarded& buffer, DType dtype, int64_t count) {
    std::vector<float> values(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) {
        values[static_cast<size_t>(i)] = reference::element(buffer.data(), dtype, i);
    }
    return values;
}

std::vector<float> expected_p(const std::vector<float>& input,
                              float factor,
                              const std::vector<float>* residual,
                              DType dtype) {
    std::vector<float> p(input.size());
    for (size_t i = 0; i < p.size(); ++i) {
        p[i] = factor * input[i];
        float element = 0;
        reference::set_element(&element, dtype, 0, p[i]);
        element = reference::element(&element, dtype, 0);
        p[i] = std::isfinite(element) ? p[i] : element;
        if (residual != nullptr) {
            const bool finite = std::isfinite(p[i]);
            p[i] += (*residual)[i];
            if (finite && std::isinf(p[i])) {
                p[i] = std::copysign(std::numeric_limits<float>::max(), p[i]);
            }
        }
    }
    return p;
}

EncodeArgs encode_args(
    const CodecSpec& spec, DType dtype, int64_t count, const void* input, void* output) {
    return {.input = input,
            .output = output,
            .count = count,
            .chunk_elems = std::max<int64_t>(count, 1),
            .slot_bytes = slot_for(spec.encoded_bytes(dtype, count)),
            .params = spec.params,
            .dtype = dtype,
            .random = reference::kKey};
}

DecodeArgs decode_args(
    const CodecSpec& spec, DType dtype, int64_t count, const void* input, void* output) {
    return {.input = input,
            .output = output,
            .count = count,
            .chunk_elems = std::max<int64_t>(count, 1),
            .slot_bytes = slot_for(spec.encoded_bytes(dtype, count)),
            .params = spec.params,
            .dtype = dtype};
}

DecodeReduceEncodeArgs reduce_args(const CodecSpec& spec,
                                   DType dtype,
                                   int64_t count,
                                   const Guarded& sources,
                                   int32_t inputs,
                                   Guarded& output) {
    return {.input = sources.data(),
            .output = output.data(),
            .input_stride = slot_for(spec.encoded_bytes(dtype, count)),
            .count = count,
            .inputs = inputs,
            .params = spec.params,
            .dtype = dtype,
            .random = reference::kKey};
}

Encoded encode(const CodecSpec& spec,
               DType dtype,
               const Guarded& input,
               int64_t count,
               std::vector<float>* residual,
               float scale,
               const void* scale_ptr,
               const RandomKey& random) {
    const int64_t size = spec.encoded_bytes(dtype, count);
    const int64_t slot = slot_for(size);
    Encoded result{Guarded(slot), size};
    const std::vector<uint8_t> before = input.copy(input.size());
    EncodeArgs args = encode_args(spec, dtype, count, input.data(), result.bytes.data());
    args.residual = residual != nullptr ? residual->data() : nullptr;
    args.scale_ptr = scale_ptr;
    args.scale = scale;
    args.random = random;
    spec.codec->host.encode(args);
    if (spec.traits(dtype).variable_size) {
        const auto used = check_encoding(spec, dtype, count, result.bytes.data(), slot);
        EXPECT_TRUE(used.ok()) << used.status().message();
        EXPECT_LE(used.ok() ? used.value() : 0, size) << "beyond the bound";
        result.size = used.ok() ? used.value() : 0;
    }
    EXPECT_TRUE(result.bytes.margins_intact()) << spec.to_string() << " count " << count;
    EXPECT_TRUE(result.bytes.untouched_from(result.size)) << spec.to_string() << " count " << count;
    EXPECT_EQ(before, input.copy(input.size())) << "the input was written";
    return result;
}

void put_source(const CodecSpec& spec,
                DType dtype,
                const Guarded& input,
                int64_t count,
                Guarded& sources,
                int64_t source) {
    const Encoded encoded = encode(spec, dtype, input, count);
    std::memcpy(sources.data() + source * slot_for(spec.encoded_bytes(dtype, count)),
                encoded.bytes.data(), static_cast<size_t>(encoded.size));
}

uint32_t decode(const CodecSpec& spec,
                DType dtype,
                const uint8_t* bytes,
                int64_t count,
                Guarded& output,
                bool accumulate) {
    uint32_t status = 0;
    DecodeArgs args = decode_args(spec, dtype, count, bytes, output.data());
    args.accumulate = accumulate;
    args.status = &status;
    spec.codec->host.decode(args);
    EXPECT_TRUE(output.margins_intact()) << spec.to_string() << " count " << count;
    return status;
}

uint32_t decode_reduce(const CodecSpec& spec,
                       DType dtype,
                       const uint8_t* sources,
                       int32_t inputs,
                       int64_t count,
                       float scale,
                       Guarded& output,
                       float input_scale,
                       SumLimit sum_limit) {
    uint32_t status = 0;
    spec.codec->host.decode_reduce({.input = sources,
                                    .output = output.data(),
                                    .input_stride = slot_for(spec.encoded_bytes(dtype, count)),
                                    .count = count,
                                    .inputs = inputs,
                                    .scale = scale,
                                    .params = spec.params,
                                    .dtype = dtype,
                                    .input_scale = input_scale,
                                    .sum_limit = sum_limit,
                                    .status = &status});
    EXPECT_TRUE(output.margins_intact()) << spec.to_string() << " count " << count;
    return status;
}

bool same_bits(float a, float b) {
    return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b);
}
bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

std::vector<float> guarded(std::vector<float> values) {
    values.resize(values.size() + kMarginElems, 77.0f);
    return values;
}
bool margin_intact(const std::vector<float>& values) {
    return std::all_of(values.end() - kMarginElems, values.end(),
                       [](float x) { return x == 77.0f; });
}

}  // namespace slimwire::testing
