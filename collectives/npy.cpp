#include "collectives/npy.h"

#include <algorithm>
#include <charconv>
#include <cstring>

#include "codecs/float16.h"

namespace slimwire {
namespace {

template <class T>
T load(std::string_view bytes, size_t at) {
    T value;
    std::memcpy(&value, bytes.data() + at, sizeof(T));
    return value;
}

Status wrong(const std::string& what) {
    return {Code::kInvalidArgument, what};
}

// What follows the key in the dictionary, without spaces; empty where the key is not there.
std::string_view value_of(std::string_view dictionary, std::string_view key) {
    const size_t at = dictionary.find(key);
    if (at == std::string_view::npos) {
        return {};
    }
    std::string_view rest = dictionary.substr(at + key.size());
    const size_t begin = rest.find_first_not_of(" :");
    return begin == std::string_view::npos ? std::string_view() : rest.substr(begin);
}

// "(3, 4)", "(3,)" or "()" at the begin of `text`.
bool read_shape(std::string_view text, std::vector<uint64_t>* shape, uint64_t* count) {
    if (text.empty() || text[0] != '(') {
        return false;
    }
    *count = 1;
    size_t at = 1;
    while (at < text.size() && text[at] != ')') {
        uint64_t extent = 0;
        const auto read = std::from_chars(text.data() + at, text.data() + text.size(), extent);
        if (read.ec != std::errc() || __builtin_mul_overflow(*count, extent, count)) {
            return false;
        }
        shape->push_back(extent);
        at = static_cast<size_t>(read.ptr - text.data());
        at = std::min(text.find_first_not_of(", ", at), text.size());
    }
    return at < text.size();
}

}  // namespace

Result<NpyArray> parse_npy(std::string_view bytes) {
    if (!bytes.starts_with(kNpyMagic)) {
        return wrong("no .npy file: it does not begin with \\x93NUMPY");
    }
    const size_t length_bytes = bytes.size() > 6 && bytes[6] == 1 ? 2 : 4;
    if (bytes.size() < 8 + length_bytes) {
        return wrong("cut off in its head");
    }
    const size_t begin =
        8 + length_bytes +
        (length_bytes == 2 ? load<uint16_t>(bytes, 8) : size_t{load<uint32_t>(bytes, 8)});
    if (begin > bytes.size()) {
        return wrong("cut off in its head");
    }
    const std::string_view head = bytes.substr(0, begin);
    const std::string_view type = value_of(head, "'descr'");
    const size_t width = type.starts_with("'<f8'")   ? 8
                         : type.starts_with("'<f4'") ? 4
                         : type.starts_with("'<f2'") ? 2
                                                     : 0;
    if (width == 0) {
        return wrong("elements that are not little-endian float16, float32 or float64");
    }
    if (!value_of(head, "'fortran_order'").starts_with("False")) {
        return wrong("elements in Fortran's order; accepted: C order (numpy.ascontiguousarray)");
    }
    NpyArray array;
    uint64_t count = 0;
    if (!read_shape(value_of(head, "'shape'"), &array.shape, &count)) {
        return wrong("a head without a shape");
    }
    if ((bytes.size() - begin) / width != count || (bytes.size() - begin) % width != 0) {
        return wrong(std::to_string(bytes.size() - begin) +
                     " bytes of elements, where its shape has " + std::to_string(count) + " of " +
                     std::to_string(width) + " bytes");
    }
    array.values.reserve(count);
    for (size_t at = begin; at < bytes.size(); at += width) {
        array.values.push_back(
            width == 8   ? load<double>(bytes, at)
            : width == 4 ? static_cast<double>(load<float>(bytes, at))
                         : static_cast<double>(float16_to_float(load<uint16_t>(bytes, at))));
    }
    return array;
}

}  // namespace slimwire
