// `slimwire bench overhead`: what slimwire costs a call that it leaves alone.
#pragma once

#include <string>
#include <vector>

namespace slimwire::cli {

struct OverheadOptions {
    long calls = 1'000'000;
    double limit_ns = 0;  // above 0: fail when a case's p50 is more than this above the direct
                          // call's ("recorded" aside)
    bool json = false;
};

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
