#include "tools/cli/codec/tensor_file.h"

#include <fmt/core.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <new>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "codecs/base/element_types.h"
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

// A Python dictionary of texts, numbers and tuples as JSON.
std::string as_json(std::string_view python) {
    std::string json;
    for (size_t i = 0; i < python.size(); ++i) {
        const char c = python[i];
        const size_t next = std::min(python.find_first_not_of(" \n", i + 1), python.size() - 1);
        if (c == ',' && (python[next] == ')' || python[next] == '}')) {
            continue;  // of a tuple of one, and behind the last entry
        }
        json += c == '\'' ? '"' : c == '(' ? '[' : c == ')' ? ']' : c;
    }
    for (const auto& [from, to] : {std::pair("True", "true"), {"False", "false"}}) {
        if (const size_t at = json.find(from); at != std::string::npos) {
            json.replace(at, std::strlen(from), to);
        }
    }
    return json;
}

Status read_dictionary(std::string_view text, Header* header) {
    const nlohmann::json json = nlohmann::json::parse(as_json(text), nullptr, false);
    if (!json.is_object() || json.size() != 3 || !json.contains("descr") ||
        !json.contains("fortran_order") || !json.contains("shape")) {
        return invalid("no dictionary of 'descr', 'fortran_order' and 'shape'");
    }
    if (!json["descr"].is_string()) {
        return invalid("a structured array; only arrays of one plain type are taken");
    }
    if (!json["fortran_order"].is_boolean()) {  // codecs work element by element in any order
        return invalid("fortran_order is neither True nor False");
    }
    header->descr = json["descr"];
    for (const nlohmann::json& extent : json["shape"]) {
        if (!extent.is_number_unsigned() || extent > std::numeric_limits<int64_t>::max()) {
            return invalid("the shape is not a tuple of numbers");
        }
        header->shape.push_back(extent);
    }
    return {};
}

Status read_header(const std::vector<uint8_t>& file, Header* header) {
    const std::string_view text(reinterpret_cast<const char*>(file.data()), file.size());
    if (text.substr(0, kMagic.size()) != kMagic) {
        return invalid("named .npy, but does not start with its magic \\x93NUMPY");
    }
    const int version = file.size() < 10 ? 0 : file[6];
    if (file.size() >= 10 && (version < 1 || version > 3)) {
        return invalid(fmt::format("version {}.{} of .npy; 1 to 3 are known", version, file[7]));
    }
    const size_t begin = version > 1 ? 12 : 10;
    if (file.size() < begin) {
        return invalid(fmt::format("truncated: {} bytes, shorter than any header", file.size()));
    }
    size_t length = file[8] | static_cast<size_t>(file[9]) << 8;
    if (version > 1) {
        length |= static_cast<size_t>(file[10]) << 16 | static_cast<size_t>(file[11]) << 24;
    }
    if (length > file.size() - begin) {
        return invalid(fmt::format("truncated: a header of {} bytes, and {} bytes in the file",
                                   begin + length, file.size()));
    }
    header->data_at = begin + length;
    const Status status = read_dictionary(text.substr(begin, length), header);
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

double element(DType dtype, const uint8_t* buffer, int64_t i) {
    double value = 0;
    element_types::visit_element(dtype, [&](auto type) {
        typename decltype(type)::Storage bits;
        std::memcpy(&bits, buffer + i * static_cast<int64_t>(sizeof bits), sizeof bits);
        value = static_cast<double>(decltype(type)::load(bits));
    });
    return value;
}

void put_element(DType dtype, uint8_t* buffer, int64_t i, double x) {
    element_types::visit_element(dtype, [&](auto type) {
        using Type = decltype(type);
        using Compute = typename Type::Compute;
        Compute value = 0;
        if constexpr (std::is_integral_v<Compute>) {
            using Limits = std::numeric_limits<Compute>;
            value = !(x > static_cast<double>(Limits::min())) ? (x != x ? 0 : Limits::min())
                    : x >= static_cast<double>(Limits::max())
                        ? Limits::max()
                        : static_cast<Compute>(std::nearbyint(x));
        } else {
            value = static_cast<Compute>(x);
        }
        const auto bits = Type::store(value);
        std::memcpy(buffer + i * static_cast<int64_t>(sizeof bits), &bits, sizeof bits);
    });
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
