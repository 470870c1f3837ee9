// General-purpose compressors that the benchmark sets beside the codecs: zstd at level 1, lz4,
// blosc's lz4 with bit shuffle, and zstd over separated bytes. Their libraries are opened at run
// time; who lacks one gets a line that says so. They work on pieces of 1 MiB, as a slice of a
// message would.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace slimwire::cli {

// A library's way with one piece; 0 or false: failed.
struct PieceCoder {
    int64_t bound = 0;  // that a piece can get
    std::function<int64_t(const uint8_t* from, int64_t bytes, int element_bytes, uint8_t* to)>
        compress;
    std::function<bool(const uint8_t* from, int64_t size, int64_t bytes, uint8_t* to)> expand;
};

class Compressor {
  public:
    // `splits`: byte k of all elements together, before they are compressed.
    Compressor(const char* name, PieceCoder coder, bool splits = false)
        : name_(name), coder_(std::move(coder)), splits_(splits) {}
    [[nodiscard]] const char* name() const { return name_; }
    // The largest size that `bytes` bytes can get.
    [[nodiscard]] int64_t bound(int64_t bytes) const;
    // Bytes written to `to`; `element_bytes` is the size of an element. 0: failed.
    int64_t compress(const uint8_t* from, int64_t bytes, int element_bytes, uint8_t* to);
    // Whether `bytes` bytes came out.
    bool expand(const uint8_t* from, int64_t size, int64_t bytes, int element_bytes, uint8_t* to);

  private:
    const char* name_;
    PieceCoder coder_;
    bool splits_;
    std::vector<uint8_t> parts_;
};

// Those whose library is there; for each other one a line in `absent`.
[[nodiscard]] std::vector<Compressor> find_compressors(std::vector<std::string>* absent);

}  // namespace slimwire::cli
