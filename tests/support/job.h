// The usual jobs of the whole-program tests: an NCCL program on the emulator, with or without
// slimwire before it, and the report files it leaves. Paths are those of this build.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/ranks.h"

namespace slimwire::test {

// A job on the emulator, natively.
Job emulated_job(std::vector<std::string> command, int ranks);
// The same with libslimwire.so preloaded; reports go to `report_folder` (not when empty).
Job slimwire_job(std::vector<std::string> command,
                 int ranks,
                 const std::string& report_folder = {});

// A drop-in folder as a user makes it: slimwire's libnccl.so.2 beside `real`, another one.
void make_dropin(const std::string& folder, const std::string& real);
// The job finds NCCL in `folder` first, and nothing is preloaded.
void put_dropin_before(Job* job, const std::string& folder);

// All records of the report files in a folder.
std::vector<nlohmann::json> read_reports(const std::string& folder);
// Sum of an integer member over the "key" records that `keep` selects.
template <class Keep>
uint64_t sum_keys(const std::vector<nlohmann::json>& records,
                  const char* member,
                  const Keep& keep) {
    uint64_t sum = 0;
    for (const nlohmann::json& record : records) {
        if (record.at("record") == "key" && keep(record)) {
            sum += record.at(member).get<uint64_t>();
        }
    }
    return sum;
}
inline bool compressed(const nlohmann::json& key) {
    return key.at("algorithm") != "native";
}
inline bool any_key(const nlohmann::json&) {
    return true;
}

// Of a case of a table, for INSTANTIATE_TEST_SUITE_P.
inline constexpr auto name_of = [](const auto& of) { return std::string(of.param.name); };

}  // namespace slimwire::test
