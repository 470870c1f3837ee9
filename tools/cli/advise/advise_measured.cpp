// What `slimwire advise` takes from measurements instead of data sheets.
#include <fmt/core.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "collectives/policy/calibration_file.h"
#include "collectives/policy/names.h"
#include "tools/cli/advise/advise.h"
#include "tools/cli/common/optimizers.h"
#include "tools/cli/common/page_file.h"

namespace slimwire::cli {
namespace {

// The fastest way of each codec at the largest size; the native way is the first.
std::map<std::string, const CalibratedWay*> fastest_ways(const Calibration& calibration) {
    std::map<std::string, const CalibratedWay*> fastest;
    for (const CalibratedWay& way : calibration.ways) {
        const CalibratedWay*& best = fastest[way.codec];
        if (best == nullptr || way.samples.back().seconds < best->samples.back().seconds) {
            best = &way;
        }
    }
    fastest.erase("native");
    return fastest;
}

// The codec's time is what its calls took beyond the link's part and the native calls' rest. A
// two-shot all-reduce encodes 1 + 1/N and decodes 2 times its bytes (topology/README.md).
CodecCost codec_by(const Calibration& calibration, const CalibratedWay& way) {
    const CalibratedWay& native = calibration.ways.front();
    const double parts = 3 + 1.0 / calibration.ranks;
    CodecCost cost;
    const double largest = way.samples.back().bytes;
    cost.ratio = native.wire_bytes(largest) / way.wire_bytes(largest);
    for (const CalibrationSample& sample : way.samples) {
        const double seconds =
            std::max(0.0, way.rest.seconds(sample.bytes) - native.rest.seconds(sample.bytes));
        cost.encode.points.push_back({sample.bytes, seconds / parts});
    }
    cost.decode = cost.encode;
    return cost;
}

}  // namespace

Status use_layer_times(const std::string& path, AdviseInput* input) {
    SLIMWIRE_TRY(check_input(path));
    std::ifstream file(path);
    std::vector<FitSample> samples;
    int number = 0;
    for (std::string line; std::getline(file, line);) {
        ++number;
        const nlohmann::json json = nlohmann::json::parse(line, nullptr, false);
        FitSample sample;
        try {
            sample = {layer_operations(json.at("batch"), json.at("sequence"), json.at("hidden")),
                      json.at("seconds")};
        } catch (const nlohmann::json::exception&) {
            sample = {};
        }
        if (!(sample.x > 0) || !(sample.seconds > 0)) {
            return {Code::kInvalidArgument,
                    fmt::format("{}:{}: accepted: batch, sequence, hidden and seconds, all above 0",
                                path, number)};
        }
        samples.push_back(sample);
    }
    if (samples.empty()) {
        return {Code::kInvalidArgument,
                path +
                    " cannot be read or is empty; accepted: times of layers, as "
                    "tests/papers/mcbench/layers writes them"};
    }
    ClusterCost& cluster = input->cluster;
    // Launches take their time whatever they compute; layers of one size do not tell it.
    if (const Result<AlphaBetaFit> fit = fit_alpha_beta(samples); fit.ok()) {
        cluster.layer_s = fit.value().link.alpha_s;
        cluster.gpu_flops = fit.value().link.gb_s * 1e9 / input->parallelism.tensor;
        input->layers_fit = fit.value().quality;
        return {};
    }
    SLIMWIRE_TRY_ASSIGN(const RateFit fit, fit_rate(samples));
    cluster.gpu_flops = 1 / fit.seconds_per_unit / input->parallelism.tensor;
    input->layers_fit = fit.quality;
    return {};
}

Status use_calibration(const std::string& path, bool adam, AdviseInput* input) {
    uint64_t hash = 0;
    SLIMWIRE_TRY_ASSIGN(const std::vector<Calibration> all, load_named_calibrations(path, &hash));
    const auto found = std::find_if(all.begin(), all.end(), [&](const Calibration& one) {
        return calibrated_op(one.op) == Op::kAllReduce &&
               parse_dtype(one.dtype) == input->gradients;
    });
    if (found == all.end()) {
        return {Code::kInvalidArgument,
                fmt::format("{} has no all-reduces of {}; accepted: one that slimwire calibrate "
                            "--dtype {} --out wrote",
                            path, dtype_name(input->gradients), dtype_name(input->gradients))};
    }
    const Calibration& calibration = *found;
    ClusterCost& cluster = input->cluster;
    cluster.gpus_per_node = std::max(1, calibration.ranks / calibration.nodes);
    // The fitted latency is of all steps of a ring.
    const double steps = std::max(1, 2 * (calibration.ranks - 1));
    LinkCost& link = calibration.nodes > 1 ? cluster.between : cluster.within;
    link = {calibration.link.alpha_s / steps, calibration.link.gb_s};
    cluster.activation_bytes = cluster.gradient_bytes;
    const std::map<std::string, const CalibratedWay*> ways = fastest_ways(calibration);
    if (input->codecs.empty()) {
        for (const auto& [name, way] : ways) {
            SLIMWIRE_TRY_ASSIGN(CodecSpec codec, parse_codec(name));
            if (!adam || !loses_under_adam(codec)) {
                input->codecs.push_back(codec);
            }
        }
        // From the careful to the coarse one.
        std::stable_sort(input->codecs.begin(), input->codecs.end(),
                         [&](const CodecSpec& left, const CodecSpec& right) {
                             return codec_by(calibration, *ways.at(left.to_string())).ratio <
                                    codec_by(calibration, *ways.at(right.to_string())).ratio;
                         });
    }
    for (const CodecSpec& codec : input->codecs) {
        const auto way = ways.find(codec.to_string());
        if (way == ways.end()) {
            return {Code::kInvalidArgument,
                    fmt::format("{} has no all-reduces by {}", path, codec.to_string())};
        }
        input->measured.push_back(codec_by(calibration, *way->second));
    }
    return {};
}

}  // namespace slimwire::cli
