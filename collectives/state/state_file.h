// The file of slimwire_save_state: what a rank's error feedback owes, by tensor, and how far its
// controllers and counts are, so that a later process of the job goes on with it. FORMAT.md ("Saved
// state") fixes the bytes. Pure but for the file system: no device, no NCCL, no table of the
// process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "codecs/base/status.h"
#include "collectives/call/call.h"
#include "collectives/call/hash.h"
#include "collectives/call/launcher.h"

namespace slimwire {

// What tells a tensor in every process of a job: the rank's communicator by its lasting key
// (communicator.h), the facts of its calls, and its place in the step.
struct LastingTensor {
    uint64_t comm = 0;
    CallSignature signature;
    uint64_t path = 0;
    uint32_t ordinal = 0;

    [[nodiscard]] auto order() const noexcept {
        return std::tuple(comm, signature.op, signature.dtype, signature.redop,
                          signature.root_or_peer, signature.count, signature.ranges_id, path,
                          ordinal);
    }
    bool operator<(const LastingTensor& other) const noexcept { return order() < other.order(); }
};

struct StateComm {
    uint64_t key = 0;
    int32_t rank = 0, ranks = 0;
    uint32_t drawn[2] = {};  // calls that drew random numbers: collectives, messages
    // Equal on ranks that saved at the same moment of the same job, and on no others; 0 before the
    // first call that changed what ranks keep alike.
    uint64_t snapshot_id = 0;
    uint32_t drawn_alike =
        0;            // collectives that drew, as codecs count that draw on all ranks alike
    RankGroup group;  // of some ranks of number 0 before version 7
};

// What a record holds of its tensor. Those from kFirstProgress to kMap are progress
// (replicated_progress.h), each by the number of its feature.
enum class StateKind : uint8_t {
    kResiduals,
    kShared,  // estimates of EF21, or factors and what is owed beside them
    kFirstProgress,
    kMap = 9,  // where in the bytes of one of the first two what lies (residual_map.h)
    // Of an atom (atoms.h), for any number of ranks: fp32, in the optimizer's units.
    kOwed = 10,        // by contributions
    kOwedBySums = 11,  // by what encoding sums of all ranks lost
    kAlike = 12,       // what all ranks have alike beside it, as it is stored
    // The same of EF21's estimates: of contributions, in the place of kOwed, and of their sum.
    kEstimates = 13,
    kEstimateOfSum = 14,
    kMessages = 15,  // progress, too: counts of messages, weights of autoencoders between ranks
};
// 2, 4, 5, 7 and 8 have a feature (FORMAT.md); 3 and 6 are of files of older versions: nothing
// takes them.
inline constexpr int kStateKindCount = 16;
// A tensor has one record of what it is owed, shared or not.
[[nodiscard]] constexpr StateKind record_of(StateKind kind) noexcept {
    return kind == StateKind::kShared ? StateKind::kResiduals : kind;
}
[[nodiscard]] constexpr bool is_progress(StateKind kind) noexcept {
    return (kind >= StateKind::kFirstProgress && kind < StateKind::kMap) ||
           kind == StateKind::kMessages;
}
[[nodiscard]] constexpr bool of_estimates(StateKind kind) noexcept {
    return kind == StateKind::kEstimates || kind == StateKind::kEstimateOfSum;
}
// Whether it is a tensor's first record of what reductions have yet to bring, or EF21 follows.
[[nodiscard]] constexpr bool is_owed(StateKind kind) noexcept {
    return record_of(kind) == StateKind::kResiduals || kind == StateKind::kOwed ||
           kind == StateKind::kEstimates;
}
// Whether it counts only where all ranks have theirs of one moment.
[[nodiscard]] constexpr bool of_all_ranks(StateKind kind) noexcept {
    return kind == StateKind::kShared || kind == StateKind::kAlike || of_estimates(kind) ||
           is_progress(kind);
}

struct StateTensor {
    LastingTensor tensor;
    // What its residuals lie by (Plan); of an atom of shards the elements that all ranks had, with
    // padding; else 0.
    uint64_t shape = 0;
    uint64_t bytes = 0;
    StateKind kind = StateKind::kResiduals;
    // Of residuals: the scale of the gradients when the tensor was called last, NaN: not told.
    double loss_scale = std::numeric_limits<double>::quiet_NaN();
    // 1 more than the step at which it was owed, if no call took it since, though other tensors
    // began at zero; 0: at the file's.
    uint64_t owed_at = 0;
};

struct StateIndex {
    uint64_t config_hash = 0;
    int32_t launcher_rank = -1, launcher_size = -1;  // -1: no launcher said
    bool atoms = false;     // of any of the launcher's ranks: communicators by atoms_key()
    uint64_t step = 0;      // the last that was marked
    uint32_t left_out = 0;  // tensors, as left_out_text() says
    std::vector<StateComm> comms;
    std::vector<StateTensor> tensors;
};

// What the communicator is known by in a file of atoms.
[[nodiscard]] constexpr uint64_t atoms_key(const RankGroup& group) noexcept {
    uint64_t key = stable_hash("atoms of all ranks") + 2 * uint64_t{group.number};
    if (group.groups > 1) {
        for (const uint32_t value : {group.index, group.groups, group.stride}) {
            key = (key ^ value) * 0x9E3779B97F4A7C15ull;
            key ^= key >> 32;
        }
    }
    return key | 1;
}

// The tensor by the name that its program gave it, in the place of its slot.
inline constexpr uint32_t kNamed = 0xFFFFFFFF;  // as ordinal
[[nodiscard]] constexpr LastingTensor named(LastingTensor tensor, std::string_view name) noexcept {
    tensor.path = stable_hash(name) | 1;
    tensor.ordinal = kNamed;
    return tensor;
}

// The path of the record that says which autoencoders copies of a model average.
inline constexpr uint64_t kAveragedCodes = stable_hash("averaged codes") | 1;

// The atom of a tensor of which groups of ranks have a part each, whatever groups these are: of all
// `parts`, by its name.
inline constexpr uint64_t kWholeTensors = stable_hash("whole tensors");
[[nodiscard]] constexpr LastingTensor whole_of(LastingTensor part, uint64_t parts) noexcept {
    part.comm = kWholeTensors;
    part.signature.count *= parts;
    part.signature.ranges_id = 0;
    return part;
}

// Fills `out` with the bytes of record `index` from byte `offset` on.
using ReadResiduals =
    std::function<Status(size_t index, uint64_t offset, std::span<std::byte> out)>;

// The bytes of record `index` where they are in the host's memory; null: they are read.
using HeldResiduals = std::function<const std::byte*(size_t index)>;

// Puts the file in its place in one step, with its bytes on the disk; a failure leaves what was at
// `path` before. Takes the tensors in order, piece by piece, from where `held` says, and else asks
// `read`.
Status write_state(const std::string& path,
                   const StateIndex& index,
                   const ReadResiduals& read,
                   const HeldResiduals& held = {});

// A file that is read piece by piece. The index is checked; what tensors have where it is read, of
// a file before version 7 by check() alone.
class StateReader {
  public:
    // kNotFound where there is none; kInvalidUsage with what is wrong with it: not one of ours,
    // another version, cut short, damaged. Nothing larger than the file is allocated. Unless it
    // `stays_open`, each reading opens it again.
    static Result<StateReader> open(const std::string& path, bool stays_open = true);
    StateReader(StateReader&& other) noexcept;
    StateReader& operator=(StateReader&&) = delete;
    ~StateReader();

