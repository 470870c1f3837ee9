#include "tools/cli/codec/tensor_file.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <new>
#include <string_view>

#include "codecs/float16.h"
#include "collectives/policy/names.h"
#include "tools/cli/common/commands.h"
#include "tools/cli/common/files.h"

namespace slimwire::cli {
namespace {

constexpr std::string_view kMagic("\x93NUMPY", 6);

struct Header {
    std::string descr;
    std::vector<int64_t> shape;
    size_t data_at = 0;
};

// Walks the header's text, a Python dictionary of three entries in any order.
class HeaderReader {
  public:
    explicit HeaderReader(std::string_view text) : text_(text) {}

    Status read(Header* header) {
        bool descr = false;
        bool order = false;
        bool shape = false;
        SLIMWIRE_TRY(expect('{'));
        while (!take('}')) {
            std::string key;
            SLIMWIRE_TRY(read_string(&key));
            SLIMWIRE_TRY(expect(':'));
            if (key == "descr") {
                descr = true;
                SLIMWIRE_TRY(read_string(&header->descr));
            } else if (key == "fortran_order") {  // codecs work element by element in any order
                order = true;
                if (!take_word("True") && !take_word("False")) {
                    return invalid("fortran_order is neither True nor False");
                }
            } else if (key == "shape") {
                shape = true;
                SLIMWIRE_TRY(read_shape(&header->shape));
            } else {
                return invalid(fmt::format("unknown key '{}'", key));
            }
            if (!take(',') && peek() != '}') {
                return invalid("an entry does not end in ',' or '}'");
            }
        }
        if (!descr || !order || !shape) {
            return invalid("'descr', 'fortran_order' or 'shape' is missing");
        }
        return {};
    }

  private:
    char peek() {
        while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_])) != 0) {
            ++at_;
        }
        return at_ < text_.size() ? text_[at_] : '\0';
    }
    bool take(char c) {
        const bool there = peek() == c;
        at_ += there ? 1 : 0;
        return there;
    }
    bool take_word(std::string_view word) {
        peek();
        const bool there = text_.substr(at_, word.size()) == word;
        at_ += there ? word.size() : 0;
        return there;
    }
    Status expect(char c) {
        return take(c) ? Status() : invalid(fmt::format("'{}' expected at offset {}", c, at_));
    }
    Status read_string(std::string* value) {
        const char quote = peek();
        if (quote == '[') {
            return invalid("a structured array; only arrays of one plain type are taken");
        }
        if (quote != '\'' && quote != '"') {
            return invalid(fmt::format("a string expected at offset {}", at_));
        }
        const size_t end = text_.find(quote, at_ + 1);
        if (end == std::string_view::npos) {
            return invalid("a string without an end");
        }
        *value = text_.substr(at_ + 1, end - at_ - 1);
        at_ = end + 1;
        return {};
    }
    Status read_shape(std::vector<int64_t>* shape) {
        SLIMWIRE_TRY(expect('('));
        while (!take(')')) {
            int64_t extent = 0;
            if (std::isdigit(static_cast<unsigned char>(peek())) == 0) {
                return invalid("the shape is not a tuple of numbers");
            }
            while (std::isdigit(static_cast<unsigned char>(peek())) != 0) {
                if (extent > (std::numeric_limits<int64_t>::max() - 9) / 10) {
                    return invalid("an extent beyond 64 bits");
                }
                extent = 10 * extent + (text_[at_++] - '0');
            }
            shape->push_back(extent);
            if (!take(',') && peek() != ')') {
                return invalid("the shape is not a tuple of numbers");
            }
        }
        return {};
    }

    std::string_view text_;
    size_t at_ = 0;
};

Status read_header(const std::vector<uint8_t>& file, Header* header) {
    const std::string_view text(reinterpret_cast<const char*>(file.data()), file.size());
    if (text.substr(0, kMagic.size()) != kMagic) {
        return invalid("named .npy, but does not start with its magic \\x93NUMPY");
    }
    if (file.size() < 10) {
        return invalid(fmt::format("truncated: {} bytes, shorter than any header", file.size()));
    }
    const int version = file[6];
    if (version < 1 || version > 3) {
        return invalid(fmt::format("version {}.{} of .npy; 1 to 3 are known", version, file[7]));
    }
    const size_t begin = version == 1 ? 10 : 12;
    size_t length = file[8] | static_cast<size_t>(file[9]) << 8;
    if (version > 1) {
        if (file.size() < begin) {
            return invalid(
                fmt::format("truncated: {} bytes, shorter than any header", file.size()));
        }
        length |= static_cast<size_t>(file[10]) << 16 | static_cast<size_t>(file[11]) << 24;
    }
    if (length > file.size() - begin) {
        return invalid(fmt::format("truncated: a header of {} bytes, and {} bytes in the file",
                                   begin + length, file.size()));
    }
    header->data_at = begin + length;
    const Status status = HeaderReader(text.substr(begin, length)).read(header);
    return status.ok() ? status : invalid("header: " + status.message());
}

