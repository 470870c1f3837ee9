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

void learn(const LearnArgs& args) {
    float* const first = args.weights + args.count;
    float* const second = first + args.count;
    float* const sum = second + args.count;
    for (int64_t i = 0; i < args.count; ++i) {
        const LearntWeight next =
            learnt({args.weights[i], first[i], second[i], sum[i]}, args.gradient[i], args.rate,
                   args.first_scale, args.second_scale);
        args.weights[i] = next.weight;
        first[i] = next.first;
        second[i] = next.second;
        sum[i] = next.sum;
    }
}

}  // namespace

const LowRankTable SLIMWIRE_HOST_TABLE(host_low_rank) = {multiply_right, orthogonalise,
                                                         multiply_left, restore_low_rank, learn};

}  // namespace slimwire
