// Host bodies of the palette codec for one instruction set; compiled once per set, with its flags.
// Everything but the table is local to this object (see simd/table.h). The bytes: FORMAT.md.
#include "codecs/palette/host/table.h"
#include "codecs/simd/isa_headers.h"

#include "codecs/args.h"

namespace slimwire {
namespace {

#include "codecs/simd/lanes.h"

constexpr int kSlack = 128;  // bytes past their ends that steps may touch in buffers of this file
constexpr int kLine = 64;

constexpr int64_t padded(int64_t bytes) {
    return (bytes + 7) / 8 * 8;
}

#include "codecs/palette/host/palette_scalar.h"
#if defined(SLIMWIRE_ISA_AVX512)
#include "codecs/palette/host/palette_avx512.h"
#elif defined(SLIMWIRE_ISA_AVX2)
#include "codecs/palette/host/palette_avx2.h"
#else
using VectorSteps = PlainSteps;
#endif
#include "codecs/palette/host/palette_encode.h"

#include "codecs/palette/host/palette_decode.h"

// Calls run(Shape) for the kind.
template <class Run>
void visit_kind(PaletteKind kind, Run run) {
    switch (kind) {
        case PaletteKind::kBytes:
            return run(Shape<1, 0, false>{});
        case PaletteKind::kFloat8e4m3:
            return run(Shape<1, 4, true>{});
        case PaletteKind::kFloat8e5m2:
            return run(Shape<1, 3, true>{});
        case PaletteKind::kFloat16:
            return run(Shape<2, 3, true>{});
        case PaletteKind::kBfloat16:
            return run(Shape<2, 0, true>{});
        case PaletteKind::kFloat32:
            return run(Shape<4, 0, true>{});
        case PaletteKind::kFloat64:
            return run(Shape<8, 0, true>{});
    }
}

void encode(const EncodeChunk& chunk, PaletteKind kind, int64_t capacity) {
    visit_kind(kind, [&]<class S>(S) {
        const bool fits = PaletteEncoder<S, VectorSteps>::encode(chunk.input, chunk.count,
                                                                 chunk.output, capacity);
        if (!fits && chunk.status != nullptr) {
            *chunk.status |= kStatusOverflow;
        }
    });
}

void decode(const DecodeChunk& chunk, PaletteKind kind, int64_t size, bool slotted) {
    visit_kind(kind, [&]<class S>(S) {
        const uint32_t bits =
            PaletteDecoder<S, VectorSteps>::decode(chunk, chunk.count, size, slotted);
        if (bits != 0 && chunk.status != nullptr) {
            *chunk.status |= bits;
        }
    });
}

}  // namespace

const PaletteTable SLIMWIRE_HOST_TABLE(host_palette) = {encode, decode};

}  // namespace slimwire
