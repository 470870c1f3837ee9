#include "codecs/sparse/masked_values.h"

#include <algorithm>
#include <cstring>

#include "codecs/launch.h"
#include "codecs/simd/chunks.h"
#include "codecs/sparse/host/table.h"

namespace slimwire {

void gather_masked_on_host(const GatherMaskedArgs& args) {
    const MaskedFrame frame = MaskedFrame::of(args.params, args.dtype, args.count);
    auto* const bytes = device_view_as<uint8_t>(args.frame);
    const auto* const mask = device_view_as<const uint8_t>(args.mask);
    const bool finite = host_table<SparseTable>().gather(
        mask, device_view_as<const uint8_t>(args.input), bytes + frame.plan.values, frame.plan);
    const MaskTrailer trailer = {mask != nullptr ? args.number : kNoMask, 0, finite ? 0u : 1u, 0};
    std::memcpy(bytes + frame.trailer, &trailer, sizeof(trailer));
}

void join_masked_on_host(const JoinMaskedArgs& args) {
    const MaskedFrame frame = MaskedFrame::of(args.params, args.dtype, args.count);
    auto* const bytes = device_view_as<uint8_t>(args.frame);
    MaskTrailer trailer;
    std::memcpy(&trailer, bytes + frame.trailer, sizeof(trailer));
    const uint32_t* const end = args.numbers + args.held;
    const uint32_t* const found = std::find(args.numbers, end, trailer.number);
    if (found != end) {
        std::memcpy(bytes, device_view_as<const uint8_t>(args.masks[found - args.numbers]),
                    static_cast<size_t>(frame.mask_bytes()));
    } else {
        std::memset(bytes, 0, static_cast<size_t>(frame.trailer));
        ++*device_view_as<uint32_t>(args.misses);
    }
    const bool lost = trailer.non_finite != 0;
    std::memcpy(bytes + 12, lost ? &frame.lost : &frame.word, sizeof(uint32_t));
    if (lost) {
        uint32_t first;
        std::memcpy(&first, bytes + frame.plan.values, sizeof(first));
        first = (first & frame.keep) | frame.set;
        std::memcpy(bytes + frame.plan.values, &first, sizeof(first));
    }
}

SLIMWIRE_ENQUEUE(gather_masked, GatherMaskedArgs)
SLIMWIRE_ENQUEUE(join_masked, JoinMaskedArgs)

}  // namespace slimwire
