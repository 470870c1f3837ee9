// Text that commands write: sizes, markup, and JSON records with their members.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace slimwire::cli {

// "64 KiB", "1.5 GiB"; exact when it divides evenly.
[[nodiscard]] std::string format_bytes(double bytes);

// For a page, as text or the value of an attribute: markup is escaped, control characters become
// blanks, and what is not UTF-8 becomes U+FFFD.
[[nodiscard]] std::string escaped(const std::string& text);

// Members of a JSON record as text: commands print their tables from the records of --json.
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

// What every JSON line of the command line carries beside its figures: format version, machine,
// compiler, commit (collectives/SCHEMA.md).
extern const char* const kVersion;  // of the project, from meson.build
extern const char* const
    kCommit;  // of the tree at configure time, "-dirty" added; "unknown" without git

// {"v": 1, "record": record, "machine": ..., "compiler": ..., "commit": ...}; keys keep their
// order.
[[nodiscard]] nlohmann::ordered_json json_record(const char* record);
// A record as one line, without its end. File names may be no UTF-8: such bytes become U+FFFD.
[[nodiscard]] std::string json_line(const nlohmann::ordered_json& record);

}  // namespace slimwire::cli
