#include "tools/demo_train/npy.h"

#include <bit>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

#include "tools/demo_train/error.h"

namespace demo {

static_assert(std::endian::native == std::endian::little,
              "descr '<f4' is written as memory holds it");

std::string npy_header(size_t elems) {
    constexpr size_t kAlignment = 64;
    constexpr size_t kPrefix = 10;  // magic, version, length of the dictionary
    std::string dictionary =
        "{'descr': '<f4', 'fortran_order': False, 'shape': (" + std::to_string(elems) + ",), }";
    const size_t unpadded = kPrefix + dictionary.size() + 1;
    dictionary.append((kAlignment - unpadded % kAlignment) % kAlignment, ' ');
    dictionary += '\n';
    std::string header("\x93NUMPY\x01\x00", 8);
    header += static_cast<char>(dictionary.size() & 0xff);
    header += static_cast<char>(dictionary.size() >> 8);
    return header + dictionary;
}

void write_npy(const std::string& path, const float* values, size_t elems) {
    struct Close {
        void operator()(std::FILE* file) const { std::fclose(file); }
    };
    std::unique_ptr<std::FILE, Close> file(std::fopen(path.c_str(), "wb"));
    const std::string header = npy_header(elems);
    if (!file || std::fwrite(header.data(), 1, header.size(), file.get()) != header.size() ||
        std::fwrite(values, sizeof(float), elems, file.get()) != elems ||
        std::fflush(file.get()) != 0) {
        throw TrainError(path + ": " + std::strerror(errno));
    }
}

}  // namespace demo