// The type of a descr such as "<f4"; for those that only have a size, what the caller says.
Result<DType> type_of(const std::string& descr, std::optional<DType> asked) {
    if (descr.size() >= 2 && descr[0] == '>' && descr.substr(2) != "1") {
        return invalid(fmt::format("big-endian elements ('{}')", descr));
    }
    const std::string type = descr.empty() ? "" : descr.substr(1);
    constexpr struct {
        const char* type;
        DType dtype;
    } kTypes[] = {{"f2", DType::kFloat16}, {"f4", DType::kFloat32}, {"f8", DType::kFloat64},
                  {"i1", DType::kInt8},    {"u1", DType::kUint8},   {"i4", DType::kInt32},
                  {"u4", DType::kUint32},  {"i8", DType::kInt64},   {"u8", DType::kUint64}};
    for (const auto& known : kTypes) {
        if (type == known.type) {
            const bool reinterpreted = asked && (type[0] == 'u' || type[0] == 'i') &&
                                       dtype_bytes(*asked) == dtype_bytes(known.dtype);
            if (asked && *asked != known.dtype && !reinterpreted) {
                return invalid(
                    fmt::format("holds {}, not {}", dtype_name(known.dtype), dtype_name(*asked)));
            }
            return asked.value_or(known.dtype);
        }
    }
    // bf16 and fp8 are written as bytes without a meaning, or as integers of their size.
    if (type == "V1" || type == "V2" || type == "u2" || type == "i2") {
        const size_t bytes = static_cast<size_t>(type[1] - '0');
        if (asked && dtype_bytes(*asked) == bytes) {
            return *asked;
        }
        return invalid(
            asked ? fmt::format("elements of {} bytes ('{}'), not {}", bytes, descr,
                                dtype_name(*asked))
                  : fmt::format("elements of {} bytes without a known type ('{}'); say which with "
                                "--dtype",
                                bytes, descr));
    }
    return invalid(
        fmt::format("elements of type '{}'; known are f2, f4, f8, i1, u1, i4, u4, i8, u8, "
                    "and with --dtype V1, V2, i2, u2",
                    descr));
}

Result<int64_t> count_of(const std::vector<int64_t>& shape) {
    int64_t count = 1;
    for (const int64_t extent : shape) {
        if (extent == 0) {
            return int64_t{0};
        }
    }
    for (const int64_t extent : shape) {
        if (count > std::numeric_limits<int64_t>::max() / 16 / extent) {
            return invalid("a shape of more than 2^59 elements");
        }
        count *= extent;
    }
    return count;
}

