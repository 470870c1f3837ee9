// How the tests of the emulated NCCL start their programs: the path of a program built beside the
// test, and a job that runs it on the emulator.
#pragma once

#include <string>

#include "tests/support/ranks.h"

namespace slimwire::test {

// A job of `ranks` processes of the program nccl_<name>_program.
inline Job emulator_job(const std::string& name,
                        int ranks,
                        const std::vector<std::string>& arguments = {}) {
    Job job;
    std::string program = SLIMWIRE_TEST_PROGRAMS "/emulator_nccl_";
    program.append(name).append("_program");
    job.command = {program};
    job.command.insert(job.command.end(), arguments.begin(), arguments.end());
    job.ranks = ranks;
    job.library_path = {SLIMWIRE_TEST_EMULATOR};
    job.environment["NCCL_DEBUG"] = "WARN";
    return job;
}

}  // namespace slimwire::test
