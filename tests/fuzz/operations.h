// The host operations of a codec on buffers of exactly their size, so that AddressSanitizer sees
// the first byte beyond; on every instruction set, whose results must be equal. For codec_fuzz.cpp.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "codecs/codec.h"

namespace slimwire::fuzz {

// Heap memory of exactly `bytes` from a chosen distance to a 16-byte boundary on.
class Exact {
  public:
    Exact(const uint8_t* from, int64_t bytes, int64_t misalignment = 0)
        : bytes_(bytes), begin_(misalignment), storage_(new uint8_t[size_t(bytes + misalignment)]) {
        if (bytes > 0) {
            std::memcpy(data(), from, static_cast<size_t>(bytes));
        }
    }
    Exact(uint8_t pattern, int64_t bytes, int64_t misalignment = 0)
        : bytes_(bytes), begin_(misalignment), storage_(new uint8_t[size_t(bytes + misalignment)]) {
        std::memset(storage_.get(), pattern, static_cast<size_t>(bytes + misalignment));
    }
    [[nodiscard]] uint8_t* data() { return storage_.get() + begin_; }
    [[nodiscard]] const uint8_t* data() const { return storage_.get() + begin_; }
    [[nodiscard]] int64_t size() const { return bytes_; }
    [[nodiscard]] bool operator==(const Exact& other) const {
        return bytes_ == other.bytes_ &&
               std::memcmp(data(), other.data(), static_cast<size_t>(bytes_)) == 0;
    }

  private:
    int64_t bytes_;
    int64_t begin_;
    std::unique_ptr<uint8_t[]> storage_;
};

// What an encoder is told beside its codec.
struct Feed {
    float scale = 1;
    bool has_factor = false;  // by scale_ptr: one element, of which these are the bits
    uint32_t factor = 0;
    bool has_threshold = false;  // by threshold_ptr
    float threshold = 0;
    RandomKey random = {.seed = 7, .tensor = 1, .rank = 2, .step = 3};
};

// One tensor under one codec.
struct Subject {
    CodecSpec spec;
    DType dtype;
    int64_t count;
    int64_t chunk_elems;   // at most count
    int64_t misalignment;  // of the user's buffers, in bytes
    Feed feed;

    [[nodiscard]] int64_t bytes() const { return count * int64_t(dtype_bytes(dtype)); }
    [[nodiscard]] int64_t chunks() const { return (count + chunk_elems - 1) / chunk_elems; }
    [[nodiscard]] int64_t slot() const {
        return (spec.encoded_bytes(dtype, chunk_elems) + 15) / 16 * 16;
    }
    // Elements of chunk c.
    [[nodiscard]] int64_t elems(int64_t c) const {
        return std::min(chunk_elems, count - c * chunk_elems);
    }
    [[nodiscard]] std::string to_string() const;
};

struct Encoding {
    Exact slots;
    std::vector<float> residual;  // empty: none was given
    uint32_t status;
};
struct Decoding {
    Exact output;
    uint32_t status;
};

// Each runs on every instruction set; results that differ are a finding.
Encoding encode(const Subject& subject, const uint8_t* input, const std::vector<float>& residual);
// `old`: content of the output before.
Decoding decode(const Subject& subject, const uint8_t* slots, const uint8_t* old, bool accumulate);
// The first chunk of each of `inputs` sources, one slot each.
Encoding reduce(const Subject& subject,
                const uint8_t* sources,
                int32_t inputs,
                const std::vector<float>& residual);

// The same as elements in the user's buffer.
Decoding sum(const Subject& subject, const uint8_t* sources, int32_t inputs);

// check_encoding() on a copy of exactly `size` bytes.
Result<int64_t> check(const Subject& subject, int64_t elems, const uint8_t* bytes, int64_t size);

}  // namespace slimwire::fuzz
