// Writes arrays as NumPy does.
#pragma once

#include <string>
#include <vector>

namespace slimwire::test {

// The bytes of a .npy file: `descr` as "<f4", `shape` as "(2, 3)".
inline std::string npy(const std::string& descr,
                       const std::string& shape,
                       const std::string& elements,
                       const std::string& order = "False",
                       char version = 1) {
    std::string head =
        "{'descr': '" + descr + "', 'fortran_order': " + order + ", 'shape': " + shape + ", }";
    head += std::string(63 - (head.size() + 10) % 64, ' ') + '\n';
    std::string bytes("\x93NUMPY");
    bytes += {version, 0, static_cast<char>(head.size()), static_cast<char>(head.size() >> 8)};
    bytes += version > 1 ? std::string(2, '\0') : "";
    return bytes + head + elements;
}

template <class T>
std::string bytes_of(const std::vector<T>& values) {
    return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

// Of fp32, row after row.
inline std::string npy_matrix(size_t rows, size_t columns, const std::vector<float>& values) {
    std::string shape("(");
    shape.append(std::to_string(rows)).append(", ").append(std::to_string(columns)).append(")");
    return npy("<f4", shape, bytes_of(values));
}

}  // namespace slimwire::test
