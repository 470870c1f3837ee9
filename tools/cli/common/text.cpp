#include "tools/cli/common/text.h"

#include <fmt/core.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <array>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "tools/cli/build_info.h"

namespace slimwire::cli {

using Json = nlohmann::ordered_json;

std::string format_bytes(double bytes) {
    constexpr std::array<const char*, 5> kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
    size_t unit = 0;
    while (bytes >= 1024 && unit + 1 < kUnits.size()) {
        bytes /= 1024;
        ++unit;
    }
    return fmt::format("{:.4g} {}", bytes, kUnits[unit]);
}

std::string escaped(const std::string& text) {
    std::string result;
    for (const char c : nlohmann::json::parse(json_line(text)).get<std::string>()) {
        switch (c) {
            case '&':
                result += "&amp;";
                break;
            case '<':
                result += "&lt;";
                break;
            case '>':
                result += "&gt;";
                break;
            case '"':
                result += "&quot;";
                break;
            default:
                result += static_cast<unsigned char>(c) < ' ' || c == 0x7f ? ' ' : c;
        }
    }
    return result;
}

std::string text_of(const Json& record, const char* name) {
    return record.at(name).get<std::string>();
}

uint64_t count_of(const Json& record, const char* name) {
    return record.at(name).get<uint64_t>();
}

double number_of(const Json& record, const char* name) {
    return record.at(name).get<double>();
}

std::string bytes_of(const Json& record, const char* name) {
    return format_bytes(number_of(record, name));
}

std::string mean_of(const Json& record, const char* name, const char* counted, const char* format) {
    return count_of(record, counted) == 0
               ? "-"
               : fmt::format(fmt::runtime(format), number_of(record, name));
}

namespace {

std::string processor_name() {
    std::ifstream file("/proc/cpuinfo");
    for (std::string line; std::getline(file, line);) {
        const size_t colon = line.find(':');
        if (line.rfind("model name", 0) == 0 && colon != std::string::npos) {
            return line.substr(line.find_first_not_of(" \t", colon + 1));
        }
    }
    return "unknown processor";
}

std::string machine_name() {
    utsname system{};
    ::uname(&system);
    return fmt::format("{}, {} cores, {} {} {}", processor_name(), ::sysconf(_SC_NPROCESSORS_ONLN),
                       system.sysname, system.release, system.machine);
}

std::string compiler_name() {
#if defined(__clang__)
    return "clang " __clang_version__;
#else
    return "g++ " __VERSION__;
#endif
}

}  // namespace

const char* const kVersion = SLIMWIRE_VERSION;
const char* const kCommit = SLIMWIRE_COMMIT;

std::string json_line(const nlohmann::ordered_json& record) {
    return record.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

nlohmann::ordered_json json_record(const char* record) {
    return {{"v", 1},
            {"record", record},
            {"machine", machine_name()},
            {"compiler", compiler_name()},
            {"commit", kCommit}};
}

}  // namespace slimwire::cli
