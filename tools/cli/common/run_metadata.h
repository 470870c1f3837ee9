// What every JSON line of the command line carries beside its figures: format version, machine,
// compiler, commit (collectives/SCHEMA.md).
#pragma once

#include <nlohmann/json_fwd.hpp>

namespace slimwire::cli {

extern const char* const kVersion;  // of the project, from meson.build
extern const char* const
    kCommit;  // of the tree at configure time, "-dirty" added; "unknown" without git

// {"v": 1, "record": record, "machine": ..., "compiler": ..., "commit": ...}; keys keep their
// order.
[[nodiscard]] nlohmann::ordered_json json_record(const char* record);
// A record as one line, without its end. File names may be no UTF-8: such bytes become U+FFFD.
[[nodiscard]] std::string json_line(const nlohmann::ordered_json& record);

}  // namespace slimwire::cli
