// `slimwire bench overhead`: what slimwire costs a call that it leaves alone.
#pragma once

#include <string>
#include <vector>

#include "codecs/base/status.h"
#include "tools/cli/common/environment.h"

namespace slimwire::cli {

struct OverheadOptions {
    long calls = 1'000'000;
    double limit_ns = 0;  // above 0: fail when a case's p50 is more than this above the direct
                          // call's ("recorded" aside)
    bool json = false;
};

struct OverheadCase {
    std::string name;
    double p50_ns = 0, p99_ns = 0;
    unsigned long long allocations = 0;
    long calls = 0;
    double over_direct_ns = 0;  // p50 above the direct calls of the same process
};

// Runs the worker once per case over the stub NCCL: "direct", "declined" (a policy, a report, and
// no rule that matches), "inactive" (no policy), "recorded" (mode record, without samples of the
// data; a call that finds no room in the trace's ring drops its line).
Result<std::vector<OverheadCase>> measure_overhead(const Installation& installation, long calls);

int bench_overhead(const OverheadOptions& options);

// `slimwire bench nccl-tests`: a person's own nccl-tests program, natively and by a codec, its rows
// in one table. The program is not ours and stays as it is: slimwire gets in by preload, everything
// else by the program's own options.

struct NcclTestsOptions {
    std::string codec = "int8";
    int ranks = 0;      // emulated devices of the one process; 0: as it is started
    std::string nodes;  // "2x4"
    std::string link;
    double timeout_seconds = 3600;  // of one run
};

int bench_nccl_tests(const NcclTestsOptions& options, const std::vector<std::string>& words);

}  // namespace slimwire::cli
