// Messages for tests of the net plugin: floats as a job sends them, noise, and NCCL's protocols
// with flags in the data.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "codecs/base/dtype.h"

namespace slimwire::net {

inline std::vector<uint8_t> random_bytes(size_t bytes, std::mt19937& random) {
    std::vector<uint8_t> data((bytes + 3) / 4 * 4);
    for (size_t at = 0; at < data.size(); at += 4) {
        const uint32_t word = static_cast<uint32_t>(random());
        std::memcpy(data.data() + at, &word, sizeof word);
    }
    data.resize(bytes);
    return data;
}

// Normal values of the type; types without a conversion here get fp32's bits cut.
inline std::vector<uint8_t> gaussian_bytes(DType type, size_t bytes, std::mt19937& random) {
    std::normal_distribution<float> normal(0, 0.02f);
    const size_t width = dtype_bytes(type);
    std::vector<uint8_t> data((bytes + width - 1) / width * width);
    for (size_t at = 0; at < data.size(); at += width) {
        const float value = normal(random);
        const double wide = value;
        uint32_t bits;
        std::memcpy(&bits, &value, sizeof bits);
        if (type == DType::kFloat64) {
            uint64_t wide_bits;
            std::memcpy(&wide_bits, &wide, sizeof wide_bits);
            wide_bits ^= random();  // more digits than fp32 has
            std::memcpy(data.data() + at, &wide_bits, sizeof wide_bits);
        } else if (type == DType::kFloat16) {
            const auto half = static_cast<_Float16>(value * 50);
            std::memcpy(data.data() + at, &half, sizeof half);
        } else if (width == 4) {
            std::memcpy(data.data() + at, &bits, sizeof bits);
        } else if (width == 2) {
            const auto upper = static_cast<uint16_t>(bits >> 16);
            std::memcpy(data.data() + at, &upper, sizeof upper);
        } else {
            data[at] = static_cast<uint8_t>(bits >> 24);
        }
    }
    data.resize(bytes);
    return data;
}

// Protocol LL: 4 bytes of data, 4 bytes of flag, in turn; whole lines of 16 bytes.
inline std::vector<uint8_t> ll_message(size_t bytes, uint32_t flag, std::mt19937& random) {
    std::vector<uint8_t> data = gaussian_bytes(DType::kFloat32, bytes / 16 * 16, random);
    for (size_t at = 4; at < data.size(); at += 8) {
        std::memcpy(data.data() + at, &flag, sizeof flag);
    }
    return data;
}

// Protocol LL128: 120 bytes of data, 8 bytes of flag a line of 128.
inline std::vector<uint8_t> ll128_message(size_t bytes, uint64_t flag, std::mt19937& random) {
    std::vector<uint8_t> data = gaussian_bytes(DType::kFloat32, bytes / 128 * 128, random);
    for (size_t at = 120; at < data.size(); at += 128) {
        std::memcpy(data.data() + at, &flag, sizeof flag);
    }
    return data;
}

}  // namespace slimwire::net
