#include "tools/cli/mcbench.h"

#include <fmt/core.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "collectives/names.h"
#include "tools/cli/stamp.h"

namespace slimwire::cli {
namespace {

using Json = nlohmann::ordered_json;

Json quality_json(const FitQuality& quality) {
    return {{"median_error", quality.median_error},
            {"worst_error", quality.worst_error},
            {"r_squared", quality.r_squared}};
}

// The least part of a call's time that its codec is taken to have.
constexpr double kLeastEncoding = 1e-3;

}  // namespace

Result<std::vector<FitSample>> read_layer_times(const std::string& path) {
    std::ifstream file(path);
    if (!file) {
        return Status(Code::kInvalidArgument, path +
                                                  " cannot be read; accepted: times of layers, as "
                                                  "tests/papers/mcbench/layers writes them");
    }
    std::vector<FitSample> samples;
    int number = 0;
    for (std::string line; std::getline(file, line);) {
        ++number;
        const Json json = Json::parse(line, nullptr, false);
        McbenchLayer layer;
        FitSample sample;
        try {
            layer = {json.at("batch"), json.at("sequence"), json.at("hidden")};
            sample = {mcbench_operations(layer), json.at("seconds")};
        } catch (const nlohmann::json::exception&) {
            sample = {};
        }
        if (!(sample.x > 0) || !(sample.seconds > 0)) {
            return Status(Code::kInvalidArgument,
                          fmt::format("{}:{}: accepted: batch, sequence, hidden and seconds, all "
                                      "above 0",
                                      path, number));
        }
        samples.push_back(sample);
    }
    if (samples.empty()) {
        return Status(Code::kInvalidArgument, path + " is empty; accepted: times of layers");
    }
    return samples;
}

Result<Mcbench> fit_mcbench_here(const Calibration& calibration,
                                 const CalibratedWay& way,
                                 const std::vector<FitSample>& compute) {
    const std::optional<DType> dtype = parse_dtype(calibration.dtype);
    if (!dtype.has_value() || parse_op(calibration.op) != Op::kAllReduce) {
        return Status(Code::kInvalidArgument,
                      "MCBench's model is of all-reduces; accepted: --op all_reduce");
    }
    const double element_bytes = static_cast<double>(dtype_bytes(*dtype));
    const CalibratedWay& native = calibration.ways.front();
    std::vector<FitSample> communicate, encode;
    for (const CalibrationSample& sample : native.samples) {
        communicate.push_back({sample.bytes / element_bytes, sample.seconds});
    }
    for (const CalibrationSample& sample : way.samples) {
        // The message whose native call gives the wire as much.
        const double alike = sample.bytes * sample.wire_bytes / native.wire_bytes(sample.bytes);
        const double crossing = native.seconds(alike, calibration.link.gb_s);
        encode.push_back({sample.bytes / element_bytes,
                          std::max(sample.seconds - crossing, kLeastEncoding * sample.seconds)});
    }
    Mcbench made;
    made.codec = way.codec;
    made.ratio = native.wire_bytes(way.samples.back().bytes) / way.samples.back().wire_bytes;
    SLIMWIRE_TRY_ASSIGN(made.fit, fit_mcbench(compute, communicate, encode));
    for (const McbenchLayer& layer : mcbench_grid()) {
        made.points.push_back(
            {layer, mcbench_layer_s(made.fit.constants, layer),
             mcbench_encoded_layer_s(made.fit.constants, layer, layer.hidden / made.ratio)});
    }
    return made;
}

std::string mcbench_text(const Mcbench& mcbench) {
    const McbenchConstants& k = mcbench.fit.constants;
    std::string text = fmt::format(
        "MCBench, {}: computes {:.3g} s an operation (off by {:.0f} % in the median), communicates "
        "{:.3g} s an element and {:.3g} s below {:.3g} of them ({:.0f} %), encodes {:.3g} s an "
        "element ({:.0f} %)\n",
        mcbench.codec, k.a, 100 * mcbench.fit.compute.median_error, k.b, k.c, k.d,
        100 * mcbench.fit.communicate.median_error, k.g, 100 * mcbench.fit.encode.median_error);
    text += fmt::format("  {:>8} {:>8} {:>14} {:>14} {:>9}\n", "hidden", "batch", "native ms",
                        "encoded ms", "speed-up");
    for (const McbenchPoint& point : mcbench.points) {
        text += fmt::format("  {:>8} {:>8} {:>14.3f} {:>14.3f} {:>9.3f}\n", point.layer.hidden,
                            point.layer.batch, 1e3 * point.native_s, 1e3 * point.encoded_s,
                            point.native_s / point.encoded_s);
    }
    return text;
}

Json mcbench_json(const Mcbench& mcbench, const Calibration& calibration) {
    const McbenchConstants& k = mcbench.fit.constants;
    Json json = stamped("mcbench");
    json["dtype"] = calibration.dtype;
    json["ranks"] = calibration.ranks;
    json["nodes"] = calibration.nodes;
    json["codec"] = mcbench.codec;
    json["ratio"] = mcbench.ratio;
    json["a_s"] = k.a;
    json["b_s"] = k.b;
    json["c_s"] = k.c;
    json["d_elements"] = k.d;
    json["g_s"] = k.g;
    json["compute"] = quality_json(mcbench.fit.compute);
    json["communicate"] = quality_json(mcbench.fit.communicate);
    json["encode"] = quality_json(mcbench.fit.encode);
    json["layers"] = Json::array();
    for (const McbenchPoint& point : mcbench.points) {
        json["layers"].push_back({{"hidden", point.layer.hidden},
                                  {"batch", point.layer.batch},
                                  {"sequence", point.layer.sequence},
                                  {"native_s", point.native_s},
                                  {"encoded_s", point.encoded_s}});
    }
    return json;
}

}  // namespace slimwire::cli
