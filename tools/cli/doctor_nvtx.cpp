// What `slimwire doctor` says of NVTX ranges (doctor.h, examine_nvtx): nothing, where nobody asks
// for them and no variable speaks of them.
#include <fmt/core.h>

#include "collectives/open_ranges_abi.h"
#include "collectives/policy.h"
#include "tools/cli/doctor.h"
#include "tools/cli/elf_file.h"

namespace slimwire::cli {
namespace {

namespace fs = std::filesystem;

std::string value_of(const Environment& environment, const char* name) {
    const char* const value = environment.get(name);
    return value != nullptr ? value : "";
}

// Empty where the loader would take it.
std::string why_not_loaded(const fs::path& library) {
    const Result<ElfFile> elf = read_elf(library);
    if (!elf.ok()) {
        return elf.status().message();
    }
    return same_architecture(elf.value())
               ? std::string()
               : fmt::format("{} is for {}", library.string(),
                             architecture_name(elf.value().elf_class, elf.value().machine));
}

}  // namespace

void examine_nvtx(const fs::path& ours, const Environment& environment, Diagnosis* diagnosis) {
    const std::string listener = value_of(environment, "NVTX_INJECTION64_PATH");
    const std::string next = value_of(environment, "SLIMWIRE_NVTX_NEXT");
    const std::string policy = value_of(environment, "SLIMWIRE_POLICY");
    const bool listens = fs::path(listener).filename() == kOpenRangesLibrary;
    if (listens) {
        if (const std::string why = why_not_loaded(listener); !why.empty()) {
            diagnosis->add(Severity::kError,
                           fmt::format("NVTX_INJECTION64_PATH: {}: no range is heard", why));
        }
        if (const std::string why = next.empty() ? "" : why_not_loaded(next); !why.empty()) {
            diagnosis->add(Severity::kWarning, fmt::format("SLIMWIRE_NVTX_NEXT: {}: the profiler "
                                                           "hears of no range",
                                                           why));
        }
    } else if (!next.empty()) {
        diagnosis->add(Severity::kWarning,
                       fmt::format("SLIMWIRE_NVTX_NEXT is set, but NVTX_INJECTION64_PATH does not "
                                   "name {}: nothing reads it",
                                   kOpenRangesLibrary));
    }
    const Result<Policy> rules =
        policy.empty() ? Result<Policy>(Policy()) : load_policy_file(policy);
    if (rules.ok() && !rules.value().range_patterns().empty() && !listens) {
        diagnosis->add(
            Severity::kWarning,
            fmt::format("the policy has rules with 'range', and nothing hears of NVTX ranges: use "
                        "slimwire run, or set NVTX_INJECTION64_PATH={}{}",
                        ours.empty() ? kOpenRangesLibrary : ours.string(),
                        listener.empty() ? "" : " and SLIMWIRE_NVTX_NEXT=" + listener));
    }
}

}  // namespace slimwire::cli
