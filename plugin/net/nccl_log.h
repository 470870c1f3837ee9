// The way into NCCL's log (NCCL_DEBUG, NCCL_DEBUG_FILE): it gives the plugin a function at init.
// Lines before that, and everything while there is none, go to slimwire's own log
// (collectives/call/log.h). Any thread; never throws.
#pragma once

#include <string>

#include "plugin/net/abi/net_types.h"

namespace slimwire::net {

// `log` stays valid for the process, as NCCL's is; null is ignored.
void set_nccl_log(DebugLogger log) noexcept;
// One line each. NCCL shows warnings from NCCL_DEBUG=WARN on, the others from INFO on.
void nccl_warn(const std::string& line) noexcept;
void nccl_info(const std::string& line) noexcept;
// As a warning, and in slimwire's own log too: without NCCL_DEBUG nobody would see why the plugin
// is not used.
void nccl_error(const std::string& line) noexcept;

}  // namespace slimwire::net
