// The plugin's records in a report file, and its line in the summary.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "plugin/net/report/net_report.h"

namespace slimwire::net {
namespace {

using Json = nlohmann::json;

PeerTraffic peer(Direction direction, const std::string& host) {
    PeerTraffic made;
    made.key = {direction, host, "ucx tcp", "eth0"};
    made.totals = {.connections = 3,
                   .open = 2,
                   .messages = 40,
                   .bytes = 3000,
                   .wire_bytes = 2000,
                   .coded_messages = 30,
                   .coded_bytes = 2400,
                   .coded_wire_bytes = 1300,
                   .flagged_messages = 4,
                   .flagged_bytes = 200,
                   .timed_raw_bytes = 7,
                   .timed_raw_ns = 8500,
                   .timed_coded_bytes = 9,
                   .timed_coded_ns = 10'000};
    return made;
}

std::vector<Json> parsed(const std::string& text) {
    std::vector<Json> records;
    std::istringstream stream(text);
    for (std::string line; std::getline(stream, line);) {
        records.push_back(Json::parse(line));
    }
    return records;
}

NetFacts signature() {
    NetFacts made;
    made.settings.rate_bytes_per_s = 125e6;
    made.settings.latency_ns = 2500;
    made.devices = {"eth0", "bad\xff"};
    return made;
}

TEST(NetReport, settings_and_counters_are_in_the_records) {
    const auto records = parsed(net_lines(
        signature(), {peer(Direction::kSend, "10.0.0.2"), peer(Direction::kReceive, "h")}));
    ASSERT_EQ(records.size(), 3u);
    const Json& net = records[0];
    EXPECT_EQ(net.at("record"), "net");
    EXPECT_EQ(net.at("v"), 1);
    EXPECT_EQ(net.at("transport"), "ucx");
    EXPECT_EQ(net.at("codec"), "palette");
    EXPECT_EQ(net.at("devices")[0], "eth0");
    EXPECT_EQ(net.at("throttled"), true);
    EXPECT_EQ(net.at("rate_bytes_per_s"), 125e6);
    EXPECT_EQ(net.at("latency_us"), 2.5);
    const Json& sent = records[1];
    EXPECT_EQ(sent.at("record"), "net_peer");
    EXPECT_EQ(sent.at("direction"), "send");
    EXPECT_EQ(sent.at("peer"), "10.0.0.2");
    EXPECT_EQ(sent.at("wire"), "ucx tcp");
    EXPECT_EQ(sent.at("device"), "eth0");
    const std::map<std::string, double> numbers = {
        {"connections", 3},         {"open", 2},
        {"messages", 40},           {"bytes", 3000},
        {"wire_bytes", 2000},       {"coded_messages", 30},
        {"coded_bytes", 2400},      {"flagged_bytes", 200},
        {"coded_wire_bytes", 1300}, {"flagged_messages", 4},
        {"timed_raw_bytes", 7},     {"timed_raw_us", 8.5},
        {"timed_coded_bytes", 9},   {"timed_coded_us", 10}};
    for (const auto& [name, value] : numbers) {
        EXPECT_EQ(sent.at(name), value) << name;
    }
    EXPECT_EQ(records[2].at("direction"), "receive");
    NetFacts wrapped = signature();
    wrapped.settings = {};
    wrapped.settings.inner = "/x/libnccl-net-y.so";
    wrapped.settings.codec = false;
    const Json other = parsed(net_lines(wrapped, {}))[0];
    EXPECT_EQ(other.at("transport"), "chain");
    EXPECT_EQ(other.at("inner"), "/x/libnccl-net-y.so");
    EXPECT_EQ(other.at("codec"), "off");
    EXPECT_EQ(other.at("throttled"), false);
}

TEST(NetReport, schema_names_every_member) {
    const char* root = std::getenv("SOURCE_ROOT");
    ASSERT_NE(root, nullptr);
    std::ifstream file(std::string(root) + "/collectives/SCHEMA.md");
    std::ostringstream schema;
    schema << file.rdbuf();
    const std::string text = schema.str();
    const size_t begin = text.find("**`net`**");
    ASSERT_NE(begin, std::string::npos);
    const std::string part = text.substr(begin, text.find("\n## ", begin) - begin);
    for (const Json& record : parsed(net_lines(signature(), {peer(Direction::kSend, "h")}))) {
        for (const auto& [name, value] : record.items()) {
            EXPECT_TRUE(name == "v" || name == "record" ||
                        part.find("`" + name + "`") != std::string::npos)
                << name;
        }
    }
}

TEST(NetReport, summary_is_of_what_crossed_the_network) {
    EXPECT_EQ(net_summary({}), "");
    PeerTraffic silent = peer(Direction::kSend, "b");
    silent.totals = {.connections = 1, .open = 1};
    EXPECT_EQ(net_summary({silent}), "");
    EXPECT_EQ(net_summary({peer(Direction::kSend, "a"), silent}),
              "net: 40 messages of 2.93 KiB to and from 1 host as 1.95 KiB, 1.50x less; 80% of the "
              "bytes compressed");
    EXPECT_NE(net_summary({peer(Direction::kSend, "a"), peer(Direction::kReceive, "b")})
                  .find("80 messages of 5.86 KiB to and from 2 hosts"),
              std::string::npos);
}

}  // namespace
}  // namespace slimwire::net
