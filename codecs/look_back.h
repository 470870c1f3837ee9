// What a launch whose thread blocks learn from those before them (decoupled look-back, Merrill and
// Garland 2016) keeps in the operation's workspace: the host's side, for the sizes of workspaces
// and the number of a launch. The device's side: codecs/gpu/look_back.cuh.
#pragma once

#include <atomic>
#include <cstdint>

namespace slimwire {

// One tile's words to the tiles behind it. Each word says by itself what it is, so that none is
// waited for before another: the upper 40 bits are the launch's nonce, two bits tell a tile's own
// value (1) from the one with all before it (2), and 22 bits are a part of the value.
struct LookBackState {
    unsigned long long words[3];
};
inline constexpr int kLookBackPartBits = 22;

// Counters of a launch, at the front of its workspace: tickets that were taken, and thread blocks
// that left. Any content will do: what is there from before has another nonce.
inline constexpr int kLookBackCounters = 2;
inline constexpr uint64_t kNonceCount = 0xFFFFFF;  // bits below the nonce, which count

// A number with its lower 24 bits zero and the others not, that no other launch of this process
// has, nor memory by chance.
inline uint64_t next_nonce() {
    static constinit std::atomic<uint64_t> launches{0};
    uint64_t mixed = (launches.fetch_add(1, std::memory_order_relaxed) + 1) * 0x9E3779B97F4A7C15u;
    mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9u;
    mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EBu;
    mixed &= ~kNonceCount;
    return mixed != 0 ? mixed : kNonceCount + 1;
}

}  // namespace slimwire
