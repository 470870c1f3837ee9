// What the tests of the report file share: a folder for it, its records, counters to fill it.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "collectives/call/launcher_names.h"
#include "collectives/observe/report.h"
#include "collectives/observe/stats.h"
#include "tests/support/ranks.h"

namespace slimwire {

using Json = nlohmann::json;

inline std::vector<Json> records_of(const std::string& path) {
    std::istringstream stream(test::read_file(path));
    std::vector<Json> records;
    for (std::string line; std::getline(stream, line);) {
        records.push_back(Json::parse(line));
    }
    return records;
}

// Sum of `member` over the key records.
inline uint64_t total(const std::string& path, const char* member) {
    uint64_t sum = 0;
    for (const Json& record : records_of(path)) {
        sum += record.at("record") == "key" ? record.at(member).get<uint64_t>() : 0;
    }
    return sum;
}

inline bool eventually(const std::function<bool()>& condition,
                       std::chrono::milliseconds limit = std::chrono::seconds(10)) {
    const auto end = std::chrono::steady_clock::now() + limit;
    while (!condition()) {
        if (std::chrono::steady_clock::now() > end) {
            return false;
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return true;
}

inline int thread_count() {
    const std::filesystem::directory_iterator tasks("/proc/self/task");
    return static_cast<int>(std::distance(begin(tasks), end(tasks)));
}

inline CallStats& add_key(CommStats& comm, const char* codec) {
    CallStats& key = comm.add_key();
    key.signature = {Op::kAllReduce, DType::kFloat32, RedOp::kSum, 0, 25};
    key.codec = codec;
    key.algorithm = "two_shot";
    key.rule = "env";
    key.reason = "rule env";
    key.input_bytes_per_call = 100;
    key.wire_bytes_per_call = 20;
    key.native_bytes_per_call = 150;
    comm.publish(key);
    return key;
}

// Of a rule with a codec, whose calls are native.
inline CallStats& add_native_key(CommStats& comm, const char* rule, bool waits = false) {
    CallStats& key = comm.add_key();
    key.signature = {Op::kAllReduce, DType::kFloat32, RedOp::kSum, 0, 25};
    key.codec = key.algorithm = "native";
    key.rule = rule;
    key.reason = "too small";
    key.remedy = "less";
    key.input_bytes_per_call = 100;
    comm.publish(key, waits);
    return key;
}

inline std::shared_ptr<CommStats> add_comm(Reporter& reporter, int rank = 0) {
    auto comm = reporter.add_comm();
    comm->update([&](CommStats& c) {
        c.comm = "00000000000000aa";
        c.rank = rank;
        c.ranks = 4;
        c.nodes = 1;
        c.agreement = "go";
    });
    return comm;
}

class ReporterTest : public testing::Test {
  protected:
    void SetUp() override {
        std::for_each(std::begin(kRankNames), std::end(kRankNames), ::unsetenv);
        std::for_each(std::begin(kSizeNames), std::end(kSizeNames), ::unsetenv);
    }
    std::vector<std::string> files() const {
        std::vector<std::string> names;
        for (const auto& entry : std::filesystem::directory_iterator(directory_)) {
            if (const std::string name = entry.path().filename(); name.front() != '.') {
                names.push_back(name);
            }
        }
        return names;
    }
    const test::TemporaryFolder folder_;
    const std::string directory_ = folder_.path(), path_ = folder_.file("r0.jsonl");
};

}  // namespace slimwire
