// Jobs of programs/wire_bytes.cpp: what the emulator's transport counted beside what slimwire says.
#pragma once

#include <gtest/gtest.h>

#include <cinttypes>
#include <cstdio>
#include <sstream>
#include <string>
#include <vector>

#include "tests/support/job.h"

namespace slimwire::test {

struct SentBytes {
    uint64_t counted = 0, between_nodes = 0;  // by the transport
    uint64_t reported = 0, compressed_reported = 0;
    uint64_t compressed_calls = 0;
};

// Of a rank, for each operation.
inline std::vector<SentBytes> parse_sent(const std::string& output) {
    std::vector<SentBytes> lines;
    std::istringstream stream(output);
    for (std::string line; std::getline(stream, line);) {
        SentBytes of;
        if (std::sscanf(line.c_str(), "sent %" SCNu64 " inter %" SCNu64, &of.counted,
                        &of.between_nodes) == 2) {
            lines.push_back(of);
        }
    }
    return lines;
}

// Of each rank of a job with one operation, which `arguments` begin with.
inline std::vector<SentBytes> run_wire_job(int ranks,
                                           const Environment& environment,
                                           std::vector<std::string> arguments) {
    const TemporaryFolder reports;
    arguments.insert(arguments.begin(), SLIMWIRE_TEST_WIRE_BYTES);
    Job job = slimwire_job(std::move(arguments), ranks, reports.path());
    job.environment.insert(environment.begin(), environment.end());
    const auto ended = run_ranks(job);
    EXPECT_EQ(unless_all_exit(ended), "");
    const auto records = read_reports(reports.path());
    std::vector<SentBytes> sent;
    for (int rank = 0; rank < ranks; ++rank) {
        std::vector<SentBytes> lines = parse_sent(ended[static_cast<size_t>(rank)].out);
        EXPECT_EQ(lines.size(), 1u);
        lines.resize(1);
        SentBytes& of = sent.emplace_back(lines[0]);
        const auto own = [&](const auto& key) { return key.at("rank") == rank; };
        const auto coded = [&](const auto& key) { return own(key) && compressed(key); };
        of.reported = sum_keys(records, "wire_bytes", own);
        of.compressed_reported = sum_keys(records, "wire_bytes", coded);
        of.compressed_calls = sum_keys(records, "calls", coded);
    }
    return sent;
}

}  // namespace slimwire::test
