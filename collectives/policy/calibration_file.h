// Files of calibrations (topology/cost/calibration.h), as `slimwire calibrate` writes them: a JSON
// line for each communicator shape, operation, type and link that was measured (SCHEMA.md).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "collectives/call/call.h"
#include "topology/cost/calibration.h"

namespace slimwire {

Result<Calibration> read_calibration(std::string_view line);

// Of a file's text; an error has the line's number behind `path`.
Result<std::vector<Calibration>> read_calibrations(std::string_view text, const std::string& path);

// All of a file, empty where there is none.
Result<std::vector<Calibration>> load_calibrations(const std::string& path);

// What SLIMWIRE_CALIBRATION names: one that cannot be read or holds nothing is an error. `hash`: of
// its text, for ranks to compare.
Result<std::vector<Calibration>> load_named_calibrations(const std::string& path, uint64_t* hash);

// Of the word that a calibration has; `send_recv` and `pairs` are messages.
[[nodiscard]] std::optional<Op> calibrated_op(const std::string& word);

// The one of this shape whose link is the nearest to `nominal_gb_s`, by the factor between them; 0:
// the first, as it is among equals. Null where there is none.
[[nodiscard]] const Calibration* find_calibration(const std::vector<Calibration>& calibrations,
                                                  Op op,
                                                  DType dtype,
                                                  int ranks,
                                                  int nodes,
                                                  double nominal_gb_s = 0);

}  // namespace slimwire
