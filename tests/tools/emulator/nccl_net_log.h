// What the test plugin (tests/support/tcp_net_plugin.cpp) wrote when it was closed: one line a
// process.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "tests/tools/emulator/nccl_jobs.h"

namespace slimwire::test {

using NetLog = std::map<std::string, long>;

inline Job plugin_job(const std::string& program, int ranks, const std::string& log) {
    Job job = emulator_job(program, ranks);
    job.library_path.push_back(SLIMWIRE_TEST_PROGRAMS);
    job.environment["TEST_NET_LOG"] = log;
    job.environment["NCCL_DEBUG"] = "INFO";
    job.environment["NCCL_NET_PLUGIN"] = "testtcp";
    return job;
}

// Nothing may be left open.
inline std::vector<NetLog> read_net_log(const std::string& path) {
    std::istringstream lines(read_file(path));
    std::vector<NetLog> result;
    for (std::string line; std::getline(lines, line);) {
        std::istringstream words(line);
        NetLog log;
        std::string name;
        for (long value = 0; words >> name >> value;) {
            log[name] = value;
        }
        for (const char* left : {"registered", "open", "requests", "tuners_open"}) {
            EXPECT_EQ(log.at(left), 0) << left;
        }
        result.push_back(std::move(log));
    }
    return result;
}

inline long sum_of(const std::vector<NetLog>& logs, const std::string& name) {
    long total = 0;
    for (const NetLog& log : logs) {
        total += log.at(name);
    }
    return total;
}

}  // namespace slimwire::test
