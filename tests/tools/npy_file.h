// Bytes of tensor files, for tests that read them.
#pragma once

#include <string>
#include <vector>

namespace slimwire::cli::test {

inline std::string npy(int version, const std::string& dictionary, const std::string& data) {
    std::string file("\x93NUMPY", 6);
    file += static_cast<char>(version);
    file += '\0';
    const size_t length_bytes = version == 1 ? 2 : 4;
    for (size_t i = 0; i < length_bytes; ++i) {
        file += static_cast<char>(dictionary.size() >> (8 * i));
    }
    return file + dictionary + data;
}

template <class T>
std::string raw(const std::vector<T>& values) {
    return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

// A dictionary: two by two fp32.
inline constexpr char kFour[] = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 2), }";

}  // namespace slimwire::cli::test
