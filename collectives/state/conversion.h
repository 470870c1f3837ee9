// The atoms of a saved job laid out for another number of ranks: the records that every one of them
// reads and takes its part of, and how their bytes are made, piece by piece. For `slimwire state
// convert`, and for a job that comes back on other ranks (SLIMWIRE_STATE). No device.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "collectives/state/atoms.h"

namespace slimwire {

class Conversion {
  public:
    // `job` outlives it. What owners of other parts of the tensors kept is taken apart by the
    // patterns of atoms.h; `drop`: atoms that cannot be are left out, else they are an error that
    // names it.
    Conversion(const SavedJob& job, int ranks, bool drop) : job_(job), ranks_(ranks), drop_(drop) {}
    Conversion(const Conversion&) = delete;
    Conversion& operator=(const Conversion&) = delete;

    // First. Reads everything; kInvalidUsage where the state is not whole.
    Status plan();

    [[nodiscard]] const StateIndex& index() const noexcept { return index_; }
    // Bytes of a record of the index, from an offset that is a multiple of 8.
    Status read(size_t record, uint64_t offset, std::span<std::byte> out) const {
        return makes_[record](offset, out);
    }
    // All of it, as a file of it would be read.
    [[nodiscard]] Result<StateContent> content() const;
    // What was left out, and why.
    [[nodiscard]] const std::vector<std::string>& left_out() const noexcept { return left_out_; }

  private:
    using Make = std::function<Status(uint64_t offset, std::span<std::byte> out)>;

    Status take(const Atom& atom);
    Status leave_out(const AtomKey& key, const std::string& why);
    void add(
        const LastingTensor& tensor, StateKind kind, uint64_t bytes, double loss_scale, Make make);
    Status take_alike(const Atom& atom);
    Status take_owed(const Atom& atom);
    [[nodiscard]] Result<uint64_t> length_of(const Atom& atom) const;
    void add_owed(const Atom& atom, uint64_t elems, const LastingTensor& tensor);

    const SavedJob& job_;
    const int ranks_;
    const bool drop_;
    StateIndex index_;
    std::vector<Make> makes_;
    std::vector<std::string> left_out_;
    std::map<LastingTensor, AtomKey> from_;  // of what is owed on the new ranks
    // Reduce-scatters have another count on other ranks, and so another ordinal: of each tensor the
    // new ones, and the new counts of each kind of calls.
    std::map<LastingTensor, LastingTensor> moved_;
    std::map<uint64_t, std::set<uint64_t>> counts_;
};

}  // namespace slimwire
