// What codecs share whose host bodies take a chunk and the shape that the parameters mean: the
// operations over all chunks of their arguments, and the descriptor.
#pragma once

#include <type_traits>

#include "codecs/codec.h"
#include "codecs/simd/chunks.h"
#include "codecs/spec.h"

namespace slimwire {

// `Member` derives from this. It has kName, kDefaults, kKeys, bodies(params), which are
// ChunkKernels, shape(params) or shapes(args), and of a descriptor traits, encoded_bytes, granule
// and block_error_bound; what it says itself of the others goes before what stands here. `Cuda` has
// the launchers.
template <class Member, class Cuda>
struct BlockCodec : SpecOf<Member> {
    static constexpr bool kReduces = true;
    static constexpr decltype(CodecDescriptor::workspace_bytes) workspace_bytes = nullptr;
    static constexpr decltype(CodecDescriptor::check) check = nullptr;

    // Gives each chunk of an operation what its body takes: one shape for all of them.
    template <class Args>
    static auto shapes(const Args& args) {
        return [shape = Member::shape(args.params)](const auto&) -> const auto& {
            return shape;
        };
    }
    template <auto kBody, class Args>
    static void run(const Args& args) {
        const auto body = Member::bodies(args.params).*kBody;
        auto shape_of = Member::shapes(args);
        for_each_chunk(args, [&](const auto& chunk) { body(chunk, shape_of(chunk)); });
    }

    static constexpr CodecDescriptor descriptor(const char* grammar) {
        using Bodies = std::remove_cvref_t<decltype(Member::bodies(CodecParams()))>;
        constexpr bool kAll = Member::kReduces;
        return {.name = Member::kName,
                .grammar = grammar,
                .parse = Member::parse,
                .print = Member::print,
                .accepts = Member::accepts,
                .traits = Member::traits,
                .encoded_bytes = Member::encoded_bytes,
                .granule = Member::granule,
                .block_error_bound = Member::block_error_bound,
                .workspace_bytes = Member::workspace_bytes,
                .check = Member::check,
                .host = {run<&Bodies::encode, EncodeArgs>, run<&Bodies::decode, DecodeArgs>,
                         kAll ? run<&Bodies::reduce, DecodeReduceEncodeArgs> : nullptr,
                         kAll ? run<&Bodies::sum, DecodeReduceArgs> : nullptr},
                .cuda = kAll ? Cuda::kOps : CudaOps{Cuda::encode, Cuda::decode, nullptr}};
    }
};

}  // namespace slimwire
