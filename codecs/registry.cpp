// The table of codecs, from the list in codecs/meson.build, and the entry to their specifications.
#include <algorithm>
#include <array>
#include <vector>

#include "codec_list.h"  // generated: SLIMWIRE_CODECS(X)
#include "codecs/base/removed_words.h"
#include "codecs/codec.h"
#include "codecs/spec.h"

namespace slimwire {

#define SLIMWIRE_DECLARE_CODEC(name) extern const CodecDescriptor codec_##name;
SLIMWIRE_CODECS(SLIMWIRE_DECLARE_CODEC)
#undef SLIMWIRE_DECLARE_CODEC
extern const CodecDescriptor codec_powersgd;
extern const CodecDescriptor codec_linear_ae;

namespace {

#define SLIMWIRE_CODEC_ADDRESS(name) &codec_##name,
constexpr std::array kCodecs = {SLIMWIRE_CODECS(SLIMWIRE_CODEC_ADDRESS)};
#undef SLIMWIRE_CODEC_ADDRESS
constexpr std::array kFactorCodecs = {&codec_powersgd, &codec_linear_ae};

// Calls use(descriptor) for each that a specification may name, until it returns true.
template <class Use>
void find_codec(const Use& use) {
    if (std::none_of(kCodecs.begin(), kCodecs.end(), use)) {
        (void)std::any_of(kFactorCodecs.begin(), kFactorCodecs.end(), use);
    }
}

}  // namespace

const CodecDescriptor* const* codec_table(size_t* count) noexcept {
    *count = kCodecs.size();
    return kCodecs.data();
}

Status encodes_runs(const CodecSpec& spec) {
    if (spec.params.bits > 0 && spec.params.row > 0) {
        return {Code::kInvalidArgument, spec.to_string() +
                                            " encodes no run of elements, but the columns of a "
                                            "message's rows; accepted: no row"};
    }
    return spec.traits(DType::kFloat32).low_rank
               ? Status(Code::kInvalidArgument,
                        spec.to_string() +
                            " encodes no run of elements, but whole matrices by their factors; "
                            "accepted: any other codec")
               : Status();
}

Result<int64_t> check_encoding(
    const CodecSpec& spec, DType dtype, int64_t count, const uint8_t* bytes, int64_t size) {
    const std::string where = "encoding of " + std::to_string(count) + " " + dtype_name(dtype) +
                              " elements by " + spec.to_string() + ": ";
    if (count < 0 || size < 0 || (bytes == nullptr && size > 0)) {
        return Status(Code::kInvalidArgument, where + "no bytes, or a negative size");
    }
    if (!spec.accepts(dtype)) {
        return Status(Code::kInvalidArgument, where + "the codec does not take this element type");
    }
    const int64_t expected = spec.encoded_bytes(dtype, count);
    if (spec.codec->check == nullptr) {
        if (size < expected) {
            return Status(Code::kInvalidArgument, where + "truncated: " + std::to_string(size) +
                                                      " of " + std::to_string(expected) + " bytes");
        }
        return expected;
    }
    if (count == 0) {
        return int64_t{0};
    }
    Result<int64_t> used = spec.codec->check(spec.params, dtype, count, bytes, size);
    if (!used.ok()) {
        return Status(used.status().code(), where + used.status().message());
    }
    return used;
}

Result<CodecSpec> parse_codec(std::string_view text) {
    const size_t colon = text.find(':');
    const std::string_view name = trimmed(text.substr(0, colon));
    const std::string_view keys =
        colon == std::string_view::npos ? std::string_view{} : text.substr(colon + 1);
    CodecSpec spec{};
    std::string known;
    std::vector<std::string_view> names;
    find_codec([&](const CodecDescriptor* codec) {
        names.emplace_back(codec->name);
        known += (known.empty() ? "" : ", ") + std::string(codec->name);
        spec.codec = name == codec->name ? codec : nullptr;
        return spec.codec != nullptr;
    });
    if (spec.codec != nullptr) {
        SLIMWIRE_TRY(spec.codec->parse(keys, &spec.params));
        return spec;
    }
    const std::string hint = removed_hint(RemovedKind::kCodec, name);
    if (!hint.empty()) {
        return Status(Code::kInvalidArgument, "unknown codec \"" + std::string(name) + "\"" + hint);
    }
    const std::string_view near = nearest_word(name, names);
    return Status(Code::kInvalidArgument,
                  "unknown codec \"" + std::string(name) + "\"" +
                      (near.empty() ? std::string() : "; did you mean " + std::string(near) + "?") +
                      (near.empty() ? "; known: " : " known: ") + known);
}

}  // namespace slimwire
