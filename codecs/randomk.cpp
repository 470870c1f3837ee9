// Codec randomk: runs of 32 elements that all ranks draw alike; no positions are sent.
// See sparse.h.
#include "codecs/sparse.h"

namespace slimwire {
namespace {

struct Member {
    static constexpr SparseKind kKind = SparseKind::kRuns;
    static constexpr const char* kName = "randomk";
    static constexpr const char* kGrammar =
        "randomk:fraction=0.000001..1 (default 0.01),seed=0..4294967295 (default 0),"
        "values=native|int8|int4 (default native)";
    static constexpr CodecParams kDefaults = {.fraction = 0.01f};
    static constexpr const SpecKey* kKeys[] = {&spec_key_fraction, &spec_key_seed,
                                               &spec_key_values};
};

}  // namespace

extern const CodecDescriptor codec_randomk;
constinit const CodecDescriptor codec_randomk = Sparse<Member>::descriptor();

}  // namespace slimwire
