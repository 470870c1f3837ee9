#include "tools/cli/advise/calibrations.h"

#include <fmt/core.h>
#include <unistd.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "collectives/policy/calibration_file.h"
#include "tools/cli/common/run_metadata.h"
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

// Where it is written before it takes its name.
std::string part_of(const std::string& path) {
    return fmt::format("{}.{}.part", path, getpid());
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
        return {Code::kInvalidArgument,
                path +
                    " is no regular file; accepted: --out with a new file, or with one that "
                    "slimwire calibrate wrote"};
    }
    SLIMWIRE_TRY(load_calibrations(path).status());
    fs::create_directories(fs::path(path).parent_path(), ignored);
    const bool written = !fs::is_directory(path, ignored) && std::ofstream(part_of(path)).is_open();
    (void)std::remove(part_of(path).c_str());
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
    const std::string part = part_of(path);
    std::ofstream file(part, std::ios::binary);
    file << text;
    file.close();
    if (!file || std::rename(part.c_str(), path.c_str()) != 0) {
        (void)std::remove(part.c_str());
        return not_written(path);
    }
    return {};
}

}  // namespace slimwire::cli
