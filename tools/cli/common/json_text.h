// Members of a JSON record as text: commands print their tables from the records of --json.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace slimwire::cli {

[[nodiscard]] std::string text_of(const nlohmann::ordered_json& record, const char* name);
[[nodiscard]] uint64_t count_of(const nlohmann::ordered_json& record, const char* name);
[[nodiscard]] double number_of(const nlohmann::ordered_json& record, const char* name);
// As format_bytes().
[[nodiscard]] std::string bytes_of(const nlohmann::ordered_json& record, const char* name);
// A mean by fmt's `format`; "-" where `counted`, the number of what it is the mean of, is zero.
[[nodiscard]] std::string mean_of(const nlohmann::ordered_json& record,
                                  const char* name,
                                  const char* counted,
                                  const char* format);

}  // namespace slimwire::cli
