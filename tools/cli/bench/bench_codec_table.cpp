// `slimwire bench codec --table`: how many times smaller every codec makes each data set and how
// far off what comes back is. Untimed; on the host, whose bytes are those of a GPU.
#include <fmt/core.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "tools/cli/bench/bench_codec.h"
#include "tools/cli/bench/data_sets.h"
#include "tools/cli/codec/codec_trial.h"
#include "tools/cli/common/run_metadata.h"

namespace slimwire::cli {
namespace {

struct Cell {
    double ratio = 0;
    double error = 0;
};

Result<Cell> cell_of(const CodecSpec& spec, DType dtype, int64_t count, const uint8_t* elements) {
    CodecTrial trial(spec, dtype, count, elements, 0);
    trial.encode();
    SLIMWIRE_TRY_ASSIGN(const int64_t size, trial.encoded_size());
    trial.decode(false);
    const double bytes = static_cast<double>(count) * static_cast<double>(dtype_bytes(dtype));
    return Cell{bytes / static_cast<double>(size), trial.exact() ? 0 : trial.error()};
}

void print_json(const CodecSpec& spec,
                DType dtype,
                const std::string& data,
                const std::string& hash,
                const Cell& cell) {
    auto json = json_record("bench_codec_table");
    json["codec"] = spec.to_string();
    json["dtype"] = dtype_name(dtype);
    json["data"] = data;
    json["hash"] = hash;
    json["ratio"] = std::round(cell.ratio * 1000) / 1000;
    json["bits"] = std::round(8000 * static_cast<double>(dtype_bytes(dtype)) / cell.ratio) / 1000;
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
        const int64_t count = plan.bytes / static_cast<int64_t>(dtype_bytes(dtype));
        const int64_t bytes = count * static_cast<int64_t>(dtype_bytes(dtype));
        const Buffer elements(bytes);
        std::vector<std::string> rows;
        std::string head = fmt::format("{:<28}", dtype_name(dtype));
        for (const CodecSpec& spec : plan.specs) {
            rows.push_back(fmt::format("{:<28}", spec.to_string()));
        }
        for (const std::string& data : plan.data) {
            SLIMWIRE_TRY(fill_data_set(data, plan.data_folder, dtype, count, elements.data()));
            const std::string hash = data_hash(elements.data(), bytes);
            head += fmt::format(" {:>17}", data);
            for (size_t i = 0; i < plan.specs.size(); ++i) {
                const CodecSpec& spec = plan.specs[i];
                if (!spec.accepts(dtype)) {
                    rows[i] += fmt::format(" {:>17}", "-");
                    continue;
                }
                SLIMWIRE_TRY_ASSIGN(const Cell cell, cell_of(spec, dtype, count, elements.data()));
                rows[i] += std::isfinite(cell.error)
                               ? fmt::format(" {:>8.3f} {:>8.3g}", cell.ratio, cell.error)
                               : fmt::format(" {:>8.3f} {:>8}", cell.ratio, "-");
                if (options.json) {
                    print_json(spec, dtype, data, hash, cell);
                }
            }
        }
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
