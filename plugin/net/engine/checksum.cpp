#include "plugin/net/engine/checksum.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace slimwire::net {

uint64_t checksum_of(const void* data, size_t bytes) noexcept {
    return XXH3_64bits(data, bytes);
}

}  // namespace slimwire::net
