#include "codecs/loss_scale.h"

#include <cstring>

#include "codecs/host/float_environment.h"
#include "codecs/launch.h"
#include "codecs/loss_scale_math.h"

namespace slimwire {
namespace {

uint32_t word_at(const uint8_t* bytes) {
    uint32_t word;
    std::memcpy(&word, bytes, sizeof word);
    return word;
}

bool has_nonfinite(const uint8_t* bytes, int64_t length, const NonfiniteBits& bits) {
    constexpr int64_t kWord = sizeof(uint32_t), kBlockWords = 2048;  // a length that vectorises
    for (; length >= kBlockWords * kWord; length -= kBlockWords * kWord) {
        uint32_t any = 0;
        for (int64_t i = 0; i < kBlockWords; ++i) {
            any |= carried(word_at(bytes + i * kWord), bits);
        }
        if ((any & bits.carry) != 0) {
            return true;
        }
        bytes += kBlockWords * kWord;
    }
    uint32_t any = 0;
    for (; length >= kWord; length -= kWord) {
        any |= carried(word_at(bytes), bits);
        bytes += kWord;
    }
    if (length > 0) {
        uint16_t half;
        std::memcpy(&half, bytes, sizeof half);
        any |= carried(half, bits);
    }
    return (any & bits.carry) != 0;
}

}  // namespace

void look_for_nonfinite_on_host(const LookForNonfiniteArgs& args) {
    const auto bytes = args.count * static_cast<int64_t>(dtype_bytes(args.dtype));
    if (bytes > 0 && has_nonfinite(device_view_as<const uint8_t>(args.input), bytes,
                                   NonfiniteBits::of(args.dtype))) {
        *device_view_as<uint32_t>(args.found) = 1;
    }
}

void advance_scale_on_host(const AdvanceScaleArgs& args) {
    const FloatEnvironment environment;
    advance_scale(*device_view_as<ReplayedScale>(args.state), args);
}

Status enqueue(const DeviceApi& api, const LookForNonfiniteArgs& args, cudaStream_t stream) {
    return enqueue_operation(
        api,
        {"look_for_nonfinite", "look_for_nonfinite", look_for_nonfinite_on_host,
         SLIMWIRE_KERNEL(look_for_nonfinite_on_cuda)},
        args, stream);
}

Status enqueue(const DeviceApi& api, const AdvanceScaleArgs& args, cudaStream_t stream) {
    return enqueue_operation(api,
                             {"advance_scale", "advance_scale", advance_scale_on_host,
                              SLIMWIRE_KERNEL(advance_scale_on_cuda)},
                             args, stream);
}

}  // namespace slimwire
