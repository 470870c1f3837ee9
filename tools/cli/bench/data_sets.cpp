#include "tools/cli/bench/data_sets.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <optional>

#include "codecs/threefry.h"
#include "collectives/call/hash.h"
#include "tools/cli/codec/tensor_file.h"
#include "tools/cli/common/commands.h"

namespace slimwire::cli {
namespace {

constexpr int64_t kLayerElems = int64_t{1} << 18;
constexpr int64_t kLayerRow = 1024;
constexpr double kRowScaleSigma = 0.5;
constexpr int64_t kZerosRow = 320;

// What a counter belongs to; part of the key.
enum class Stream : uint32_t { kElements = 0, kLayers = 1, kRows = 2, kBits = 3 };

std::array<uint32_t, 4> draw(Stream stream, uint64_t counter) {
    uint32_t x[4] = {static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32), 0, 0};
    threefry(x, RandomWords{{2026, static_cast<uint32_t>(stream), 0,
                             static_cast<uint32_t>(RandomPurpose::kData)}});
    return {x[0], x[1], x[2], x[3]};
}

// Elementary functions from additions, multiplications, divisions and square roots alone, so that
// every IEEE machine gives the same bits; good to about 1e-14.

double logarithm(double x) {
    int exponent = 0;
    double mantissa = std::frexp(x, &exponent);
    if (mantissa < 0x1.6a09e667f3bcdp-1) {  // below the square root of one half
        mantissa *= 2;
        --exponent;
    }
    const double t = (mantissa - 1) / (mantissa + 1);
    double sum = 0;
    for (int k = 21; k >= 1; k -= 2) {
        sum = sum * t * t + 1.0 / k;
    }
    return 2 * t * sum + exponent * 0x1.62e42fefa39efp-1;
}

double exponential(double x) {
    const double whole = std::nearbyint(x / 0x1.62e42fefa39efp-1);
    const double rest = x - whole * 0x1.62e42fefa39efp-1;
    double sum = 1;
    for (int k = 16; k >= 1; --k) {
        sum = 1 + sum * rest / k;
    }
    return std::ldexp(sum, static_cast<int>(whole));
}

// Cosine and sine of a full circle times u, 0 <= u < 1.
void circle(double u, double* cosine, double* sine) {
    const double quarter = std::floor(4 * u + 0.5);
    const double angle = (u - quarter / 4) * 0x1.921fb54442d18p+2;
    double c = 1;
    double s = 1;
    for (int k = 16; k >= 2; k -= 2) {
        c = 1 - c * angle * angle / (k * (k - 1));
        s = 1 - s * angle * angle / (k * (k + 1));
    }
    s *= angle;
    switch (static_cast<int>(quarter) % 4) {
        case 0:
            *cosine = c, *sine = s;
            break;
        case 1:
            *cosine = -s, *sine = c;
            break;
        case 2:
            *cosine = -c, *sine = -s;
            break;
        case 3:
            *cosine = s, *sine = -c;
            break;
    }
}

// Normal deviate i (Box and Muller), of a block of four that share a counter.
class Normal {
  public:
    explicit Normal(Stream stream) : stream_(stream) {}

    double operator()(int64_t i) {
        if (i / 4 != at_) {
            at_ = i / 4;
            const std::array<uint32_t, 4> words = draw(stream_, static_cast<uint64_t>(at_));
            for (size_t k = 0; k < 4; k += 2) {
                const double u = (words[k] + 0.5) * 0x1p-32;
                const double radius = std::sqrt(-2 * logarithm(u));
                double cosine = 0;
                double sine = 0;
                circle(words[k + 1] * 0x1p-32, &cosine, &sine);
                values_[k] = radius * cosine;
                values_[k + 1] = radius * sine;
            }
        }
        return values_[static_cast<size_t>(i % 4)];
    }

