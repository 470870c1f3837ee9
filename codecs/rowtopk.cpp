// Codec rowtopk: the largest elements of every row of an activation.
// See sparse.h.
#include "codecs/sparse.h"

namespace slimwire {
namespace {

struct Member {
    static constexpr SparseKind kKind = SparseKind::kGroups;
    static constexpr const char* kName = "rowtopk";
    static constexpr const char* kGrammar =
        "rowtopk:row=2..16384 (default 1024),kept=1..row (default 16),"
        "values=native|int8|int4 (default native)";
    static constexpr CodecParams kDefaults = {.kept = 16, .row = 1024};
    static constexpr const SpecKey* kKeys[] = {&spec_key_row, &spec_key_kept, &spec_key_values};
};

}  // namespace

extern const CodecDescriptor codec_rowtopk;
constinit const CodecDescriptor codec_rowtopk = Sparse<Member>::descriptor();

}  // namespace slimwire
