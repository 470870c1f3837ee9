// The checksum of a message: XXH3 with 64 bits (libxxhash) over the bytes as the job sees them.
// Opt-in (SLIMWIRE_NET_CODEC=palette,checksum): networks have checksums of their own; this one also
// covers the codec and the memory in between.
#pragma once

#include <cstddef>
#include <cstdint>

#include "plugin/net/engine/codec_pool.h"

namespace slimwire::net {

[[nodiscard]] uint64_t checksum_of(const void* data, size_t bytes) noexcept;

// Computes it on a codec thread; `data` must stay until done().
class ChecksumTask final : public CodecTask {
  public:
    void submit(CodecPool& pool, const void* data, size_t bytes) {
        data_ = data;
        bytes_ = bytes;
        pool.submit(this);
    }
    [[nodiscard]] uint64_t value() const noexcept { return value_; }

  private:
    void run() noexcept override { value_ = checksum_of(data_, bytes_); }

    const void* data_ = nullptr;
    size_t bytes_ = 0;
    uint64_t value_ = 0;
};

}  // namespace slimwire::net
