#include "tools/cli/common/run_metadata.h"

#include <fmt/core.h>
#include <sys/utsname.h>
#include <unistd.h>
#include <nlohmann/json.hpp>

#include <fstream>
#include <string>

#include "tools/cli/build_info.h"

namespace slimwire::cli {
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
