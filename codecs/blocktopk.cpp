// Codec blocktopk: the largest elements of every block; as many of each.
// See sparse.h.
#include "codecs/sparse.h"

namespace slimwire {
namespace {

struct Member {
    static constexpr SparseKind kKind = SparseKind::kGroups;
    static constexpr const char* kName = "blocktopk";
    static constexpr const char* kGrammar =
        "blocktopk:block=16..2048 (power of two, default 128),kept=1..block (default 2),"
        "values=native|int8|int4 (default native)";
    static constexpr CodecParams kDefaults = {.block = 128, .kept = 2};
    static constexpr const SpecKey* kKeys[] = {&spec_key_block, &spec_key_kept, &spec_key_values};
};

}  // namespace

extern const CodecDescriptor codec_blocktopk;
constinit const CodecDescriptor codec_blocktopk = Sparse<Member>::descriptor();

}  // namespace slimwire
