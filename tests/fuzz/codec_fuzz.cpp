// The fuzz target of all codecs: any bytes decode without touching memory that is not theirs, what
// check_encoding() accepts decodes cleanly, encodings check and give back what they promise, and
// all instruction sets agree. Built by ./run with AddressSanitizer and UndefinedBehaviorSanitizer.
//
// An input: codec, element type, operation, count (2 bytes), chunking and alignment, parameters (1
// byte: one of kVariants, or 255 and a text that ends at a newline), for encoders that ask for it a
// scale, a threshold and a random key, then an encoding, elements, or a few bytes that elements are
// made from; too short ones are completed.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "codecs/float16.h"
#include "codecs/threefry.h"
#include "tests/fuzz/operations.h"
#include "tests/fuzz/reader.h"

namespace slimwire::fuzz {
namespace {

constexpr int64_t kMostElems = 6000;
constexpr int64_t kManyElems = 20000;        // now and then, for what works on 8192 at a time
constexpr int64_t kMostSlotBytes = 1 << 20;  // parameters may ask for any amount

const char* const kVariants[] = {
    "",
    "block=16",
    "block=32,scale=fp32",
    "block=2048",
    "rounding=stochastic",
    "block=256,rounding=stochastic",
    "rotate=32",
    "rotate=512,seed=9",
    "rotate=64,block=32,rounding=stochastic",
    "slot=0.5",
    "slot=0.9",
    "fraction=0.3",
    "fraction=1,values=int8",
    "fraction=0.05,values=int4",
    "kept=3,block=64",
    "kept=1,row=100,values=int8",
    "kept=2,row=33",
    "fraction=0.01",
    "threshold=0.5,fraction=0.2",
    "threshold=0,fraction=0.1",
    "fraction=0.1,values=int8",
    "fraction=0.002",
    "kept=5,row=16384",
    "seed=3",
    "scale=ceil",
    "scale=ceil,rounding=stochastic",
    "scale=l2",
    "scale=clip,block=512",
    "scale=max,levels=7",
    "levels=20,rounding=nearest",
    "bits=4,block=16",
    "error=0.3,capacity=0.03",
    "error=0.0001,capacity=2",
    "rounding=nearest",
};

// What is there, repeated so that small inputs fill large tensors.
std::vector<uint8_t> repeat(const Reader& reader, int64_t bytes) {
    std::vector<uint8_t> taken(static_cast<size_t>(bytes));
    reader.fill(taken.data(), taken.size());
    return taken;
}

// A scale, a factor and a threshold of any bits, and what is drawn: each if a bit says so.
Feed read_feed(Reader& reader, DType dtype) {
    const uint8_t which = reader.byte();
    const auto word = [&] {
        uint32_t bits = 0;
        std::memcpy(&bits, reader.take(4).data(), 4);
        return bits;
    };
    Feed feed;
    if ((which & 1) != 0) {
        feed.has_threshold = true;
        feed.threshold = std::bit_cast<float>(word());
    }
    if ((which & 2) != 0) {
        feed.has_factor = true;
        std::memcpy(&feed.factor, reader.take(4).data(), std::min<size_t>(4, dtype_bytes(dtype)));
    }
    if ((which & 4) != 0) {
        feed.scale = std::bit_cast<float>(word());
    }
    if ((which & 8) != 0) {
        feed.random = {.seed = word(), .tensor = word(), .rank = word(), .step = word()};
    }
    return feed;
}

double value_of(DType dtype, const uint8_t* buffer, int64_t i) {
    if (dtype == DType::kFloat32) {
        float x;
        std::memcpy(&x, buffer + 4 * i, 4);
        return x;
    }
    uint16_t half;
    std::memcpy(&half, buffer + 2 * i, 2);
    return dtype == DType::kFloat16 ? float16_to_float(half) : bfloat16_to_float(half);
}

void put_value(DType dtype, uint8_t* buffer, int64_t i, float x) {
    if (dtype == DType::kFloat32) {
        std::memcpy(buffer + 4 * i, &x, 4);
        return;
    }
    const uint16_t half = dtype == DType::kFloat16 ? float_to_float16(x) : float_to_bfloat16(x);
    std::memcpy(buffer + 2 * i, &half, 2);
}

bool is_float(DType dtype) {
    return dtype == DType::kFloat32 || dtype == DType::kFloat16 || dtype == DType::kBfloat16;
}

// Data as tensors have them, from a few bytes: bell-shaped values of one magnitude, runs of zeros,
// and special values at places that the input names. Types that are no float get random bytes.
std::vector<uint8_t> natural_elements(const Subject& subject, Reader& reader) {
    const uint32_t seed = reader.byte();
    const int exponent = reader.byte() % 64 - 40;
    const uint8_t zeros = reader.byte();  // of 256 runs of 64 elements
    std::vector<uint8_t> elements(static_cast<size_t>(subject.bytes()));
    const auto words_of = [&](int64_t i, uint32_t stream) {
        uint32_t words[4] = {static_cast<uint32_t>(i), stream, 0, 0};
        threefry(words, RandomWords{{seed, 0, 0, static_cast<uint32_t>(RandomPurpose::kData)}});
        return std::to_array(words);
    };
    if (!is_float(subject.dtype)) {
        for (int64_t i = 0; i < subject.bytes(); ++i) {
            const bool zero = words_of(i / 64, 1)[0] % 256 < zeros;
            elements[static_cast<size_t>(i)] =
                zero ? uint8_t{0} : static_cast<uint8_t>(words_of(i, 0)[0]);
        }
        return elements;
    }
    for (int64_t i = 0; i < subject.count; ++i) {
        float sum = 0;
        for (const uint32_t word : words_of(i, 0)) {
            sum += static_cast<float>(static_cast<int32_t>(word)) * 0x1p-31f;
        }
        const bool zero = words_of(i / 64, 1)[0] % 256 < zeros;
        put_value(subject.dtype, elements.data(), i, zero ? 0.0f : std::ldexp(sum, exponent));
    }
    const float specials[] = {NAN, INFINITY, -INFINITY, 0.0f, -0.0f, 1e-41f, 3.4e38f, 65519.0f};
    for (int k = reader.byte() % 8; k > 0 && subject.count > 0; --k) {
        const int64_t at = reader.byte() | int64_t{reader.byte()} << 8;
        put_value(subject.dtype, elements.data(), at % subject.count, specials[reader.byte() % 8]);
    }
    return elements;
}

// Encodings of `slots` that pass the check, chunk by chunk; a shorter text of one that passes must
// not pass, and the bytes behind it must not matter.
bool check_chunks(const Subject& subject, const uint8_t* slots) {
    bool all = true;
    for (int64_t c = 0; c < subject.chunks(); ++c) {
        const uint8_t* bytes = slots + c * subject.slot();
        const int64_t elems = subject.elems(c);
        const int64_t most = subject.spec.encoded_bytes(subject.dtype, elems);
        const Result<int64_t> used = check(subject, elems, bytes, most);
        if (!used.ok()) {
            all = false;
            continue;
        }
        if (used.value() < 0 || used.value() > most) {
            finding(subject.to_string() + ": an encoding uses " + std::to_string(used.value()) +
                    " of " + std::to_string(most) + " bytes");
        }
        const Result<int64_t> again = check(subject, elems, bytes, used.value());
        if (!again.ok() || again.value() != used.value()) {
            finding(subject.to_string() + ": an encoding that is valid in " + std::to_string(most) +
                    " bytes is not in the " + std::to_string(used.value()) + " that it uses");
        }
        if (used.value() > 0 && check(subject, elems, bytes, used.value() - 1).ok()) {
            finding(subject.to_string() + ": a truncated encoding passes the check");
        }
    }
    return all;
}

void decode_any(const Subject& subject, const std::vector<uint8_t>& slots) {
    const bool valid = check_chunks(subject, slots.data());
    const std::vector<uint8_t> old(static_cast<size_t>(subject.bytes()), 0x11);
    const Decoding plain = decode(subject, slots.data(), old.data(), false);
    if (valid && (plain.status & kStatusCorrupt) != 0) {
        finding(subject.to_string() + ": passes the check and decodes as corrupt");
    }
    if (!subject.spec.traits(subject.dtype).lossless) {
        (void)decode(subject, slots.data(), old.data(), true);
    }
    // What an encoding does not name must not depend on the output's old content.
    const std::vector<uint8_t> other(static_cast<size_t>(subject.bytes()), 0x77);
    if (!(decode(subject, slots.data(), other.data(), false).output == plain.output)) {
        finding(subject.to_string() + ": decode leaves elements of the output as they were");
    }
}

void reduce_any(const Subject& subject, Reader& reader, int32_t inputs, bool feedback) {
    if (!subject.spec.reduces()) {
        return;
    }
    const std::vector<uint8_t> sources = repeat(reader, inputs * subject.slot());
    std::vector<float> residual(feedback ? static_cast<size_t>(subject.elems(0)) : 0, 0.5f);
    const Encoding result = reduce(subject, sources.data(), inputs, residual);
    for (const float x : result.residual) {
        if (!std::isfinite(x)) {
            finding(subject.to_string() + ": a residual became non-finite");
        }
    }
    if (subject.spec.sums() && sum(subject, sources.data(), inputs).status != result.status) {
        finding(subject.to_string() + ": the two reductions report differently of one input");
    }
}

// What comes back: the bits, or values within the bound with the residual that belongs to them.
void compare_decoded(const Subject& subject,
                     const std::vector<uint8_t>& input,
                     const std::vector<float>& residual,
                     const Encoding& encoding,
                     const Decoding& decoding) {
    const CodecTraits traits = subject.spec.traits(subject.dtype);
    if (traits.lossless) {
        if (!std::equal(input.begin(), input.end(), decoding.output.data())) {
            finding(subject.to_string() + ": lossless, and other bits came back");
        }
        return;
    }
    if (!is_float(subject.dtype)) {
        return;
    }
    const float factor =
        subject.feed.has_factor
            ? subject.feed.scale *
                  static_cast<float>(value_of(
                      subject.dtype, reinterpret_cast<const uint8_t*>(&subject.feed.factor), 0))
            : subject.feed.scale;
    for (int64_t c = 0; c < subject.chunks(); ++c) {
        const int64_t begin = c * subject.chunk_elems;
        const int64_t end = begin + subject.elems(c);
        bool finite = true;
        bool decoded_finite = true;
        double largest = 0;
        std::vector<float> p;
        for (int64_t i = begin; i < end; ++i) {
            float x = factor * static_cast<float>(value_of(subject.dtype, input.data(), i));
            if (!residual.empty()) {
                x += residual[static_cast<size_t>(i)];
            }
            p.push_back(x);
            finite = finite && std::isfinite(x);
            decoded_finite =
                decoded_finite && std::isfinite(value_of(subject.dtype, decoding.output.data(), i));
            largest = std::max(largest, std::fabs(static_cast<double>(x)));
        }
        if (!finite) {
            if (decoded_finite) {
                finding(subject.to_string() + ": a non-finite element left no trace");
            }
            continue;
        }
        // The values themselves are seen where the element type does not round them again, and
        // bounds hold away from the ends of the formats' ranges.
        if (subject.dtype != DType::kFloat32) {
            continue;
        }
        const double bound =
            subject.spec.codec->block_error_bound(subject.spec.params, subject.dtype) * largest;
        for (int64_t i = begin; i < end; ++i) {
            const auto d = static_cast<float>(value_of(subject.dtype, decoding.output.data(), i));
            const float x = p[static_cast<size_t>(i - begin)];
            if (largest > 1e-3 && largest < 1e4 &&
                !(std::fabs(static_cast<double>(x) - d) <= bound * (1 + 1e-5))) {
                finding(subject.to_string() + ": element " + std::to_string(i) + " is " +
                        std::to_string(d) + " for " + std::to_string(x) + ", bound " +
                        std::to_string(bound));
            }
            if (!residual.empty() && std::isfinite(d) &&
                std::bit_cast<uint32_t>(encoding.residual[static_cast<size_t>(i)]) !=
                    std::bit_cast<uint32_t>(x - d)) {
                finding(subject.to_string() + ": the residual of element " + std::to_string(i) +
                        " is not what was lost");
            }
        }
    }
}

// Encodes, decodes; then the same encoding with a few bytes changed.
void encode_and_decode(const Subject& subject, Reader& reader, bool natural, bool feedback) {
    const int64_t changes = reader.byte() % 8;
    const std::vector<uint8_t> where = reader.take(4 * changes);
    const std::vector<uint8_t> input =
        natural ? natural_elements(subject, reader) : repeat(reader, subject.bytes());
    const bool lossless = subject.spec.traits(subject.dtype).lossless;
    std::vector<float> residual(feedback && !lossless ? static_cast<size_t>(subject.count) : 0,
                                0.25f);
    const Encoding encoding = encode(subject, input.data(), residual);
    for (const float x : encoding.residual) {
        if (!std::isfinite(x)) {
            finding(subject.to_string() + ": a residual became non-finite");
        }
    }
    if ((encoding.status & kStatusOverflow) == 0) {
        if (!check_chunks(subject, encoding.slots.data())) {
            finding(subject.to_string() + ": an encoder's own bytes do not pass the check");
        }
        const std::vector<uint8_t> old(static_cast<size_t>(subject.bytes()), 0x11);
        const Decoding decoding = decode(subject, encoding.slots.data(), old.data(), false);
        if (decoding.status != 0) {
            finding(subject.to_string() + ": an encoder's own bytes decode with a status");
        }
        compare_decoded(subject, input, residual, encoding, decoding);
    }
    if (changes > 0 && encoding.slots.size() > 0) {
        std::vector<uint8_t> changed(encoding.slots.data(),
                                     encoding.slots.data() + encoding.slots.size());
        for (int64_t k = 0; k < changes; ++k) {
            const uint8_t* one = where.data() + 4 * k;
            const size_t at =
                one[0] | static_cast<size_t>(one[1]) << 8 | static_cast<size_t>(one[2]) << 16;
            // Headers are where most goes wrong: every other change is in the first bytes.
            changed[one[2] % 2 == 0 ? at % std::min<size_t>(changed.size(), 64)
                                    : at % changed.size()] ^= one[3];
        }
        decode_any(subject, changed);
    }
}

bool choose(Reader& reader, Subject* subject, uint8_t* operation) {
    size_t codecs = 0;
    const CodecDescriptor* const* table = codec_table(&codecs);
    const std::string name = table[reader.byte() % codecs]->name;
    subject->dtype = static_cast<DType>(reader.byte() % kDTypeCount);
    *operation = reader.byte();
    const int64_t count = reader.byte();
    const int64_t high = reader.byte();
    const uint8_t shape = reader.byte();
    subject->count = (count | high << 8) % ((shape & 32) != 0 ? kManyElems + 1 : kMostElems + 1);
    const uint8_t variant = reader.byte();
    const std::string text =
        variant == 255 ? reader.line() : kVariants[variant % std::size(kVariants)];
    Result<CodecSpec> spec = parse_codec(text.empty() ? name : name + ":" + text);
    if (!spec.ok()) {
        if (spec.status().message().empty()) {
            finding("a specification is refused without a word: " + text);
        }
        return false;
    }
    subject->spec = std::move(spec).value();
    const Result<CodecSpec> again = parse_codec(subject->spec.to_string());
    if (!again.ok() || !(again.value().params == subject->spec.params)) {
        finding(subject->spec.to_string() + " does not parse as what it is printed for");
    }
    if (!subject->spec.accepts(subject->dtype)) {
        return false;
    }
    subject->chunk_elems = std::max<int64_t>(subject->count, 1);
    const int64_t granule = subject->spec.granule(subject->dtype);
    if (shape % 4 == 1 && granule * (1 + shape / 64) < subject->count) {
        subject->chunk_elems = granule * (1 + shape / 64);
    }
    subject->misalignment = shape / 4 % 8 * static_cast<int64_t>(dtype_bytes(subject->dtype));
    return subject->slot() * std::max<int64_t>(subject->chunks(), 1) <= kMostSlotBytes;
}

}  // namespace
}  // namespace slimwire::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    using namespace slimwire::fuzz;
    slimwire::Reader reader(data, size);
    Subject subject{};
    uint8_t operation = 0;
    if (!choose(reader, &subject, &operation)) {
        return 0;
    }
    switch (operation % 4) {
        case 0:
            decode_any(subject, reader.take(subject.chunks() * subject.slot()));
            break;
        case 1:
            reduce_any(subject, reader, 1 + operation / 4 % 5, operation >= 128);
            break;
        case 2:
        case 3:
            if ((operation & 4) != 0) {
                subject.feed = read_feed(reader, subject.dtype);
            }
            encode_and_decode(subject, reader, operation % 4 == 3, operation >= 128);
            break;
    }
    return 0;
}
