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
#include <utility>
#include <vector>

#include "collectives/state/atoms.h"

namespace slimwire {

struct ConversionOptions {
    // Atoms that cannot be taken apart are left out, else they are an error that names it.
    bool drop = false;
    // Shards are parts of one row of all parameters (FSDP1, ZeRO-1 and 2, Megatron's distributed
    // optimizer) and not of each parameter with padding (FSDP2, ZeRO-3), where other ranks have
    // other elements at a place of the message. Which it is no call says.
    bool flat_shards = false;
    SumUse sums = SumUse::kWhole;
    // The rank that reads: of as many ranks as before it has its residuals of messages and of
    // communicators of some ranks, of others the atoms of those that it is in; -1: any, and
    // neither.
    int own = -1;
    // Reads no more than it needs; else everything first, which finds what is damaged.
    bool heads = false;
};

class Conversion {
  public:
    // `job` outlives it. What owners of other parts of the tensors kept is taken apart by the
    // patterns of atoms.h.
    Conversion(const SavedJob& job, int ranks, const ConversionOptions& options)
        : job_(job), ranks_(ranks), options_(options) {}
    Conversion(const Conversion&) = delete;
    Conversion& operator=(const Conversion&) = delete;

    // First; kInvalidUsage where the state is not whole.
    Status plan();

    [[nodiscard]] const StateIndex& index() const noexcept { return index_; }
    // Bytes of a record of the index, from an offset that is a multiple of 8.
    Status read(size_t record, uint64_t offset, std::span<std::byte> out) const {
        return makes_[record](offset, out);
    }
    // What was left out, and why.
    [[nodiscard]] std::vector<std::string> left_out() const;

  private:
    using Make = std::function<Status(uint64_t offset, std::span<std::byte> out)>;

    Status take(const Atom& atom);
    Status leave_out(const AtomKey& key, const std::string& why, const char* accepted = "");
    bool take_own(const Atom& atom);
    void add_record(const Atom::Share& share, uint64_t comm);
    [[nodiscard]] bool follow(const RankGroup& group) const;
    void take_learned();
    void take_learned(const RankGroup& from, const RankGroup& to, uint32_t place);
    Status take_messages(const Atom& atom);
    // Of a communicator of some ranks; whether this rank takes it as others do theirs.
    Result<bool> in_group(const Atom& atom);
    [[nodiscard]] bool has(const RankGroup& group) const;
    // Of the atom's communicator, before and now.
    [[nodiscard]] int ranks_before(const AtomKey& key) const;
    [[nodiscard]] int ranks_now(const AtomKey& key) const;
    [[nodiscard]] double unit_of_sums(const AtomKey& key) const;
    void add(
        const LastingTensor& tensor, StateKind kind, uint64_t bytes, double loss_scale, Make make);
    Status take_alike(const Atom& atom);
    Status take_owed(const Atom& atom);
    [[nodiscard]] static LastingTensor tensor_of(const AtomKey& key);
    [[nodiscard]] const Atom* beside(const Atom& atom, StateKind kind) const;
    [[nodiscard]] Result<uint64_t> length_of(const Atom& atom) const;
    Status lay_out_shards(const Atom& atom, LastingTensor* tensor, uint64_t* shape);
    void add_floats(const LastingTensor& tensor,
                    StateKind kind,
                    uint64_t elems,
                    double loss_scale,
                    std::function<Status(uint64_t at, std::span<double> out)> read);
    Status read_owed(const Atom& from, uint32_t sums, uint64_t at, std::span<double> out) const;
    void add_alike(const Atom& atom, const LastingTensor& tensor);
    // Of the atom's elements so many from `first` on. `name`: the tensor's; empty: none.
    void add_owed(const Atom& atom,
                  const LastingTensor& tensor,
                  const ResidualMap::Name& name,
                  uint64_t shape,
                  uint64_t first,
                  uint64_t elems);
    void add_name(const LastingTensor& tensor, const ResidualMap::Name& name, double loss_scale);
    Status add_parameters(const Atom& atom, const ResidualMap& bucket);
    // Tensors that groups of ranks share become whole, where it is known how.
    struct Part {
        const Atom* atom = nullptr;
        uint64_t first = 0, elems = 0;  // of the atom's
    };
    struct Whole {
        ResidualMap::Name name;
        std::map<uint32_t, Part> parts;  // by the group's index
    };
    void find_wholes();
    void add_moment_of_wholes();
    [[nodiscard]] bool whole(const LastingTensor& part, const Whole& of) const;
    void add_whole(const LastingTensor& part, const Whole& of);
    Status read_whole(const Whole& of, uint32_t sums, uint64_t at, std::span<double> out) const;
    [[nodiscard]] bool in_wholes(const Atom& atom) const;

    const SavedJob& job_;
    const int ranks_;
    const ConversionOptions options_;
    StateIndex index_;
    std::vector<Make> makes_;
    struct LeftOut {
        std::string first;
        uint64_t atoms = 0;
    };
    std::map<std::string, LeftOut> left_out_;  // by the reason
    // Reduce-scatters have another count on other ranks: of each new kind of calls, with ordinal 0,
    // the first that became it, and whether others did, too; and all that did.
    struct Kind {
        AtomKey from;
        bool several = false;
        std::vector<AtomKey> all = {};
    };
    std::map<LastingTensor, Kind> kinds_;
    // And so another ordinal: of each tensor the new ones, and the new counts of each kind of
    // calls.
    std::map<LastingTensor, LastingTensor> moved_;
    std::map<LastingTensor, std::set<uint64_t>> counts_;     // by of_kind()
    std::set<LastingTensor> named_;                          // tensors and parameters with atoms
    std::set<std::pair<LastingTensor, StateKind>> records_;  // that lie as they lay
    std::map<LastingTensor, Whole> wholes_;                  // by a part, of the first group
    std::set<std::pair<const Atom*, uint64_t>> in_wholes_;
};

// Of the state in a folder, as a file of its conversion would be read, without what cannot be
// taken, which `left_out` names. Holds no more than what all ranks have alike: what is owed is read
// from the files where `read` asks for it, which says what is damaged.
Result<StateContent> converted_state(const std::string& path,
                                     int ranks,
                                     ConversionOptions options,
                                     std::vector<std::string>* left_out,
                                     size_t most_open = kMostOpenFiles);

}  // namespace slimwire
