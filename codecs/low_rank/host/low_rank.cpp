// Host bodies of low_rank for one instruction set; compiled once per set, with its flags.
// Everything but the table is local to this object (see simd/table.h).
#include "codecs/low_rank/host/table.h"
#include "codecs/low_rank/learn.h"
#include "codecs/low_rank/low_rank_shape.h"
#include "codecs/simd/isa_headers.h"

namespace slimwire {
namespace {

#include "codecs/simd/lanes.h"

#include "codecs/low_rank/host/low_rank_kernels.h"

#include "codecs/low_rank/host/low_rank_orthogonal.h"

void learn(const LearnChunk& chunk) {
    float* const first = chunk.weights + chunk.count;
    float* const second = first + chunk.count;
    float* const sum = second + chunk.count;
    for (int64_t i = 0; i < chunk.count; ++i) {
        const LearntWeight next =
            learnt({chunk.weights[i], first[i], second[i], sum[i]}, chunk.gradient[i], chunk.rate,
                   chunk.first_scale, chunk.second_scale);
        chunk.weights[i] = next.weight;
        first[i] = next.first;
        second[i] = next.second;
        sum[i] = next.sum;
    }
}

}  // namespace

const LowRankTable SLIMWIRE_HOST_TABLE(host_low_rank) = {multiply_right, orthogonalise,
                                                         multiply_left, restore_low_rank, learn};

}  // namespace slimwire
