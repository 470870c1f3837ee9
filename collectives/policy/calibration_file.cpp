#include "collectives/policy/calibration_file.h"

#include <sys/stat.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <utility>

#include "collectives/call/hash.h"
#include "collectives/policy/names.h"

namespace slimwire {
namespace {

using Json = nlohmann::json;

// The factor between two bandwidths, 1 or more; of an unknown one more than any other.
double factor(double a, double b) {
    return !(a > 0) || !(b > 0) ? 1e300 : std::max(a / b, b / a);
}

// Empty where it cannot be read, as of a folder; what is no file may have no end, or nobody who
// writes it.
std::string content_of(const std::string& path) {
    struct stat found {};
    std::string text;
    if (::stat(path.c_str(), &found) != 0 || !S_ISREG(found.st_mode)) {
        return text;
    }
    std::ifstream file(path, std::ios::binary);
    char piece[4096];
    while (file.read(piece, sizeof piece), file.gcount() > 0) {
        text.append(piece, static_cast<size_t>(file.gcount()));
    }
    return text;
}

// Throws where it is missing or is no `accepted`.
const Json& member(const Json& json,
                   const char* name,
                   bool (*fits)(const Json& value),
                   const char* accepted) {
    const auto found = json.find(name);
    if (found != json.end() && fits(*found)) {
        return *found;
    }
    throw std::invalid_argument(
        (found == json.end() ? "no '" + std::string(name) + "'"
                             : "'" + std::string(name) + "' of " + found->dump().substr(0, 40)) +
        "; accepted: " + accepted);
}

std::string text_of(const Json& json, const char* name) {
    return member(
        json, name, [](const Json& value) { return value.is_string(); }, "a text");
}

int number_of_ranks(const Json& json, const char* name) {
    return member(
        json, name,
        [](const Json& value) {
            return value.is_number_unsigned() && value > 0 && value <= 1 << 20;
        },
        "a whole number from 1 to 1048576");
}

double amount_of(const Json& json, const char* name) {
    return member(
        json, name, [](const Json& value) { return value.is_number() && value >= 0; },
        "a number from 0");
}

const Json& list_of(const Json& json, const char* name) {
    return member(
        json, name, [](const Json& value) { return value.is_array(); }, "a list");
}

Result<Calibration> calibration_of(const Json& json) {
    Calibration read;
    read.op = text_of(json, "op");
    read.dtype = text_of(json, "dtype");
    read.ranks = number_of_ranks(json, "ranks");
    read.nodes = number_of_ranks(json, "nodes");
    read.nominal_gb_s = amount_of(json, "nominal_gb_s");
    for (const Json& way : list_of(json, "ways")) {
        CalibratedWay& one = read.ways.emplace_back();
        one.codec = text_of(way, "codec");
        one.algorithm = text_of(way, "algorithm");
        for (const Json& sample : list_of(way, "samples")) {
            one.samples.push_back({amount_of(sample, "bytes"), amount_of(sample, "wire_bytes"),
                                   amount_of(sample, "seconds")});
        }
    }
    return fit_calibration(std::move(read));
}

}  // namespace

Result<Calibration> read_calibration(std::string_view line) {
    const Json json = Json::parse(line, nullptr, false);
    const auto record = json.is_object() ? json.find("record") : json.end();
    if (record == json.end() || *record != "calibration") {
        return Status(Code::kInvalidArgument,
                      "no calibration; accepted: lines that slimwire calibrate wrote");
    }
    try {
        return calibration_of(json);
    } catch (const std::exception& error) {
        return Status(Code::kInvalidArgument, std::string("a calibration with ") + error.what());
    }
}

Result<std::vector<Calibration>> read_calibrations(std::string_view text, const std::string& path) {
    std::vector<Calibration> all;
    for (int number = 1; !text.empty(); ++number) {
        const size_t end = std::min(text.find('\n'), text.size());
        Result<Calibration> one = read_calibration(text.substr(0, end));
        if (!one.ok()) {
            return Status(Code::kInvalidArgument,
                          path + ":" + std::to_string(number) + ": " + one.status().message());
        }
        all.push_back(std::move(one).value());
        text.remove_prefix(std::min(end + 1, text.size()));
    }
    return all;
}

Result<std::vector<Calibration>> load_calibrations(const std::string& path) {
    return read_calibrations(content_of(path), path);
}

Result<std::vector<Calibration>> load_named_calibrations(const std::string& path, uint64_t* hash) {
    const std::string text = content_of(path);
    if (text.empty()) {
        return Status(Code::kInvalidArgument, path +
                                                  " cannot be read or is empty; accepted: a file "
                                                  "that slimwire calibrate --out wrote");
    }
    *hash = stable_hash(text);
    return read_calibrations(text, path);
}

std::optional<Op> calibrated_op(const std::string& word) {
    return word == "send_recv" || word == "pairs" ? Op::kSend : parse_op(word);
}

const Calibration* find_calibration(const std::vector<Calibration>& calibrations,
                                    Op op,
                                    DType dtype,
                                    int ranks,
                                    int nodes,
                                    double nominal_gb_s) {
    const Calibration* best = nullptr;
    for (const Calibration& one : calibrations) {
        if (calibrated_op(one.op) == op && parse_dtype(one.dtype) == dtype && one.ranks == ranks &&
            one.nodes == nodes &&
            (best == nullptr ||
             factor(one.nominal_gb_s, nominal_gb_s) < factor(best->nominal_gb_s, nominal_gb_s))) {
            best = &one;
        }
    }
    return best;
}

}  // namespace slimwire
