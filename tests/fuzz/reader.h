// An input as the fuzz target of a net plugin's peer reads it, and how it reports what it found.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace slimwire::net {

[[noreturn]] inline void finding(const std::string& what) {
    std::fprintf(stderr, "finding: %s\n", what.c_str());
    std::abort();
}

class Reader {
  public:
    Reader(const uint8_t* data, size_t size) : data_(data), size_(size) {}
    [[nodiscard]] bool empty() const { return size_ == 0; }
    uint8_t byte() {
        if (size_ == 0) {
            return 0;
        }
        --size_;
        return *data_++;
    }
    uint64_t number() {
        uint64_t value = 0;
        for (int i = 0; i < 8; ++i) {
            value = value << 8 | byte();
        }
        return value;
    }
    // The next bytes again and again, up to `bytes`; they are not used up.
    void fill(uint8_t* output, size_t bytes) const {
        for (size_t at = 0; at < bytes;) {
            const size_t part = std::min(bytes - at, std::max<size_t>(size_, 1));
            if (size_ > 0) {
                std::memcpy(output + at, data_, part);
            } else {
                output[at] = 0;
            }
            at += part;
        }
    }

  private:
    const uint8_t* data_;
    size_t size_;
};

}  // namespace slimwire::net
