// Codec palette: lossless. The sign and fraction of a float are stored as they are, its exponent as
// a 2-bit code for the three commonest exponents of its block, escapes again as 2-bit and 3-bit
// codes, the rest as they are; blocks with many zeros store only the others, blocks that would grow
// are copied. Every type is taken, integers byte by byte. Layout: FORMAT.md, "Palette". In host
// memory alone: the net plugin's codec, which has no kernels.
#include <algorithm>
#include <array>
#include <cstring>

#include "codecs/codec.h"
#include "codecs/palette/host/table.h"
#include "codecs/palette/palette_format.h"
#include "codecs/simd/chunks.h"
#include "codecs/spec.h"

namespace slimwire {
namespace {

constexpr SpecKey kSlot = decimal_key<&CodecParams::slot, DecimalRange{0.01f, 1.01f, true}>(
    "slot", "a fraction of the raw size from 0.01 to 1.01, or 0 for variable size");

struct Palette : SpecOf<Palette> {
    static constexpr const char* kName = "palette";
    static constexpr CodecParams kDefaults = {};
    static constexpr std::array<const SpecKey*, 1> kKeys = {&kSlot};
};

struct Kind {
    PaletteKind kind;
    int64_t bytes;  // of the kind's elements
    int raw_bits;   // of the top byte, stored as they are
};

Kind kind_of(DType dtype) {
    switch (dtype) {
        case DType::kInt8:
        case DType::kUint8:
        case DType::kInt32:
        case DType::kUint32:
        case DType::kInt64:
        case DType::kUint64:
            return {PaletteKind::kBytes, 1, 0};
        case DType::kFloat16:
            return {PaletteKind::kFloat16, 2, 3};
        case DType::kFloat32:
            return {PaletteKind::kFloat32, 4, 0};
        case DType::kFloat64:
            return {PaletteKind::kFloat64, 8, 0};
        case DType::kBfloat16:
            return {PaletteKind::kBfloat16, 2, 0};
        case DType::kFloat8e4m3:
            return {PaletteKind::kFloat8e4m3, 1, 4};
        case DType::kFloat8e5m2:
            return {PaletteKind::kFloat8e5m2, 1, 3};
    }
    return {PaletteKind::kBytes, 1, 0};
}

int64_t round_up(int64_t value, int64_t to) {
    return (value + to - 1) / to * to;
}

// Elements of the kind in `count` of the type.
int64_t kind_count(DType dtype, int64_t count) {
    return count * static_cast<int64_t>(dtype_bytes(dtype)) / kind_of(dtype).bytes;
}

int64_t block_count(DType dtype, int64_t count) {
    return (kind_count(dtype, count) + kPaletteBlock - 1) / kPaletteBlock;
}

int64_t first_payload(int64_t blocks) {
    return kPaletteChunkHeader + round_up(4 * blocks, 8);
}

bool accepts(const CodecParams&, DType) {
    return true;
}
CodecTraits traits(const CodecParams& params, DType) {
    return {.lossless = true, .variable_size = params.slot == 0};
}

// All blocks raw; or the slot where that is less.
int64_t encoded_bytes(const CodecParams& params, DType dtype, int64_t count) {
    if (count <= 0) {
        return 0;
    }
    const int64_t raw = count * static_cast<int64_t>(dtype_bytes(dtype));
    const int64_t bound = first_payload(block_count(dtype, count)) + round_up(raw, 8);
    if (params.slot == 0) {
        return bound;
    }
    const auto part = static_cast<int64_t>(static_cast<double>(raw) * double{params.slot});
    return std::min(bound, std::max(int64_t{kPaletteChunkHeader}, round_up(part, 16)));
}

int64_t granule(const CodecParams&, DType) {
    return kPaletteBlock;
}
double block_error_bound(const CodecParams&, DType) {
    return 0;
}

uint64_t load(const uint8_t* from, int bytes) {
    uint64_t value = 0;
    std::memcpy(&value, from, static_cast<size_t>(bytes));
    return value;
}

void encode(const EncodeArgs& args) {
    EncodeArgs bits = args;
    bits.residual = nullptr;
    bits.scale_ptr = nullptr;
    const auto& kernels = host_table<PaletteTable>();
    for_each_chunk(bits, [&](EncodeChunk chunk) {
        const int64_t capacity =
            std::min(encoded_bytes(args.params, args.dtype, chunk.count), args.slot_bytes);
        chunk.count = kind_count(args.dtype, chunk.count);
        kernels.encode(chunk, kind_of(args.dtype).kind, capacity);
        if (args.params.slot > 0) {
            const auto total = static_cast<int64_t>(load(chunk.output + 8, 8));
            std::memset(chunk.output + total, 0, static_cast<size_t>(capacity - total));
        }
    });
}

void decode(const DecodeArgs& args) {
    const auto& kernels = host_table<PaletteTable>();
    for_each_chunk(args, [&](DecodeChunk chunk) {
        const int64_t size =
            std::min(encoded_bytes(args.params, args.dtype, chunk.count), args.slot_bytes);
        chunk.count = kind_count(args.dtype, chunk.count);
        kernels.decode(chunk, kind_of(args.dtype).kind, size, args.params.slot > 0);
    });
}

// --- Checking an encoding

// Symbols of a tier that escape: those whose bits are all ones. `end` - `words` is enough for n.
int64_t escapes_of(const uint8_t* words, int n, int bits) {
    int64_t escapes = 0;
    for (int begin = 0; begin < n; begin += 64) {
        const int t = std::min(n - begin, 64);
        const int bytes = (t + 7) / 8;
        uint64_t all = ~uint64_t{0} >> (64 - t);
        for (int bit = 0; bit < bits; ++bit) {
            all &= load(words, bytes);
            words += bytes;
        }
        escapes += __builtin_popcountll(all);
    }
    return escapes;
}

// What is wrong with a block's payload of `bytes`, null when nothing is.
const char* fault_of_block(const Kind& kind, const uint8_t* from, int64_t bytes, int len) {
    const int64_t raw = round_up(len * kind.bytes, 8);
    if (bytes == raw || bytes == 0) {
        return nullptr;
    }
    if (bytes > raw || bytes < kPaletteHeader) {
        return "has a wrong size";
    }
    const uint64_t counts = load(from, 8);
    const int n = static_cast<int>(counts & 0xFFF) + 1;
    const int n1 = static_cast<int>(counts >> 12 & 0x1FFF);
    const int n2 = static_cast<int>(counts >> 25 & 0x1FFF);
    const int n3 = static_cast<int>(counts >> 38 & 0x1FFF);
    const bool zero_mode = (counts >> 51 & 1) != 0;
    if (n > len || (!zero_mode && n != len) || n1 > n || n2 > n1 || n3 > n2) {
        return "has a wrong header";
    }
    int64_t at = kPaletteHeader;
    if (zero_mode) {
        if (bytes < at + 8) {
            return "ends within its marks";
        }
        const uint64_t groups = load(from + at, 8);
        at += 8;
        int64_t ones = 0;
        for (int group = 0; group < 64; ++group) {
            if ((groups >> group & 1) == 0) {
                continue;
            }
            const int t = len - group * 64;
            if (bytes < at + 8 || t <= 0) {
                return "ends within its marks";
            }
            const uint64_t word = load(from + at, 8);
            at += 8;
            if (t < 64 && word >> t != 0) {
                return "marks elements beyond its end";
            }
            ones += __builtin_popcountll(word);
        }
        if (ones != n) {
            return "marks another number of elements than it codes";
        }
    }
    const auto plane = [](int elements) { return (elements + 7) / 8; };
    const int64_t words1 = at + (kind.bytes - 1) * n + kind.raw_bits * plane(n);
    const int64_t words2 = words1 + 2 * plane(n);
    const int64_t words3 = words2 + 2 * plane(n1);
    const int64_t symbols = words3 + 3 * plane(n2);
    if (round_up(symbols + n3, 8) != bytes) {
        return "has a wrong size";
    }
    if (escapes_of(from + words1, n, 2) != n1 || escapes_of(from + words2, n1, 2) != n2 ||
        escapes_of(from + words3, n2, 3) != n3) {
        return "has another number of escapes than its header says";
    }
    return nullptr;
}

Status invalid(std::string text) {
    return {Code::kInvalidArgument, "palette encoding " + std::move(text)};
}

Result<int64_t> check(
    const CodecParams& params, DType dtype, int64_t count, const uint8_t* bytes, int64_t size) {
    if (count <= 0) {
        return int64_t{0};
    }
    const Kind kind = kind_of(dtype);
    const int64_t elements = kind_count(dtype, count);
    const int64_t blocks = block_count(dtype, count);
    const int64_t first = first_payload(blocks);
    const int64_t slot = encoded_bytes(params, dtype, count);
    size = std::min(size, slot);
    if (size < kPaletteChunkHeader) {
        return invalid("is truncated: " + std::to_string(size) + " bytes hold no header");
    }
    if (load(bytes, 4) != kPaletteMagic) {
        return invalid("does not start with its magic number");
    }
    const uint64_t flags = load(bytes + 4, 4);
    const auto total = static_cast<int64_t>(load(bytes + 8, 8));
    if (params.slot > 0 && size < slot) {
        return invalid("is truncated: " + std::to_string(size) + " bytes of a slot of " +
                       std::to_string(slot));
    }
    if (params.slot > 0 && flags == kPaletteOverflow && total == kPaletteChunkHeader) {
        return slot;
    }
    if (flags != 0 || total < first) {
        return invalid("has a wrong header");
    }
    if (total > size) {
        return invalid("is truncated: " + std::to_string(size) + " bytes of " +
                       std::to_string(total));
    }
    int64_t at = first;
    for (int64_t block = 0; block < blocks; ++block) {
        const auto end = static_cast<int64_t>(load(bytes + kPaletteChunkHeader + 4 * block, 4)) * 8;
        const std::string name = "block " + std::to_string(block);
        if (end < at || end > total) {
            return invalid("is corrupt: " + name + " ends outside");
        }
        const auto len =
            static_cast<int>(std::min<int64_t>(elements - block * kPaletteBlock, kPaletteBlock));
        if (const char* fault = fault_of_block(kind, bytes + at, end - at, len)) {
            return invalid("is corrupt: " + name + " " + fault);
        }
        at = end;
    }
    if (at != total) {
        return invalid("is corrupt: bytes after its last block");
    }
    return params.slot > 0 ? slot : total;
}

}  // namespace

extern const CodecDescriptor codec_palette;
constinit const CodecDescriptor codec_palette = {
    .name = Palette::kName,
    .grammar =
        "palette:slot=0|0.01..1.01 (lossless; fraction of the raw size, default 0: variable)",
    .parse = Palette::parse,
    .print = Palette::print,
    .accepts = accepts,
    .traits = traits,
    .encoded_bytes = encoded_bytes,
    .granule = granule,
    .block_error_bound = block_error_bound,
    .workspace_bytes = nullptr,
    .check = check,
    .host = {encode, decode, nullptr},
    .cuda = {nullptr, nullptr, nullptr},
};

}  // namespace slimwire
