// What codecs share whose host bodies take a chunk and the shape that the parameters mean: the
// operations over all chunks of their arguments, and the descriptor.
#pragma once

#include "codecs/codec.h"
#include "codecs/simd/chunks.h"
#include "codecs/spec.h"

namespace slimwire {

// `Member` derives from this. It has kName, kDefaults, kKeys, shape(params), bodies(params), which
// are ChunkKernels, and of a descriptor traits, encoded_bytes, granule and block_error_bound; what
// it says itself of the others goes before what stands here. `Cuda` has the launchers.
template <class Member, class Cuda>
struct BlockCodec : SpecOf<Member> {
    static void encode(const EncodeArgs& args) {
        const auto body = Member::bodies(args.params).encode;
        const auto shape = Member::shape(args.params);
        for_each_chunk(args, [&](const EncodeChunk& chunk) { body(chunk, shape); });
    }
    static void decode(const DecodeArgs& args) {
        const auto body = Member::bodies(args.params).decode;
        const auto shape = Member::shape(args.params);
        for_each_chunk(args, [&](const DecodeChunk& chunk) { body(chunk, shape); });
    }
    static void reduce(const DecodeReduceEncodeArgs& args) {
        const auto body = Member::bodies(args.params).reduce;
        const auto shape = Member::shape(args.params);
        for_each_chunk(args, [&](const ReduceChunk& chunk) { body(chunk, shape); });
    }
    static void sum(const DecodeReduceArgs& args) {
        const auto body = Member::bodies(args.params).sum;
        const auto shape = Member::shape(args.params);
        for_each_chunk(args, [&](const ReduceChunk& chunk) { body(chunk, shape); });
    }

    static constexpr CodecDescriptor descriptor(const char* grammar) {
        return {.name = Member::kName,
                .grammar = grammar,
                .parse = Member::parse,
                .print = Member::print,
                .accepts = Member::accepts,
                .traits = Member::traits,
                .encoded_bytes = Member::encoded_bytes,
                .granule = Member::granule,
                .block_error_bound = Member::block_error_bound,
                .workspace_bytes = nullptr,
                .check = nullptr,
                .host = {encode, decode, reduce, sum},
                .cuda = Cuda::kOps};
    }
};

}  // namespace slimwire
