// Where the residuals of one tensor lie in a rank's store, and what they are to the optimizer: what
// a saved state says of its residuals, so that they can be read, added up and laid out anew without
// the policy and the plans of the job. FORMAT.md ("Saved state", kind 9) fixes the bytes. Pure.
//
// What the optimizer would receive if all residuals were flushed is, of each element, the sum over
// all ranks of `unit` times the residual of their contributions, those in front of them too, and of
// the residuals of sums.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "codecs/base/status.h"
#include "codecs/residual/residual_type.h"
#include "collectives/state/state_file.h"

namespace slimwire {

struct ResidualMap {
    struct Run {
        int64_t begin = 0;  // in the store, in elements
        int64_t count = 0;
        int64_t at = 0;  // the element of the message that the first one belongs to
        // 1: of what encoding sums of all ranks lost; 0: of contributions; 2: of what ranks beside
        // the contributors lost in front of them. With EF21 0: estimates of contributions; 3: of
        // the sum, which all ranks have alike; 4: of contributions of others, as they have them.
        uint32_t sums = 0;
        uint32_t zero = 0;
    };
    // Of a model, in this bucket, where all of its elements have residuals: where among those.
    struct Parameter {
        uint32_t index = 0;
        uint32_t rows = 0;  // ParameterRange's
        int64_t at = 0;
        int64_t count = 0;
        bool operator==(const Parameter&) const = default;
    };
    ResidualType type = ResidualType::kFloat32;
    // Ranks, or nodes, that have contributions for each element; 0: the tensor is of no reduction,
    // and residuals of one rank mean nothing on another number of ranks.
    uint32_t contributors = 0;
    double unit = 1;           // of contributions
    uint64_t state_bytes = 0;  // in front of the store: what all ranks have alike
    uint64_t stored_elems = 0;
    uint64_t elems = 0;  // of the message that have residuals
    std::vector<Run> runs = {};
    uint64_t model = 0;  // ParameterRanges::model; 0: parameters are not known
    std::vector<Parameter> parameters = {};
    // That the program gave: of each parameter; where these are not known, one of the tensor.
    struct Name {
        std::string text;
        // Of a tensor that groups of ranks share, each an equal part: how many pieces of a part lie
        // one behind another in the whole, with those of the others between them; kReplicated: each
        // group has all of it; 0: not told.
        uint32_t pieces = 0;
        bool operator==(const Name&) const = default;
    };
    static constexpr uint32_t kReplicated = 0xFFFFFFFF;
    std::vector<Name> names = {};

    // Whether it is EF21's: nothing is owed, but contributions and sums are followed.
    [[nodiscard]] bool estimates() const noexcept {
        return std::any_of(runs.begin(), runs.end(), [](const Run& run) { return run.sums > 2; });
    }
    // The store in a tensor's bytes.
    [[nodiscard]] uint64_t store_bytes() const noexcept;
};

[[nodiscard]] std::vector<std::byte> bytes_of(const ResidualMap& map);
// Of a tensor of `tensor_bytes`; kInvalidUsage where they are none, or are of another tensor.
Result<ResidualMap> residual_map_of(std::span<const std::byte> bytes, uint64_t tensor_bytes);

// The tensor by its own name where it has one, else as it is.
[[nodiscard]] LastingTensor by_name(const LastingTensor& tensor, const ResidualMap& map) noexcept;
// The atom of one of its parameters: by its name and shape, else by its model and index.
[[nodiscard]] LastingTensor parameter_of(LastingTensor bucket,
                                         const ResidualMap& map,
                                         size_t parameter,
                                         bool with_name = true) noexcept;

// Fills `out` with a tensor's bytes from `offset` on.
using ReadTensor = std::function<Status(uint64_t offset, std::span<std::byte> out)>;
// Elements of a run, from `first` on.
Status read_run(const ResidualMap& map,
                const ReadTensor& read,
                const ResidualMap::Run& run,
                int64_t first,
                std::span<float> out);
// All elements of the run into the bytes of the whole tensor, rounded once to the type.
void write_run(const ResidualMap& map,
               std::byte* tensor,
               const ResidualMap::Run& run,
               std::span<const float> values);

}  // namespace slimwire