  private:
    Stream stream_;
    int64_t at_ = -1;
    std::array<double, 4> values_{};
};

void fill_gaussian(DType dtype, int64_t count, uint8_t* to) {
    Normal normal(Stream::kElements);
    for (int64_t i = 0; i < count; ++i) {
        put_element(dtype, to, i, normal(i));
    }
}

void fill_synth(DType dtype, int64_t count, uint8_t* to) {
    Normal normal(Stream::kElements);
    Normal rows(Stream::kRows);
    double layer_scale = 0;
    double scale = 0;
    for (int64_t i = 0; i < count; ++i) {
        if (i % kLayerElems == 0) {
            const double u =
                draw(Stream::kLayers, static_cast<uint64_t>(i / kLayerElems))[0] * 0x1p-32;
            layer_scale = exponential((4 * u - 6) * 0x1.26bb1bbb55516p+1);  // 10^(4u - 6)
        }
        if (i % kLayerRow == 0) {
            scale = layer_scale * exponential(kRowScaleSigma * rows(i / kLayerRow));
        }
        put_element(dtype, to, i, scale * normal(i));
    }
}

void fill_zeros(DType dtype, int64_t count, uint8_t* to) {
    Normal normal(Stream::kElements);
    bool zero = false;
    for (int64_t i = 0; i < count; ++i) {
        if (i % kZerosRow == 0) {
            zero = draw(Stream::kRows, static_cast<uint64_t>(i / kZerosRow))[0] % 10 != 0;
        }
        put_element(dtype, to, i, zero ? 0.0 : normal(i));
    }
}

void fill_random(DType dtype, int64_t count, uint8_t* to) {
    const int64_t bytes = count * static_cast<int64_t>(dtype_bytes(dtype));
    for (int64_t i = 0; i < bytes; i += 16) {
        const std::array<uint32_t, 4> words = draw(Stream::kBits, static_cast<uint64_t>(i / 16));
        std::memcpy(to + i, words.data(), static_cast<size_t>(std::min<int64_t>(16, bytes - i)));
    }
}

Status fill_from_file(const std::filesystem::path& path, DType dtype, int64_t count, uint8_t* to) {
    std::error_code error;
    if (!std::filesystem::exists(path, error)) {
        return {Code::kNotFound,
                fmt::format("data set {}: no file {}; tests/bench/make_data makes it",
                            path.stem().string(), path.string())};
    }
    SLIMWIRE_TRY_ASSIGN(const Tensor tensor, read_tensor(path.string(), std::nullopt));
    if (tensor.count == 0) {
        return invalid(path.string() + ": empty");
    }
    for (int64_t i = 0; i < count; ++i) {
        put_element(dtype, to, i, element(tensor.dtype, tensor.bytes.data(), i % tensor.count));
    }
    return {};
}

}  // namespace

const std::vector<std::string>& data_set_names() {
    static const std::vector<std::string> names = {"gaussian", "synth",   "bucket",
                                                   "weights",  "zeros90", "random"};
    return names;
}

Status fill_data_set(std::string_view name,
                     const std::filesystem::path& folder,
                     DType dtype,
                     int64_t count,
                     uint8_t* to) {
    constexpr struct {
        std::string_view name;
        void (*fill)(DType dtype, int64_t count, uint8_t* to);
    } kGenerated[] = {{"gaussian", fill_gaussian},
                      {"synth", fill_synth},
                      {"zeros90", fill_zeros},
                      {"random", fill_random}};
    for (const auto& one : kGenerated) {
        if (one.name == name) {
            one.fill(dtype, count, to);
            return {};
        }
    }
    return fill_from_file(folder / (std::string(name) + ".npy"), dtype, count, to);
}

std::string data_hash(const uint8_t* bytes, int64_t size) {
    return fmt::format(
        "{:016x}", stable_hash({reinterpret_cast<const char*>(bytes), static_cast<size_t>(size)}));
}

}  // namespace slimwire::cli
