#include "codecs/residual/load_store.h"

#include <algorithm>

#include "codecs/launch.h"
#include "codecs/residual/residual_math.h"
#include "codecs/residual/stored_residuals.h"
#include "codecs/simd/chunks.h"

namespace slimwire {
namespace {

static_assert(kResidualBlock % kRandomGroup == 0);

// Twice the bytes of one group's values, plus 1.
struct Drawn {
    uint32_t v[kRandomGroup];

    Drawn(const ChunkRandom& random, int64_t group) {
        uint32_t x[4] = {static_cast<uint32_t>(group),
                         static_cast<uint32_t>(static_cast<uint64_t>(group) >> 32), 0, random.step};
        threefry(x, random.key);
        for (int i = 0; i < kRandomGroup; ++i) {
            v[i] = (x[i / 4] >> (8 * (i % 4)) & 0xFF) * 2 + 1;
        }
    }
};

// Elements i, ..., i + elems - 1 of the run, at most a block of it.
void put_block(const StoredView& store,
               const StoreResidualArgs& args,
               const ChunkRandom& random,
               const float* input,
               int64_t i,
               int64_t elems) {
    float next[kResidualBlock];
    uint32_t largest = 0;
    bool changes = false;
    for (int64_t k = 0; k < elems; ++k) {
        const float old = store.value(i + k);
        next[k] = next_residual(old, input[i + k], args.keep, args.take);
        changes |= bits_of_float(next[k]) != bits_of_float(old);
        largest = std::max(largest, residual_magnitude(next[k]));
    }
    if (store.type == ResidualType::kFloat32) {
        std::copy(next, next + elems, store.floats + i);
        return;
    }
    if (!changes) {
        return;
    }
    const uint16_t scale = residual_scale(largest);
    for (int64_t begin = 0; begin < elems; begin += kRandomGroup) {
        const Drawn drawn(random, (args.stored.first + i + begin) / kRandomGroup);
        for (int64_t k = begin; k < std::min<int64_t>(begin + kRandomGroup, elems); ++k) {
            if (store.type == ResidualType::kBfloat16) {
                store.halves[i + k] = bfloat16_residual(next[k], drawn.v[k - begin]);
            } else {
                store.codes[i + k] = residual_code(next[k], scale, drawn.v[k - begin]);
            }
        }
    }
    if (store.type == ResidualType::kInt8) {
        store.halves[i / kResidualBlock] = scale;
    }
}

}  // namespace

uint64_t stored_residual_bytes(ResidualType type, uint64_t elems) noexcept {
    switch (type) {
        case ResidualType::kFloat32:
            return elems * sizeof(float);
        case ResidualType::kBfloat16:
            return elems * sizeof(uint16_t);
        case ResidualType::kInt8:
            return elems + elems / kResidualBlock * sizeof(uint16_t);
    }
    return 0;
}

void load_residual_on_host(const LoadResidualArgs& args) {
    const FloatEnvironment environment;
    if (args.count <= 0) {
        return;
    }
    const StoredView store = StoredView::of(args.stored);
    auto* output = device_view_as<float>(args.output);
    for (int64_t i = 0; i < args.count; ++i) {
        output[i] = store.value(i);
    }
}

void store_residual_on_host(const StoreResidualArgs& args) {
    const FloatEnvironment environment;
    if (args.count <= 0) {
        return;
    }
    const StoredView store = StoredView::of(args.stored);
    const auto* input = device_view_as<const float>(args.input);
    const ChunkRandom random = chunk_random(args.random, RandomPurpose::kResidual);
    for (int64_t i = 0; i < args.count; i += kResidualBlock) {
        put_block(store, args, random, input, i, std::min(kResidualBlock, args.count - i));
    }
}

void rescale_residual_on_host(const RescaleResidualArgs& args) {
    const FloatEnvironment environment;
    const StoredView store = StoredView::of(args.stored);
    const int64_t elems = args.stored.elems;
    const float factor = args.factor;
    switch (args.stored.type) {
        case ResidualType::kFloat32:
            std::transform(store.floats, store.floats + elems, store.floats,
                           [&](float x) { return rescaled_residual(x, factor); });
            break;
        case ResidualType::kBfloat16:
            std::transform(store.halves, store.halves + elems, store.halves,
                           [&](uint16_t x) { return rescaled_bfloat16_residual(x, factor); });
            break;
        case ResidualType::kInt8:
            std::transform(store.halves, store.halves + elems / kResidualBlock, store.halves,
                           [&](uint16_t scale) { return rescaled_residual_scale(scale, factor); });
            break;
    }
}

SLIMWIRE_ENQUEUE(load_residual, LoadResidualArgs)
SLIMWIRE_ENQUEUE(store_residual, StoreResidualArgs)
SLIMWIRE_ENQUEUE(rescale_residual, RescaleResidualArgs)

}  // namespace slimwire
