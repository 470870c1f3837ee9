// `slimwire topo`: this machine or a recorded one, as text or JSON.
#include <fmt/core.h>
#include <CLI/CLI.hpp>

#include <memory>
#include <nlohmann/json.hpp>

#include "collectives/policy/calibration_file.h"
#include "tools/cli/common/commands.h"
#include "tools/cli/common/exit_code.h"
#include "tools/cli/common/run_metadata.h"
#include "tools/cli/report/report_merge.h"
#include "tools/cli/topo/topo.h"
#include "topology/readers/discovery.h"

namespace slimwire::cli {
namespace {

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
        Result<Machine> machine = load_machine(options.xml);
        if (!machine.ok()) {
            return fail(kCheckFailed, machine.status());
        }
        found.machine = std::move(machine).value();
    }
    Topo topo(std::move(found.machine), std::move(found.log), options.nodes);
    if (!options.calibration.empty()) {
        uint64_t hash = 0;
        const Result<std::vector<Calibration>> read =
            load_named_calibrations(options.calibration, &hash);
        if (!read.ok()) {
            return fail(kCheckFailed, read.status());
        }
        if (topo.places.gpus.empty()) {
            return fail(kCheckFailed,
                        "--calibration: there are no GPUs here; accepted: with --xml of a machine "
                        "that has some");
        }
        topo.comms.push_back(calibrated_comm(topo.links, read.value()));
        if (topo.comms.back().thresholds.empty()) {
            note(
                fmt::format("{} has no calls of {} ranks on {} nodes; slimwire calibrate measures "
                            "them",
                            options.calibration, topo.links.shape.ranks, topo.links.shape.nodes));
        }
    }
    if (!options.reports.empty()) {
        const Result<MergedReport> merged = merge_reports(options.reports);
        if (!merged.ok()) {
            return fail(kCheckFailed, merged.status());
        }
        for (const std::string& text : merged.value().notes) {
            note(text);
        }
        for (TopoComm& comm : reported_comms(merged.value())) {
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
