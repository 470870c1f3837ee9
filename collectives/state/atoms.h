// The saved states of all ranks of a job, taken apart into atoms: one tensor and one state of it,
// whole, without a trace of how the ranks were laid out. What `slimwire state` shows, compares and
// lays out anew. After Universal Checkpointing (Lian et al., ATC 2025): match, merge, split, units;
// a kind of record that no pattern takes is an error. Reads files piece by piece; no device.
#pragma once

#include <cstdint>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "collectives/state/residual_map.h"
#include "collectives/state/state_file.h"

namespace slimwire {

inline constexpr uint64_t kAtomWindow = 1 << 20;  // bytes or elements looked at at once

// What the shards of so many ranks may be padded to a multiple of, who have so many elements: of
// the ranks (FSDP1), of twice as many (ZeRO-1 and 2), of these and of 128 (Megatron).
[[nodiscard]] constexpr uint64_t shard_multiple(uint64_t elems, uint64_t ranks) noexcept {
    constexpr uint64_t kLine = 128;
    for (const uint64_t multiple :
         {std::lcm(2 * ranks, kLine), std::lcm(ranks, kLine), 2 * ranks}) {
        if (elems % multiple == 0) {
            return multiple;
        }
    }
    return ranks;
}

// How an atom is made of the ranks' records.
enum class AtomPattern : uint8_t {
    kAverage,     // contributions are added up in the optimizer's units, as the reduction would;
                  // what owners of sums keep is put together, chunk after chunk
    kReplicated,  // equal on all ranks, or an error
    kDerived,     // dropped: the next job finds it out anew
};
struct AtomKind {
    StateKind kind = StateKind::kResiduals;
    const char* name = "";  // in tables and records
    AtomPattern pattern = AtomPattern::kDerived;
    // Of reduce-scatters each rank has a part of these bytes: of `of_part` at the begin its own
    // counts, then fp32 that add up.
    struct Parts {
        uint64_t begin = 0, of_part = 0, bytes = 0;
    } parts = {};
};
// The row of the kind; null: none takes it.
[[nodiscard]] const AtomKind* atom_kind(StateKind kind) noexcept;

struct AtomKey {
    RankGroup group;
    uint64_t comm = 0;  // its own key where those of a group of ranks are not known by it
    CallSignature signature;
    uint64_t path = 0;
    uint32_t ordinal = 0;
    StateKind kind = StateKind::kResiduals;
    std::string name = {};  // that the program gave it, else empty: path and ordinal are of it

    [[nodiscard]] auto order() const noexcept {
        return std::tuple(group.order(), comm, signature.op, signature.dtype, signature.redop,
                          signature.root_or_peer, signature.count, signature.ranges_id, path,
                          ordinal, kind);
    }
    bool operator<(const AtomKey& other) const noexcept { return order() < other.order(); }
    // "allreduce f32 avg count 4096 ordinal 0 residuals", of a named one 'NAME' for the ordinal
    [[nodiscard]] std::string text() const;
};

struct Atom {
    AtomKey key;
    struct Share {  // of a rank
        size_t file = 0, tensor = 0;
        std::shared_ptr<const ResidualMap> map;  // null: the file says none
    };
    std::vector<Share> shares;  // by rank
    double loss_scale = 0;      // of the first share; NaN: not told
    uint64_t bytes = 0;         // of all shares
    uint64_t path = 0;          // where it was in the step, which its name stands for in the key
    uint32_t ordinal = 0;

    // Whether it was an atom of other ranks already, and waited for its tensor's first call.
    [[nodiscard]] bool waited() const noexcept {
        return key.kind == StateKind::kOwed || key.kind == StateKind::kOwedBySums ||
               of_estimates(key.kind);
    }
    // Whether it is of EF21's, which nothing is owed by.
    [[nodiscard]] bool estimates() const noexcept;
    // Elements that are owed; 0 where that is not known, or nothing is.
    [[nodiscard]] uint64_t elems() const noexcept;
    // Whether owners of sums keep something; or what else runs say, by their number.
    [[nodiscard]] bool has_sums(uint32_t sums = 1) const noexcept;
    // Bytes in front of the residuals that all ranks have alike.
    [[nodiscard]] uint64_t state_bytes() const noexcept;
};

inline constexpr size_t kMostOpenFiles = 256;

class SavedJob {
  public:
    // A file, or a folder: of that all files that begin as saved states do. kNotFound where there
    // are none; errors as of StateReader. No more than `most_open` of the files stay open: a
    // process has a thousand.
    static Result<SavedJob> open(const std::string& path, size_t most_open = kMostOpenFiles);

    [[nodiscard]] const std::vector<StateReader>& files() const noexcept { return files_; }
    [[nodiscard]] const std::vector<Atom>& atoms() const noexcept { return atoms_; }
    // Files of the folder that have a rank's name and hold no saved state, files of another job or
    // moment than the first, and ranks without one: a line each, by what the files' heads say.
    [[nodiscard]] std::vector<std::string> strays() const;
    [[nodiscard]] int ranks() const noexcept;
    [[nodiscard]] uint64_t bytes() const;
    // Tensors that a rank lacks (left_out_text()).
    [[nodiscard]] uint32_t left_out() const;

    // Why they are not the whole state of one job at one step; empty where they are. Reads
    // everything; with `heads` only that, and where residuals lie: what is damaged, or is not the
    // same on ranks that must have it alike, is an error where it is read.
    [[nodiscard]] std::vector<std::string> findings(bool heads = false) const;
    // What the optimizer would still receive: elements from `at` on, by contributions or sums, or
    // with 3 the sum that EF21 estimates; numbers as ResidualMap::Run has them.
    Status owed(const Atom& atom, uint32_t sums, uint64_t at, std::span<double> out) const;
    // Whether rank `other` of those that have the atom estimates the sum so, from `at` on.
    Status same_estimate(const Atom& atom,
                         size_t other,
                         uint64_t at,
                         std::span<const double> estimate) const;
    // Why so many ranks do not have the whole atom, of one moment; empty where they do. `heads`: as
    // of findings().
    [[nodiscard]] std::string finding(const Atom& atom, size_t ranks, bool heads) const;
    // Bytes of what all ranks have alike; kInvalidUsage where one differs. What ranks have parts of
    // is added up, for each of so many `ranks` its share.
    Status alike(const Atom& atom, uint64_t offset, std::span<std::byte> out, int ranks = 1) const;

  private:
    Status add(StateReader reader);
    void find_names();
    void find_whole(bool heads, std::vector<std::string>* findings) const;
    [[nodiscard]] Status find_alike(const Atom& atom, bool heads) const;
    [[nodiscard]] Status find_estimates_alike(const Atom& atom) const;
    [[nodiscard]] bool same_layout(const Atom& atom) const;
    [[nodiscard]] static bool covered(const Atom& atom, uint32_t sums, uint64_t times);

    std::vector<StateReader> files_;  // by launcher rank
    std::vector<Atom> atoms_;
    std::vector<std::string> passed_over_;
};

}  // namespace slimwire
