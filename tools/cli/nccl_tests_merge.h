// The runs of one nccl-tests program beside each other: their rows by number of elements, with what
// slimwire's reports say of the calls behind them. Pure; used by bench_nccl_tests.cpp.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tools/cli/nccl_tests_command.h"
#include "tools/cli/nccl_tests_table.h"
#include "tools/cli/report_merge.h"

namespace slimwire::cli {

// What the data check of a run must give: 0 wrong, or nothing because it is off.
enum class NcclTestsCheck : uint8_t { kExact, kOff };

struct NcclTestsRun {
    std::string codec;  // "native", "native 16 bit", or a specification
    bool compressed = false;
    bool lossless = false;
    bool half = false;  // half the bytes, bf16
    std::vector<std::string> arguments;
    NcclTestsCheck check = NcclTestsCheck::kExact;
    // Filled by running.
    std::string failed;
    NcclTestsTable table;
    MergedReport report;
};

// What slimwire's report says of the calls behind a row: of one measurement and rank.
struct NcclTestsWire {
    std::string codec, algorithm, reason;
    double bytes = 0, native_bytes = 0;
};

// A row of one run, beside the native one of as many elements.
struct MergedNcclTestsRow {
    const NcclTestsRun* run = nullptr;
    const NcclTestsRow* row = nullptr;
    NcclTestsWire wire;
    double speedup = 0, efficiency = 0;  // 0: nothing to compare with
};

// Native rows in their order, each with those of the other runs that have as many elements; then
// what has no native row.
[[nodiscard]] std::vector<MergedNcclTestsRow> merge_runs(const NcclTestsProgram& program,
                                                         const std::vector<NcclTestsRun>& runs);

}  // namespace slimwire::cli
