// The file of slimwire_save_state: what a rank's error feedback owes, by tensor, so that a later
// process of the job goes on with it. FORMAT.md ("Saved state") fixes the bytes. Pure but for the
// file system: no device, no NCCL, no table of the process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "codecs/base/status.h"
#include "collectives/call.h"

namespace slimwire {

// What tells a tensor in every process of a job: the rank's communicator by its lasting key
// (comm_state.h), the facts of its calls, and its place in the step.
struct LastingTensor {
    uint64_t comm = 0;
    CallFacts facts;
    uint64_t path = 0;
    uint32_t ordinal = 0;

    [[nodiscard]] auto order() const noexcept {
        return std::tuple(comm, facts.op, facts.dtype, facts.redop, facts.root_or_peer, facts.count,
                          facts.asked, facts.carried, path, ordinal);
    }
    bool operator<(const LastingTensor& other) const noexcept { return order() < other.order(); }
};

struct StateComm {
    uint64_t key = 0;
    int32_t rank = 0, ranks = 0;
    uint32_t drawn[2] = {};  // calls that drew random numbers: collectives, messages
    // Equal on ranks that saved at the same moment of the same job, and on no others; 0 before the
    // first call that estimates_of_all.h speaks of.
    uint64_t moment = 0;
};

struct StateTensor {
    LastingTensor tensor;
    uint64_t shape = 0;  // what its residuals lie by (keys.h)
    uint64_t bytes = 0;
    bool shared = false;  // it counts only if all ranks have theirs of that moment
};

struct StateIndex {
    uint64_t config_hash = 0;
    int32_t launcher_rank = -1, launcher_size = -1;  // -1: no launcher said
    uint64_t step = 0;                               // the last that was marked
    std::vector<StateComm> comms;
    std::vector<StateTensor> tensors;
};

// Fills `out` with the residuals of tensor `index` from byte `offset` on.
using ReadResiduals =
    std::function<Status(size_t index, uint64_t offset, std::span<std::byte> out)>;

// Puts the file in its place in one step, with its bytes on the disk; a failure leaves what was at
// `path` before. Asks `read` for the tensors in order, piece by piece.
Status write_state(const std::string& path, const StateIndex& index, const ReadResiduals& read);

struct StateContent {
    StateIndex index;
    std::vector<std::unique_ptr<std::byte[]>> residuals;  // of each tensor
};
// The whole file, or kInvalidUsage with what is wrong with it: not one of ours, another version,
// cut short, damaged. Nothing larger than the file is allocated.
Result<StateContent> read_state(const std::string& path);

// Of the format: what a byte that changed changes.
[[nodiscard]] uint64_t state_checksum(uint64_t before, std::span<const std::byte> bytes) noexcept;

}  // namespace slimwire
