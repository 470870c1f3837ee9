// The family of sparsifiers: topk, blocktopk, rowtopk, threshold, randomk. They send some elements
// of a chunk, with their positions, and leave the rest to the residual. Layout and numerics:
// FORMAT.md, "Sparse". sparse.cpp has the descriptors; sparse_chosen.cu, sparse_groups.cu and
// sparse_runs.cu the kernels.
#pragma once

#include <span>

#include "codecs/codec.h"
#include "codecs/pair_mode.h"
#include "codecs/sparse/launchers.h"
#include "codecs/sparse/sparse_plan.h"
#include "codecs/spec.h"

namespace slimwire {

// Keys of the family's specifications.
extern const SpecKey spec_key_fraction;
extern const SpecKey spec_key_kept;
extern const SpecKey spec_key_pair;
extern const SpecKey spec_key_pair_runs;
extern const SpecKey spec_key_refresh;
extern const SpecKey spec_key_row;
extern const SpecKey spec_key_threshold;
extern const SpecKey spec_key_values;

// Operations of every member on the host, and CodecDescriptor::check.
void sparse_encode(SparseKind kind, const EncodeArgs& args);
void sparse_decode(SparseKind kind, const DecodeArgs& args);
void sparse_reduce(SparseKind kind, const DecodeReduceEncodeArgs& args);
void sparse_sum(SparseKind kind, const DecodeReduceArgs& args);
Result<int64_t> sparse_check(SparseKind kind,
                             const CodecParams& params,
                             DType dtype,
                             int64_t count,
                             const uint8_t* bytes,
                             int64_t size);
// What of `params` does not go together; an error names it.
Status sparse_validate(const char* codec, const CodecParams& params);

// A member's descriptor. Member: kKind, kName, kGrammar, kDefaults, kKeys.
template <class Member>
struct Sparse : SpecOf<Member> {
    static constexpr SparseKind kKind = Member::kKind;
    static constexpr bool kReduces = kKind == SparseKind::kGroups || kKind == SparseKind::kRuns;

    static Status parse(std::string_view text, CodecParams* params) {
        CodecParams result;
        SLIMWIRE_TRY(
            parse_spec_keys(Member::kName, Member::kKeys, Member::kDefaults, text, &result));
        SLIMWIRE_TRY(sparse_validate(Member::kName, result));
        *params = result;
        return {};
    }
    static CodecTraits traits(const CodecParams& params, DType) {
        return {.linear = kKind == SparseKind::kRuns &&
                          params.values == static_cast<uint8_t>(ValueFormat::kNative),
                .by_step = kKind == SparseKind::kRuns,
                .draws_alike = kKind == SparseKind::kRuns && !has_pair_mask(params),
                .adapts_threshold = kKind == SparseKind::kThreshold && params.refresh > 0,
                .needs_feedback = !has_pair_mask(params),
                .poison_elems = 0,
                .pairs_masks = has_pair_mask(params)};
    }
    static int64_t encoded_bytes(const CodecParams& params, DType dtype, int64_t count) {
        return sparse_plan(kKind, params, dtype, count).bytes;
    }
    static int64_t granule(const CodecParams& params, DType) {
        if (kKind == SparseKind::kGroups) {
            return params.row != 0 ? params.row : params.block;
        }
        return kKind == SparseKind::kRuns ? kSparseRun : kSparseSegment;
    }
    // What is not sent is lost, unless there is a residual.
    static double block_error_bound(const CodecParams&, DType) { return 1.0; }

    static void encode(const EncodeArgs& args) { sparse_encode(kKind, args); }
    static void decode(const DecodeArgs& args) { sparse_decode(kKind, args); }
    static void reduce(const DecodeReduceEncodeArgs& args) { sparse_reduce(kKind, args); }
    static void sum(const DecodeReduceArgs& args) { sparse_sum(kKind, args); }
    static Result<int64_t> check(
        const CodecParams& params, DType dtype, int64_t count, const uint8_t* bytes, int64_t size) {
        return sparse_check(kKind, params, dtype, count, bytes, size);
    }

    using Cuda = SparseCuda<kKind>;
    static constexpr CudaOps kCuda =
        kReduces ? Cuda::kOps : CudaOps{Cuda::encode, Cuda::decode, nullptr};

    static constexpr CodecDescriptor descriptor() {
        return {.name = Member::kName,
                .grammar = Member::kGrammar,
                .parse = parse,
                .print = Sparse::print,
                .accepts = Sparse::accepts,
                .traits = traits,
                .encoded_bytes = encoded_bytes,
                .granule = granule,
                .block_error_bound = block_error_bound,
                .workspace_bytes = kKind == SparseKind::kRuns ? nullptr : Cuda::workspace_bytes,
                .check = check,
                .host = {encode, decode, kReduces ? reduce : nullptr, kReduces ? sum : nullptr},
                .cuda = kCuda};
    }
};

}  // namespace slimwire
