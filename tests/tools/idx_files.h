// Writes gzip-compressed IDX files, the format of Fashion-MNIST, for tests of the trainer.
#pragma once

#include <gtest/gtest.h>
#include <zlib.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace demo {

using Bytes = std::vector<uint8_t>;

inline void append_u32(Bytes& bytes, uint32_t value) {
    for (int shift = 24; shift >= 0; shift -= 8) {
        bytes.push_back(static_cast<uint8_t>(value >> shift));
    }
}

inline Bytes image_header(uint32_t count, uint32_t rows, uint32_t columns) {
    Bytes bytes;
    append_u32(bytes, 0x803);
    append_u32(bytes, count);
    append_u32(bytes, rows);
    append_u32(bytes, columns);
    return bytes;
}

inline Bytes label_file(const std::vector<uint8_t>& labels) {
    Bytes bytes;
    append_u32(bytes, 0x801);
    append_u32(bytes, static_cast<uint32_t>(labels.size()));
    bytes.insert(bytes.end(), labels.begin(), labels.end());
    return bytes;
}

inline void write_gz(const std::filesystem::path& path, const Bytes& bytes) {
    gzFile file = gzopen(path.c_str(), "wb");
    ASSERT_NE(file, nullptr);
    ASSERT_EQ(gzwrite(file, bytes.data(), static_cast<unsigned>(bytes.size())),
              static_cast<int>(bytes.size()));
    ASSERT_EQ(gzclose(file), Z_OK);
}

}  // namespace demo
