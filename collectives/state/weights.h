// What tells the weights of a job by their values, however many ranks share them and in which order
// they lie: a job that marks no steps finds by it the saving that belongs to the parameters which
// it gathers first (SLIMWIRE_STATE). Pure but for the file system.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "codecs/base/status.h"
#include "codecs/ops/measure.h"

namespace slimwire {

// Of the parameters that a training step gathers first. Elements that are zero, as padding is, do
// not count.
struct WeightsPrint {
    uint64_t exponents = 0;  // hash of how many elements have which exponent
    uint64_t nonfinite = 0;
    double square_sum = 0;
    float largest = 0;  // magnitude

    explicit WeightsPrint(const Measured& of) noexcept;
    WeightsPrint() = default;
    // The sums may have been added in another order.
    [[nodiscard]] bool same(const WeightsPrint& other) const noexcept;
};

// What a saving has of the step that it was made before, in its folder's file "weights", where all
// ranks share a model; else in one of each group of them, by its first rank.
struct SavedWeights {
    WeightsPrint print;
    uint32_t step_calls = 0;  // collectives of a step
    uint64_t path = 0;        // of the step (StepPosition)
};
// `group`: its first rank; none: all.
[[nodiscard]] std::string weights_path(const std::string& saving, std::optional<int> group);
// The file is on the disk afterwards.
Status write_weights(const std::string& path, const SavedWeights& weights);
// None where there is no such file, or where it is another one or damaged.
[[nodiscard]] std::optional<SavedWeights> read_weights(const std::string& path);

}  // namespace slimwire
