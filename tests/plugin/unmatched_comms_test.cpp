// Communicators that no rule can match: by their number of ranks they do not even meet, by their
// name they make no private communicator and reserve nothing. One process, two emulated devices.
#include <map>
#include <nlohmann/json.hpp>

#include "tests/plugin/several_devices.h"

namespace {

class UnmatchedComms : public slimwire::test::TwoDevices {
  protected:
    static void SetUpTestSuite() {
        by_ranks_ = std::getenv("TEST_BY_RANKS") != nullptr;
        write_policy(
            by_ranks_ ? "version = 1\n"
                        "[[rule]]\nname = \"many\"\ncodec = \"int8\"\nmatch = { ranks = \"3..\" }\n"
                      : "version = 1\n"
                        "[[rule]]\nname = \"kept\"\ncodec = \"native\"\nmatch = { role = \"tp\" }\n"
                        "[[rule]]\nname = \"named\"\ncodec = \"int8\"\nmatch = { op = "
                        "\"allreduce\", role = "
                        "[\"dp\", \"tp\"] }\n");
        ask_for_report();
    }
    UnmatchedComms() : TwoDevices(4096) {}

    // The bytes of the first device that a part with this name takes, which is then gone; less than
    // nothing where those of an earlier meeting went back.
    int64_t bytes_of_part(const char* name) {
        ncclComm_t parts[kRanks] = {};
        ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
        config.commName = name;
        const auto before = static_cast<int64_t>(free_bytes());
        group(
            [&](int rank) { return ncclCommSplit(comms_[rank], 0, rank, &parts[rank], &config); });
        const auto after = static_cast<int64_t>(free_bytes());
        for (ncclComm_t part : parts) {
            end(part);
        }
        return before - after;
    }
    static std::map<std::string, nlohmann::json> parts_by_name() {
        std::map<std::string, nlohmann::json> found;
        for (const nlohmann::json& record : report()) {
            if (record.at("record") == "comm") {
                found[record.value("name", "")] = record;
            }
        }
        return found;
    }
    static inline bool by_ranks_ = false;
};

// By their name or their scope they find out first who they are, which is all.
TEST_F(UnmatchedComms, MakeNothingOfTheirOwn) {
    // Memory of the meeting goes back with the next use of the device's.
    const int64_t most = by_ranks_ ? 0 : 1024;
    EXPECT_LE(bytes_of_part("mesh_pp"), most);
    EXPECT_LE(bytes_of_part("mesh_tp"), most);
    EXPECT_EQ(bytes_of_part("mesh_dp") > most, !by_ranks_);
    const auto parts = parts_by_name();
    for (const char* name : {"mesh_pp", "mesh_tp", "mesh_dp"}) {
        const nlohmann::json& part = parts.at(name);
        const bool matched = !by_ranks_ && name == std::string("mesh_dp");
        EXPECT_EQ(part.at("private_connections").get<int>(), matched ? 2 : 0) << name;
        EXPECT_EQ(part.at("agreement"), "go");
        EXPECT_EQ(part.at("links").is_null(), by_ranks_) << "who they are";
    }
}

}  // namespace
