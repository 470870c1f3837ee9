#include "topology/cost/cost.h"

#include <algorithm>

namespace slimwire {
namespace {

constexpr double kGiga = 1e9;

double wire_s(double bytes, const LinkCost& link) {
    return bytes / (link.gb_s * kGiga);
}

CallCost on_link(double latency_s, double bytes, const LinkCost& link) {
    CallCost cost;
    cost.latency_s = latency_s;
    cost.wire_bytes = bytes;
    cost.wire_s = wire_s(bytes, link);
    return cost;
}

// One half of a dense all-reduce: a ring within nodes and one over them, of each rank's part.
CallCost dense_hop_cost(double bytes, const CommCost& comm) {
    const auto ring = [](double all, int ranks, const LinkCost& link) {
        return on_link((ranks - 1) * link.alpha_s, (ranks - 1) * all / ranks, link);
    };
    if (comm.nodes <= 1) {
        return ring(bytes, comm.local, comm.within);
    }
    CallCost cost = ring(bytes / comm.local, comm.nodes, comm.between);
    cost.fixed_s = ring(bytes, comm.local, comm.within).total_s();
    return cost;
}

// From one rank to all others, or back: as rings, whose ranks all pass on all of it.
CallCost dense_chain_cost(double bytes, const CommCost& comm) {
    const auto chain = [](double all, int ranks, const LinkCost& link) {
        return ranks <= 1 ? CallCost{} : on_link((ranks - 1) * link.alpha_s, all, link);
    };
    if (comm.nodes <= 1) {
        return chain(bytes, comm.local, comm.within);
    }
    CallCost cost = chain(bytes / comm.local, comm.nodes, comm.between);
    cost.fixed_s = chain(bytes, comm.local, comm.within).total_s();
    return cost;
}

// A part for each other rank, all at once: what stays in the node goes over other links meanwhile.
CallCost to_all_cost(double bytes, const CommCost& comm) {
    const double n = comm.nodes * comm.local;
    if (comm.nodes <= 1) {
        return n <= 1 ? CallCost{}
                      : on_link(comm.within.to_all_s(n), (n - 1) / n * bytes, comm.within);
    }
    CallCost cost = on_link(comm.between.to_all_s(n), (n - comm.local) / n * bytes, comm.between);
    cost.wire_s = std::max(cost.wire_s, wire_s((comm.local - 1) / n * bytes, comm.within));
    return cost;
}

double sliced_s(const CommCost& comm, const CallCost& cost) {
    return cost.best_sliced_s(comm.slices, comm.slice_s);
}

}  // namespace

double TimeBySize::seconds(double bytes) const {
    if (points.empty() || bytes <= 0) {
        return 0;
    }
    if (bytes <= points.front().bytes) {
        return points.front().seconds;
    }
    for (size_t i = 1; i < points.size(); ++i) {
        if (bytes <= points[i].bytes) {
            const Point& a = points[i - 1];
            const Point& b = points[i];
            return a.seconds + (b.seconds - a.seconds) * (bytes - a.bytes) / (b.bytes - a.bytes);
        }
    }
    // At the rate between the last two points, so that a launch is not paid again and again.
    const Point& last = points.back();
    if (points.size() == 1) {
        return last.seconds * bytes / last.bytes;
    }
    const Point& before = points[points.size() - 2];
    return last.seconds +
           (last.seconds - before.seconds) / (last.bytes - before.bytes) * (bytes - last.bytes);
}

TimeBySize TimeBySize::of_rate(double gb_s, double launch_s) {
    TimeBySize line;
    line.points = {{0, launch_s}, {kGiga, launch_s + 1 / gb_s}};
    return line;
}

double CallCost::sliced_s(int slices, double slice_s) const {
    if (slices <= 1) {
        return total_s();
    }
    const double n = slices;
    const double slower = std::max(wire_s, codec_s);
    return fixed_s + n * latency_s + n * slice_s + (wire_s + codec_s) / n + slower * (n - 1) / n;
}

double CallCost::best_sliced_s(int most, double slice_s) const {
    double best = total_s();
    for (int slices = 2; slices <= most; slices *= 2) {
        best = std::min(best, sliced_s(slices, slice_s));
    }
    return best;
}

CallCost dense_ring_cost(double bytes, int ranks, const LinkCost& link) {
    const double n = ranks;
    return ranks <= 1 ? CallCost{}
                      : on_link(2 * (n - 1) * link.alpha_s, 2 * (n - 1) / n * bytes, link);
}

CallCost dense_tree_cost(double bytes, int ranks, const LinkCost& link) {
    int levels = 0;
    for (int reached = 1; reached < ranks; reached *= 2) {
        ++levels;
    }
    return ranks <= 1 ? CallCost{} : on_link(2 * levels * link.alpha_s, 2 * bytes, link);
}

CallCost two_shot_cost(double bytes, int ranks, const LinkCost& link, const CodecCost& codec) {
    if (ranks <= 1) {
        return {};
    }
    const double n = ranks;
    CallCost cost = on_link(2 * link.to_all_s(n), 2 * (n - 1) / n * bytes / codec.ratio, link);
    cost.codec_s = codec.encode.seconds(bytes)        // for the all-to-all
                   + codec.decode.seconds(bytes)      // the chunks of all ranks, summed
                   + codec.encode.seconds(bytes / n)  // the sum
                   + codec.decode.seconds(bytes);     // all sums
    return cost;
}

CallCost one_shot_cost(double bytes, int ranks, const LinkCost& link, const CodecCost& codec) {
    if (ranks <= 1) {
        return {};
    }
    const double n = ranks;
    CallCost cost = on_link(link.to_all_s(n), (n - 1) * bytes / codec.ratio, link);
    cost.codec_s = codec.encode.seconds(bytes) + codec.decode.seconds(n * bytes);
    return cost;
}

CallCost hierarchical_cost(double bytes, const CommCost& comm, const CodecCost& codec) {
    CallCost cost = two_shot_cost(bytes / comm.local, comm.nodes, comm.between, codec);
    cost.fixed_s = dense_ring_cost(bytes, comm.local, comm.within).total_s();
    return cost;
}

CallCost dense_hierarchical_cost(double bytes, const CommCost& comm) {
    CallCost cost = dense_ring_cost(bytes / comm.local, comm.nodes, comm.between);
    const CallCost tree = dense_tree_cost(bytes / comm.local, comm.nodes, comm.between);
    cost = tree.total_s() < cost.total_s() ? tree : cost;
    cost.fixed_s = std::min(dense_ring_cost(bytes, comm.local, comm.within).total_s(),
                            dense_tree_cost(bytes, comm.local, comm.within).total_s());
    return cost;
}

CallCost flat_two_shot_cost(double bytes, const CommCost& comm, const CodecCost& codec) {
    const int ranks = comm.nodes * comm.local;
    if (comm.nodes <= 1) {
        return two_shot_cost(bytes, ranks, comm.within, codec);
    }
    const double n = ranks;
    CallCost cost = two_shot_cost(bytes, ranks, comm.between, codec);
    cost.wire_bytes = 2 * (n - comm.local) / n * bytes / codec.ratio;
    // What stays in the node goes at the same time, over other links.
    cost.wire_s = std::max(wire_s(cost.wire_bytes, comm.between),
                           wire_s(2 * (comm.local - 1) / n * bytes / codec.ratio, comm.within));
    return cost;
}

CallCost send_cost(double bytes, const LinkCost& link) {
    return on_link(link.alpha_s, bytes, link);
}

CallCost compressed_send_cost(double bytes, const LinkCost& link, const CodecCost& codec) {
    CallCost cost = on_link(link.alpha_s, bytes / codec.ratio, link);
    cost.codec_s = codec.encode.seconds(bytes) + codec.decode.seconds(bytes);
    return cost;
}

const char* cost_algorithm_name(CostAlgorithm algorithm) noexcept {
    switch (algorithm) {
        case CostAlgorithm::kNative:
            return "native";
        case CostAlgorithm::kTwoShot:
            return "two_shot";
        case CostAlgorithm::kOneShot:
            return "gather";
        case CostAlgorithm::kHierarchical:
            return "hierarchical";
        case CostAlgorithm::kDirect:
            return "direct";
    }
    return "native";
}

std::vector<AlgorithmTime> all_reduce_times(double bytes,
                                            const CommCost& comm,
                                            const CodecCost& codec) {
    const bool several = comm.nodes > 1;
    const LinkCost& link = several ? comm.between : comm.within;
    std::vector<AlgorithmTime> times;
    const double ring = dense_ring_cost(bytes, comm.local, comm.within).total_s();
    times.push_back(
        {CostAlgorithm::kNative,
         several ? dense_hierarchical_cost(bytes, comm).total_s()
                 : std::min(ring, dense_tree_cost(bytes, comm.local, comm.within).total_s())});
    times.push_back(
        {CostAlgorithm::kTwoShot, sliced_s(comm, flat_two_shot_cost(bytes, comm, codec))});
    times.push_back({CostAlgorithm::kOneShot,
                     sliced_s(comm, one_shot_cost(bytes, comm.nodes * comm.local, link, codec))});
    if (several && comm.local > 1) {
        times.push_back(
            {CostAlgorithm::kHierarchical, sliced_s(comm, hierarchical_cost(bytes, comm, codec))});
    }
    return times;
}

std::vector<AlgorithmTime> reduce_times(double bytes,
                                        const CommCost& comm,
                                        const CodecCost& codec) {
    const auto to_root = [&codec](double all, const CommCost& ranks) {
        CallCost cost = to_all_cost(all / codec.ratio, ranks);
        cost.latency_s *= 2;
        cost.wire_s *= 2;
        cost.wire_bytes *= 2;
        cost.codec_s = codec.encode.seconds(all) + 2 * codec.decode.seconds(all) +
                       codec.encode.seconds(all / (ranks.nodes * ranks.local));
        return cost;
    };
    std::vector<AlgorithmTime> times = {
        {CostAlgorithm::kNative, dense_chain_cost(bytes, comm).total_s()},
        {CostAlgorithm::kTwoShot, sliced_s(comm, to_root(bytes, comm))}};
    if (comm.nodes > 1 && comm.local > 1) {
        CommCost nodes = comm;
        nodes.local = 1;
        CallCost cost = to_root(bytes / comm.local, nodes);
        cost.fixed_s = dense_hop_cost(bytes, comm).fixed_s;
        times.push_back({CostAlgorithm::kHierarchical, sliced_s(comm, cost)});
    }
    return times;
}

std::vector<AlgorithmTime> hop_times(CostHop hop,
                                     double bytes,
                                     const CommCost& comm,
                                     const CodecCost& codec) {
    const LinkCost& link = comm.nodes > 1 ? comm.between : comm.within;
    const double encoded = bytes / codec.ratio;
    const double part = bytes / (comm.nodes * comm.local);
    double given = bytes, got = bytes;  // encoded by one rank, decoded by one
    CallCost native, direct;
    switch (hop) {
        case CostHop::kReduceScatter:
            native = dense_hop_cost(bytes, comm);
            direct = to_all_cost(encoded, comm);
            break;
        case CostHop::kAllGather:
            native = dense_hop_cost(bytes, comm);
            direct = dense_hop_cost(encoded, comm);
            given = part;
            break;
        case CostHop::kBroadcast:
            native = dense_chain_cost(bytes, comm);
            direct = dense_chain_cost(encoded, comm);
            break;
        case CostHop::kGather:
        case CostHop::kScatter:
            (hop == CostHop::kGather ? given : got) = part;
            [[fallthrough]];
        case CostHop::kAllToAll:
            native = to_all_cost(bytes, comm);
            direct = to_all_cost(encoded, comm);
            break;
        case CostHop::kMessage:
            native = send_cost(bytes, link);
            direct = send_cost(encoded, link);
            break;
    }
    direct.codec_s = codec.encode.seconds(given) + codec.decode.seconds(got);
    std::vector<AlgorithmTime> times = {{CostAlgorithm::kNative, native.total_s()},
                                        {CostAlgorithm::kDirect, sliced_s(comm, direct)}};
    if (hop == CostHop::kReduceScatter && comm.nodes > 1 && comm.local > 1) {
        const double column = bytes / comm.local;
        CommCost nodes = comm;
        nodes.local = 1;
        CallCost cost = to_all_cost(column / codec.ratio, nodes);
        cost.codec_s = codec.encode.seconds(column) + codec.decode.seconds(column);
        cost.fixed_s = native.fixed_s;
        times.push_back({CostAlgorithm::kHierarchical, sliced_s(comm, cost)});
    }
    return times;
}

double break_even_gb_s(const CallCost& native, const CallCost& compressed) {
    const double saved_bytes = native.wire_bytes - compressed.wire_bytes;
    const double spent_s = compressed.codec_s + compressed.latency_s + compressed.fixed_s -
                           native.codec_s - native.latency_s - native.fixed_s;
    if (saved_bytes <= 0) {
        return spent_s < 0 ? kNoLimit : 0;
    }
    return spent_s <= 0 ? kNoLimit : saved_bytes / spent_s / kGiga;
}

}  // namespace slimwire
