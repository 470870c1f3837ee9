// `slimwire bench nccl-tests`: a person's own nccl-tests programs, natively, in 16 bit and once per
// codec, their tables in one. Started by bench_command.cpp; the programs are not ours and stay as
// they are: slimwire gets in by preload, everything else by their own options.
#pragma once

#include <string>
#include <vector>

#include "codecs/base/status.h"
#include "collectives/call.h"

namespace slimwire::cli {

struct NcclTestsOptions {
    std::string codecs = "int8";  // comma list, as for bench collective
    std::string fill;             // SLIMWIRE_BENCH_FILL; empty: the environment's
    int ranks = 0;                // emulated devices of the one process; 0: as it is started
    std::string nodes;            // "2x4"
    std::string link;
    double timeout_seconds = 3600;  // of one run
    bool no_16bit = false;
    bool json = false;
};

// What is known of a program by its file name.
struct NcclTestsProgram {
    const char* name;        // "all_reduce_perf"; a suffix as _mpi may follow
    const char* operations;  // for SLIMWIRE_OPS
    std::vector<Op> ops;     // by which slimwire's report may know its calls
};
// Null when `path` is no program of nccl-tests.
[[nodiscard]] const NcclTestsProgram* find_nccl_tests_program(const std::string& path);

// "mpirun -np 2 A_perf B_perf -b 1M": what starts the programs, the programs, their arguments.
struct NcclTestsCommand {
    std::vector<std::string> prefix, programs, arguments;
};
Result<NcclTestsCommand> split_nccl_tests_command(const std::vector<std::string>& words);

// The value that nccl-tests' option has in `arguments` ("-c 0", "-c0", "--check 0", "--check=0");
// the last one counts; empty when absent.
[[nodiscard]] std::string argument_value(const std::vector<std::string>& arguments,
                                         char letter,
                                         const std::string& name);
// `arguments` with that option given once, at the end.
[[nodiscard]] std::vector<std::string> with_argument(const std::vector<std::string>& arguments,
                                                     char letter,
                                                     const std::string& name,
                                                     const std::string& value);

int bench_nccl_tests(const NcclTestsOptions& options, const std::vector<std::string>& words);

}  // namespace slimwire::cli
