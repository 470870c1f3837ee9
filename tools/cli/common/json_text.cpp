#include "tools/cli/common/json_text.h"

#include <fmt/core.h>

#include <nlohmann/json.hpp>

#include "tools/cli/common/byte_text.h"

namespace slimwire::cli {

using Json = nlohmann::ordered_json;

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

}  // namespace slimwire::cli
