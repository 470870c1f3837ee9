// The shapes of a model's parameters, as a framework's own traffic gives them away. Pure values: no
// device, no NCCL.
//
// PyTorch's DistributedDataParallel compares its ranks' models when it is made: it gathers the
// number of parameters, then rank 0 broadcasts one int64 tensor that holds, parameter after
// parameter, the sizes and then the strides (reducer.cpp, verify_params_across_processes). How many
// dimensions each has is not sent. But parameters are dense, so their strides follow from their
// sizes, and the number of parameters is known: that leaves one reading of the tensor for all but
// contrived models.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace slimwire {

struct ParameterShape {
    std::vector<int64_t> sizes, strides;  // of the dimensions, outermost first; in elements

    [[nodiscard]] size_t dimensions() const noexcept { return sizes.size(); }
    [[nodiscard]] uint64_t count() const noexcept;  // elements
    // Extent of the dimension that lies outermost in memory, of those of more than one element if
    // there are any; 0 without dimensions. Without strides: of the first such.
    [[nodiscard]] int64_t rows() const noexcept;
    bool operator==(const ParameterShape&) const = default;
};

inline constexpr size_t kMaxParameterDimensions = 8;

enum class MemoryOrder : uint8_t {
    kUsual,  // contiguous, or channels last (of 4 or 5 dimensions)
    kDense,  // the dimensions in another order
    kNotDense,
};
// With the strides that PyTorch gives such a tensor. Tensors without dimensions or with more than
// kMaxParameterDimensions count as not dense.
[[nodiscard]] MemoryOrder memory_order(std::span<const int64_t> sizes,
                                       std::span<const int64_t> strides) noexcept;

// The reading of `values` as sizes and strides of so many parameters in usual memory orders; only
// if there is none, the one in any order. Empty where there is none or more than one (a column and
// two vectors of one element, say), or where looking would take too long (very many parameters of
// one element). Models with a parameter without dimensions have none.
[[nodiscard]] std::optional<std::vector<ParameterShape>> read_parameter_shapes(
    std::span<const int64_t> values, uint64_t parameters);

}  // namespace slimwire
