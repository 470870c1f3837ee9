// An input as the fuzz targets read it, and how they report what they found.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace slimwire {

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
    // The next bytes, up to a line's end.
    std::string line() {
        std::string text;
        for (uint8_t c = byte(); c != 0 && c != '\n'; c = byte()) {
            text += static_cast<char>(c);
        }
        return text;
    }
    // The next `bytes`, completed with zeros.
    std::vector<uint8_t> take(int64_t bytes) {
        std::vector<uint8_t> taken(static_cast<size_t>(bytes));
        for (uint8_t& each : taken) {
            each = byte();
        }
        return taken;
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

}  // namespace slimwire
