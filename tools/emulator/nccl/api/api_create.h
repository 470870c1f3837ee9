// What making communicators shares with making them out of others.
#pragma once

#include <nccl.h>

#include "codecs/base/status.h"

namespace slimwire::emu {

// Whether a communicator of this configuration is blocking; `otherwise` when nothing says so.
Result<bool> is_blocking(const ncclConfig_t* config, const char* function, bool otherwise);

// Joins the communicator of `id` as `rank`, now, at the group's end or in the background; `*out`
// receives the handle.
Status start_init(ncclComm_t* out,
                  int nranks,
                  const ncclUniqueId& id,
                  int rank,
                  const ncclConfig_t* config,
                  const char* function);

}  // namespace slimwire::emu
