#include "collectives/state/weights.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cmath>
#include <cstring>

#include "collectives/state/state_file.h"

namespace slimwire {
namespace {

struct WeightsBytes {
    char magic[8];
    uint64_t exponents, nonfinite, square_sum;
    uint32_t largest, step_calls;
    uint64_t path;
    uint64_t checksum;  // of what is before it
};
static_assert(sizeof(WeightsBytes) == 56);
constexpr char kWeightsMagic[8] = {'S', 'L', 'W', 'W', 'G', 'H', 'T', '1'};

uint64_t checksum_of(const WeightsBytes& bytes) noexcept {
    return state_checksum(
        0, std::as_bytes(std::span(&bytes, 1)).first(offsetof(WeightsBytes, checksum)));
}

}  // namespace

WeightsPrint::WeightsPrint(const Measured& of) noexcept
    : nonfinite(of.nonfinite), square_sum(of.square_sum), largest(of.largest) {
    std::array<uint32_t, 256> counts{};
    std::copy(std::begin(of.exponents), std::end(of.exponents), counts.begin());
    counts[0] -= static_cast<uint32_t>(of.zeros);
    exponents = state_checksum(0, std::as_bytes(std::span(counts)));
}

bool WeightsPrint::same(const WeightsPrint& other) const noexcept {
    constexpr double kOrder = 1e-11;  // what the order of a sum of 2^34 numbers changes at most
    return exponents == other.exponents && nonfinite == other.nonfinite &&
           largest == other.largest &&
           std::abs(square_sum - other.square_sum) <= kOrder * square_sum;
}

std::string weights_path(const std::string& saving, std::optional<int> group) {
    return saving + "/weights" + (group.has_value() ? "." + std::to_string(*group) : "");
}

Status write_weights(const std::string& path, const SavedWeights& weights) {
    WeightsBytes bytes{};
    std::memcpy(bytes.magic, kWeightsMagic, sizeof kWeightsMagic);
    bytes.exponents = weights.print.exponents;
    bytes.nonfinite = weights.print.nonfinite;
    bytes.square_sum = std::bit_cast<uint64_t>(weights.print.square_sum);
    bytes.largest = std::bit_cast<uint32_t>(weights.print.largest);
    bytes.step_calls = weights.step_calls;
    bytes.path = weights.path;
    bytes.checksum = checksum_of(bytes);
    const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    const bool written = file >= 0 &&
                         ::write(file, &bytes, sizeof bytes) == ssize_t{sizeof bytes} &&
                         ::fsync(file) == 0;
    const int error = errno;
    if (file >= 0) {
        ::close(file);
    }
    return written ? Status()
                   : Status(Code::kSystemError,
                            "'" + path + "' cannot be written: " + std::strerror(error));
}

std::optional<SavedWeights> read_weights(const std::string& path) {
    WeightsBytes bytes{};
    const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    const bool whole = file >= 0 && ::read(file, &bytes, sizeof bytes) == ssize_t{sizeof bytes};
    if (file >= 0) {
        ::close(file);
    }
    if (!whole || std::memcmp(bytes.magic, kWeightsMagic, sizeof kWeightsMagic) != 0 ||
        bytes.checksum != checksum_of(bytes)) {
        return std::nullopt;
    }
    SavedWeights weights;
    weights.print.exponents = bytes.exponents;
    weights.print.nonfinite = bytes.nonfinite;
    weights.print.square_sum = std::bit_cast<double>(bytes.square_sum);
    weights.print.largest = std::bit_cast<float>(bytes.largest);
    weights.step_calls = bytes.step_calls;
    weights.path = bytes.path;
    return weights;
}

}  // namespace slimwire