// Files of many tensors, or of compressed ones, that would pass for raw elements: what the file is,
// "" when it may be raw. By how it begins, else by its name.
std::string container_of(const std::string& path, const std::vector<uint8_t>& file) {
    const std::string_view begin(reinterpret_cast<const char*>(file.data()),
                                 std::min<size_t>(file.size(), 9));
    constexpr struct {
        std::string_view magic, what;
    } kMagics[] = {{{"PK\3\4", 4}, "a zip archive (torch.save, .npz)"},
                   {{"\x89HDF", 4}, "an HDF5 file"},
                   {{"GGUF", 4}, "a GGUF file"},
                   {{"PAR1", 4}, "a Parquet file"},
                   {{"\x1f\x8b\x08", 3}, "a gzip file"},
                   {{"\x28\xb5\x2f\xfd", 4}, "a zstd file"},
                   {{"\x80\x02\x8a\x0a", 4}, "a file of torch.save"},
                   {{"\x80\x04\x95", 3}, "a pickle"}};
    for (const auto& known : kMagics) {
        if (begin.starts_with(known.magic)) {
            return std::string(known.what);
        }
    }
    uint64_t header = 0;
    std::memcpy(&header, begin.data(), std::min<size_t>(begin.size(), sizeof header));
    if (begin.size() == 9 && begin[8] == '{' && header <= file.size() - 8) {
        return "a safetensors file";
    }
    std::string name = std::filesystem::path(path).extension().string();
    std::transform(name.begin(), name.end(), name.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    for (const std::string_view one :
         {".pt",   ".pth", ".ckpt", ".pkl",  ".pickle", ".npz",     ".safetensors",
          ".gguf", ".h5",  ".hdf5", ".onnx", ".mat",    ".arrow",   ".feather",
          ".csv",  ".tsv", ".txt",  ".json", ".jsonl",  ".parquet", ".tfrecord",
          ".gz",   ".xz",  ".zst",  ".zip",  ".tar"}) {
        if (name == one) {
            return "a " + name + " file by its name";
        }
    }
    return "";
}

Result<Tensor> parse(const std::string& path,
                     std::vector<uint8_t> file,
                     std::optional<DType> dtype) {
    const bool magic =
        file.size() >= kMagic.size() && std::memcmp(file.data(), kMagic.data(), kMagic.size()) == 0;
    Tensor tensor;
    if (!magic && std::filesystem::path(path).extension() != ".npy") {
        if (const std::string container = container_of(path, file); !container.empty()) {
            return invalid(container +
                           "; accepted: .npy (numpy.save of one tensor) or raw elements");
        }
        if (!dtype) {
            return invalid(fmt::format("no .npy file, so its type must be said with --dtype ({})",
                                       join(dtype_names())));
        }
        const size_t element_bytes = dtype_bytes(*dtype);
        if (file.size() % element_bytes != 0) {
            return invalid(fmt::format("{} bytes are no whole number of {} elements", file.size(),
                                       dtype_name(*dtype)));
        }
        tensor.dtype = *dtype;
        tensor.count = static_cast<int64_t>(file.size() / element_bytes);
        tensor.shape = {tensor.count};
        tensor.bytes = std::move(file);
        return tensor;
    }
    Header header;
    SLIMWIRE_TRY(read_header(file, &header));
    SLIMWIRE_TRY_ASSIGN(tensor.dtype, type_of(header.descr, dtype));
    SLIMWIRE_TRY_ASSIGN(tensor.count, count_of(header.shape));
    tensor.shape = header.shape;
    const size_t data = file.size() - header.data_at;
    const size_t wanted = static_cast<size_t>(tensor.count) * dtype_bytes(tensor.dtype);
    if (data != wanted) {
        return invalid(fmt::format("{}: {} bytes of elements, and its shape asks for {}",
                                   data < wanted ? "truncated" : "too long", data, wanted));
    }
    tensor.bytes.assign(file.begin() + static_cast<std::ptrdiff_t>(header.data_at), file.end());
    return tensor;
}

}  // namespace

Result<Tensor> read_tensor(const std::string& path, std::optional<DType> dtype) {
    SLIMWIRE_TRY(check_input(path));
    std::ifstream stream(path, std::ios::binary | std::ios::ate);
    if (!stream) {
        return Status(Code::kNotFound, fmt::format("{}: {}", path, std::strerror(errno)));
    }
    const auto bytes = static_cast<size_t>(stream.tellg());
    std::vector<uint8_t> file;
    try {
        file.resize(bytes);
    } catch (const std::bad_alloc&) {
        return Status(Code::kOutOfMemory,
                      fmt::format("{}: {} bytes, more than there is memory", path, bytes));
    }
    stream.seekg(0);
    if (!stream.read(reinterpret_cast<char*>(file.data()),
                     static_cast<std::streamsize>(file.size()))) {
        return Status(Code::kSystemError, path + ": cannot be read");
    }
    Result<Tensor> tensor = parse(path, std::move(file), dtype);
    if (!tensor.ok()) {
        return Status(tensor.status().code(), path + ": " + tensor.status().message());
    }
    return tensor;
}

