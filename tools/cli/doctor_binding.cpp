// How a program binds NCCL, seen from its files, and which hooks reach it then. The table is that
// of plugin/README.md; the test plugin.hooks holds this against what really happens.
#include <fmt/core.h>

#include "tools/cli/doctor.h"

namespace slimwire::cli {
namespace {

FoundLibrary describe(const LoadedObject& object) {
    FoundLibrary found{.name = object.name,
                       .path = object.path.string(),
                       .found_by = object.found_by,
                       .wanted_by = object.requested_by,
                       .version = {}};
    if (!object.path.empty()) {
        found.version = object.name.rfind("libnccl", 0) == 0 ? nccl_version(object.path)
                                                             : cudart_version(object.path);
    }
    return found;
}

constexpr HookReach kNowhere = {Reach::kNo, Reach::kNo, Reach::kNo};
// Preload, drop-in, audit.
constexpr HookReach kOpened = {Reach::kNo, Reach::kByName, Reach::kYes};

HookReach linked(const LoadedObject& nccl) {
    // The drop-in's folder stands on LD_LIBRARY_PATH: behind RPATH, before all else.
    const bool before = nccl.found_by.rfind("rpath", 0) == 0 || nccl.found_by == "path" ||
                        nccl.found_by == "LD_PRELOAD";
    return {Reach::kYes, before ? Reach::kNo : Reach::kYes, Reach::kYes};
}

void examine_static_nccl(const ElfFile& container, Diagnosis* diagnosis) {
    const std::string path = container.path.string();
    diagnosis->binding = fmt::format("{} has NCCL linked in statically", path);
    diagnosis->reach = kNowhere;
    if (container.exports_nccl && !container.symbolic) {
        diagnosis->verdict = Verdict::kPreload;
        diagnosis->reach[0] = Reach::kUnknown;
        diagnosis->hook_reason = fmt::format(
            "{} holds NCCL itself and exports it: LD_PRELOAD comes before it as far as its own "
            "calls go through the dynamic symbol table",
            path);
        diagnosis->add(Severity::kWarning,
                       fmt::format("{} has NCCL linked in statically: check a report for calls; if "
                                   "there are none, use a build with libnccl.so.2",
                                   path));
        return;
    }
    diagnosis->verdict = Verdict::kUnreachable;
    diagnosis->hook_reason = diagnosis->binding;
    diagnosis->add(Severity::kError,
                   fmt::format("{} has NCCL linked in statically: no preload reaches it; link "
                               "against libnccl.so.2",
                               path));
}

}  // namespace

void set_opened(const std::string& opener, Diagnosis* diagnosis) {
    diagnosis->binding = fmt::format("{} opens libnccl.so.2 at run time", opener);
    diagnosis->verdict = Verdict::kAudit;
    diagnosis->reach = kOpened;
    diagnosis->hook_reason = fmt::format(
        "{} names libnccl.so and does not need it: it is opened at run time, where LD_PRELOAD "
        "alone "
        "does not reach: use --hook audit, or --hook dropin if it is opened by that name",
        opener);
}

void examine_plan(const LoadPlan& plan, const Environment& environment, Diagnosis* diagnosis) {
    const LoadedObject* nccl = nullptr;
    const ElfFile* opener = plan.program.names_nccl_library ? &plan.program : nullptr;
    const ElfFile* container = plan.program.contains_nccl ? &plan.program : nullptr;
    for (const LoadedObject& object : plan.objects) {
        const bool is_nccl = object.name.rfind("libnccl.so", 0) == 0;
        const bool is_cudart = object.name.rfind("libcudart.so", 0) == 0;
        if (is_nccl || is_cudart) {
            diagnosis->libraries.push_back(describe(object));
        }
        if (is_nccl) {
            nccl = &object;
        } else if (!object.path.empty() && object.found_by != "LD_PRELOAD") {
            opener = opener == nullptr && object.elf.names_nccl_library ? &object.elf : opener;
            container = container == nullptr && object.elf.contains_nccl ? &object.elf : container;
        }
        if (object.path.empty()) {
            diagnosis->add(
                Severity::kError,
                fmt::format("{} needs {}, which is not found{}{}", object.requested_by, object.name,
                            object.found_by.empty() ? "; set LD_LIBRARY_PATH to its folder" : ": ",
                            object.found_by));
        }
    }
    if (container != nullptr) {
        examine_static_nccl(*container, diagnosis);
        return;
    }
    if (nccl != nullptr) {
        diagnosis->verdict = Verdict::kPreload;
        diagnosis->binding = fmt::format("{} needs {}, found by {}", nccl->requested_by, nccl->name,
                                         nccl->found_by.empty() ? "nothing" : nccl->found_by);
        diagnosis->reach = linked(*nccl);
        diagnosis->hook_reason =
            fmt::format("{} needs {}: LD_PRELOAD comes before it", nccl->requested_by, nccl->name);
        if (nccl->found_by.rfind("rpath", 0) == 0) {
            diagnosis->add(Severity::kNote,
                           fmt::format("found by {}: LD_LIBRARY_PATH does not replace "
                                       "it, so --hook dropin would be ignored",
                                       nccl->found_by));
        }
        return;
    }
    if (opener != nullptr) {
        set_opened(opener->path.string(), diagnosis);
        LoadedObject opened = plan_dlopen(plan, "libnccl.so.2", environment);
        opened.requested_by = opener->path.string();
        diagnosis->libraries.push_back(describe(opened));
        if (opened.path.empty()) {
            diagnosis->add(Severity::kWarning,
                           "libnccl.so.2 is not found by that name; set "
                           "LD_LIBRARY_PATH to its folder");
        }
        return;
    }
    diagnosis->verdict = Verdict::kNoNccl;
    diagnosis->hook_reason =
        "neither the program nor a library it needs uses NCCL; what it opens at "
        "run time or starts cannot be seen from here";
}

}  // namespace slimwire::cli
