// Host bodies of the sparsifiers for one instruction set; compiled once per set, with its flags.
// Everything but the table is local to this object (see simd/table.h).
#include "codecs/simd/isa_headers.h"
#include "codecs/sparse/host/table.h"

namespace slimwire {
namespace {

#include "codecs/simd/lanes.h"

#include "codecs/sparse/host/sparse_lanes.h"

#include "codecs/sparse/host/sparse_values.h"

#include "codecs/sparse/host/sparse_indices.h"

#include "codecs/sparse/host/sparse_select_group.h"

#include "codecs/sparse/host/sparse_select.h"

#include "codecs/sparse/host/sparse_kernels.h"

#include "codecs/sparse/host/sparse_chosen.h"

#include "codecs/sparse/host/sparse_decode.h"

#include "codecs/sparse/host/sparse_groups.h"

#include "codecs/sparse/host/sparse_groups_decode.h"

#include "codecs/sparse/host/sparse_runs.h"

#include "codecs/sparse/host/sparse_gather.h"

#include "codecs/simd/put_scaled.h"

#include "codecs/sparse/host/sparse_sum.h"

template <class Element, bool kResidual>
void encode_as(const EncodeChunk& chunk, const SparsePlan& plan) {
    switch (plan.kind) {
        case SparseKind::kTopK:
        case SparseKind::kThreshold:
            return encode_chosen<Element, kResidual>(chunk, plan);
        case SparseKind::kGroups:
            return encode_groups<Element, kResidual>(chunk, plan);
        case SparseKind::kRuns:
            return encode_runs<Element, kResidual>(chunk, plan);
    }
}

void encode(const EncodeChunk& chunk, const SparsePlan& plan) {
    visit(chunk.dtype, chunk.residual != nullptr,
          [&]<bool kResidual>(auto element, Flag<kResidual>) {
              encode_as<decltype(element), kResidual>(chunk, plan);
          });
}

uint32_t cut(const EncodeChunk& chunk, const SparsePlan& plan) {
    uint32_t least = 0;
    visit(chunk.dtype, chunk.residual != nullptr,
          [&]<bool kResidual>(auto element, Flag<kResidual>) {
              least = cut_of<decltype(element), kResidual>(chunk, plan);
          });
    return least;
}

int64_t reach(const EncodeChunk& chunk, uint32_t least) {
    int64_t sum = 0;
    visit(chunk.dtype, chunk.residual != nullptr,
          [&]<bool kResidual>(auto element, Flag<kResidual>) {
              sum = reach_of<decltype(element), kResidual>(chunk, least);
          });
    return sum;
}

template <class Element, bool kAccumulate>
void decode_as(const DecodeChunk& chunk, const SparsePlan& plan) {
    switch (plan.kind) {
        case SparseKind::kTopK:
        case SparseKind::kThreshold:
            return decode_chosen<Element, kAccumulate>(chunk, plan);
        case SparseKind::kGroups:
            return decode_groups<Element, kAccumulate>(chunk, plan);
        case SparseKind::kRuns:
            return decode_runs<Element, kAccumulate>(chunk, plan);
    }
}

void decode(const DecodeChunk& chunk, const SparsePlan& plan) {
    visit(chunk.dtype, chunk.accumulate, [&]<bool kAccumulate>(auto element, Flag<kAccumulate>) {
        decode_as<decltype(element), kAccumulate>(chunk, plan);
    });
}

template <bool kResidual>
void reduce_as(const ReduceChunk& chunk, const SparsePlan& plan) {
    if (plan.kind == SparseKind::kGroups) {
        reduce_groups<kResidual>(chunk, plan);
    } else {
        reduce_runs<kResidual>(chunk, plan);
    }
}

void reduce(const ReduceChunk& chunk, const SparsePlan& plan) {
    if (chunk.residual != nullptr) {
        reduce_as<true>(chunk, plan);
    } else {
        reduce_as<false>(chunk, plan);
    }
}

}  // namespace

const SparseTable SLIMWIRE_HOST_TABLE(host_sparse) = {encode, decode, reduce, sum,
                                                      cut,    reach,  gather};

}  // namespace slimwire
