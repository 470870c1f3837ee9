// Which TCP port an emulated job may use for its MASTER_PORT. Used by job.cpp; no state. Somebody
// else may take the port before the job does: the job then says so.
#pragma once

#include "codecs/base/status.h"

namespace slimwire::cli {

// A TCP port of 127.0.0.1 that nobody uses. `wanted` 0: any; else the first free one of the 16 from
// `wanted` on.
Result<int> find_free_port(int wanted);

}  // namespace slimwire::cli
