// The files that reports and traces are read from: one JSON record a line.
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "codecs/base/status.h"

namespace slimwire::cli {

// Those of `files` that are others than the ones before them; a note of each that is not. What is
// no regular file is an error: it may have no end, and is looked into before it is read.
Result<std::vector<std::string>> distinct_files(const std::vector<std::string>& files,
                                                std::vector<std::string>* notes);

// Gives each record of the file to `take`. Errors, those of `take` too, have the form "FILE:LINE:
// what"; a last line that was cut off is left out with a note, of an empty file there is one.
Status read_records(const std::string& path,
                    std::vector<std::string>* notes,
                    const std::function<Status(const nlohmann::ordered_json& record)>& take);

}  // namespace slimwire::cli
