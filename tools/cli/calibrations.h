// Files of calibrations (topology/calibration.h): a JSON line for each communicator shape,
// operation and type that was measured (collectives/SCHEMA.md), kept for each host, GPU and driver.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "collectives/call.h"
#include "topology/calibration.h"

namespace slimwire::cli {

// Where they are kept: slimwire/calibration-HOST-GPU-DRIVER.jsonl in XDG_CACHE_HOME, or in .cache
// of HOME. `emulated`: of the emulator, which has no driver.
[[nodiscard]] std::string default_calibration_path(bool emulated);

[[nodiscard]] nlohmann::ordered_json calibration_json(const Calibration& calibration,
                                                      const std::string& link);
Result<Calibration> read_calibration(const std::string& line);

// All of a file, empty where there is none; an error has the line's number.
Result<std::vector<Calibration>> load_calibrations(const std::string& path);
// Puts the line of `calibration` into the file, in place of one of the same operation, type, shape
// and link. The file is replaced only when it is written whole.
Status keep_calibration(const std::string& path,
                        const Calibration& calibration,
                        const std::string& link);

// The one of this shape, of whatever link; null where there is none.
[[nodiscard]] const Calibration* find_calibration(
    const std::vector<Calibration>& calibrations, Op op, DType dtype, int ranks, int nodes);

}  // namespace slimwire::cli
