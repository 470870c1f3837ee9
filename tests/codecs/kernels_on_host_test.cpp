// The kernel sources of the codecs but the sparsifiers' equal the host bodies to the byte.
#include "tests/codecs/kernels_on_host.h"

#include "codecs/block_float/block_float.cu"
#include "codecs/block_int/int2.cu"
#include "codecs/block_int/int4.cu"
#include "codecs/block_int/int8.cu"
#include "codecs/bounded/bounded.cu"
#include "codecs/cast/cast.cu"
#include "codecs/quantizers/quantizers.cu"

namespace slimwire::testing {
namespace {

TEST_F(KernelsOnHost, EveryCodecEqualsTheHostBodies) {
    for (const CodecSpec& spec : all_specs()) {
        const CodecTraits traits = spec.traits(DType::kFloat32);
        if (traits.lossless || traits.poison_elems == 0) {
            continue;  // palette has none; sparse_kernels_test.cpp
        }
        ASSERT_NE(spec.codec->cuda.encode, nullptr) << spec.codec->name << " is not in this test";
        compare_random(spec, 5003, 20);
        ASSERT_FALSE(HasFailure());
    }
}

}  // namespace
}  // namespace slimwire::testing
