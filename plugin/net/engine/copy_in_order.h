// A copy for a reader that looks at the bytes while they come: NCCL's protocol LL128 polls a flag
// at the end of every line and takes the line's data as soon as it is there.
#pragma once

#include <cstddef>

namespace slimwire::net {

// Copies between distinct memory so that a reader on another thread, or on the device, who finds a
// word also finds all that stands before it: 8 bytes at a time, ascending, each a release. memcpy()
// promises no order; glibc's stores the first bytes of more than a few vectors last.
void copy_in_order(void* output, const void* input, size_t bytes) noexcept;

}  // namespace slimwire::net
