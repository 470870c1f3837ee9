// Jobs under the modes that only observe, for the tests of both (programs/observed.cpp).
#pragma once

#include <gtest/gtest.h>

#include <filesystem>

#include "tests/support/job.h"

namespace slimwire::test {

// Its trace is in FOLDER/trace.RANK, its reports in FOLDER/MODE.
inline Job traced_job(std::vector<std::string> command,
                      int ranks,
                      const std::string& mode,
                      const std::string& folder,
                      const Environment& environment) {
    std::filesystem::create_directory(folder + "/" + mode);
    Job job = slimwire_job(std::move(command), ranks, folder + "/" + mode);
    job.environment["SLIMWIRE_MODE"] = mode;
    job.environment["SLIMWIRE_TRACE"] = folder + "/trace.%r";
    job.environment["runtime.trace_sample"] = "1";
    if (environment.contains("SLIMWIRE_CODEC")) {
        job.environment["SLIMWIRE_MIN_BYTES"] = "0";
        job.environment["SLIMWIRE_OPS"] = "all";
    }
    for (const auto& [name, value] : environment) {
        job.environment[name] = value;
    }
    return job;
}

inline std::string outputs_of(const Job& job, std::string* errors = nullptr) {
    const auto ranks = run_ranks(job);
    EXPECT_EQ(unless_all_exit(ranks), "");
    std::string all;
    for (const Ended& rank : ranks) {
        all += rank.out + "--\n";
        if (errors != nullptr) {
            *errors += rank.err;
        }
    }
    return all;
}

inline Job observed_job(const std::string& mode,
                        const std::string& folder,
                        const Environment& environment = {}) {
    return traced_job({SLIMWIRE_TEST_OBSERVED}, 2, mode, folder, environment);
}

// Of that job without slimwire.
inline const std::string& native_outputs() {
    static const std::string outputs = outputs_of(emulated_job({SLIMWIRE_TEST_OBSERVED}, 2));
    return outputs;
}

}  // namespace slimwire::test
