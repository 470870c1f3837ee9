// The command line behind `bench nccl-tests`: which of its words are programs of nccl-tests, what
// each of them tests, and their own options. Pure.
#pragma once

#include <string>
#include <vector>

#include "codecs/base/status.h"
#include "collectives/call.h"

namespace slimwire::cli {

// What is known of a program by its file name.
struct NcclTestsProgram {
    const char* name;        // "all_reduce_perf"; a suffix as _mpi may follow
    const char* operations;  // for SLIMWIRE_OPS
    std::vector<Op> ops;     // by which slimwire's report may know its calls
    // Its exchanges follow each other inside one group when one thread has several devices, so that
    // their results are wrong with any NCCL.
    bool thread_per_device = false;
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

}  // namespace slimwire::cli
