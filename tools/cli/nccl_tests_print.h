// What `bench nccl-tests` prints of the merged runs: a table for people, or one JSON line a row and
// one a run (collectives/SCHEMA.md), on stdout. Used by bench_nccl_tests.cpp.
#pragma once

#include <string>
#include <vector>

#include "tools/cli/nccl_tests_merge.h"

namespace slimwire::cli {

// What the runs have in common.
struct NcclTestsAbout {
    std::string link;   // of emulated ranks
    std::string dtype;  // nccl-tests' word
};

void print_nccl_tests_json(const NcclTestsProgram& program,
                           const NcclTestsAbout& about,
                           const MergedNcclTestsRow& merged);
void print_nccl_tests_table(const NcclTestsProgram& program,
                            const std::vector<MergedNcclTestsRow>& rows);
// The line of a whole run: average, what its data check must give, and why it failed.
void print_nccl_tests_run(const NcclTestsProgram& program,
                          const NcclTestsAbout& about,
                          const NcclTestsRun& run,
                          bool json);

}  // namespace slimwire::cli
