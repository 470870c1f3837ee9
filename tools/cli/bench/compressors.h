// General-purpose compressors that the benchmark sets beside the codecs: zstd at level 1, lz4,
// blosc's lz4 with bit shuffle, and zstd over separated bytes. Their libraries are opened at run
// time; who lacks one gets a line that says so. They work on pieces of 1 MiB, as a slice of a
// message would.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "codecs/base/status.h"

namespace slimwire::cli {

class Compressor {
  public:
    virtual ~Compressor() = default;
    [[nodiscard]] virtual const char* name() const = 0;
    // The largest size that `bytes` bytes can get.
    [[nodiscard]] virtual int64_t bound(int64_t bytes) const = 0;
    // Bytes written to `to`; `element_bytes` is the size of an element. 0: failed.
    virtual int64_t compress(const uint8_t* from,
                             int64_t bytes,
                             int element_bytes,
                             uint8_t* to) = 0;
    // Whether `bytes` bytes came out.
    virtual bool expand(
        const uint8_t* from, int64_t size, int64_t bytes, int element_bytes, uint8_t* to) = 0;
};

// Those whose library is there; for each other one a line in `absent`.
[[nodiscard]] std::vector<std::unique_ptr<Compressor>> find_compressors(
    std::vector<std::string>* absent);

}  // namespace slimwire::cli
