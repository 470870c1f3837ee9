// What the figures of one size of `slimwire bench collective` say: medians, bandwidths, ratios, and
// whether they can be right at all. No process, no file, no output.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "tools/cli/bench/bench_collective.h"
#include "tools/cli/common/median.h"

namespace slimwire::cli {
namespace {

// Above these a figure says that the measurement is wrong, not that slimwire is good or the link
// bad.
constexpr double kMaxEfficiency = 1.02;
constexpr double kMaxNativeOverIdeal = 1.05;

// nccl-tests' factor from algorithm to bus bandwidth.
double bus_factor(Op op, int ranks) {
    const double n = ranks;
    switch (op) {
        case Op::kAllReduce:
            return 2 * (n - 1) / n;
        case Op::kReduceScatter:
        case Op::kAllGather:
        case Op::kAllToAll:
            return (n - 1) / n;
        default:
            return 1;
    }
}

}  // namespace

double native_bytes(Op op, double bytes, int ranks) {
    return bytes * bus_factor(op, ranks);
}

CollectiveResult judge(const CollectiveMeasurement& m) {
    CollectiveResult result;
    result.codec = m.reported_codec.empty() || m.codec == "native" ? m.codec : m.reported_codec;
    result.algorithm = m.algorithm.empty() ? "native" : m.algorithm;
    result.bytes = m.bytes;
    result.count = m.count;
    result.raw_us = median(m.raw_us);
    result.time_us = median(m.time_us);
    result.native_us = median(m.native_us);
    result.native_ideal_us = m.ideal_us;
    result.wire_bytes = m.counted ? m.wire_bytes : m.reported_wire_bytes;
    result.native_wire_bytes = m.counted ? m.native_wire_bytes : m.formula_bytes;
    result.rel_error = m.rel_error;
    if (result.time_us > 0) {
        result.algorithm_gbps = static_cast<double>(m.bytes) / result.time_us * 1e-3;
        result.bus_gbps = result.algorithm_gbps * bus_factor(m.op, m.ranks);
    }
    result.speedup = result.time_us > 0 ? result.native_us / result.time_us : 0;
    // The slow link is what saves time; what nodes of several ranks pass around inside does not.
    result.between_nodes_bytes = m.counted ? m.between_nodes_bytes : 0;
    result.native_between_nodes_bytes = m.counted ? m.native_between_nodes_bytes : 0;
    const bool crosses = result.between_nodes_bytes > 0 && result.native_between_nodes_bytes > 0;
    const double byte_ratio = crosses
                                  ? result.native_between_nodes_bytes / result.between_nodes_bytes
                              : result.wire_bytes > 0 ? result.native_wire_bytes / result.wire_bytes
                                                      : 0;
    result.efficiency = byte_ratio > 0 ? result.speedup / byte_ratio : 0;

    const bool native = m.codec == "native";
    if (!native && (m.reported_codec.empty() || m.reported_codec == "native")) {
        result.codec = m.codec;
        result.failed = m.reported_codec.empty() ? "slimwire's report does not have the call"
                                                 : fmt::format("not compressed: {}", m.reason);
    } else if (!native && m.nodes != 0 && m.reported_nodes != m.nodes) {
        result.failed =
            fmt::format("the ranks stand on {} nodes, not {}", m.reported_nodes, m.nodes);
    } else if (!std::isfinite(m.rel_error)) {
        result.failed = "the result is not finite";
    } else if (!m.identical) {
        result.failed = "the ranks' results differ";
    } else if (!native && m.counted && m.reported_wire_bytes != m.wire_bytes) {
        result.failed =
            fmt::format("slimwire reports {:.0f} bytes a call, the transport counted {:.0f}",
                        m.reported_wire_bytes, m.wire_bytes);
    } else if (m.ideal_us > 0 && result.native_us > kMaxNativeOverIdeal * m.ideal_us) {
        result.failed = fmt::format("native time is {:.3f} of its ideal, limit {:g}",
                                    result.native_us / m.ideal_us, kMaxNativeOverIdeal);
    } else if (!native && result.efficiency > kMaxEfficiency) {
        result.failed =
            fmt::format("efficiency {:.3f} is above {:g}", result.efficiency, kMaxEfficiency);
    }
    return result;
}

}  // namespace slimwire::cli
