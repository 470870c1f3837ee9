// The data sets of `slimwire bench codec`: the same bits on every machine, so that ratios and
// errors can be compared between runs; each line of the benchmark carries their hash.
//
//   gaussian  normal deviates
//   synth     layers of them: scales log-uniform from 1e-6 to 1e-2, log-normal row scales
//   bucket    gradients of all ranks of the demo at step 220, concatenated
//   weights   the same run's parameters
//   zeros90   rows of 320, nine of ten all zeros, else normal deviates
//   random    random bits
//
// bucket and weights are files of a training run (tests/bench/make_data); shorter ones repeat.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "codecs/base/dtype.h"
#include "codecs/base/status.h"

namespace slimwire::cli {

// Their names, in the order above.
[[nodiscard]] const std::vector<std::string>& data_set_names();

// `count` elements of `dtype` in `to`, which has the room. `folder` holds the files. kNotFound says
// how to make a file that is missing.
Status fill_data_set(std::string_view name,
                     const std::filesystem::path& folder,
                     DType dtype,
                     int64_t count,
                     uint8_t* to);

// 16 hexadecimal digits.
[[nodiscard]] std::string data_hash(const uint8_t* bytes, int64_t size);

// General-purpose compressors that the benchmark sets beside the codecs: zstd at level 1, lz4,
// blosc's lz4 with bit shuffle, and zstd over separated bytes. Their libraries are opened at run
// time; who lacks one gets a line that says so. They work on pieces of 1 MiB, as a slice of a
// message would.

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
