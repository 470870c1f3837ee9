// The table of codecs, from the list in codecs/meson.build, and the entry to their specifications.
#include <array>
#include <vector>

#include "codec_list.h"  // generated: SLIMWIRE_CODECS(X)
#include "codecs/codec.h"
#include "codecs/spec.h"

namespace slimwire {

#define SLIMWIRE_DECLARE_CODEC(name) extern const CodecDescriptor codec_##name;
SLIMWIRE_CODECS(SLIMWIRE_DECLARE_CODEC)
#undef SLIMWIRE_DECLARE_CODEC

namespace {

#define SLIMWIRE_CODEC_ADDRESS(name) &codec_##name,
constexpr std::array kCodecs = {SLIMWIRE_CODECS(SLIMWIRE_CODEC_ADDRESS)};
#undef SLIMWIRE_CODEC_ADDRESS

}  // namespace

const CodecDescriptor* const* codec_table(size_t* count) noexcept {
    *count = kCodecs.size();
    return kCodecs.data();
}

Result<CodecSpec> parse_codec(std::string_view text) {
    const size_t colon = text.find(':');
    const std::string_view name = trimmed(text.substr(0, colon));
    const std::string_view keys =
        colon == std::string_view::npos ? std::string_view{} : text.substr(colon + 1);
    for (const CodecDescriptor* codec : kCodecs) {
        if (name == codec->name) {
            CodecSpec spec{.codec = codec, .params = {}};
            SLIMWIRE_TRY(codec->parse(keys, &spec.params));
            return spec;
        }
    }
    std::string known;
    std::vector<std::string_view> names;
    for (const CodecDescriptor* codec : kCodecs) {
        names.emplace_back(codec->name);
        known += (known.empty() ? "" : ", ") + std::string(codec->name);
    }
    const std::string_view near = nearest_word(name, names);
    return Status(Code::kInvalidArgument,
                  "unknown codec \"" + std::string(name) + "\"" +
                      (near.empty() ? std::string() : "; did you mean " + std::string(near) + "?") +
                      (near.empty() ? "; known: " : " known: ") + known);
}

}  // namespace slimwire
