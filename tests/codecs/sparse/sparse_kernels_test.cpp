// The kernel sources of the sparsifiers equal the host bodies to the byte, also of damaged bytes,
// in one launch and in two. What topk and threshold alone have: sparse_chosen_kernels_test.cpp.
#include "tests/codecs/kernels_on_host.h"

#include "codecs/sparse/sparse_chosen.cu"
#include "codecs/sparse/sparse_groups.cu"
#include "codecs/sparse/sparse_runs.cu"

namespace slimwire::testing {
namespace {

using SparseKernels = KernelsOnHost;

// Small messages, each chunk a thread block.
TEST_F(SparseKernels, OneLaunchEqualsTheHostBodies) {
    for (const char* text :
         {"topk:fraction=0.1", "topk:fraction=0.01,values=int8", "topk:fraction=0.3,values=int4",
          "threshold:threshold=2,fraction=0.05", "threshold:threshold=1,fraction=0.5,values=int8",
          "blocktopk", "blocktopk:block=16,kept=9,values=int4", "blocktopk:block=512,kept=20",
          "blocktopk:block=32,kept=5,values=int8", "rowtopk:row=77,kept=13,values=int8",
          "rowtopk:row=1000,kept=3", "rowtopk:row=300,kept=100", "rowtopk:row=1501,kept=90",
          "randomk:fraction=0.1", "randomk:fraction=0.03,values=int8",
          "randomk:fraction=0.3,values=int4"}) {
        compare_random(spec_of(text), 9001, 24);
    }
}

// Large messages, some of which take two launches; every form of positions.
TEST_F(SparseKernels, LargeMessagesEqualTheHostBodies) {
    constexpr int64_t kLarge = 2 * 65536 + 8192 + 77;
    for (const char* text :
         {"topk:fraction=0.3", "topk:fraction=0.01,values=int8", "topk:fraction=0.001",
          "topk:fraction=0.1", "threshold:threshold=1.5,fraction=0.1",
          "threshold:threshold=2.2,fraction=0.02", "blocktopk:block=64,kept=3,values=int8",
          "rowtopk:row=3001,kept=700", "randomk:fraction=0.02,values=int8", "randomk"}) {
        const CodecSpec spec = spec_of(text);
        for (const DType dtype : {DType::kBfloat16, DType::kFloat32}) {
            gpu::Situation situation = gpu::random_situation(spec, kLarge, random_);
            situation.dtype = dtype;
            situation.count = situation.chunk_elems = kLarge;
            situation.hostile = dtype == DType::kFloat32;
            situation.inputs = 1 + situation.inputs % 2;
            expect_equal(spec, situation);
        }
        ASSERT_FALSE(HasFailure());
    }
}

TEST_F(SparseKernels, AMissingWorkspaceIsRefused) {
    std::mt19937 random(seed_);
    for (const char* text : {"topk", "threshold", "blocktopk:values=int8"}) {
        const CodecSpec spec = spec_of(text);
        const Guarded input = random_input(DType::kFloat32, 500, 1.0, random);
        Guarded output(slot_for(spec.encoded_bytes(DType::kFloat32, 500)));
        const EncodeArgs args =
            encode_args(spec, DType::kFloat32, 500, input.data(), output.data());
        EXPECT_EQ(spec.codec->cuda.encode(args, nullptr), cudaErrorInvalidValue) << text;
        EXPECT_TRUE(output.untouched_from(0));
    }
}

}  // namespace
}  // namespace slimwire::testing
