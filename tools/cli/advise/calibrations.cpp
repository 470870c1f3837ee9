// Files of calibrations, and what `advise` takes as measured (advise.h).
#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "collectives/policy/calibration_file.h"
#include "collectives/policy/names.h"
#include "tools/cli/advise/advise.h"
#include "tools/cli/common/commands.h"
#include "tools/cli/common/files.h"
#include "tools/cli/common/optimizers.h"
#include "tools/cli/common/text.h"
#include "topology/readers/discovery.h"

namespace slimwire::cli {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

std::string name_part(std::string text) {
    std::replace_if(
        text.begin(), text.end(),
        [](unsigned char c) { return std::isalnum(c) == 0 && c != '.' && c != '_'; }, '_');
    return text.empty() ? "unknown" : text;
}

// "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  ..." has it as its first number with
// two dots or one.
std::string driver_version() {
    std::ifstream file("/proc/driver/nvidia/version");
    for (std::string word; file >> word;) {
        if (std::isdigit(static_cast<unsigned char>(word[0])) != 0 &&
            word.find('.') != std::string::npos) {
            return word;
        }
    }
    return "none";
}

std::string gpu_name() {
    const Discovery found = discover_machine();
    for (const Device& device : found.machine.devices) {
        if (device.kind == DeviceKind::kGpu && !device.name.empty()) {
            return device.name;
        }
    }
    return "gpu";
}

Status not_written(const std::string& path) {
    return {Code::kSystemError,
            fmt::format("{} cannot be written; accepted: --out with a path that can", path)};
}

}  // namespace

std::string default_calibration_path(bool emulated) {
    const char* cache = std::getenv("XDG_CACHE_HOME");
    const char* home = std::getenv("HOME");
    const fs::path base = cache != nullptr && *cache != 0 ? fs::path(cache)
                          : home != nullptr && *home != 0 ? fs::path(home) / ".cache"
                                                          : fs::temp_directory_path();
    std::array<char, 256> host{};
    (void)gethostname(host.data(), host.size() - 1);
    return (base / "slimwire" /
            fmt::format("calibration-{}-{}-{}.jsonl", name_part(host.data()),
                        emulated ? "emulator" : name_part(gpu_name()),
                        emulated ? "none" : name_part(driver_version())))
        .string();
}

Json calibration_json(const Calibration& calibration, const std::string& link) {
    Json json = json_record("calibration");
    json["op"] = calibration.op;
    json["dtype"] = calibration.dtype;
    json["ranks"] = calibration.ranks;
    json["nodes"] = calibration.nodes;
    json["link"] = link;
    json["nominal_gb_s"] = calibration.nominal_gb_s;
    json["alpha_us"] = calibration.link.alpha_s * 1e6;
    json["gb_s"] = calibration.link.gb_s;
    json["fit"] = {{"median_error", calibration.quality.median_error},
                   {"worst_error", calibration.quality.worst_error},
                   {"r_squared", calibration.quality.r_squared}};
    json["ways"] = Json::array();
    for (const CalibratedWay& way : calibration.ways) {
        Json samples = Json::array();
        for (const CalibrationSample& sample : way.samples) {
            samples.push_back({{"bytes", sample.bytes},
                               {"wire_bytes", sample.wire_bytes},
                               {"seconds", sample.seconds}});
        }
        json["ways"].push_back(
            {{"codec", way.codec}, {"algorithm", way.algorithm}, {"samples", std::move(samples)}});
    }
    return json;
}

// A device or a pipe may have no end, and a calibration would take its place, as of any other file.
Status check_calibration_path(const std::string& path) {
    std::error_code ignored;
    const fs::file_status there = fs::status(path, ignored);
    if (fs::exists(there) && !fs::is_directory(there) && !fs::is_regular_file(there)) {
        return invalid(path +
                       " is no regular file; accepted: --out with a new file, or with one that "
                       "slimwire calibrate wrote");
    }
    SLIMWIRE_TRY(load_calibrations(path).status());
    fs::create_directories(fs::path(path).parent_path(), ignored);
    const std::string part = fmt::format("{}.{}.part", path, getpid());
    const bool written = !fs::is_directory(path, ignored) && std::ofstream(part).is_open();
    (void)std::remove(part.c_str());
    return written ? Status() : not_written(path);
}

Status keep_calibration(const std::string& path,
                        const Calibration& calibration,
                        const std::string& link) {
    const Json mine = calibration_json(calibration, link);
    std::string text;
    std::ifstream before(path);
    for (std::string line; std::getline(before, line);) {
        const Json other = Json::parse(line, nullptr, false);
        bool same = !other.is_discarded() && other.is_object();
        for (const char* key : {"op", "dtype", "ranks", "nodes", "link"}) {
            same = same && other.contains(key) && other.at(key) == mine.at(key);
        }
        text += same ? "" : line + "\n";
    }
    text += json_line(mine) + "\n";
    std::error_code ignored;
    fs::create_directories(fs::path(path).parent_path(), ignored);
    // "-" is a file's name here.
    return write_page(fs::absolute(path).string(), text).ok() ? Status() : not_written(path);
}

// What `slimwire advise` takes from measurements instead of data sheets.

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
            return invalid(fmt::format(
                "{}:{}: accepted: batch, sequence, hidden and seconds, all above 0", path, number));
        }
        samples.push_back(sample);
    }
    if (samples.empty()) {
        return invalid(path +
                       " cannot be read or is empty; accepted: times of layers, as "
                       "tests/papers/mcbench/layers writes them");
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
        return invalid(
            fmt::format("{} has no all-reduces of {}; accepted: one that slimwire calibrate "
                        "--dtype {} --out wrote",
                        path, dtype_name(input->gradients), dtype_name(input->gradients)));
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
            return invalid(fmt::format("{} has no all-reduces by {}", path, codec.to_string()));
        }
        input->measured.push_back(codec_by(calibration, *way->second));
    }
    return {};
}

}  // namespace slimwire::cli
