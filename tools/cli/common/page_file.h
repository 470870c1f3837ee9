// Where pages of the command line are written, and which files it reads.
#pragma once

#include <string>
#include <vector>

#include "codecs/base/status.h"

namespace slimwire::cli {

// Refuses what is no regular file: it may have no end, or nobody who writes it.
Status check_input(const std::string& path);

// Refuses to write the page over one of `inputs` or over any file of records, as
// `--html slim-*.jsonl` without a name of its own would.
Status check_page_path(const std::string& path, const std::vector<std::string>& inputs);

// Writes `page` to `path` ("-": standard output) by way of a file beside it, so that an error
// leaves what was there. Anything but a regular file is written directly. Errors name the path.
Status write_page(const std::string& path, const std::string& page);

}  // namespace slimwire::cli
