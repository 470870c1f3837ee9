#include "tools/cli/topo/topo_comms.h"

#include <fmt/core.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "collectives/plan/comm_costs.h"
#include "collectives/policy/names.h"
#include "tools/cli/common/byte_text.h"
#include "tools/cli/topo/topo.h"

namespace slimwire::cli {
namespace {

using Json = nlohmann::ordered_json;

std::string link_text(const RankLink& link) {
    if (link.path_class == PathClass::kNone) {
        return "none";
    }
    return fmt::format("{}{}", path_class_name(link.path_class),
                       link.mb_s == 0 ? ", bandwidth not known"
                                      : fmt::format(" {} GB/s", gb_s_text(link.mb_s / 1000.0)));
}

}  // namespace

std::string links_sentence(const CommLinks& links, bool known) {
    return fmt::format("{} on {}; {}{}; slowest link in a node: {}, between nodes: {}",
                       counted(static_cast<size_t>(links.shape.ranks), "rank", "ranks"),
                       counted(static_cast<size_t>(links.shape.nodes), "node", "nodes"),
                       counted(static_cast<size_t>(links.rails), "rail", "rails"),
                       links.rails == 0      ? ""
                       : links.rails_aligned ? ", alike on every node"
                                             : ", not alike on every node",
                       known
                           ? link_text(links.slowest_in_node)
                           : "not known (without NVLinks " + link_text(links.slowest_in_node) + ")",
                       link_text(links.slowest_between_nodes));
}

TopoComm calibrated_comm(const CommLinks& links, const std::vector<Calibration>& calibrations) {
    TopoComm comm{"all GPUs", links_sentence(links), {}};
    const std::shared_ptr<const CommCosts> costs =
        CommCosts::make(std::make_shared<const std::vector<Calibration>>(calibrations),
                        links.shape.ranks, links.shape.nodes, links.slowest().mb_s);
    if (costs != nullptr) {
        comm.thresholds = costs->thresholds();
    }
    return comm;
}

std::vector<TopoComm> reported_comms(const MergedReport& report) {
    std::vector<TopoComm> all;
    for (const MergedComm& merged : report.comms) {
        if (merged.links.shape.nodes > 0) {
            all.push_back({merged.comm, links_sentence(merged.links), merged.thresholds});
        }
    }
    return all;
}

std::vector<std::string> comm_lines(const TopoComm& comm) {
    std::vector<std::string> lines;
    for (const CostThreshold& one : comm.thresholds) {
        lines.push_back(fmt::format(
            "{} of {} by {}, {}: {}", op_name(one.op), dtype_name(one.dtype), one.codec,
            one.algorithm,
            one.pays_from_bytes
                ? "pays from " + format_bytes(static_cast<double>(*one.pays_from_bytes)) + " on"
                : std::string("pays at no size that was measured")));
    }
    return lines;
}

Json comm_json(const TopoComm& comm) {
    Json json{{"comm", comm.name}, {"links", comm.links}, {"thresholds", Json::array()}};
    for (const CostThreshold& one : comm.thresholds) {
        json["thresholds"].push_back(
            {{"op", op_name(one.op)},
             {"dtype", dtype_name(one.dtype)},
             {"codec", one.codec},
             {"algorithm", one.algorithm},
             {"pays_from_bytes", one.pays_from_bytes ? Json(*one.pays_from_bytes) : Json()}});
    }
    return json;
}

}  // namespace slimwire::cli
