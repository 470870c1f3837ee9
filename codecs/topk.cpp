// Codec topk: the largest elements of the whole chunk, exactly; of equal ones the first.
// See sparse.h.
#include "codecs/sparse.h"

namespace slimwire {
namespace {

struct Member {
    static constexpr SparseKind kKind = SparseKind::kTopK;
    static constexpr const char* kName = "topk";
    static constexpr const char* kGrammar =
        "topk:fraction=0.000001..1 (default 0.01),values=native|int8|int4 (default native)";
    static constexpr CodecParams kDefaults = {.fraction = 0.01f};
    static constexpr const SpecKey* kKeys[] = {&spec_key_fraction, &spec_key_values};
};

}  // namespace

extern const CodecDescriptor codec_topk;
constinit const CodecDescriptor codec_topk = Sparse<Member>::descriptor();

}  // namespace slimwire
