// `slimwire codec FILE`: what a codec does to a tensor: size, error, speed.
#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>

#include "codecs/base/isa.h"
#include "collectives/policy/names.h"
#include "tools/cli/codec/codec_trial.h"
#include "tools/cli/codec/tensor_file.h"
#include "tools/cli/common/commands.h"
#include "tools/cli/common/text.h"

namespace slimwire::cli {
namespace {

constexpr int kRounds = 5;

struct CodecOptions {
    std::string file, codec, dtype, isa;
    bool json = false;
};

using Json = nlohmann::ordered_json;

// What the arguments say, before the file is looked at.
struct Asked {
    CodecSpec spec;
    std::optional<DType> dtype;
};

Result<Asked> check_arguments(const CodecOptions& options) {
    Asked asked;
    SLIMWIRE_TRY_ASSIGN(asked.spec, parse_codec(options.codec));
    SLIMWIRE_TRY(encodes_runs(asked.spec));
    asked.dtype = parse_dtype(options.dtype);
    if (!options.dtype.empty() && !asked.dtype) {
        return invalid(
            fmt::format("--dtype: unknown '{}'; accepted: {}", options.dtype, join(dtype_names())));
    }
    if (!options.isa.empty()) {
        SLIMWIRE_TRY(force_isa(options.isa));
    }
    return asked;
}

// Adds what came back of the finite elements and how many are none.
void add_errors(const Tensor& tensor, const uint8_t* after, bool exact, Json* json) {
    int64_t nonfinite = 0, spoiled = 0;  // in the file; finite there, and not any more
    double squares = 0, errors = 0, largest = 0;
    for (int64_t i = 0; i < tensor.count; ++i) {
        const double value = element(tensor.dtype, tensor.bytes.data(), i);
        const double off = element(tensor.dtype, after, i) - value;
        if (!std::isfinite(value)) {
            ++nonfinite;
        } else if (!std::isfinite(off)) {
            ++spoiled;
        } else {
            squares += value * value;
            errors += off * off;
            largest = std::max(largest, std::fabs(off));
        }
    }
    const double relative = exact || errors == 0 ? 0 : std::sqrt(errors / squares);
    (*json)["nonfinite"] = nonfinite;
    (*json)["spoiled"] = spoiled;
    (*json)["rel_error"] = std::isfinite(relative) ? Json(relative) : Json();
    (*json)["max_error"] = largest;
}

// The record of --json, which the text is printed from.
Result<Json> try_codec(const CodecOptions& options, const Asked& asked) {
    const CodecSpec& spec = asked.spec;
    SLIMWIRE_TRY_ASSIGN(const Tensor tensor, read_tensor(options.file, asked.dtype));
    if (!spec.accepts(tensor.dtype)) {
        std::vector<std::string_view> taken = dtype_names();
        std::erase_if(taken,
                      [&](std::string_view name) { return !spec.accepts(*parse_dtype(name)); });
        return invalid(fmt::format("{}: {} elements, and codec {} takes {}", options.file,
                                   dtype_name(tensor.dtype), spec.to_string(), join(taken)));
    }
    const size_t bytes = tensor.bytes.size();
    const Buffer input(static_cast<int64_t>(bytes));
    CodecTrial trial(spec, tensor.dtype, tensor.count, input.data(), 0);
    int64_t encoded = 0;
    if (tensor.count > 0) {
        std::memcpy(input.data(), tensor.bytes.data(), bytes);
        trial.encode();
        if ((trial.status() & kStatusOverflow) != 0) {
            return invalid(fmt::format("{}: {} has too small a slot for this tensor", options.file,
                                       spec.to_string()));
        }
        SLIMWIRE_TRY_ASSIGN(encoded, trial.encoded_size());
        trial.decode(false);
    }
    const auto size = static_cast<double>(bytes);
    Json json = json_record("codec");
    json["file"] = options.file;
    json["codec"] = spec.to_string();
    json["dtype"] = dtype_name(tensor.dtype);
    json["shape"] = tensor.shape;
    json["count"] = tensor.count;
    json["bytes"] = bytes;
    json["encoded_bytes"] = encoded;
    json["ratio"] = encoded == 0 ? 1.0 : size / static_cast<double>(encoded);
    json["bits_per_element"] =
        tensor.count == 0 ? 0.0
                          : 8.0 * static_cast<double>(encoded) / static_cast<double>(tensor.count);
    json["exact"] = tensor.count == 0 || trial.exact();
    add_errors(tensor, trial.output(), json["exact"], &json);
    json["isa"] = isa_name(active_isa());
    Timing encode, decode;
    if (tensor.count > 0) {
        const auto copy = [&] { std::memcpy(trial.output(), input.data(), bytes); };
        encode = time_in_turn([&] { trial.encode(); }, copy, kRounds);
        decode = time_in_turn([&] { trial.decode(false); }, copy, kRounds);
    }
    for (const auto& [name, seconds] : {std::pair("encode_gbps", encode.seconds),
                                        {"decode_gbps", decode.seconds},
                                        {"memcpy_gbps", encode.baseline_seconds}}) {
        json[name] = seconds > 0 ? size / seconds / 1e9 : 0.0;
    }
    return json;
}

void print_text(const Json& json) {
    const auto shape = json["shape"].get<std::vector<int64_t>>();
    fmt::print("{}: {} elements of {} ({}), {} bytes\n", text_of(json, "file"),
               count_of(json, "count"), text_of(json, "dtype"),
               shape.empty() ? "one number" : fmt::format("{}", fmt::join(shape, " x ")),
               count_of(json, "bytes"));
    fmt::print("{}: {} bytes, ratio {:.3f}, {:.3f} bits per element\n", text_of(json, "codec"),
               count_of(json, "encoded_bytes"), number_of(json, "ratio"),
               number_of(json, "bits_per_element"));
    if (json["exact"]) {
        fmt::print("error: none, every bit came back\n");
    } else {
        fmt::print("error: {:.4g} relative L2, {:.4g} of the worst element\n",
                   json["rel_error"].is_null() ? INFINITY : number_of(json, "rel_error"),
                   number_of(json, "max_error"));
    }
    if (json["nonfinite"] != 0 || json["spoiled"] != 0) {
        fmt::print("not in the error: {} of {} elements are NaN or infinite, {} became so\n",
                   count_of(json, "nonfinite"), count_of(json, "count"), count_of(json, "spoiled"));
    }
    if (json["count"] != 0) {
        fmt::print(
            "speed: encode {:.1f} GB/s, decode {:.1f} GB/s, memcpy {:.1f} GB/s; one core, {}\n",
            number_of(json, "encode_gbps"), number_of(json, "decode_gbps"),
            number_of(json, "memcpy_gbps"), text_of(json, "isa"));
    }
}

int run_codec(const CodecOptions& options) {
    SLIMWIRE_OR_FAIL_ASSIGN(kUsage, const Asked asked, check_arguments(options));
    SLIMWIRE_OR_FAIL_ASSIGN(kCheckFailed, const Json json, try_codec(options, asked));
    if (options.json) {
        fmt::print("{}\n", json_line(json));
    } else {
        print_text(json);
    }
    return kSuccess;
}

}  // namespace

void add_codec_command(CLI::App& app, Invocation* invocation) {
    auto options = std::make_shared<CodecOptions>();
    CLI::App* codec =
        app.add_subcommand("codec", "what a codec does to a tensor: size, error, speed");
    codec->add_option("FILE", options->file, "a .npy file, or raw little-endian elements")
        ->required();
    codec->add_option("--codec", options->codec, "a specification, as int4 or int8:block=128")
        ->required();
    codec->add_option("--dtype", options->dtype,
                      "element type of a raw file, as f32 or bf16; of a .npy file that has no word "
                      "for it");
    codec->add_option("--isa", options->isa, "scalar, avx2 or avx512; default: the best");
    codec->add_flag("--json", options->json, "one JSON line (collectives/SCHEMA.md)");
    std::string grammar = "Codecs:\n";
    size_t count = 0;
    const CodecDescriptor* const* table = codec_table(&count);
    for (size_t i = 0; i < count; ++i) {
        grammar += fmt::format("  {}\n", table[i]->grammar);
    }
    codec->footer(grammar);
    codec->callback([=] { invocation->action = [=] { return run_codec(*options); }; });
}

}  // namespace slimwire::cli
