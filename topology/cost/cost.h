// What a collective takes, natively and compressed: latency and bandwidth of each class of link
// (alpha-beta), throughput and launches of a codec, overlap of slices. The formulas are those of
// ring, two-shot, one-shot and hierarchical all-reduces.
//
// Pure functions of doubles; no libm. Sizes are of the dense tensor in bytes, times in seconds,
// bandwidths in GB/s (1e9 bytes) that one rank sends and at the same time receives.
#pragma once

#include <cstdint>
#include <vector>

namespace slimwire {

struct LinkCost {
    double alpha_s = 0;  // of one step of a collective: launch, protocol, wire
    double gb_s = 1;
    double grouped_s = -1;  // of each further one of messages that leave together; below 0: alpha_s
    // Of messages to all others of `ranks`.
    [[nodiscard]] double to_all_s(double ranks) const {
        return alpha_s + (ranks - 2) * (grouped_s < 0 ? alpha_s : grouped_s);
    }
};

// Time by size, measured: between two points straight, below the first constant, beyond the last in
// proportion. Codecs are slower on small tensors, which fill no device.
struct TimeBySize {
    struct Point {
        double bytes, seconds;
    };
    std::vector<Point> points;  // bytes rise
    [[nodiscard]] double seconds(double bytes) const;
    // A constant rate after a launch.
    [[nodiscard]] static TimeBySize of_rate(double gb_s, double launch_s);
};

struct CodecCost {
    double ratio = 1;   // dense bytes to wire bytes
    TimeBySize encode;  // of dense input
    TimeBySize decode;  // of dense output
};

// Of one call on one rank. Stages that can overlap are kept apart.
struct CallCost {
    double latency_s = 0;   // alphas
    double wire_bytes = 0;  // that the rank sends on `link`
    double wire_s = 0;      // these, at the link's bandwidth
    double codec_s = 0;     // everything a codec computes before and after the wire
    double fixed_s = 0;     // on another link: what hierarchical does within a node
    [[nodiscard]] double total_s() const { return latency_s + wire_s + codec_s + fixed_s; }
    // Cut into slices whose codec and wire overlap: the first slice fills, the slower stage paces.
    // Each slice pays the latency again and `slice_s` for its launches.
    [[nodiscard]] double sliced_s(int slices, double slice_s) const;
    // The best of 1, 2, 4, ... `most` slices.
    [[nodiscard]] double best_sliced_s(int most, double slice_s) const;
};

// A communicator for the model: `local` ranks on each of `nodes`, the most on one where nodes are
// uneven. Both links of one rank.
struct CommCost {
    int nodes = 1, local = 1;
    LinkCost within, between;
    int slices = 1;      // at most, of a compressed message
    double slice_s = 0;  // launches of one slice
};

// All-reduces of `bytes` over `ranks` ranks.
[[nodiscard]] CallCost dense_ring_cost(double bytes, int ranks, const LinkCost& link);
// Up a tree and down again: fewer steps, somewhat more bytes.
[[nodiscard]] CallCost dense_tree_cost(double bytes, int ranks, const LinkCost& link);
// All-to-all of encoded chunks, decode and sum, encode, all-gather, decode.
[[nodiscard]] CallCost two_shot_cost(double bytes,
                                     int ranks,
                                     const LinkCost& link,
                                     const CodecCost& codec);
// Everybody's encoding to everybody: pays for ranks below twice the ratio.
[[nodiscard]] CallCost one_shot_cost(double bytes,
                                     int ranks,
                                     const LinkCost& link,
                                     const CodecCost& codec);
// Reduce-scatter and all-gather within nodes of comm.local ranks, two-shot between the nodes of
// each of these ranks' parts. `between.gb_s` is one rank's share of its node's NICs.
[[nodiscard]] CallCost hierarchical_cost(double bytes,
                                         const CommCost& comm,
                                         const CodecCost& codec);
// The same without a codec, as NCCL's rings or trees (the faster) over all NICs of a node do at
// best.
[[nodiscard]] CallCost dense_hierarchical_cost(double bytes, const CommCost& comm);
// Two-shot among all ranks at once, whatever their nodes: of L ranks on a node every one sends to
// all other nodes, so more crosses than in NCCL's ring as soon as L exceeds the ratio.
[[nodiscard]] CallCost flat_two_shot_cost(double bytes,
                                          const CommCost& comm,
                                          const CodecCost& codec);
// One message.
[[nodiscard]] CallCost send_cost(double bytes, const LinkCost& link);
[[nodiscard]] CallCost compressed_send_cost(double bytes,
                                            const LinkCost& link,
                                            const CodecCost& codec);

// What a call may be done by.
enum class CostAlgorithm : uint8_t { kNative, kTwoShot, kOneShot, kHierarchical, kDirect };
[[nodiscard]] const char* cost_algorithm_name(CostAlgorithm algorithm) noexcept;

struct AlgorithmTime {
    CostAlgorithm algorithm = CostAlgorithm::kNative;
    double seconds = 0;
};
// Of all algorithms that are defined there (hierarchical: several nodes of several ranks), native
// first.
[[nodiscard]] std::vector<AlgorithmTime> all_reduce_times(double bytes,
                                                          const CommCost& comm,
                                                          const CodecCost& codec);

// A reduce: natively a ring over all NICs; of the two-shot one the second hop goes to the root.
[[nodiscard]] std::vector<AlgorithmTime> reduce_times(double bytes,
                                                      const CommCost& comm,
                                                      const CodecCost& codec);

// Calls of one hop. `bytes`: the larger buffer of a rank.
enum class CostHop : uint8_t {
    kReduceScatter,
    kAllGather,
    kAllToAll,
    kMessage,
    kBroadcast,
    kGather,
    kScatter
};
// Natively, directly, and of reduce-scatters the hierarchical one where it is defined. Direct
// all-gathers and broadcasts are NCCL's own, of encodings; natively these and reduce-scatters are
// rings over all NICs. Gathers and scatters are what their root sends or gets.
[[nodiscard]] std::vector<AlgorithmTime> hop_times(CostHop hop,
                                                   double bytes,
                                                   const CommCost& comm,
                                                   const CodecCost& codec);

// The bandwidth below which `compressed` is the faster, nothing overlapped: times are straight
// lines of 1 / bandwidth. 0: never; infinity (kNoLimit): always.
inline constexpr double kNoLimit = 1e300;
[[nodiscard]] double break_even_gb_s(const CallCost& native, const CallCost& compressed);

// A threshold of sizes: compress from `enter_bytes` on; where compressing is on already, stay down
// to `leave_bytes`, so that a choice does not swing around one size.
struct Threshold {
    uint64_t enter_bytes = 0, leave_bytes = 0;
    bool pays = false;  // false: at no size up to the largest that was asked
};
// Sizes of 256 B times powers of two up to `largest`, then halved in. `gain`: the least part of the
// native time that must be saved to enter (0.05).
template <class NativeSeconds, class CompressedSeconds>
[[nodiscard]] Threshold find_threshold(uint64_t largest,
                                       double gain,
                                       const NativeSeconds& native_s,
                                       const CompressedSeconds& compressed_s) {
    const auto saves = [&](uint64_t bytes, double part) {
        const auto size = static_cast<double>(bytes);
        return compressed_s(size) <= (1 - part) * native_s(size);
    };
    // The least size from which all larger ones of the grid pay.
    const auto least = [&](double part) -> uint64_t {
        uint64_t paying = 0;
        uint64_t below = 0;
        for (uint64_t bytes = 256; bytes <= largest; bytes *= 2) {
            if (!saves(bytes, part)) {
                paying = 0;
                below = bytes;
            } else if (paying == 0) {
                paying = bytes;
            }
        }
        while (paying != 0 && below != 0 && paying - below > paying / 64 + 1) {
            const uint64_t middle = below + (paying - below) / 2;
            (saves(middle, part) ? paying : below) = middle;
        }
        return paying;
    };
    Threshold found;
    found.enter_bytes = least(gain);
    found.leave_bytes = least(0);
    found.pays = found.enter_bytes != 0;
    return found;
}

}  // namespace slimwire
