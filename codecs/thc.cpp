#include "codecs/thc.h"

#include <algorithm>

#include "codecs/host/chunks.h"
#include "codecs/host/table.h"
#include "codecs/launch.h"
#include "codecs/numeric.h"
#include "codecs/thc_math.h"

namespace slimwire {
namespace {

// Calls run(chunk) for one group after the other, in the order of the message.
template <class Run>
void for_each_group(const ThcArgs& args, const Run& run) {
    if (args.count <= 0) {
        return;
    }
    const FloatEnvironment environment;
    const auto element_bytes = static_cast<int64_t>(dtype_bytes(args.dtype));
    const int32_t bits = thc_field_bits(args.levels, args.ranks);
    const auto at = [](auto* from, int64_t offset) {
        return from == nullptr ? nullptr : from + offset;
    };
    const auto* const input = device_view_as<const uint8_t>(args.input);
    auto* const output = device_view_as<uint8_t>(args.output);
    auto* const residual = device_view_as<float>(args.residual);
    auto* const scales = device_view_as<uint32_t>(args.scales);
    auto* const words = device_view_as<uint64_t>(args.words);
    ThcChunk chunk{};
    chunk.factor =
        args.input == nullptr ? 1.0f : scale_factor(args.scale, args.scale_ptr, args.dtype);
    chunk.clip = args.clip;
    chunk.result = args.result;
    chunk.block = args.block;
    chunk.levels = args.levels;
    chunk.ranks = args.ranks;
    chunk.dtype = args.dtype;
    chunk.draw = thc_draw(args.random, args.random.step_ptr == nullptr
                                           ? 0
                                           : *device_view_as<const uint32_t>(args.random.step_ptr));
    int64_t words_before = 0;
    for (int64_t group = 0; group < thc_groups(args.count); ++group) {
        const int64_t begin = group * kThcGroup;
        chunk.group = group;
        chunk.elems = thc_group_elems(args.count, group, args.block);
        chunk.present = std::min(args.count - begin, chunk.elems);
        chunk.input = at(input, begin * element_bytes);
        chunk.output = at(output, begin * element_bytes);
        chunk.residual = at(residual, begin);
        chunk.scale = at(scales, group);
        chunk.words = at(words, words_before);
        words_before += words == nullptr ? 0 : thc_words_of(chunk.elems, bits);
        run(chunk);
    }
}

}  // namespace

int64_t thc_groups(int64_t count) noexcept {
    return (count + kThcGroup - 1) / kThcGroup;
}

int64_t thc_words(int64_t count, int block, int levels, int ranks) noexcept {
    const int32_t bits = thc_field_bits(levels, ranks);
    const int64_t whole = count / kThcGroup;
    const int64_t rest = count % kThcGroup == 0 ? 0 : thc_group_elems(count, whole, block);
    return whole * thc_words_of(kThcGroup, bits) + thc_words_of(rest, bits);
}

void measure_thc_on_host(const ThcArgs& args) {
    auto* const scales = device_view_as<uint32_t>(args.scales);
    for_each_group(args, [&](const ThcChunk& chunk) {
        scales[chunk.group] = host_table<ThcTable>().measure(chunk);
    });
}

void quantise_thc_on_host(const ThcArgs& args) {
    for_each_group(args, host_table<ThcTable>().quantise);
}

void restore_thc_on_host(const ThcArgs& args) {
    for_each_group(args, host_table<ThcTable>().restore);
}

Status enqueue(const DeviceApi& api, ThcStep step, const ThcArgs& args, cudaStream_t stream) {
    static const Operation<ThcArgs> kSteps[] = {
        {"measure", "thc", measure_thc_on_host, SLIMWIRE_KERNEL(measure_thc_on_cuda)},
        {"quantise", "thc", quantise_thc_on_host, SLIMWIRE_KERNEL(quantise_thc_on_cuda)},
        {"restore", "thc", restore_thc_on_host, SLIMWIRE_KERNEL(restore_thc_on_cuda)},
    };
    return enqueue_operation(api, kSteps[static_cast<size_t>(step)], args, stream);
}

}  // namespace slimwire
