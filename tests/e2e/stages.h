// Pipelines of stages and exchanges of several ranks, and what became of their calls
// (programs/pipeline.cpp, programs/exchanges.cpp).
#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <vector>

#include "collectives/identity/message_pairing.h"
#include "tests/support/job.h"

namespace slimwire::test {

inline constexpr uint64_t kFirst = MessagePairing::kUndirected;

struct PipelineOutcome {
    std::vector<Ended> ranks;
    std::vector<nlohmann::json> records;

    [[nodiscard]] uint64_t calls(const std::string& direction, const std::string& codec) const {
        return sum_keys(records, "calls", [&](const nlohmann::json& key) {
            return key.value("direction", "") == direction && key.at("codec") == codec;
        });
    }
};

inline PipelineOutcome run_stages(const std::string& policy,
                                  const std::vector<std::string>& arguments,
                                  int ranks = 3,
                                  const std::string& mode = "on",
                                  const std::string& fault = "",
                                  const std::string& program = SLIMWIRE_TEST_PIPELINE,
                                  const char* why_calls_wait = nullptr) {
    const TemporaryFolder folder, reports;
    std::ofstream(folder.file("policy.toml")) << "version = 1\n" << policy;
    std::vector<std::string> command = {program};
    command.insert(command.end(), arguments.begin(), arguments.end());
    Job job = slimwire_job(command, ranks, reports.path());
    job.environment["SLIMWIRE_POLICY"] = folder.file("policy.toml");
    job.environment["SLIMWIRE_MODE"] = mode;
    if (!fault.empty()) {
        job.of_rank[1]["SLIMWIRE_EMU_FAULT"] = fault;
    }
    if (why_calls_wait != nullptr) {
        let_calls_wait(&job, why_calls_wait);
    }
    PipelineOutcome out{run_ranks(job), {}};
    EXPECT_EQ(unless_all_exit(out.ranks), "");
    out.records = read_reports(reports.path());
    return out;
}

inline std::string masked(const std::string& codec, const std::string& more = "") {
    return "[[rule]]\nname = \"stages\"\nmatch = { op = [\"send\", \"recv\"] }\ncodec = \"" +
           codec + "\"\n" + more;
}

inline void expect_right(const PipelineOutcome& found, const std::vector<int>& right) {
    for (size_t rank = 0; rank < found.ranks.size(); ++rank) {
        EXPECT_EQ(found.ranks[rank].out, std::to_string(right[rank]) + "\n");
    }
    for (const nlohmann::json& record : found.records) {
        EXPECT_EQ(record.value("host_waits", 0u), 0u) << record.dump();
    }
}

inline uint64_t missed(const PipelineOutcome& found) {
    uint64_t sum = 0;
    for (const nlohmann::json& record : found.records) {
        sum += record.value("missed_masks", uint64_t{0});
    }
    return sum;
}

}  // namespace slimwire::test
