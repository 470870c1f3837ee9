// `slimwire bench codec --table`: how many times smaller every codec makes each data set and how
// far off what comes back is. Untimed; on the host, whose bytes are those of a GPU.
#include <fmt/core.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "tools/cli/bench/bench_codec.h"
#include "tools/cli/codec/codec_trial.h"
#include "tools/cli/common/run_metadata.h"

namespace slimwire::cli {
namespace {

struct Cell {
    double ratio = 0;
    double error = 0;
};

Result<Cell> cell_of(const CodecSpec& spec, const BenchInput& input) {
    CodecTrial trial(spec, input.dtype, input.count, input.elements, 0);
    trial.encode();
    SLIMWIRE_TRY_ASSIGN(const int64_t size, trial.encoded_size());
    trial.decode(false);
    return Cell{static_cast<double>(input.bytes) / static_cast<double>(size),
                trial.exact() ? 0 : trial.error()};
}

void print_json(const CodecSpec& spec, const BenchInput& input, const Cell& cell) {
    auto json = json_record("bench_codec_table");
    json["codec"] = spec.to_string();
    json["dtype"] = dtype_name(input.dtype);
    json["data"] = input.data;
    json["hash"] = input.hash;
    json["ratio"] = std::round(cell.ratio * 1000) / 1000;
    json["bits"] =
        std::round(8000 * static_cast<double>(dtype_bytes(input.dtype)) / cell.ratio) / 1000;
    if (std::isfinite(cell.error)) {
        json["rel_error"] = std::stod(fmt::format("{:.4g}", cell.error));
    } else {
        json["rel_error"] = nullptr;
    }
    fmt::print("{}\n", json_line(json));
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
                SLIMWIRE_TRY_ASSIGN(const Cell cell, cell_of(spec, input));
                rows[i] += std::isfinite(cell.error)
                               ? fmt::format(" {:>8.3f} {:>8.3g}", cell.ratio, cell.error)
                               : fmt::format(" {:>8.3f} {:>8}", cell.ratio, "-");
                if (options.json) {
                    print_json(spec, input, cell);
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
