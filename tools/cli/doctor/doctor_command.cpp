// `slimwire doctor`: prints a Diagnosis (doctor.h) as text or as one JSON line.
#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <memory>
#include <nlohmann/json.hpp>

#include "tools/cli/common/commands.h"
#include "tools/cli/common/text.h"
#include "tools/cli/doctor/doctor.h"

namespace slimwire::cli {
namespace {

using Json = nlohmann::ordered_json;

std::string or_missing(const std::string& text) {
    return text.empty() ? "missing" : text;
}

void print_json(const Diagnosis& d) {
    Json json = json_record("doctor");
    json["version"] = kVersion;
    json["library"] = d.library;
    json["emulator"] = d.emulator;
    json["ucx_version"] = d.ucx_version;
    json["driver_version"] = d.driver_version;
    json["command"] = d.command;
    json["chain"] = d.chain;
    json["program"] = d.program;
    json["kind"] = d.kind;
    json["hook"] = verdict_name(d.verdict);
    json["hook_reason"] = d.hook_reason;
    json["binding"] = d.binding;
    json["hooks"] = Json::object();
    for (size_t i = 0; i < kHooks.size(); ++i) {
        json["hooks"][hook_name(kHooks[i])] = reach_name(d.reach[i]);
    }
    json["libraries"] = Json::array();
    for (const FoundLibrary& library : d.libraries) {
        json["libraries"].push_back({{"name", library.name},
                                     {"path", library.path},
                                     {"found_by", library.found_by},
                                     {"wanted_by", library.wanted_by},
                                     {"version", library.version}});
    }
    json["net"] = {
        {"library", d.net.library}, {"asked", d.net.asked},     {"path", d.net.path},
        {"tables", d.net.tables},   {"tuners", d.net.tuners},   {"table", d.net.table},
        {"started", d.net.started}, {"devices", d.net.devices}, {"variables", Json::array()}};
    for (const NetVariable& variable : d.net.variables) {
        json["net"]["variables"].push_back(
            {{"name", variable.name}, {"value", variable.value}, {"error", variable.error}});
    }
    json["findings"] = Json::array();
    for (const Finding& finding : d.findings) {
        json["findings"].push_back(
            {{"severity", severity_name(finding.severity)}, {"text", finding.text}});
    }
    json["advice"] = d.advice;
    json["ok"] = !d.has_error();
    fmt::print("{}\n", json_line(json));
}

void print_net(const NetDiagnosis& net) {
    std::string tables;
    if (!net.tables.empty()) {
        tables = fmt::format(" (tables v{} to v{}", net.tables.front(), net.tables.back());
        tables += net.tuners.empty() ? ")"
                                     : fmt::format("; of its tuner v{} to v{})", net.tuners.front(),
                                                   net.tuners.back());
    }
    fmt::print("net       {}{}\n", or_missing(net.library), tables);
    if (net.asked.empty()) {
        fmt::print("net       NCCL_NET_PLUGIN is not set: NCCL opens libnccl-net.so, which {}\n",
                   net.path.empty() ? "is not slimwire" : "is slimwire: " + net.path);
    } else {
        fmt::print("net       NCCL_NET_PLUGIN={} {}\n", net.asked,
                   net.path.empty() ? "leads to no slimwire" : "loads " + net.path);
    }
    if (net.table != 0) {
        fmt::print("net       this NCCL takes table v{}\n", net.table);
    }
    if (net.started) {
        fmt::print("net       starts; devices: {}\n", fmt::join(net.devices, ", "));
    }
    for (const NetVariable& variable : net.variables) {
        fmt::print("net       {}={} is {}\n", variable.name, variable.value,
                   variable.error.empty() ? "accepted" : "refused");
    }
}

void print_text(const Diagnosis& d) {
    fmt::print("slimwire  {} ({})\n", kVersion, kCommit);
    fmt::print("library   {}\n", or_missing(d.library));
    fmt::print("emulator  {}\n", or_missing(d.emulator));
    fmt::print("UCX       {}\n", or_missing(d.ucx_version));
    fmt::print("driver    {}\n", d.driver_version.empty() ? "missing" : "CUDA " + d.driver_version);
    if (!d.command.empty()) {
        fmt::print("command   {}\n", fmt::join(d.command, " "));
        for (const std::string& script : d.chain) {
            fmt::print("script    {}\n", script);
        }
        fmt::print("runs      {}{}\n", or_missing(d.program),
                   d.kind.empty() ? "" : fmt::format(" ({})", d.kind));
        if (!d.binding.empty()) {
            fmt::print("binds     {}\n", d.binding);
        }
        fmt::print("hook      {}{}{}\n", verdict_name(d.verdict), d.hook_reason.empty() ? "" : ": ",
                   d.hook_reason);
        std::string reach;
        for (size_t i = 0; i < kHooks.size(); ++i) {
            reach += fmt::format("{}--hook {}: {}", i == 0 ? "" : ", ", hook_name(kHooks[i]),
                                 reach_name(d.reach[i]));
        }
        fmt::print("reach     {}\n", reach);
    }
    for (const FoundLibrary& library : d.libraries) {
        fmt::print("loads     {} {}{}; by {}, for {}\n", library.name, or_missing(library.path),
                   library.version.empty() ? "" : fmt::format(" (version {})", library.version),
                   library.found_by.empty() ? "nothing" : library.found_by, library.wanted_by);
    }
    print_net(d.net);
    for (const Finding& finding : d.findings) {
        fmt::print("{:<9} {}\n", severity_name(finding.severity), finding.text);
    }
    fmt::print("\nhow to pass slimwire on\n");
    for (const std::string& line : d.advice) {
        fmt::print("  {}\n", line);
    }
}

}  // namespace

void add_doctor_command(CLI::App& app, Invocation* invocation) {
    auto json = std::make_shared<bool>(false);
    CLI::App* command = app.add_subcommand(
        "doctor",
        "which NCCL and CUDA a command would load, how slimwire reaches it, whether the net plugin "
        "would be taken, what is missing: "
        "slimwire doctor [--json] [-- CMD...]");
    command->add_flag("--json", *json, "one JSON line");
    command->footer("Exit code 1 when something keeps slimwire from working.");
    command->callback([=] {
        invocation->action = [=] {
            const Environment environment = Environment::current();
            Installation installation = find_installation();
            if (const std::string library = environment.text("SLIMWIRE_LIBRARY");
                !library.empty()) {
                installation.library = std::filesystem::absolute(library);
            }
            const Diagnosis diagnosis = diagnose(invocation->command, environment, installation);
            if (*json) {
                print_json(diagnosis);
            } else {
                print_text(diagnosis);
            }
            return diagnosis.has_error() ? kCheckFailed : kSuccess;
        };
    });
}

}  // namespace slimwire::cli
