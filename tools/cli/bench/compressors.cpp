#include "tools/cli/bench/compressors.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstddef>
#include <cstring>

namespace slimwire::cli {
namespace {

constexpr int64_t kPiece = int64_t{1} << 20;

int64_t pieces_of(int64_t bytes) {
    return (bytes + kPiece - 1) / kPiece;
}

// Cuts into pieces, each with its size in front.
template <class One>
int64_t compress_pieces(const uint8_t* from, int64_t bytes, uint8_t* to, One one) {
    int64_t size = 0;
    for (int64_t at = 0; at < bytes; at += kPiece) {
        const int64_t piece = std::min(kPiece, bytes - at);
        const int64_t written = one(from + at, piece, to + size + 8);
        if (written <= 0) {
            return 0;
        }
        std::memcpy(to + size, &written, 8);
        size += 8 + written;
    }
    return size;
}

template <class One>
bool expand_pieces(const uint8_t* from, int64_t size, int64_t bytes, uint8_t* to, One one) {
    int64_t read = 0;
    for (int64_t at = 0; at < bytes; at += kPiece) {
        int64_t stored = 0;
        if (size - read < 8) {
            return false;
        }
        std::memcpy(&stored, from + read, 8);
        const int64_t piece = std::min(kPiece, bytes - at);
        if (stored > size - read - 8 || !one(from + read + 8, stored, to + at, piece)) {
            return false;
        }
        read += 8 + stored;
    }
    return true;
}

// An open library; functions are looked up by name.
class Library {
  public:
    explicit Library(const char* soname) : handle_(dlopen(soname, RTLD_NOW | RTLD_LOCAL)) {}
    template <class Function>
    bool find(const char* name, Function** function) const {
        *function =
            handle_ == nullptr ? nullptr : reinterpret_cast<Function*>(dlsym(handle_, name));
        return *function != nullptr;
    }

  private:
    void* handle_;  // stays open
};

// Declarations as in zstd.h, lz4.h and blosc.h, stable since their versions 1.
class Zstd : public Compressor {
  public:
    static constexpr const char* kSoname = "libzstd.so.1";
    static constexpr const char* kPackage = "libzstd1";

    explicit Zstd(const Library& library)
        : found_(library.find("ZSTD_compressBound", &compress_bound_) &&
                 library.find("ZSTD_createCCtx", &create_c_) &&
                 library.find("ZSTD_createDCtx", &create_d_) &&
                 library.find("ZSTD_freeCCtx", &free_c_) &&
                 library.find("ZSTD_freeDCtx", &free_d_) &&
                 library.find("ZSTD_compressCCtx", &compress_) &&
                 library.find("ZSTD_decompressDCtx", &decompress_) &&
                 library.find("ZSTD_isError", &is_error_)) {
        if (found_) {
            compressing_ = create_c_();
            expanding_ = create_d_();
        }
    }
    ~Zstd() override {
        if (found_) {
            free_c_(compressing_);
            free_d_(expanding_);
        }
    }
    Zstd(const Zstd&) = delete;
    Zstd& operator=(const Zstd&) = delete;
    [[nodiscard]] bool found() const { return found_; }

    [[nodiscard]] const char* name() const override { return "zstd-1"; }
    [[nodiscard]] int64_t bound(int64_t bytes) const override {
        return pieces_of(bytes) * (8 + static_cast<int64_t>(compress_bound_(kPiece)));
    }
    int64_t compress(const uint8_t* from, int64_t bytes, int, uint8_t* to) override {
        return compress_pieces(from, bytes, to, [&](const uint8_t* in, int64_t size, uint8_t* out) {
            const size_t written = compress_(compressing_, out, compress_bound_(kPiece), in,
                                             static_cast<size_t>(size), 1);
            return is_error_(written) != 0 ? 0 : static_cast<int64_t>(written);
        });
    }
    bool expand(const uint8_t* from, int64_t size, int64_t bytes, int, uint8_t* to) override {
        return expand_pieces(from, size, bytes, to,
                             [&](const uint8_t* in, int64_t stored, uint8_t* out, int64_t piece) {
                                 return decompress_(expanding_, out, static_cast<size_t>(piece), in,
                                                    static_cast<size_t>(stored)) ==
                                        static_cast<size_t>(piece);
                             });
    }

  private:
    size_t (*compress_bound_)(size_t) = nullptr;
    void* (*create_c_)() = nullptr;
    void* (*create_d_)() = nullptr;
    size_t (*free_c_)(void*) = nullptr;
    size_t (*free_d_)(void*) = nullptr;
    size_t (*compress_)(void*, void*, size_t, const void*, size_t, int) = nullptr;
    size_t (*decompress_)(void*, void*, size_t, const void*, size_t) = nullptr;
    unsigned (*is_error_)(size_t) = nullptr;
    void* compressing_ = nullptr;
    void* expanding_ = nullptr;
    bool found_;
};

// Byte k of all elements together, then zstd.
class SplitZstd : public Zstd {
  public:
    using Zstd::Zstd;
    [[nodiscard]] const char* name() const override { return "byte-split+zstd-1"; }
    int64_t compress(const uint8_t* from, int64_t bytes, int element_bytes, uint8_t* to) override {
        parts_.resize(static_cast<size_t>(bytes));
        const int64_t count = bytes / element_bytes;
        for (int64_t i = 0; i < count; ++i) {
            for (int k = 0; k < element_bytes; ++k) {
                parts_[static_cast<size_t>(k * count + i)] = from[i * element_bytes + k];
            }
        }
        return Zstd::compress(parts_.data(), bytes, 1, to);
    }
    bool expand(
        const uint8_t* from, int64_t size, int64_t bytes, int element_bytes, uint8_t* to) override {
        parts_.resize(static_cast<size_t>(bytes));
        if (!Zstd::expand(from, size, bytes, 1, parts_.data())) {
            return false;
        }
        const int64_t count = bytes / element_bytes;
        for (int64_t i = 0; i < count; ++i) {
            for (int k = 0; k < element_bytes; ++k) {
                to[i * element_bytes + k] = parts_[static_cast<size_t>(k * count + i)];
            }
        }
        return true;
    }