namespace {

template <class T>
T load(const uint8_t* buffer, int64_t i) {
    T value;
    std::memcpy(&value, buffer + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
    return value;
}

template <class T>
void store(uint8_t* buffer, int64_t i, T value) {
    std::memcpy(buffer + i * static_cast<int64_t>(sizeof(T)), &value, sizeof(T));
}

template <class T>
void store_integer(uint8_t* buffer, int64_t i, double x) {
    using Limits = std::numeric_limits<T>;
    if (!(x > static_cast<double>(Limits::min()))) {
        store(buffer, i, x != x ? T{0} : Limits::min());
    } else if (x >= static_cast<double>(Limits::max())) {
        store(buffer, i, Limits::max());
    } else {
        store(buffer, i, static_cast<T>(std::nearbyint(x)));
    }
}

// OCP 8-bit floating point (OFP8, 2023): e4m3 has no infinity and one NaN a sign, e5m2 is the upper
// half of an fp16.
double float8(DType dtype, uint8_t bits) {
    if (dtype == DType::kFloat8e5m2) {
        return float16_to_float(static_cast<uint16_t>(bits << 8));
    }
    const int exponent = bits >> 3 & 15;
    const int fraction = bits & 7;
    double magnitude =
        exponent == 0 ? std::ldexp(fraction, -9) : std::ldexp(8 + fraction, exponent - 10);
    if ((bits & 0x7F) == 0x7F) {
        magnitude = std::numeric_limits<double>::quiet_NaN();
    }
    return (bits & 0x80) != 0 ? -magnitude : magnitude;
}

// Nearest finite value, ties to the even code.
uint8_t to_float8(DType dtype, double x) {
    const uint8_t largest = dtype == DType::kFloat8e5m2 ? 0x7B : 0x7E;
    uint8_t best = 0;
    for (uint8_t bits = 1; bits <= largest; ++bits) {
        const double distance = std::fabs(float8(dtype, bits) - std::fabs(x));
        const double before = std::fabs(float8(dtype, best) - std::fabs(x));
        if (distance < before || (distance == before && bits % 2 == 0)) {
            best = bits;
        }
    }
    return std::signbit(x) ? best | 0x80 : best;
}

}  // namespace

double element(DType dtype, const uint8_t* buffer, int64_t i) {
    switch (dtype) {
        case DType::kInt8:
            return load<int8_t>(buffer, i);
        case DType::kUint8:
            return load<uint8_t>(buffer, i);
        case DType::kInt32:
            return load<int32_t>(buffer, i);
        case DType::kUint32:
            return load<uint32_t>(buffer, i);
        case DType::kInt64:
            return static_cast<double>(load<int64_t>(buffer, i));
        case DType::kUint64:
            return static_cast<double>(load<uint64_t>(buffer, i));
        case DType::kFloat16:
            return float16_to_float(load<uint16_t>(buffer, i));
        case DType::kFloat32:
            return load<float>(buffer, i);
        case DType::kFloat64:
            return load<double>(buffer, i);
        case DType::kBfloat16:
            return bfloat16_to_float(load<uint16_t>(buffer, i));
        case DType::kFloat8e4m3:
        case DType::kFloat8e5m2:
            return float8(dtype, buffer[i]);
    }
    return 0;
}

void put_element(DType dtype, uint8_t* buffer, int64_t i, double x) {
    switch (dtype) {
        case DType::kInt8:
            return store_integer<int8_t>(buffer, i, x);
        case DType::kUint8:
            return store_integer<uint8_t>(buffer, i, x);
        case DType::kInt32:
            return store_integer<int32_t>(buffer, i, x);
        case DType::kUint32:
            return store_integer<uint32_t>(buffer, i, x);
        case DType::kInt64:
            return store_integer<int64_t>(buffer, i, x);
        case DType::kUint64:
            return store_integer<uint64_t>(buffer, i, x);
        case DType::kFloat16:
            return store(buffer, i, float_to_float16(static_cast<float>(x)));
        case DType::kFloat32:
            return store(buffer, i, static_cast<float>(x));
        case DType::kFloat64:
            return store(buffer, i, x);
        case DType::kBfloat16:
            return store(buffer, i, float_to_bfloat16(static_cast<float>(x)));
        case DType::kFloat8e4m3:
        case DType::kFloat8e5m2:
            buffer[i] = to_float8(dtype, x);
            return;
    }
}

double relative_error(DType dtype, const uint8_t* a, const uint8_t* b, int64_t count) {
    double difference = 0;
    double norm = 0;
    for (int64_t i = 0; i < count; ++i) {
        const double x = element(dtype, a, i);
        const double y = element(dtype, b, i);
        difference += (x - y) * (x - y);
        norm += y * y;
    }
    return difference == 0 ? 0 : std::sqrt(difference / norm);
}

}  // namespace slimwire::cli
