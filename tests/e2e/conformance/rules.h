// What the program is told of the codecs that may stand below NCCL: one rule for each kind of call,
// in the order of the policy's rules. The first that takes a call decides how far its results may
// lie from the exact ones; a call that no rule takes must be exact.
#pragma once

#include <string>
#include <vector>

#include "tests/e2e/conformance/draw.h"

namespace conformance {

// Which elements a sparsifier sends of a chunk (codecs/FORMAT.md, "Sparse").
enum class Selection : int {
    kAll,        // no sparsifier
    kLargest,    // topk
    kThreshold,  // threshold
    kGroups,     // blocktopk, rowtopk
    kRuns,       // randomk
};

struct Codec {
    // What the rule takes; empty and 0 take everything. Bytes as slimwire counts them.
    std::vector<Kind> kinds;
    std::vector<ncclDataType_t> types;
    size_t bytes_from = 0, bytes_until = 0;

    bool any = false;
    bool float32_only = false;
    bool stochastic = false;  // a call that is repeated draws anew, or has another residual
    bool feedback = false;    // what a call lost comes with the next ones
    double error = 0;         // relative to the largest magnitude of the block
    size_t block = 1;         // elements
    size_t min_bytes = 0;     // smaller messages must be exact
    // Sparsifiers; `error` is that of the values, relative to the largest sent in the chunk.
    Selection selection = Selection::kAll;
    double fraction = 0, threshold = 0;
    size_t group = 0, kept = 0;
    size_t slice_bytes = 0;  // slice_bytes: chunks are parts of slices
    bool two_shot = true;    // sums are encoded again, by the owners of their chunks
    bool nodes = false;      // hierarchical: chunks and sums are those of nodes
    // Of what travels inside nodes, where that is encoded.
    double intra_error = 0, intra_fraction = 1;

    // The part of the elements that a call sends.
    [[nodiscard]] double share() const { return selection == Selection::kAll ? 1 : fraction; }
};

class Rules {
  public:
    // Takes an option of the command line; false when it is none of these. Exits with 2 on a bad
    // value. --rule NAME begins a rule, the others are about the last one:
    //   --codec SPEC --min-bytes N --feedback 0|1                SPEC as slimwire spells codecs
    //   --op NAMES --dtype NAMES --from BYTES --until BYTES      which calls; names with commas
    //   --slice-bytes N --two-shot 0|1                           sparsifiers
    //   --nodes 0|1 --intra SPEC                                 hierarchical
    bool take(const std::string& option, const std::string& value);
    // The rule that decides, or one without a codec.
    [[nodiscard]] const Codec& of(const Call& call, int ranks) const;
    [[nodiscard]] const std::vector<Codec>& all() const { return rules_; }

  private:
    std::vector<Codec> rules_;
};

}  // namespace conformance
