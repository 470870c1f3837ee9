#include "tools/cli/bench/bench_codec.h"

#include <fmt/core.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "codecs/base/isa.h"
#include "collectives/policy/config.h"
#include "collectives/policy/names.h"
#include "tools/cli/bench/data_sets.h"
#include "tools/cli/codec/codec_trial.h"
#include "tools/cli/codec/tensor_file.h"
#include "tools/cli/common/commands.h"
#include "tools/cli/common/environment.h"
#include "tools/cli/common/text.h"

namespace slimwire::cli {
namespace {

using Json = nlohmann::ordered_json;

const char* const kOps[] = {
    "encode",       "encode_residual", "decode", "decode_accumulate", "decode_reduce_encode",
    "decode_reduce"};

bool contains(const std::vector<std::string>& list, const std::string& one) {
    return std::find(list.begin(), list.end(), one) != list.end();
}

Result<CodecBenchPlan> make_plan(const CodecBenchOptions& options) {
    CodecBenchPlan plan;
    plan.inputs = options.inputs;
    plan.rounds = options.rounds;
    plan.data_folder =
        !options.data_folder.empty()
            ? options.data_folder
            : (find_installation().executable.parent_path().parent_path() / "bench-data").string();
    for (const std::string& text : options.codecs) {
        SLIMWIRE_TRY_ASSIGN(const CodecSpec spec, parse_codec(text));
        SLIMWIRE_TRY(encodes_runs(spec));
        plan.specs.push_back(spec);
    }
    if (plan.specs.empty()) {
        plan.specs = codec_bench_specs();
    }
    const std::vector<std::string> all_ops(std::begin(kOps), std::end(kOps));
    plan.ops = options.ops.empty() ? all_ops : split_list(options.ops, ",");
    for (const std::string& op : plan.ops) {
        if (!contains(all_ops, op)) {
            return invalid(
                fmt::format("--op: unknown '{}'; accepted: {}", op, fmt::join(kOps, ", ")));
        }
    }
    const std::string data = !options.data.empty() ? options.data
                             : options.table       ? "all"
                                                   : "gaussian";
    plan.data = data == "all" ? data_set_names() : split_list(data, ",");
    for (const std::string& name : plan.data) {
        if (!contains(data_set_names(), name)) {
            return invalid(fmt::format("--data: unknown '{}'; accepted: all, {}", name,
                                       fmt::join(data_set_names(), ", ")));
        }
    }
    if (options.table && options.device == "cuda") {
        return invalid(
            "--table is of the host's codecs, whose bytes are those of a GPU: it goes without "
            "--device cuda");
    }
    for (const std::string& name : split_list(options.dtypes, ",")) {
        const std::optional<DType> dtype = parse_dtype(name);
        if (!dtype) {
            return invalid(
                fmt::format("--dtype: unknown '{}'; accepted: {}", name, join(dtype_names())));
        }
        plan.dtypes.push_back(*dtype);
    }
    SLIMWIRE_TRY_ASSIGN(const uint64_t bytes, parse_bytes(options.bytes));
    if (bytes < 64 || bytes > uint64_t{1} << 36) {
        return invalid(fmt::format("--bytes {}: accepted are 64 bytes to 64 GiB", options.bytes));
    }
    plan.bytes = static_cast<int64_t>(bytes);
    const bool any = std::any_of(plan.specs.begin(), plan.specs.end(), [&](const CodecSpec& spec) {
        return std::any_of(plan.dtypes.begin(), plan.dtypes.end(),
                           [&](DType dtype) { return spec.accepts(dtype); });
    });
    if (!any) {
        return invalid(fmt::format("--dtype {}: none of the codecs takes it", options.dtypes));
    }
    if (!options.isa.empty()) {
        SLIMWIRE_TRY(force_isa(options.isa));
    }
    return plan;
}

double rounded(double value) {
    return std::round(value * 1000) / 1000;
}

Status measure_host(const CodecBenchPlan& plan,
                    const CodecBenchOptions& options,
                    const CodecSpec& spec,
                    const BenchInput& input) {
    const bool lossless = spec.traits(input.dtype).lossless;
    const bool reduces = contains(plan.ops, "decode_reduce_encode") && spec.reduces();
    const bool sums = contains(plan.ops, "decode_reduce") && spec.sums();
    CodecTrial trial(spec, input.dtype, input.count, input.elements,
                     reduces || sums ? plan.inputs : 0);
    trial.encode();
    SLIMWIRE_TRY_ASSIGN(const int64_t size, trial.encoded_size());
    trial.decode(false);
    const double error = trial.exact() ? 0 : trial.error();
    if (lossless && !trial.exact()) {
        return {Code::kInternalError,
                fmt::format("{} gave other bits back than it took ({} {})", spec.to_string(),
                            dtype_name(input.dtype), input.data)};
    }
    // What a copy is compared with: this tensor's elements, read and written.
    const auto copy = [&] {
        std::memcpy(trial.output(), input.elements, static_cast<size_t>(input.bytes));
    };
    volatile uint64_t sum = 0;
    const auto read = [&] { sum = read_all(input.elements, input.bytes); };
    for (const std::string& op : plan.ops) {
        std::function<void()> body;
        if (op == "encode") {
            body = [&] { trial.encode(); };
        } else if (op == "encode_residual" && !lossless) {
            body = [&] { trial.encode_residual(); };
        } else if (op == "decode") {
            body = [&] { trial.decode(false); };
        } else if (op == "decode_accumulate" && !lossless) {
            body = [&] { trial.decode(true); };
        } else if (op == "decode_reduce_encode" && reduces) {
            body = [&] { trial.decode_reduce_encode(); };
        } else if (op == "decode_reduce" && sums) {
            body = [&] { trial.decode_reduce(); };
        } else {
            continue;  // the codec has no such operation
        }
        if (op != "encode_residual") {
            trial.encode();  // of the data alone
        }
        const bool reads_only = op == "encode" && std::string(spec.codec->name) == "threshold";
        const Timing timing =
            time_in_turn(body, reads_only ? std::function<void()>(read) : copy, plan.rounds);
        Json line = line_of(options, input, spec.to_string(), op);
        const auto bytes = static_cast<double>(input.bytes);
        set_speed(bytes / timing.seconds / 1e9, reads_only ? "read" : "memcpy",
                  bytes / timing.baseline_seconds / 1e9, timing.baseline_seconds / timing.seconds,
                  &line);
        set_quality(bytes / static_cast<double>(size),
                    op == "decode_reduce_encode" ? trial.reduced_error()
                    : op == "decode_reduce"      ? trial.summed_error()
                                                 : error,
                    &line);
        if (op.starts_with("decode_reduce")) {
            line["inputs"] = plan.inputs;
        }
        print_line(options, line);
    }
    return {};
}

Status measure_all_on_host(const CodecBenchPlan& plan, const CodecBenchOptions& options) {
    print_head(options);
    return for_each_input(plan, [&](const BenchInput& input) -> Status {
        for (const CodecSpec& spec : plan.specs) {
            if (spec.accepts(input.dtype)) {
                SLIMWIRE_TRY(measure_host(plan, options, spec, input));
            }
        }
        return {};
    });
}

}  // namespace

std::vector<CodecSpec> codec_bench_specs() {
    // Variants whose speed is promised; the threshold lets 1 % of `gaussian` through, and its
    // blocks find room under the wider bound.
    constexpr struct {
        const char* codec;
        const char* variant;
    } kVariants[] = {{"int4", "int4:rounding=stochastic"},
                     {"int4", "int4:rotate=64"},
                     {"bounded", "bounded:error=0.1"},
                     {"threshold", "threshold:threshold=2.576"}};
    std::vector<CodecSpec> specs;
    const auto add = [&](const std::string& text) {
        Result<CodecSpec> spec = parse_codec(text);
        if (spec.ok()) {
            specs.push_back(std::move(spec).value());
        }
    };
    size_t count = 0;
    const CodecDescriptor* const* table = codec_table(&count);
    for (size_t i = 0; i < count; ++i) {
        add(table[i]->name);
        for (const auto& one : kVariants) {
            if (table[i]->name == std::string(one.codec)) {
                add(one.variant);
            }
        }
    }
    return specs;
}

Status for_each_input(const CodecBenchPlan& plan,
                      const std::function<Status(const BenchInput&)>& measure) {
    for (const DType dtype : plan.dtypes) {
        const int64_t count = plan.bytes / static_cast<int64_t>(dtype_bytes(dtype));
        const int64_t bytes = count * static_cast<int64_t>(dtype_bytes(dtype));
        const Buffer elements(bytes);
        for (const std::string& data : plan.data) {
            SLIMWIRE_TRY(fill_data_set(data, plan.data_folder, dtype, count, elements.data()));
            SLIMWIRE_TRY(measure(
                {dtype, data, data_hash(elements.data(), bytes), count, bytes, elements.data()}));
        }
    }
    return {};
}

Json line_of(const CodecBenchOptions& options,
             const BenchInput& input,
             const std::string& codec,
             const std::string& op) {
    Json line = json_record("bench_codec");
    line["codec"] = codec;
    line["op"] = op;
    line["dtype"] = dtype_name(input.dtype);
    line["device"] = options.device;
    if (options.device == "host") {
        line["isa"] = isa_name(active_isa());
    }
    line["data"] = input.data;
    line["hash"] = input.hash;
    line["bytes"] = input.bytes;
    return line;
}

void set_speed(
    double gbps, const char* baseline, double baseline_gbps, double fraction, Json* line) {
    (*line)["gbps"] = rounded(gbps);
    (*line)["baseline"] = baseline;
    (*line)["baseline_gbps"] = rounded(baseline_gbps);
    (*line)["fraction"] = rounded(fraction);
}

void set_quality(double ratio, double rel_error, Json* line) {
    (*line)["ratio"] = rounded(ratio);
    (*line)["rel_error"] =
        std::isfinite(rel_error) ? Json(std::stod(fmt::format("{:.4g}", rel_error))) : Json();
}

void print_head(const CodecBenchOptions& options) {
    if (!options.json) {
        fmt::print("{:<28} {:<21} {:<6} {:<9} {:>9} {:>9} {:>8} {:>8} {:>10}\n", "codec", "op",
                   "dtype", "data", "GB/s", "baseline", "fraction", "ratio", "rel error");
    }
}

void print_line(const CodecBenchOptions& options, const Json& line) {
    if (options.json) {
        fmt::print("{}\n", json_line(line));
    } else {
        const uint64_t blocks = line.value("max_blocks", uint64_t{0});
        fmt::print("{:<28} {:<21} {:<6} {:<9} {:>9.2f} {:>9.2f} {:>8.3f} {:>8.3f} {:>10.3g}{}\n",
                   text_of(line, "codec"), text_of(line, "op"), text_of(line, "dtype"),
                   text_of(line, "data"), number_of(line, "gbps"), number_of(line, "baseline_gbps"),
                   number_of(line, "fraction"), number_of(line, "ratio"),
                   line["rel_error"].is_null() ? INFINITY : number_of(line, "rel_error"),
                   blocks > 0 ? fmt::format("  {} blocks", blocks) : "");
    }
    std::fflush(stdout);
}

int bench_codec(const CodecBenchOptions& options) {
    SLIMWIRE_OR_FAIL_ASSIGN(kUsage, const CodecBenchPlan plan, make_plan(options));
    const Status status = options.table              ? bench_codec_table(plan, options)
                          : options.device == "cuda" ? bench_codec_cuda(plan, options)
                                                     : measure_all_on_host(plan, options);
    return status.ok() ? kSuccess : fail(kCheckFailed, status);
}

// `slimwire bench codec --table`: how many times smaller every codec makes each data set and how
// far off what comes back is. Untimed; on the host, whose bytes are those of a GPU.

namespace {

// Of a codec on a data set.
Result<Json> cell_of(const CodecSpec& spec, const BenchInput& input) {
    CodecTrial trial(spec, input.dtype, input.count, input.elements, 0);
    trial.encode();
    SLIMWIRE_TRY_ASSIGN(const int64_t size, trial.encoded_size());
    trial.decode(false);
    const double ratio = static_cast<double>(input.bytes) / static_cast<double>(size);
    Json json = json_record("bench_codec_table");
    json["codec"] = spec.to_string();
    json["dtype"] = dtype_name(input.dtype);
    json["data"] = input.data;
    json["hash"] = input.hash;
    json["bits"] = rounded(8 * static_cast<double>(dtype_bytes(input.dtype)) / ratio);
    set_quality(ratio, trial.exact() ? 0 : trial.error(), &json);
    return json;
}

}  // namespace

Status bench_codec_table(const CodecBenchPlan& plan, const CodecBenchOptions& options) {
    for (const DType dtype : plan.dtypes) {
        std::vector<std::string> rows;
        std::string head = fmt::format("{:<28}", dtype_name(dtype));
        for (const CodecSpec& spec : plan.specs) {
            rows.push_back(fmt::format("{:<28}", spec.to_string()));
        }
        CodecBenchPlan of_type = plan;
        of_type.dtypes = {dtype};
        SLIMWIRE_TRY(for_each_input(of_type, [&](const BenchInput& input) -> Status {
            head += fmt::format(" {:>17}", input.data);
            for (size_t i = 0; i < plan.specs.size(); ++i) {
                const CodecSpec& spec = plan.specs[i];
                if (!spec.accepts(dtype)) {
                    rows[i] += fmt::format(" {:>17}", "-");
                    continue;
                }
                SLIMWIRE_TRY_ASSIGN(const Json cell, cell_of(spec, input));
                rows[i] += fmt::format(" {:>8.3f} {:>8}", number_of(cell, "ratio"),
                                       cell["rel_error"].is_null()
                                           ? "-"
                                           : fmt::format("{:.3g}", number_of(cell, "rel_error")));
                if (options.json) {
                    fmt::print("{}\n", json_line(cell));
                }
            }
            return {};
        }));
        if (!options.json) {
            fmt::print("{}\n", head);
            for (const std::string& row : rows) {
                fmt::print("{}\n", row);
            }
        }
    }
    return {};
}

}  // namespace slimwire::cli
