#include "plugin/net/engine/checksum.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <new>

namespace slimwire::net {

uint64_t checksum_of(const void* data, size_t bytes) noexcept {
    return XXH3_64bits(data, bytes);
}

ChecksumStream::ChecksumStream() : state_(XXH3_createState()) {
    if (state_ == nullptr) {
        throw std::bad_alloc();
    }
    reset();
}
ChecksumStream::~ChecksumStream() {
    (void)XXH3_freeState(static_cast<XXH3_state_t*>(state_));
}
void ChecksumStream::reset() noexcept {
    (void)XXH3_64bits_reset(static_cast<XXH3_state_t*>(state_));
}
void ChecksumStream::add(const void* data, size_t bytes) noexcept {
    (void)XXH3_64bits_update(static_cast<XXH3_state_t*>(state_), data, bytes);
}
uint64_t ChecksumStream::value() const noexcept {
    return XXH3_64bits_digest(static_cast<const XXH3_state_t*>(state_));
}

}  // namespace slimwire::net