    [[nodiscard]] const std::string& path() const noexcept { return path_; }
    [[nodiscard]] const StateIndex& index() const noexcept { return index_; }
    // Of the whole file.
    [[nodiscard]] uint64_t bytes() const noexcept {
        return begins_.back() + (sums_.size() + 1) * sizeof(uint64_t);
    }
    // Whether read() finds what is damaged.
    [[nodiscard]] bool checks_reads() const noexcept { return version_ >= 7; }
    // Bytes of a tensor from `offset` on; kInvalidUsage where a checksum is wrong.
    Status read(size_t tensor, uint64_t offset, std::span<std::byte> out) const;
    // Checksums of the tensor's bytes, equal where these are; empty unless checks_reads().
    [[nodiscard]] std::span<const uint64_t> sums(size_t tensor) const noexcept;
    // Reads all, and gives it to `use` in order; kInvalidUsage where a checksum is wrong.
    using UsePiece =
        std::function<void(size_t tensor, uint64_t offset, std::span<const std::byte> bytes)>;
    Status check(const UsePiece& use = {}) const;

  private:
    StateReader(int file, std::string path) : file_(file), path_(std::move(path)) {}
    Status read_index();
    Status read_sums();
    Status read_at(uint64_t offset, std::span<std::byte> out) const;
    Status read_again(uint64_t offset, std::span<std::byte> out) const;
    [[nodiscard]] Status damaged(const std::string& why) const;

    int file_;  // -1: it is closed
    uint64_t inode_ = 0;
    std::string path_;
    StateIndex index_;
    uint32_t version_ = 0;
    std::vector<uint64_t> begins_;  // of each tensor's bytes, and their end
    uint64_t sum_ = 0;              // of what is before them
    std::vector<uint64_t> sums_;    // of pieces of them
    std::vector<size_t> pieces_;    // of each tensor the first, and the end
};

// What is missing where so many tensors are left out.
[[nodiscard]] std::string left_out_text(uint64_t tensors);

// Whether there is a file that begins as those of saved states do.
[[nodiscard]] bool begins_as_state(const std::string& path) noexcept;

struct StateContent {
    StateIndex index;
    std::vector<std::unique_ptr<std::byte[]>> held;  // of each tensor, its bytes; null: by `read`
    ReadResiduals read = {};
    // The same by atoms, for tensors whose residuals lie otherwise now; empty: there are none.
    std::function<Result<StateContent>()> by_atoms = {};
};
// The whole file; errors as of StateReader.
Result<StateContent> read_state(const StateReader& reader);
Result<StateContent> read_state(const std::string& path);

// Of the format: what a byte that changed changes.
[[nodiscard]] uint64_t state_checksum(uint64_t before, std::span<const std::byte> bytes) noexcept;

}  // namespace slimwire
