#include "tools/cli/bench/compressors.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <optional>

namespace slimwire::cli {
namespace {

constexpr int64_t kPiece = int64_t{1} << 20;

// Element by element to part by part, or back.
void transpose(const uint8_t* from, int64_t rows, int64_t columns, uint8_t* to) {
    for (int64_t i = 0; i < rows; ++i) {
        for (int64_t k = 0; k < columns; ++k) {
            to[k * rows + i] = from[i * columns + k];
        }
    }
}

// Functions of a library, which stays open, declared as in zstd.h, lz4.h and blosc.h: stable since
// their versions 1.
class Library {
  public:
    explicit Library(const char* soname) : handle_(dlopen(soname, RTLD_NOW | RTLD_LOCAL)) {}
    template <class Function>
    bool find(const char* name, Function** function) const {
        *function =
            reinterpret_cast<Function*>(handle_ != nullptr ? dlsym(handle_, name) : nullptr);
        return *function != nullptr;
    }

  private:
    void* handle_;
};

std::optional<PieceCoder> find_zstd(const Library& library) {
    size_t (*compress_bound)(size_t) = nullptr;
    void* (*create_c)() = nullptr;
    void* (*create_d)() = nullptr;
    size_t (*compress)(void*, void*, size_t, const void*, size_t, int) = nullptr;
    size_t (*decompress)(void*, void*, size_t, const void*, size_t) = nullptr;
    unsigned (*is_error)(size_t) = nullptr;
    if (!library.find("ZSTD_compressBound", &compress_bound) ||
        !library.find("ZSTD_createCCtx", &create_c) ||
        !library.find("ZSTD_createDCtx", &create_d) ||
        !library.find("ZSTD_compressCCtx", &compress) ||
        !library.find("ZSTD_decompressDCtx", &decompress) ||
        !library.find("ZSTD_isError", &is_error)) {
        return std::nullopt;
    }
    const size_t bound = compress_bound(kPiece);
    // Kept to the process's end.
    return PieceCoder{
        static_cast<int64_t>(bound),
        [=, context = create_c()](const uint8_t* from, int64_t bytes, int, uint8_t* to) {
            const size_t written =
                compress(context, to, bound, from, static_cast<size_t>(bytes), 1);
            return is_error(written) != 0 ? 0 : static_cast<int64_t>(written);
        },
        [=, context = create_d()](const uint8_t* from, int64_t size, int64_t bytes, uint8_t* to) {
            const auto wanted = static_cast<size_t>(bytes);
            return decompress(context, to, wanted, from, static_cast<size_t>(size)) == wanted;
        }};
}

std::optional<PieceCoder> find_lz4(const Library& library) {
    int (*compress_bound)(int) = nullptr;
    int (*compress)(const void*, void*, int, int) = nullptr;
    int (*decompress)(const void*, void*, int, int) = nullptr;
    if (!library.find("LZ4_compressBound", &compress_bound) ||
        !library.find("LZ4_compress_default", &compress) ||
        !library.find("LZ4_decompress_safe", &decompress)) {
        return std::nullopt;
    }
    const int bound = compress_bound(kPiece);
    return PieceCoder{bound,
                      [=](const uint8_t* from, int64_t bytes, int, uint8_t* to) {
                          return int64_t{compress(from, to, static_cast<int>(bytes), bound)};
                      },
                      [=](const uint8_t* from, int64_t size, int64_t bytes, uint8_t* to) {
                          return decompress(from, to, static_cast<int>(size),
                                            static_cast<int>(bytes)) == bytes;
                      }};
}

std::optional<PieceCoder> find_blosc(const Library& library) {
    constexpr int kLevel = 5, kBitShuffle = 2, kOverhead = 16;
    int (*compress)(int, int, size_t, size_t, const void*, void*, size_t, const char*, size_t,
                    int) = nullptr;
    int (*decompress)(const void*, void*, size_t, int) = nullptr;
    if (!library.find("blosc_compress_ctx", &compress) ||
        !library.find("blosc_decompress_ctx", &decompress)) {
        return std::nullopt;
    }
    return PieceCoder{
        kPiece + kOverhead,
        [=](const uint8_t* from, int64_t bytes, int element_bytes, uint8_t* to) {
            return int64_t{compress(kLevel, kBitShuffle, static_cast<size_t>(element_bytes),
                                    static_cast<size_t>(bytes), from, to,
                                    static_cast<size_t>(bytes + kOverhead), "lz4", 0, 1)};
        },
        [=](const uint8_t* from, int64_t, int64_t bytes, uint8_t* to) {
            return decompress(from, to, static_cast<size_t>(bytes), 1) == bytes;
        }};
}

}  // namespace

int64_t Compressor::bound(int64_t bytes) const {
    return (bytes + kPiece - 1) / kPiece * (8 + coder_.bound);
}

// Each piece has its size in front.
int64_t Compressor::compress(const uint8_t* from, int64_t bytes, int element_bytes, uint8_t* to) {
    if (splits_) {
        parts_.resize(static_cast<size_t>(bytes));
        transpose(from, bytes / element_bytes, element_bytes, parts_.data());
        from = parts_.data();
    }
    int64_t size = 0;
    for (int64_t at = 0; at < bytes; at += kPiece) {
        const int64_t piece = std::min(kPiece, bytes - at);
        const int64_t written = coder_.compress(from + at, piece, element_bytes, to + size + 8);
        if (written <= 0) {
            return 0;
        }
        std::memcpy(to + size, &written, 8);
        size += 8 + written;
    }
    return size;
}

bool Compressor::expand(
    const uint8_t* from, int64_t size, int64_t bytes, int element_bytes, uint8_t* to) {
    parts_.resize(splits_ ? static_cast<size_t>(bytes) : 0);
    uint8_t* const pieces = splits_ ? parts_.data() : to;
    int64_t read = 0;
    for (int64_t at = 0; at < bytes; at += kPiece) {
        int64_t stored = 0;
        if (size - read < 8) {
            return false;
        }
        std::memcpy(&stored, from + read, 8);
        const int64_t piece = std::min(kPiece, bytes - at);
        if (stored > size - read - 8 ||
            !coder_.expand(from + read + 8, stored, piece, pieces + at)) {
            return false;
        }
        read += 8 + stored;
    }
    if (splits_) {
        transpose(pieces, element_bytes, bytes / element_bytes, to);
    }
    return true;
}

std::vector<Compressor> find_compressors(std::vector<std::string>* absent) {
    constexpr struct {
        const char* name;
        const char* soname;
        const char* package;
        std::optional<PieceCoder> (*find)(const Library& library);
        bool splits = false;
    } kKnown[] = {{"zstd-1", "libzstd.so.1", "libzstd1", find_zstd},
                  {"lz4", "liblz4.so.1", "liblz4-1", find_lz4},
                  {"blosc-lz4-bitshuffle", "libblosc.so.1", "libblosc1", find_blosc},
                  {"byte-split+zstd-1", "libzstd.so.1", "libzstd1", find_zstd, true}};
    std::vector<Compressor> all;
    for (const auto& known : kKnown) {
        if (const auto coder = known.find(Library(known.soname))) {
            all.emplace_back(known.name, *coder, known.splits);
        } else {
            absent->push_back(std::string("no ") + known.name + ": no usable " + known.soname +
                              " (Debian: " + known.package + ")");
        }
    }
    return all;
}

}  // namespace slimwire::cli
