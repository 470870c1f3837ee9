// Codec threshold: the elements not below a threshold, in their order, up to a fixed capacity.
// See sparse.h; with `refresh`, aim.h says which threshold.
#include "codecs/sparse.h"

namespace slimwire {
namespace {

struct Member {
    static constexpr SparseKind kKind = SparseKind::kThreshold;
    static constexpr const char* kName = "threshold";
    static constexpr const char* kGrammar =
        "threshold:threshold=0..3.4e38 (default 0.001),fraction=0.000001..1 (capacity, default "
        "0.01),"
        "refresh=0..1000000000 (encodings from one exact threshold to the next, in between it "
        "follows "
        "the data; default 0: it stays),values=native|int8|int4 (default native)";
    static constexpr CodecParams kDefaults = {.fraction = 0.01f, .threshold = 0.001f};
    static constexpr const SpecKey* kKeys[] = {&spec_key_threshold, &spec_key_fraction,
                                               &spec_key_refresh, &spec_key_values};
};

}  // namespace

extern const CodecDescriptor codec_threshold;
constinit const CodecDescriptor codec_threshold = Sparse<Member>::descriptor();

}  // namespace slimwire
