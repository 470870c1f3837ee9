// The net plugin's counters reach the report file of its process: through libslimwire.so where that
// is loaded and sees NCCL's calls, by the plugin itself where not.
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <set>

#include "tests/support/has.h"
#include "tests/support/job.h"

namespace slimwire::test {
namespace {

using Json = nlohmann::json;

struct Account {
    uint64_t sent = 0, received = 0;
};

// Two nodes of two ranks.
Job two_nodes(bool intercepted, const std::string& folder) {
    const std::vector<std::string> command = {SLIMWIRE_TEST_WIRE_BYTES, "allreduce", "100000",
                                              "1000000"};
    Job job = intercepted ? slimwire_job(command, 4, folder) : emulated_job(command, 4);
    job.environment["SLIMWIRE_REPORT"] = folder + "/report.%r.%p";
    job.environment["runtime.summary"] = "1";
    job.environment["SLIMWIRE_EMU_NODES"] = "2x2";
    job.environment["NCCL_NET_PLUGIN"] = SLIMWIRE_TEST_NET_PLUGIN;
    job.limit_s = 120;
    return job;
}

// One file a process, each with its own part.
void check_files(const std::string& folder, bool with_comms) {
    size_t files = 0;
    Account all;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
        SCOPED_TRACE(entry.path());
        ++files;
        std::map<std::string, int> records;
        std::set<std::string> directions;
        const std::string text = read_file(entry.path());
        for (size_t at = 0; at < text.size(); at = text.find('\n', at) + 1) {
            const Json record = Json::parse(text.substr(at, text.find('\n', at) - at));
            const std::string kind = record.at("record");
            ++records[kind];
            if (kind == "net") {
                EXPECT_EQ(record.at("transport"), "ucx");
                EXPECT_EQ(record.at("codec"), "palette");
            }
            if (kind == "net_peer") {
                const bool sends = record.at("direction") == "send";
                directions.insert(record.at("direction"));
                EXPECT_EQ(record.at("open"), 0);  // all closed at the end
                EXPECT_GT(record.at("connections"), 0);
                const uint64_t bytes = record.at("bytes"), wire = record.at("wire_bytes");
                EXPECT_LT(wire, bytes);  // zeros
                EXPECT_GT(record.at("coded_messages"), 0);
                (sends ? all.sent : all.received) += bytes;
            }
        }
        EXPECT_EQ(records["process"], 1);
        EXPECT_EQ(records["comm"], with_comms ? 1 : 0);
        EXPECT_EQ(records["net"], 1);
        // By the interception, which knows NCCL, or by the plugin.
        EXPECT_EQ(Json::parse(text.substr(0, text.find('\n'))).at("nccl_path") != "", with_comms);
        EXPECT_LE(directions.size(), 2u);
    }
    EXPECT_EQ(files, 4u);
    EXPECT_EQ(all.sent, all.received);
    EXPECT_GT(all.sent, 1'000'000u);
}

size_t lines_with(const std::string& text, const std::string& part) {
    size_t found = 0;
    for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) {
        ++found;
    }
    return found;
}

struct NetReportCase {
    const char* name;
    bool intercepted, dropin, compresses;
};

class NetReport : public testing::TestWithParam<NetReportCase> {};

// By the plugin alone; beside an interception that without a policy has nothing to do; and with the
// calls, also through the drop-in.
TEST_P(NetReport, one_file_of_each_process) {
    const TemporaryFolder folder, dropin;
    Job job = two_nodes(GetParam().intercepted, folder.path());
    if (GetParam().dropin) {
        make_dropin(dropin.path(), std::string(SLIMWIRE_TEST_EMULATOR) + "/libnccl.so.2");
        put_dropin_before(&job, dropin.path());
    }
    if (GetParam().compresses) {
        job.environment["SLIMWIRE_CODEC"] = "int8:block=64";
    }
    const auto ended = run_ranks(job);
    ASSERT_EQ(unless_all_exit(ended), "");
    check_files(folder.path(), GetParam().compresses);
    EXPECT_EQ(sum_keys(read_reports(folder.path()), "calls", compressed) > 0,
              GetParam().compresses);
    EXPECT_EQ(lines_with(ended[0].err, "slimwire: summary: net: "), 1u) << ended[0].err;
    for (size_t rank = 1; rank < ended.size(); ++rank) {
        EXPECT_HAS_NOT(ended[rank].err, "summary");
    }
}

constexpr NetReportCase kNetReports[] = {{"plugin_alone", false, false, false},
                                         {"nothing_to_do", true, false, false},
                                         {"preload", true, false, true},
                                         {"dropin", true, true, true}};
INSTANTIATE_TEST_SUITE_P(Hooks, NetReport, testing::ValuesIn(kNetReports), name_of);

}  // namespace
}  // namespace slimwire::test
