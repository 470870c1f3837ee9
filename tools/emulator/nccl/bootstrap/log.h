// What the emulated NCCL says: lines on stderr when NCCL_DEBUG asks for them, and the text behind
// ncclGetLastError. Thread contract: everything from any thread.
#pragma once

#include <nccl.h>

#include <string>

#include "codecs/base/status.h"

namespace slimwire::emu {

// Reads NCCL_DEBUG again: WARN, INFO and TRACE say more each, anything else is silent.
void reset_verbosity() noexcept;

[[gnu::format(printf, 1, 2)]] void log_warn(const char* format, ...) noexcept;
[[gnu::format(printf, 1, 2)]] void log_info(const char* format, ...) noexcept;

// The boundary: NCCL's code for a Status. A failure is logged and becomes the last error.
ncclResult_t to_nccl(const Status& status) noexcept;
[[nodiscard]] ncclResult_t nccl_code(Code code) noexcept;

// Text of the last failure in this process; valid until this thread's next call.
[[nodiscard]] const char* last_error() noexcept;
void set_last_error(const std::string& text) noexcept;

}  // namespace slimwire::emu