  private:
    std::vector<uint8_t> parts_;
};

class Lz4 : public Compressor {
  public:
    static constexpr const char* kSoname = "liblz4.so.1";
    static constexpr const char* kPackage = "liblz4-1";

    explicit Lz4(const Library& library)
        : found_(library.find("LZ4_compressBound", &compress_bound_) &&
                 library.find("LZ4_compress_default", &compress_) &&
                 library.find("LZ4_decompress_safe", &decompress_)) {}
    [[nodiscard]] bool found() const { return found_; }

    [[nodiscard]] const char* name() const override { return "lz4"; }
    [[nodiscard]] int64_t bound(int64_t bytes) const override {
        return pieces_of(bytes) * (8 + compress_bound_(kPiece));
    }
    int64_t compress(const uint8_t* from, int64_t bytes, int, uint8_t* to) override {
        return compress_pieces(from, bytes, to, [&](const uint8_t* in, int64_t size, uint8_t* out) {
            return int64_t{compress_(reinterpret_cast<const char*>(in),
                                     reinterpret_cast<char*>(out), static_cast<int>(size),
                                     compress_bound_(kPiece))};
        });
    }
    bool expand(const uint8_t* from, int64_t size, int64_t bytes, int, uint8_t* to) override {
        return expand_pieces(
            from, size, bytes, to,
            [&](const uint8_t* in, int64_t stored, uint8_t* out, int64_t piece) {
                return decompress_(reinterpret_cast<const char*>(in), reinterpret_cast<char*>(out),
                                   static_cast<int>(stored), static_cast<int>(piece)) == piece;
            });
    }

  private:
    int (*compress_bound_)(int) = nullptr;
    int (*compress_)(const char*, char*, int, int) = nullptr;
    int (*decompress_)(const char*, char*, int, int) = nullptr;
    bool found_;
};

class Blosc : public Compressor {
  public:
    static constexpr const char* kSoname = "libblosc.so.1";
    static constexpr const char* kPackage = "libblosc1";

    explicit Blosc(const Library& library)
        : found_(library.find("blosc_compress_ctx", &compress_) &&
                 library.find("blosc_decompress_ctx", &decompress_)) {}
    [[nodiscard]] bool found() const { return found_; }

    [[nodiscard]] const char* name() const override { return "blosc-lz4-bitshuffle"; }
    [[nodiscard]] int64_t bound(int64_t bytes) const override {
        return pieces_of(bytes) * (8 + kPiece + kOverhead);
    }
    int64_t compress(const uint8_t* from, int64_t bytes, int element_bytes, uint8_t* to) override {
        return compress_pieces(from, bytes, to, [&](const uint8_t* in, int64_t size, uint8_t* out) {
            constexpr int kLevel = 5;
            constexpr int kBitShuffle = 2;
            return int64_t{compress_(kLevel, kBitShuffle, static_cast<size_t>(element_bytes),
                                     static_cast<size_t>(size), in, out,
                                     static_cast<size_t>(size + kOverhead), "lz4", 0, 1)};
        });
    }
    bool expand(const uint8_t* from, int64_t size, int64_t bytes, int, uint8_t* to) override {
        return expand_pieces(
            from, size, bytes, to, [&](const uint8_t* in, int64_t, uint8_t* out, int64_t piece) {
                return decompress_(in, out, static_cast<size_t>(piece), 1) == piece;
            });
    }

  private:
    static constexpr int64_t kOverhead = 16;
    int (*compress_)(
        int, int, size_t, size_t, const void*, void*, size_t, const char*, size_t, int) = nullptr;
    int (*decompress_)(const void*, void*, size_t, int) = nullptr;
    bool found_;
};

template <class One>
void add(std::vector<std::unique_ptr<Compressor>>* all, std::vector<std::string>* absent) {
    auto one = std::make_unique<One>(Library(One::kSoname));
    if (one->found()) {
        all->push_back(std::move(one));
    } else {
        absent->push_back(std::string("no ") + one->name() + ": no usable " + One::kSoname +
                          " (Debian: " + One::kPackage + ")");
    }
}

}  // namespace

std::vector<std::unique_ptr<Compressor>> find_compressors(std::vector<std::string>* absent) {
    std::vector<std::unique_ptr<Compressor>> all;
    add<Zstd>(&all, absent);
    add<Lz4>(&all, absent);
    add<Blosc>(&all, absent);
    add<SplitZstd>(&all, absent);
    return all;
}

}  // namespace slimwire::cli
