#include "tools/cli/topo/topo.h"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "collectives/plan/comm_costs.h"
#include "collectives/policy/calibration_file.h"
#include "collectives/policy/names.h"
#include "tools/cli/common/commands.h"
#include "tools/cli/common/files.h"
#include "tools/cli/common/text.h"
#include "tools/cli/report/report_merge.h"
#include "topology/machine/machine.h"
#include "topology/readers/discovery.h"
#include "topology/readers/machine_xml.h"

namespace slimwire::cli {
namespace {

using Json = nlohmann::ordered_json;

// "1 GPU", "2 GPUs"
std::string counted(size_t count, const char* one, const char* many) {
    return fmt::format("{} {}", count, count == 1 ? one : many);
}

// "12" of 12.0, "370.8".
std::string gb_s_text(double gb_s) {
    std::string text = fmt::format("{:.1f}", gb_s);
    return text.size() > 2 && text.compare(text.size() - 2, 2, ".0") == 0
               ? text.substr(0, text.size() - 2)
               : text;
}

std::string link_text(const RankLink& link) {
    if (link.path_class == PathClass::kNone) {
        return "none";
    }
    return fmt::format("{}{}", path_class_name(link.path_class),
                       link.path_class == PathClass::kLocal ? ", which is one GPU, no link"
                       : link.mb_s == 0                     ? ", bandwidth not known"
                                        : fmt::format(" {} GB/s", gb_s_text(link.mb_s / 1000.0)));
}

// "16 ranks on 2 nodes; 8 rails, alike on every node; slowest link in a node: NVL 370.8 GB/s, ..."
// `known`: whether the links in a node are.
std::string links_sentence(const CommLinks& links, bool known = true) {
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

// The ways from a GPU to all other GPUs, then to all NICs: (to, way).
std::vector<std::pair<int, Path>> ways_from(const Topo& topo, const GpuPlace& place) {
    std::vector<std::pair<int, Path>> ways;
    for (const GpuPlace& other : topo.places.gpus) {
        if (other.gpu != place.gpu) {
            ways.emplace_back(other.gpu, gpu_path(topo.paths, place, other));
        }
    }
    for (const int nic : topo.machine.nics()) {
        ways.emplace_back(nic, topo.paths.between(place.gpu, nic));
    }
    return ways;
}

std::string rail_text(const Topo& topo, const GpuPlace& place) {
    if (place.nics.empty()) {
        return "no NIC";
    }
    std::string names;
    for (const int nic : place.nics) {
        names += (names.empty() ? "" : "+") + topo.machine.label(nic).substr(4);
    }
    return fmt::format("rail {} ({}, {}, {} GB/s{})", place.rail, names,
                       path_class_name(place.nic_class), gb_s_text(place.net_gb_s),
                       place.net_known ? "" : " at most: its wire is not known");
}

void add_tree(const Topo& topo,
              int index,
              const std::string& first,
              const std::string& rest,
              std::string* text) {
    const std::string signature = topo.signature(index);
    *text += fmt::format("{}{}{}{}\n", first, topo.machine.label(index),
                         signature.empty() ? "" : "  ", signature);
    const std::vector<int> children = topo.children(index);
    for (size_t i = 0; i < children.size(); ++i) {
        const bool last = i + 1 == children.size();
        add_tree(topo, children[i], rest + (last ? "└─ " : "├─ "), rest + (last ? "   " : "│  "),
                 text);
    }
}

std::string way_text(const Path& way) {
    const bool plain = way.path_class == PathClass::kLocal || way.path_class == PathClass::kNone;
    const char* const name = path_class_name(way.path_class);
    return plain ? name : fmt::format("{} {}", name, gb_s_text(way.gb_s));
}

// A row for each GPU, a column for each GPU and NIC.
void add_ways(const Topo& topo, std::string* text) {
    std::vector<int> columns;
    for (const GpuPlace& place : topo.places.gpus) {
        columns.push_back(place.gpu);
    }
    const std::vector<int> nics = topo.machine.nics();
    columns.insert(columns.end(), nics.begin(), nics.end());
    size_t width = 9;
    for (const int column : columns) {
        width = std::max(width, topo.machine.label(column).size());
    }
    *text += fmt::format("\nways, class and GB/s\n{:<{}}", "", width);
    for (const int column : columns) {
        *text += fmt::format("  {:>{}}", topo.machine.label(column), width);
    }
    *text += "\n";
    for (const GpuPlace& row : topo.places.gpus) {
        std::map<int, std::string> cells = {{row.gpu, "-"}};
        for (const auto& [to, way] : ways_from(topo, row)) {
            cells[to] = way_text(way);
        }
        *text += fmt::format("{:<{}}", topo.machine.label(row.gpu), width);
        for (const int column : columns) {
            *text += fmt::format("  {:>{}}", cells[column], width);
        }
        *text += "\n";
    }
}

Json device_json(const Topo& topo, int index) {
    const Device& d = topo.device(index);
    Json device{{"device", index},
                {"kind", device_kind_name(d.kind)},
                {"label", topo.machine.label(index)},
                {"parent", d.parent},
                {"host", d.host},
                {"number", d.number},
                {"bus_id", d.bus_id},
                {"name", d.name},
                {"vendor", d.vendor}};
    if (d.parent >= 0) {
        device["pcie_gt_s"] = d.pcie_gt_s;
        device["pcie_width"] = d.pcie_width;
        device["up_gb_s"] = d.up_gb_s;
        device["up_assumed"] = d.up_assumed;
    }
    if (d.kind == DeviceKind::kGpu) {
        device["compute_capability"] = d.compute_capability;
        device["gcn"] = d.gcn;
        device["rank"] = d.rank;
    }
    if (d.kind == DeviceKind::kNic) {
        device["ports"] = Json::array();
        for (const NetPort& port : d.ports) {
            device["ports"].push_back({{"name", port.name},
                                       {"port", port.port},
                                       {"gbit_s", port.gbit_s},
                                       {"rdma", port.rdma}});
        }
    }
    return device;
}

Json gpu_json(const GpuPlace& place) {
    return {{"device", place.gpu},        {"cpu", place.cpu},
            {"switch", place.pci_switch}, {"nv_domain", place.nv_domain},
            {"nv_gb_s", place.nv_gb_s},   {"rail", place.rail},
            {"nics", place.nics},         {"nic_class", path_class_name(place.nic_class)},
            {"net_gb_s", place.net_gb_s}, {"net_known", place.net_known}};
}

Json communicator_json(const CommLinks& links) {
    const auto slow = [](const RankLink& link) {
        return Json{{"class", path_class_name(link.path_class)},
                    {"gb_s", link.mb_s / 1000.0},
                    {"same_rail", link.same_rail}};
    };
    return {{"ranks", links.shape.ranks},
            {"nodes", links.shape.nodes},
            {"ranks_on_node", links.ranks_on_node},
            {"rails", links.rails},
            {"rails_aligned", links.rails_aligned},
            {"nv_domains", links.nv_domains},
            {"slowest_in_node", slow(links.slowest_in_node)},
            {"slowest_between_nodes", slow(links.slowest_between_nodes)}};
}

// Of the table of ways; what ranks say of themselves has no pairs. kNone: no node has two GPUs.
RankLink slowest_way(const Topo& topo) {
    Path slowest;
    for (const GpuPlace& a : topo.places.gpus) {
        for (const GpuPlace& b : topo.places.gpus) {
            const bool pair = a.gpu < b.gpu && topo.device(a.gpu).host == topo.device(b.gpu).host;
            const Path way = pair ? gpu_path(topo.paths, a, b) : Path();
            const bool first = slowest.path_class == PathClass::kNone;
            if (way.path_class != PathClass::kNone &&
                (first || way.gb_s < slowest.gb_s ||
                 (way.gb_s == slowest.gb_s && way.path_class > slowest.path_class))) {
                slowest = way;
            }
        }
    }
    return {slowest.path_class, static_cast<uint32_t>(slowest.gb_s * 1000 + 0.5), false};
}

}  // namespace

Topo::Topo(Machine read, std::vector<std::string> read_log, int node_count)
    : machine(std::move(read)),
      paths(machine),
      places(find_places(machine, paths)),
      log(std::move(read_log)),
      nodes(node_count) {
    std::vector<RankPlace> ranks;
    for (int node = 0; node < nodes; ++node) {
        for (size_t i = 0; i < places.gpus.size(); ++i) {
            const int host = device(places.gpus[i].gpu).host;
            // Hosts of one file and repetitions of the file are nodes.
            const auto id = static_cast<uint64_t>(node) * machine.hosts.size() +
                            static_cast<uint64_t>(host) + 1;
            RankPlace place = rank_place(machine, places, i, id);
            if (machine.hosts.size() > 1 && places.gpus[i].nv_domain >= 0) {
                place.nv_domain_id = static_cast<uint64_t>(node) * places.gpus.size() +
                                     static_cast<uint64_t>(places.gpus[i].nv_domain) + 1;
            }
            ranks.push_back(place);
        }
    }
    if (!ranks.empty()) {
        links = make_comm_links(ranks).value();
        links.slowest_in_node = slowest_way(*this);
    }
}

std::vector<int> Topo::children(int parent) const {
    std::vector<int> found;
    for (size_t i = 0; i < machine.devices.size(); ++i) {
        if (machine.devices[i].parent == parent &&
            (parent >= 0 || machine.devices[i].kind == DeviceKind::kCpu)) {
            found.push_back(static_cast<int>(i));
        }
    }
    return found;
}

std::string Topo::signature(int index) const {
    const Device& d = device(index);
    std::vector<std::string> parts;
    if (d.kind == DeviceKind::kCpu) {
        if (!d.vendor.empty() || !d.arch.empty()) {
            parts.push_back(d.vendor + (d.vendor.empty() || d.arch.empty() ? "" : " ") + d.arch);
        }
        if (machine.of_kind(DeviceKind::kCpu).size() > 1) {
            parts.push_back(
                fmt::format("{} GB/s to other processors", gb_s_text(cpu_link_gb_s(d))));
        }
    } else if (d.up_gb_s < kLocalGbS) {
        parts.push_back(
            d.pcie_gt_s > 0 && d.pcie_width > 0
                ? fmt::format("{} GT/s x{}, {} GB/s", d.pcie_gt_s, d.pcie_width,
                              gb_s_text(d.up_gb_s))
                : fmt::format("{} GB/s{}", gb_s_text(d.up_gb_s), d.up_assumed ? " assumed" : ""));
    }
    const bool named_by_bus = d.kind == DeviceKind::kSwitch || d.kind == DeviceKind::kOther;
    if (!d.bus_id.empty() && !named_by_bus) {
        parts.push_back(d.bus_id);
    }
    if (!d.name.empty()) {
        parts.push_back(d.name);
    }
    if (d.compute_capability > 0 && d.gcn == 0) {
        parts.push_back(
            fmt::format("sm {}.{}", d.compute_capability / 10, d.compute_capability % 10));
    }
    if (d.gcn > 0) {
        parts.push_back(fmt::format("gfx {}", d.gcn));
    }
    if (d.kind == DeviceKind::kGpu) {
        for (const GpuPlace& place : places.gpus) {
            if (place.gpu == index) {
                if (place.nv_gb_s > 0) {
                    parts.push_back(
                        fmt::format("NVLink or xGMI {} GB/s", gb_s_text(place.nv_gb_s)));
                }
                parts.push_back(rail_text(*this, place));
            }
        }
    }
    for (const NetPort& port : d.ports) {
        parts.push_back(fmt::format(
            "{}{}", d.ports.size() > 1 ? port.name + " " : "",
            port.gbit_s > 0 ? gb_s_text(port.gbit_s) + " Gbit/s" : std::string("speed not known")));
    }
    return fmt::format("{}", fmt::join(parts, "; "));
}

std::string Topo::summary() const {
    std::string text = fmt::format(
        "{}, {}, {}, {}, {}", counted(places.gpus.size(), "GPU", "GPUs"),
        counted(machine.nics().size(), "NIC", "NICs"),
        counted(machine.of_kind(DeviceKind::kCpu).size(), "processor", "processors"),
        machine.gpu_links_told
            ? counted(static_cast<size_t>(places.nv_domains), "NVLink domain", "NVLink domains")
            : "NVLinks not known (NCCL finds them itself)",
        counted(static_cast<size_t>(places.rails), "rail", "rails"));
    return machine.hosts.size() > 1 ? text + fmt::format(", {} hosts", machine.hosts.size()) : text;
}

std::string Topo::communicator() const {
    if (places.gpus.empty()) {
        return {};
    }
    return links_sentence(links, machine.gpu_links_told);
}

Result<Machine> load_machine(const std::string& path) {
    std::error_code error;
    if (!std::filesystem::is_fifo(path, error)) {  // of a shell, as lstopo | slimwire topo
        SLIMWIRE_TRY(check_input(path));
    }
    std::ifstream file(path, std::ios::binary);
    if (!file) {
        return Status(Code::kNotFound, path + " cannot be read");
    }
    std::string text(kMaxXmlBytes + 1, '\0');
    file.read(text.data(), static_cast<std::streamsize>(text.size()));
    text.resize(static_cast<size_t>(file.gcount()));
    Result<Machine> machine = read_machine_xml(text);
    return machine.ok() ? std::move(machine) : invalid(path + ": " + machine.status().message());
}

namespace {

// Of `links`, by what was measured of communicators of its shape; without thresholds where nothing
// was.
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

// All of a job; those without links are left out.
std::vector<TopoComm> reported_comms(const MergedReport& report) {
    std::vector<TopoComm> all;
    for (const MergedComm& merged : report.comms) {
        if (merged.links.shape.nodes > 0) {
            all.push_back({merged.comm, links_sentence(merged.links), merged.thresholds});
        }
    }
    return all;
}

std::string topo_text(const Topo& topo) {
    std::string text = fmt::format("machine   {}: {}\n", topo.machine.source, topo.summary());
    if (!topo.communicator().empty()) {
        text += fmt::format("ranks     {}\n", topo.communicator());
    }
    for (const TopoComm& comm : topo.comms) {
        text += fmt::format("comm      {}{}{}\n", comm.name, comm.links.empty() ? "" : ": ",
                            comm.links);
        for (const std::string& line : comm_lines(comm)) {
            text += fmt::format("          {}\n", line);
        }
    }
    for (const std::string& line : topo.log) {
        text += fmt::format("log       {}\n", line);
    }
    for (const std::string& note : topo.machine.notes) {
        text += fmt::format("note      {}\n", note);
    }
    text += "\n";
    for (const int cpu : topo.children(-1)) {
        add_tree(topo, cpu, "", "", &text);
    }
    for (const DirectLink& link : topo.machine.links) {
        text += fmt::format("{} x{}  {} - {}  {} GB/s\n", link_kind_name(link.kind), link.count,
                            topo.machine.label(link.a), topo.machine.label(link.b),
                            gb_s_text(link.gb_s));
    }
    if (!topo.places.gpus.empty()) {
        add_ways(topo, &text);
    }
    return text;
}

Json topo_json(const Topo& topo) {
    Json json = json_record("topo");
    json["source"] = topo.machine.source;
    json["log"] = topo.log;
    json["notes"] = topo.machine.notes;
    json["comms"] = Json::array();
    for (const TopoComm& comm : topo.comms) {
        json["comms"].push_back(comm_json(comm));
    }
    json["hosts"] = topo.machine.hosts;
    json["devices"] = Json::array();
    for (size_t i = 0; i < topo.machine.devices.size(); ++i) {
        json["devices"].push_back(device_json(topo, static_cast<int>(i)));
    }
    json["gpu_links_known"] = topo.machine.gpu_links_told;
    json["links"] = Json::array();
    for (const DirectLink& link : topo.machine.links) {
        json["links"].push_back({{"kind", link_kind_name(link.kind)},
                                 {"from", link.a},
                                 {"to", link.b},
                                 {"count", link.count},
                                 {"gb_s", link.gb_s}});
    }
    json["gpus"] = Json::array();
    json["ways"] = Json::array();
    for (const GpuPlace& place : topo.places.gpus) {
        json["gpus"].push_back(gpu_json(place));
        for (const auto& [to, way] : ways_from(topo, place)) {
            json["ways"].push_back({{"from", place.gpu},
                                    {"to", to},
                                    {"class", path_class_name(way.path_class)},
                                    {"gb_s", way.gb_s}});
        }
    }
    if (!topo.places.gpus.empty()) {
        json["communicator"] = communicator_json(topo.links);
    }
    return json;
}

struct TopoOptions {
    std::string xml;
    std::string calibration;
    std::vector<std::string> reports;
    bool json = false;
    int nodes = 1;
};

int print_topo(const TopoOptions& options) {
    Discovery found;
    if (options.xml.empty()) {
        found = discover_machine();
    } else {
        SLIMWIRE_OR_FAIL_ASSIGN(kCheckFailed, found.machine, load_machine(options.xml));
    }
    Topo topo(std::move(found.machine), std::move(found.log), options.nodes);
    if (!options.calibration.empty()) {
        uint64_t hash = 0;
        SLIMWIRE_OR_FAIL_ASSIGN(kCheckFailed, const std::vector<Calibration> read,
                                load_named_calibrations(options.calibration, &hash));
        if (topo.places.gpus.empty()) {
            return fail(kCheckFailed,
                        "--calibration: there are no GPUs here; accepted: with --xml of a machine "
                        "that has some");
        }
        topo.comms.push_back(calibrated_comm(topo.links, read));
        if (topo.comms.back().thresholds.empty()) {
            note(
                fmt::format("{} has no calls of {} ranks on {} nodes; slimwire calibrate measures "
                            "them",
                            options.calibration, topo.links.shape.ranks, topo.links.shape.nodes));
        }
    }
    if (!options.reports.empty()) {
        SLIMWIRE_OR_FAIL_ASSIGN(kCheckFailed, const MergedReport merged,
                                merge_reports(options.reports));
        note_all(merged.notes);
        for (TopoComm& comm : reported_comms(merged)) {
            topo.comms.push_back(std::move(comm));
        }
    }
    fmt::print("{}", options.json ? json_line(topo_json(topo)) + "\n" : topo_text(topo));
    return kSuccess;
}

}  // namespace

void add_topo_command(CLI::App& app, Invocation* invocation) {
    auto options = std::make_shared<TopoOptions>();
    CLI::App* command =
        app.add_subcommand("topo",
                           "the machine as a tree: processors, PCIe switches, GPUs, NICs, NVLinks, "
                           "the way between any "
                           "two of them, and what a communicator over its GPUs has for links");
    command->add_option("--xml", options->xml,
                        "a recorded machine instead of this one: what NCCL_TOPO_DUMP_FILE writes, "
                        "or lstopo --of xml");
    command
        ->add_option("--nodes", options->nodes,
                     "of a communicator over all GPUs of that many such machines (1)")
        ->check(CLI::Range(1, 2048));
    command->add_option("--calibration", options->calibration,
                        "what slimwire calibrate --out wrote: from which size calls pay on that "
                        "communicator");
    command->add_option("--report", options->reports,
                        "report files of a job (SLIMWIRE_REPORT): its communicators, their links "
                        "and from which sizes calls pay there");
    command->add_flag("--json", options->json, "one JSON line");
    command->footer(
        "Bandwidths are those NCCL plans with, in GB/s (1e9 bytes) of one direction. Exit code 1 "
        "when the file cannot be read.");
    command->callback([=] { invocation->action = [=] { return print_topo(*options); }; });
}

}  // namespace slimwire::cli
