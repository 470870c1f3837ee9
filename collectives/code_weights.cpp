#include "collectives/code_weights.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>

#include "codecs/low_rank_shape.h"
#include "collectives/hash.h"
#include "collectives/npy.h"

namespace slimwire {
namespace {

Status wrong(const std::string& path, const std::string& what) {
    return {Code::kInvalidArgument, path + ": " + what};
}

std::string shape_text(const NpyArray& array) {
    std::string text;
    for (const uint64_t extent : array.shape) {
        text += (text.empty() ? "[" : ", ") + std::to_string(extent);
    }
    return text.empty() ? "[]" : text + "]";
}

// `accepted`: the shape, in words.
Result<NpyArray> load_matrix(const std::string& path, const char* accepted) {
    std::ifstream file(path, std::ios::binary);
    const std::string bytes((std::istreambuf_iterator<char>(file)), {});
    if (!file.is_open()) {
        return wrong(path, "cannot be read: " + std::string(std::strerror(errno)) +
                               "; accepted: a .npy file");
    }
    Result<NpyArray> array = parse_npy(bytes);
    if (!array.ok()) {
        return wrong(path, array.status().message() +
                               "; accepted: a .npy file of float16, float32 or float64");
    }
    constexpr uint64_t kMost = INT32_MAX;
    if (array.value().shape.size() != 2 || array.value().values.empty() ||
        array.value().shape[0] > kMost || array.value().shape[1] > kMost) {
        return wrong(path, "shape " + shape_text(array.value()) + "; accepted: " + accepted);
    }
    for (const double value : array.value().values) {
        if (!std::isfinite(static_cast<float>(value))) {
            return wrong(path, "has a value that is not finite in fp32; accepted: finite ones");
        }
    }
    return array;
}

}  // namespace

Result<std::shared_ptr<const CodeWeights>> load_code_weights(const std::string& encoder,
                                                             const std::string& decoder) {
    SLIMWIRE_TRY_ASSIGN(const NpyArray given, load_matrix(encoder, "[width, row]"));
    if (given.shape[0] > static_cast<uint64_t>(kMostWidth)) {
        return wrong(encoder, "codes of " + std::to_string(given.shape[0]) +
                                  " numbers; accepted: at most " + std::to_string(kMostWidth));
    }
    auto weights = std::make_shared<CodeWeights>();
    weights->width = static_cast<int64_t>(given.shape[0]);
    weights->row = static_cast<int64_t>(given.shape[1]);
    for (const double value : given.values) {
        weights->values.push_back(static_cast<float>(value));
    }
    if (decoder.empty()) {
        weights->values.resize(2 * given.values.size());
        std::copy_n(weights->encoder(), given.values.size(),
                    weights->values.begin() + static_cast<std::ptrdiff_t>(given.values.size()));
    } else {
        SLIMWIRE_TRY_ASSIGN(const NpyArray back, load_matrix(decoder, "[row, width]"));
        if (back.shape[0] != given.shape[1] || back.shape[1] != given.shape[0]) {
            return wrong(decoder, "shape " + shape_text(back) + " beside an encoder of " +
                                      shape_text(given) + "; accepted: [row, width]");
        }
        for (int64_t k = 0; k < weights->width; ++k) {
            for (int64_t j = 0; j < weights->row; ++j) {
                weights->values.push_back(
                    static_cast<float>(back.values[static_cast<size_t>(j * weights->width + k)]));
            }
        }
    }
    weights->hash = stable_hash({reinterpret_cast<const char*>(weights->values.data()),
                                 static_cast<size_t>(weights->bytes())}) ^
                    static_cast<uint64_t>(weights->row);
    return std::shared_ptr<const CodeWeights>(std::move(weights));
}

}  // namespace slimwire
