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

struct CodecResult {
    CodecSpec spec;
    DType dtype = DType::kFloat32;
    std::vector<int64_t> shape;
    int64_t count = 0, bytes = 0, encoded_bytes = 0;
    int64_t nonfinite = 0;  // NaN and infinite elements of the file
    int64_t spoiled = 0;    // finite elements that came back as NaN or infinite
    double rel_error = 0;   // L2, of elements that are finite before and after
    double max_error = 0;   // of such an element
    bool exact = false;     // every bit came back
    double encode_gbps = 0, decode_gbps = 0, memcpy_gbps = 0;
};

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

void measure_error(DType dtype, const uint8_t* before, const uint8_t* after, CodecResult* result) {
    double squares = 0, errors = 0;
    for (int64_t i = 0; i < result->count; ++i) {
        const double value = element(dtype, before, i), off = element(dtype, after, i) - value;
        if (!std::isfinite(value)) {
            ++result->nonfinite;
        } else if (!std::isfinite(off)) {
            ++result->spoiled;
        } else {
            squares += value * value;
            errors += off * off;
            result->max_error = std::max(result->max_error, std::fabs(off));
        }
    }
    if (!result->exact && errors > 0) {
        result->rel_error = std::sqrt(errors / squares);
    }
}

Result<CodecResult> try_codec(const CodecOptions& options, const Asked& asked) {
    CodecResult result;
    result.spec = asked.spec;
    SLIMWIRE_TRY_ASSIGN(const Tensor tensor, read_tensor(options.file, asked.dtype));
    result.dtype = tensor.dtype;
    result.shape = tensor.shape;
    result.count = tensor.count;
    result.bytes = static_cast<int64_t>(tensor.bytes.size());
    if (!result.spec.accepts(tensor.dtype)) {
        std::vector<std::string_view> taken = dtype_names();
        std::erase_if(
            taken, [&](std::string_view name) { return !result.spec.accepts(*parse_dtype(name)); });
        return invalid(fmt::format("{}: {} elements, and codec {} takes {}", options.file,
                                   dtype_name(tensor.dtype), result.spec.to_string(), join(taken)));
    }
    result.exact = true;
    if (tensor.count == 0) {
        return result;
    }
    const Buffer input(result.bytes);
    std::memcpy(input.data(), tensor.bytes.data(), tensor.bytes.size());
    CodecTrial trial(result.spec, tensor.dtype, tensor.count, input.data(), 0);
    trial.encode();
    if ((trial.status() & kStatusOverflow) != 0) {
        return invalid(fmt::format("{}: {} has too small a slot for this tensor", options.file,
                                   result.spec.to_string()));
    }
    SLIMWIRE_TRY_ASSIGN(result.encoded_bytes, trial.encoded_size());
    trial.decode(false);
    result.exact = trial.exact();
    measure_error(tensor.dtype, input.data(), trial.output(), &result);
    const auto copy = [&] {
        std::memcpy(trial.output(), input.data(), static_cast<size_t>(result.bytes));
    };
    const Timing encode = time_in_turn([&] { trial.encode(); }, copy, kRounds);
    const Timing decode = time_in_turn([&] { trial.decode(false); }, copy, kRounds);
    const auto bytes = static_cast<double>(result.bytes);
    result.encode_gbps = bytes / encode.seconds / 1e9;
    result.decode_gbps = bytes / decode.seconds / 1e9;
    result.memcpy_gbps = bytes / encode.baseline_seconds / 1e9;
    return result;
}

double ratio_of(const CodecResult& result) {
    return result.encoded_bytes == 0
               ? 1.0
               : static_cast<double>(result.bytes) / static_cast<double>(result.encoded_bytes);
}

double bits_of(const CodecResult& result) {
    return result.count == 0 ? 0.0
                             : 8.0 * static_cast<double>(result.encoded_bytes) /
                                   static_cast<double>(result.count);
}

std::string shape_of(const CodecResult& result) {
    return result.shape.empty() ? "one number" : fmt::format("{}", fmt::join(result.shape, " x "));
}

void print_json(const CodecOptions& options, const CodecResult& result) {
    const auto finite = [](double value) {
        return std::isfinite(value) ? nlohmann::ordered_json(value) : nlohmann::ordered_json();
    };
    auto json = json_record("codec");
    json["file"] = options.file;
    json["codec"] = result.spec.to_string();
    json["dtype"] = dtype_name(result.dtype);
    json["shape"] = result.shape;
    json["bytes"] = result.bytes;
    json["encoded_bytes"] = result.encoded_bytes;
    json["ratio"] = ratio_of(result);
    json["bits_per_element"] = bits_of(result);
    json["exact"] = result.exact;
    json["nonfinite"] = result.nonfinite;
    json["spoiled"] = result.spoiled;
    json["rel_error"] = finite(result.rel_error);
    json["max_error"] = finite(result.max_error);
    json["isa"] = isa_name(active_isa());
    json["encode_gbps"] = result.encode_gbps;
    json["decode_gbps"] = result.decode_gbps;
    json["memcpy_gbps"] = result.memcpy_gbps;
    fmt::print("{}\n", json_line(json));
}

void print_text(const CodecOptions& options, const CodecResult& result) {
    fmt::print("{}: {} elements of {} ({}), {} bytes\n", options.file, result.count,
               dtype_name(result.dtype), shape_of(result), result.bytes);
    fmt::print("{}: {} bytes, ratio {:.3f}, {:.3f} bits per element\n", result.spec.to_string(),
               result.encoded_bytes, ratio_of(result), bits_of(result));
    if (result.exact) {
        fmt::print("error: none, every bit came back\n");
    } else {
        fmt::print("error: {:.4g} relative L2, {:.4g} of the worst element\n", result.rel_error,
                   result.max_error);
    }
    if (result.nonfinite + result.spoiled > 0) {
        fmt::print("not in the error: {} of {} elements are NaN or infinite, {} became so\n",
                   result.nonfinite, result.count, result.spoiled);
    }
    if (result.count > 0) {
        fmt::print(
            "speed: encode {:.1f} GB/s, decode {:.1f} GB/s, memcpy {:.1f} GB/s; one core, {}\n",
            result.encode_gbps, result.decode_gbps, result.memcpy_gbps, isa_name(active_isa()));
    }
}

int run_codec(const CodecOptions& options) {
    SLIMWIRE_OR_FAIL_ASSIGN(kUsage, const Asked asked, check_arguments(options));
    SLIMWIRE_OR_FAIL_ASSIGN(kCheckFailed, const CodecResult result, try_codec(options, asked));
    if (options.json) {
        print_json(options, result);
    } else {
        print_text(options, result);
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
