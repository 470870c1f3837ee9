// `slimwire bench nccl-tests`: a person's own nccl-tests programs, natively, in 16 bit and once per
// codec, their tables in one. Started by bench_command.cpp; the programs are not ours and stay as
// they are: slimwire gets in by preload, everything else by their own options.
#pragma once

#include <string>
#include <vector>

namespace slimwire::cli {

struct NcclTestsOptions {
    std::string codecs = "int8";  // comma list, as for bench collective
    int ranks = 0;                // emulated devices of the one process; 0: as it is started
    std::string nodes;            // "2x4"
    std::string link;
    double timeout_seconds = 3600;  // of one run
    bool no_16bit = false;
    bool json = false;
};

int bench_nccl_tests(const NcclTestsOptions& options, const std::vector<std::string>& words);

}  // namespace slimwire::cli
