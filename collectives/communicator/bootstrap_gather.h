// A few bytes of every rank of some communicators, told to all of them by an all-gather on internal
// streams: who the ranks are, the id of a communicator that grows.
// Start and finish are apart, because the start has a place among the communicator's calls and the
// finish waits for other ranks; they may be in two threads, one after the other. No wait is longer
// than it is told: another communicator's work may keep the all-gather off the device until this
// rank goes on. An all-gather that is given up takes place later, and nobody looks at it.
#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "collectives/communicator/pending_creations.h"
#include "collectives/communicator/process.h"

namespace slimwire {

class AllGathering {
  public:
    struct Part {
        const RealNccl* nccl = nullptr;  // of all parts
        ncclComm_t comm = nullptr;
        int device = 0, rank = 0;
        std::span<const std::byte> mine;
        std::span<std::byte> all;      // has room for those of each rank
        cudaStream_t spare = nullptr;  // where no stream can be made; null: there is none
    };
    // What each rank of `state` has in `mine`, for `all` of them.
    template <class T>
    static Part part_of(const Communicator& state, const T& mine, std::vector<T>* all) {
        all->resize(static_cast<size_t>(state.shape.ranks));
        return {state.nccl,
                state.comm,
                state.device,
                state.rank,
                std::as_bytes(std::span(&mine, 1)),
                std::as_writable_bytes(std::span(*all)),
                state.objects.before_stream};
    }
    // What the parts name must outlive it.
    AllGathering(Runtime& runtime, std::vector<Part> parts);
    // Waits for no rank.
    ~AllGathering();
    AllGathering(const AllGathering&) = delete;
    AllGathering& operator=(const AllGathering&) = delete;

    // Enqueues all parts in one group; all ranks of the communicators must.
    Status start();
    // Waits under `watch` until `all` is filled, of each part or until `deadline_us` of
    // steady_us().
    Status finish(AbortWatch* watch, uint64_t deadline_us);
    // Whether `all` of part `i` is filled.
    [[nodiscard]] bool arrived(size_t i) const noexcept { return exchanges_[i].arrived; }

  private:
    struct Exchange {
        char* memory = nullptr;
        Pinned host;
        cudaStream_t stream = nullptr;
        bool arrived = false;
    };
    [[nodiscard]] size_t own(size_t i) const noexcept;
    Status finish_part(size_t i, AbortWatch* watch, uint64_t deadline_us);
    void release() noexcept;

    Runtime& runtime_;
    std::vector<Part> parts_;
    std::vector<Exchange> exchanges_;
    ncclResult_t launched_ = ncclSuccess;
};

// Bytes that a rank tells at a time, at most.
inline constexpr size_t kMostTold = 132;

// Whether there is the memory with which all ranks of `state` tell each other `bytes`, which
// a rank must know before others count on it.
Status room_to_tell(Runtime& runtime, const Communicator& state, size_t bytes);

// Until when a creation that begins to wait now waits for what other ranks do.
[[nodiscard]] uint64_t creation_deadline_us(const Runtime& runtime);

// Tells all ranks of each communicator what this one has in `mine`. Where they are not heard in
// time, which is `more_us` longer where they may be so late, the communicator `missed.others` and
// its part of `all` means nothing.
template <class T>
Status tell_ranks(Runtime& runtime,
                  const std::vector<Communicator*>& states,
                  const std::vector<T>& mine,
                  std::vector<std::vector<T>>* all,
                  AbortWatch* watch,
                  uint64_t more_us = 0) {
    std::vector<AllGathering::Part> parts;
    all->resize(states.size());
    for (size_t i = 0; i < states.size(); ++i) {
        parts.push_back(AllGathering::part_of(*states[i], mine[i], &(*all)[i]));
    }
    AllGathering gathering(runtime, std::move(parts));
    SLIMWIRE_TRY(gathering.start());
    SLIMWIRE_TRY(gathering.finish(watch, creation_deadline_us(runtime) + more_us));
    for (size_t i = 0; i < states.size(); ++i) {
        states[i]->missed.others = states[i]->missed.others || !gathering.arrived(i);
    }
    return {};
}

// The first rank that told something else; none where all told the same.
[[nodiscard]] std::optional<size_t> other_rank(const std::vector<uint64_t>& told, uint64_t mine);

}  // namespace slimwire
