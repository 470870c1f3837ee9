// Files of calibrations (collectives/policy/calibration_file.h reads them) as `slimwire calibrate`
// keeps them: one for each host, GPU and driver.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "codecs/base/status.h"
#include "topology/cost/calibration.h"

namespace slimwire::cli {

// Where they are kept: slimwire/calibration-HOST-GPU-DRIVER.jsonl in XDG_CACHE_HOME, or in .cache
// of HOME. `emulated`: of the emulator, which has no driver.
[[nodiscard]] std::string default_calibration_path(bool emulated);

[[nodiscard]] nlohmann::ordered_json calibration_json(const Calibration& calibration,
                                                      const std::string& link);
// Whether keep_calibration() could write it; makes the folder.
Status check_calibration_path(const std::string& path);
// Puts the line of `calibration` into the file, in place of one of the same operation, type, shape
// and link. The file is replaced only when it is written whole.
Status keep_calibration(const std::string& path,
                        const Calibration& calibration,
                        const std::string& link);

}  // namespace slimwire::cli
