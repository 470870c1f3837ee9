// `slimwire report`: files of several ranks, whole, cut off, and of ranks that did not do the same.
#include <gtest/gtest.h>

#include <sys/stat.h>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/tools/cli_program.h"
#include "tools/cli/report/report_merge.h"

namespace slimwire::cli::test {
namespace {

using Json = nlohmann::json;

Json process(const std::string& hash = "00000000000000aa") {
    return {{"v", 1},   {"record", "process"}, {"host", "h"},
            {"pid", 1}, {"config_hash", hash}, {"nccl_version", "2.28.9"}};
}

Json comm(int rank, int ranks, const std::string& agreement = "go") {
    return {{"v", 1},          {"record", "comm"},       {"comm", "c0ffee"},
            {"rank", rank},    {"ranks", ranks},         {"nodes", ranks},
            {"device", 0},     {"agreement", agreement}, {"scratch_bytes", 1000},
            {"retired", true}, {"residual_bytes", 500},  {"communicators", 1}};
}

Json key(int rank, uint64_t calls, const std::string& codec = "int4", uint64_t count = 1024) {
    const uint64_t wire = codec == "native" ? 6144 : 800;
    return {{"v", 1},
            {"record", "key"},
            {"comm", "c0ffee"},
            {"rank", rank},
            {"op", "allreduce"},
            {"dtype", "f32"},
            {"redop", "sum"},
            {"count", count},
            {"root_or_peer", 0},
            {"rule", codec == "native" ? "" : "grads"},
            {"codec", codec},
            {"algorithm", codec == "native" ? "native" : "two_shot"},
            {"reason", codec == "native" ? "no rule matches" : ""},
            {"calls", calls},
            {"input_bytes", 4096 * calls},
            {"wire_bytes", wire * calls},
            {"native_wire_bytes", 6144 * calls},
            {"wire_is_estimate", codec == "native"},
            {"timed_calls", calls},
            {"time_us", 10.0 * static_cast<double>(calls)}};
}

Json net_peer(const std::string& direction, uint64_t bytes, const std::string& peer = "10.0.0.2") {
    const bool sends = direction == "send";
    return {{"v", 1},
            {"record", "net_peer"},
            {"direction", direction},
            {"peer", peer},
            {"wire", "ucx tcp"},
            {"device", "eth0"},
            {"connections", 2},
            {"open", 1},
            {"messages", 10},
            {"bytes", bytes},
            {"wire_bytes", bytes / 2},
            {"coded_messages", 8},
            {"coded_bytes", bytes * 3 / 4},
            {"coded_wire_bytes", bytes / 4},
            {"flagged_messages", sends ? 1 : 0},
            {"flagged_bytes", sends ? bytes / 10 : 0},
            {"timed_raw_bytes", sends ? 1000 : 0},
            {"timed_raw_us", sends ? 10.0 : 0.0},
            {"timed_coded_bytes", sends ? 2500 : 0},
            {"timed_coded_us", sends ? 10.0 : 0.0}};
}

std::string text_of(const std::vector<Json>& records) {
    std::string text;
    for (const Json& record : records) {
        text += record.dump() + "\n";
    }
    return text;
}

TEST(Report, AddsUpWhatCrossedTheNetworkByPeer) {
    const ScratchFolder folder;
    const Json net = {{"v", 1}, {"record", "net"}, {"transport", "ucx"}, {"throttled", true}};
    const std::string first =
        folder.write("r0", text_of({process(), net, net_peer("receive", 10'000),
                                    net_peer("send", 1000, "10.0.0.3"), net_peer("send", 20'000)}));
    const std::string second =
        folder.write("r1", text_of({process(), net, net_peer("send", 60'000)}));
    const Result<MergedReport> merged = merge_reports({first, second});
    ASSERT_TRUE(merged.ok()) << merged.status().message();
    const std::vector<MergedPeer>& peers = merged.value().peers;
    ASSERT_EQ(peers.size(), 3u);  // received, then sent, the larger first
    EXPECT_EQ(peers[0].direction, "receive");
    EXPECT_EQ(peers[1].peer, "10.0.0.2");
    EXPECT_EQ(peers[1].processes, 2u);
    EXPECT_EQ(peers[1].connections, 4u);
    EXPECT_EQ(peers[1].messages, 20u);
    EXPECT_EQ(peers[1].bytes, 80'000u);
    EXPECT_EQ(peers[1].wire_bytes, 40'000u);
    EXPECT_EQ(peers[1].coded_bytes, 60'000u);
    EXPECT_EQ(peers[1].coded_wire_bytes, 20'000u);
    EXPECT_EQ(peers[1].flagged_bytes, 8000u);
    EXPECT_EQ(peers[1].timed_coded_bytes, 5000u);
    EXPECT_DOUBLE_EQ(peers[1].timed_raw_us, 20);
    EXPECT_EQ(peers[2].peer, "10.0.0.3");
    EXPECT_TRUE(merged.value().throttled);

    const Ended table = run_slimwire({"report", first, second});
    EXPECT_EQ(table.exit_code, 0) << table.err;
    EXPECT_HAS(table.out, "network, slowed down");
    bool found = false;
    for (const std::string& line : lines_of(table.out)) {
        if (line.find("10.0.0.2") != std::string::npos && line.find("send") == 0) {
            found = true;
            EXPECT_HAS(line, " 2.00 ");
            EXPECT_HAS(line, " 75% ");
            EXPECT_HAS(line, " 10% ");
            EXPECT_HAS(line, " 100 ");
            EXPECT_HAS(line, " 250");
        }
    }
    EXPECT_TRUE(found) << table.out;
    const Ended json = run_slimwire({"report", "--json", first, second});
    size_t records = 0;
    for (const std::string& line : lines_of(json.out)) {
        const Json record = Json::parse(line);
        records += record.at("record") == "report_net_peer" ? 1 : 0;
        if (record.value("peer", "") == "10.0.0.2" && record.at("direction") == "send") {
            EXPECT_EQ(record.at("wire_bytes"), 40'000);
            EXPECT_EQ(record.at("ratio"), 2.0);
        }
    }
    EXPECT_EQ(records, 3u);
}

TEST(Report, ShowsControlCharactersOfNames) {
    const ScratchFolder folder;
    Json named = key(0, 10);
    named.update({{"reason",
                   "two\nlines \x1b[31m \xc2\x9b"
                   "1m \x7f"},
                  {"name", "\x1b]0;title\x07"}});
    const std::string path =
        folder.write("r0", text_of({process(), comm(0, 1, "go\x1b[2J"), named}));
    const Ended ended = run_slimwire({"report", path});
    EXPECT_EQ(ended.exit_code, 0) << ended.err;
    EXPECT_HAS(ended.out, "two lines \\x1b[31m \\x9b1m \\x7f");
    EXPECT_HAS(ended.out, "\\x1b]0;title\\x07");
    EXPECT_HAS(ended.out, "go\\x1b[2J");
    for (const char* control : {"\x1b", "\x07", "\x7f", "\xc2\x9b"}) {
        EXPECT_HAS_NOT(ended.out, control);
    }
}

TEST(Report, AddsUpTheRanks) {
    const ScratchFolder folder;
    std::vector<std::string> files;
    for (int rank = 0; rank < 4; ++rank) {
        files.push_back(folder.write(
            "r" + std::to_string(rank),
            text_of({process(), comm(rank, 4), key(rank, 10), key(rank, 5, "native", 7)})));
    }
    const Result<MergedReport> merged = merge_reports(files);
    ASSERT_TRUE(merged.ok()) << merged.status().message();
    const MergedReport& report = merged.value();
    ASSERT_EQ(report.comms.size(), 1u);
    EXPECT_TRUE(report.comms[0].differences.empty()) << report.comms[0].differences[0];
    EXPECT_TRUE(report.differences.empty());
    EXPECT_EQ(report.comms[0].scratch_bytes, 4000u);
    ASSERT_EQ(report.comms[0].keys.size(), 2u);
    const MergedKey& first = report.comms[0].keys[0];  // the larger one first
    EXPECT_EQ(first.codec, "int4");
    EXPECT_EQ(first.calls, 40u);
    EXPECT_EQ(first.input_bytes, 4096u * 40);
    EXPECT_EQ(first.wire_bytes, 800u * 40);
    EXPECT_DOUBLE_EQ(first.time_us, 400.0);
    EXPECT_DOUBLE_EQ(wire_ratio(first), 6144.0 / 800.0);
    EXPECT_FALSE(first.wire_is_estimate);
    EXPECT_TRUE(report.comms[0].keys[1].wire_is_estimate);
    EXPECT_EQ(report.total.calls, 60u);
    EXPECT_EQ(report.total.wire_bytes, 800u * 40 + 6144u * 20);

    std::vector<std::string> arguments{"report"};
    arguments.insert(arguments.end(), files.begin(), files.end());
    Ended ended = run_slimwire(arguments);
    EXPECT_EQ(ended.exit_code, 0) << ended.err;
    for (const char* part : {"communicator c0ffee: 4 of 4 ranks", "int4", "rule 'grads'", "7.68",
                             "no rule matches", "total of 4 processes: 60 calls"}) {
        EXPECT_HAS(ended.out, part);
    }
    EXPECT_HAS_NOT(ended.out, "  steps: ") << "no rule wants places";
    arguments.insert(arguments.begin() + 1, "--json");
    ended = run_slimwire(arguments);
    const std::vector<std::string> lines = lines_of(ended.out);
    ASSERT_EQ(lines.size(), 4u);  // communicator, two keys, total
    const Json total = Json::parse(lines[3]);
    EXPECT_EQ(total["record"], "report_total");
    EXPECT_EQ(total["v"], 1);
    EXPECT_EQ(total["calls"], 60);
}

TEST(Report, SaysHowLongTheStepIsAndHowManyCallsHaveAPlace) {
    const ScratchFolder folder;
    std::vector<std::string> files;
    for (int rank = 0; rank < 2; ++rank) {
        Json placed = comm(rank, 2);
        placed.update({{"placed_calls", 900},
                       {"unplaced_calls", 100},
                       {"step_calls", 8},
                       {"step_flags", 90},
                       {"skipped_steps", 4 - rank},
                       {"steps", 100 + rank}});
        files.push_back(
            folder.write("r" + std::to_string(rank), text_of({process(), placed, key(rank, 10)})));
    }
    Ended ended = run_slimwire({"report", files[0], files[1]});
    EXPECT_EQ(ended.exit_code, 0) << ended.err;
    EXPECT_HAS(ended.out, "  steps: 8 calls each, 101 followed; place known for 90.0% of calls\n");
    EXPECT_HAS(ended.out, "  skipped steps: 4 of 90 whose overflow flag was seen\n");
    ended = run_slimwire({"report", "--json", files[0], files[1]});
    const Json shown = Json::parse(lines_of(ended.out).at(0));
    EXPECT_EQ(shown["placed_calls"], 1800);
    EXPECT_EQ(shown["unplaced_calls"], 200);
    EXPECT_EQ(shown["step_calls"], 8);
    EXPECT_EQ(shown["steps"], 101);
    EXPECT_EQ(shown["step_flags"], 90);
    EXPECT_EQ(shown["skipped_steps"], 4);
    EXPECT_EQ(shown["other_flags"], 0);
}

TEST(Report, ShowsBothWaysOfMessagesAndTheMasksThatWereMissed) {
    const ScratchFolder folder;
    std::vector<std::string> files;
    for (int rank = 0; rank < 2; ++rank) {
        Json missing = comm(rank, 2), forward = key(rank, 10, "topk:fraction=0.05,pair=mask");
        missing["missed_masks"] = 7 + rank;
        Json backward = forward, unknown = forward;
        forward["direction"] = "forward";
        backward["direction"] = "backward";
        backward["wire_bytes"] = 4000;
        files.push_back(folder.write("r" + std::to_string(rank),
                                     text_of({process(), missing, forward, backward, unknown})));
    }
    Ended ended = run_slimwire({"report", files[0], files[1]});
    EXPECT_EQ(ended.exit_code, 0) << ended.err;
    EXPECT_HAS(ended.out, "  15 gradients came as zeros: the masks they named were not held\n");
    EXPECT_HAS(ended.out, "7.68       10.0  forward: 20.0 times fewer values: rule 'grads'\n");
    EXPECT_HAS(ended.out, "15.36       10.0  backward: 20.0 times fewer values: rule 'grads'\n");
    ended = run_slimwire({"report", "--json", files[0], files[1]});
    const std::vector<std::string> lines = lines_of(ended.out);
    ASSERT_EQ(lines.size(), 5u);
    EXPECT_EQ(Json::parse(lines[0])["missed_masks"], 15);
    EXPECT_EQ(Json::parse(lines[1])["direction"], "forward");
    EXPECT_EQ(Json::parse(lines[1])["values_ratio"], 20.0);
    EXPECT_EQ(Json::parse(lines[2])["direction"], "backward");
    EXPECT_FALSE(Json::parse(lines[3]).contains("direction"));
}

TEST(Report, ShowsTheNameThatAllRanksGiveATensor) {
    const ScratchFolder folder;
    std::vector<std::string> files;
    for (int rank = 0; rank < 2; ++rank) {
        Json alike = key(rank, 10), other = key(rank, 10, "int4", 2048);
        alike["name"] = "decoder.bucket0";
        other["name"] = "rank" + std::to_string(rank);
        Json some = key(rank, 10, "int4", 4096);
        if (rank == 0) {
            some["name"] = "lonely";
        }
        files.push_back(folder.write("r" + std::to_string(rank),
                                     text_of({process(), comm(rank, 2), alike, other, some})));
    }
    const Ended table = run_slimwire({"report", files[0], files[1]});
    EXPECT_HAS(table.out, "  decoder.bucket0: rule 'grads'\n");
    EXPECT_HAS_NOT(table.out, "rank0");
    EXPECT_HAS_NOT(table.out, "lonely");
    const Ended json = run_slimwire({"report", "--json", files[0], files[1]});
    EXPECT_HAS(json.out, "\"name\":\"decoder.bucket0\"");
    EXPECT_HAS_NOT(json.out, "rank1");
}

TEST(Report, CutOffLastLineIsLeftOut) {
    const ScratchFolder folder;
    const std::string whole = text_of({process(), comm(0, 1), key(0, 10)});
    const std::string cut = text_of({key(0, 5, "native", 7)});
    const std::string file = folder.write("r0", whole + cut.substr(0, cut.size() / 2));
    const Ended ended = run_slimwire({"report", file});
    EXPECT_EQ(ended.exit_code, 0);
    EXPECT_HAS(ended.err, file + ":4: cut off last line left out");
    EXPECT_HAS(ended.out, "total of 1 processes: 10 calls");
}

TEST(Report, ErrorsNameFileAndLine) {
    const ScratchFolder folder;
    // A file of another kind is no record that was cut off.
    for (const std::string& text : {std::string(1000, '\0'), std::string("hello")}) {
        EXPECT_HAS(run_slimwire({"report", folder.write("r0", text)}).err, "r0:1: not a record");
    }
    EXPECT_HAS(run_slimwire({"report", folder.write("r0", "{\"v\":1,\"re")}).err, ":1: cut off");
    const std::string good = text_of({process(), comm(0, 1)});
    const auto of_key = [&](const std::string& members) {
        return good + R"({"v":1,"record":"key","comm":"c","op":"send","rank":0,)" + members + "}\n";
    };
    const std::pair<std::string, std::string> wrong[] = {
        {good + "not json\n" + text_of({key(0, 1)}), ":3: not a record"},
        {good + "[1, 2]\n", ":3: not a record"},
        {good + R"({"v": 2, "record": "key"})" + "\n", ":3: format version 2"},
        {good + R"({"record": "key"})" + "\n", ":3: format version null"},
        {good + R"({"v": 1, "record": "key", "comm": "c", "op": 3, "calls": 1, "rank": 0})" + "\n",
         ":3: "},
        {good + R"({"v": 1, "record": "comm", "comm": "c"})" + "\n", ":3: "},
        {of_key(R"("calls":-5)"), ":3: 'calls' is -5; accepted: a whole number from 0"},
        {good + R"({"v":1,"record":"key","comm":"c","op":"send","rank":4294967296,"calls":1})" +
             "\n",
         ":3: 'rank' is 4294967296; accepted: a whole number"},
        {good + R"({"v":1,"record":"comm","comm":"c","ranks":1.5,"rank":0})" + "\n",
         ":3: 'ranks' is 1.5; accepted: a whole number"},
        {good + R"({"v":1,"record":"comm","comm":"c","ranks":2,"rank":2})" + "\n",
         ":3: rank 2 of 2"},
        {of_key(R"("calls":"many")"), ":3: 'calls' is \"many\"; accepted: a whole number from 0"},
        {of_key(R"("calls":1,"name":null)"), ":3: 'name' is null; accepted: a text"},
        {of_key(R"("calls":1,"accordion":[{"slot":"x"}])"),
         ":3: 'accordion.0.slot' is \"x\"; accepted: a whole number from 0"},
        {of_key(R"("calls":1,"aims":7)"), ":3: a member is of another kind"},
        {of_key(R"("calls":1,"time_us":-5.5)"), ":3: 'time_us' is -5.5; accepted: a time from 0"},
        {R"({"v":1,"record":"process","uptime_us":1e300})" + std::string("\n") + good,
         ":1: 'uptime_us' is 1e+300; accepted: a time from 0"},
        {good + R"({"v":1,"record":"key","x":)" + std::string(100000, '[') +
             std::string(100000, ']') + "}\n",
         ":3: not a record"},
    };
    for (const auto& [text, message] : wrong) {
        const std::string file = folder.write("r0", text);
        const Ended ended = run_slimwire({"report", file});
        EXPECT_EQ(ended.exit_code, 1) << text;
        EXPECT_EQ(lines_of(ended.err).size(), 1u) << ended.err;
        EXPECT_HAS(ended.err, "slimwire: error: " + file + message);
    }
    Ended ended = run_slimwire({"report", "/no/such/file"});
    EXPECT_EQ(ended.exit_code, 1);
    EXPECT_HAS(ended.err, "/no/such/file: cannot read");
    ended = run_slimwire({"report", folder.path().string()});
    EXPECT_EQ(ended.exit_code, 1);
    EXPECT_EQ(run_slimwire({"report"}).exit_code, 2);
}

// That have no end, or another kind of records.
TEST(Report, FilesThatAreNoReports) {
    const ScratchFolder folder;
    const std::string good = folder.write("r0", text_of({process(), comm(0, 2), key(0, 1)}));
    const std::string pipe = folder.path() / "pipe";
    ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
    const std::string page = folder.path() / "page.html";
    for (const std::string& file : {std::string("/dev/zero"), pipe}) {
        for (const std::vector<std::string>& words :
             std::vector<std::vector<std::string>>{{"report", file},
                                                   {"report", "--html", page, file},
                                                   {"topo", "--report", file},
                                                   {"advise", "--trace", file}}) {
            expect_says(1, words, {file + ": not a regular file; accepted: a regular file"});
        }
    }
    const std::string many = folder.write("many", text_of({process(), comm(0, 2000000000)}));
    const std::string headless = folder.write("trace", text_of({{{"v", 1}, {"record", "call"}}}));
    for (const std::vector<std::string>& words : std::vector<std::vector<std::string>>{
             {"report"}, {"report", "--html", page}, {"topo", "--report"}}) {
        for (const auto& [file, why] :
             {std::pair(many, ":2: 2000000000 ranks; accepted: at most 1048576"),
              {headless, ":1: a record 'call' of a trace; accepted: files of SLIMWIRE_REPORT"}}) {
            std::vector<std::string> all = words;
            all.push_back(file);
            expect_says(1, all, {file + why});
        }
    }
    const std::string other = folder.write("other", text_of({{{"v", 1}, {"record", "bench"}}}));
    EXPECT_HAS(run_slimwire({"topo", "--report", other}).err,
               other + ": has records 'bench' and none of a report; accepted: files of");
    expect_says(1, {"advise", "--trace", good},
                {good + ":1: begins with a record \"process\"; accepted: traces"});
    // As many as may be: what is missing is told in a line that can be read.
    const Ended large = run_slimwire({"report", folder.write("l", text_of({comm(0, 1 << 20)}))});
    EXPECT_EQ(large.exit_code, 0);
    EXPECT_HAS(large.out, "no report of ranks 1, 2, ");
    EXPECT_HAS(large.out, " 16 and 1048559 more\n");
}

TEST(Report, AFileCountsOnce) {
    const ScratchFolder folder;
    const std::string file = folder.write("r0", text_of({process(), comm(0, 1), key(0, 10)}));
    const std::string link = folder.path() / "again";
    std::filesystem::create_symlink(file, link);
    const Ended ended = run_slimwire({"report", file, link});
    EXPECT_EQ(ended.exit_code, 0);
    EXPECT_HAS(ended.err, link + ": the same file as another one, read once");
    EXPECT_HAS(ended.out, "total of 1 processes: 10 calls");
    EXPECT_HAS_NOT(ended.out, "reported twice");
    EXPECT_HAS(run_slimwire({"topo", "--report", file, "--report", file}).err, "read once");
}

TEST(Report, FilesWithoutARecordAreNoReport) {
    const ScratchFolder folder;
    const Ended ended = run_slimwire({"report", folder.write("r.0", "")});
    EXPECT_EQ(ended.exit_code, 1);
    EXPECT_EQ(ended.out, "");
    EXPECT_HAS(ended.err, "no record in any file");
}

TEST(Report, UnknownRecordsAndMembersAreSkipped) {
    const ScratchFolder folder;
    Json extended = key(0, 3);
    extended["from_the_future"] = Json::array({1, 2});
    const std::string file = folder.write(
        "r0", text_of({process(), {{"v", 1}, {"record", "weather"}}, comm(0, 1), extended}));
    const Result<MergedReport> merged = merge_reports({file});
    ASSERT_TRUE(merged.ok()) << merged.status().message();
    EXPECT_EQ(merged.value().total.calls, 3u);
}

Json paced_key(int rank, uint64_t windows, const std::string& hash) {
    Json record = key(rank, 100, "powersgd:rank=1");
    Json decisions = Json::array();
    for (uint64_t window = 0; window < windows; ++window) {
        decisions.push_back({{"window", window}, {"square", 1.5}, {"high", window >= 2}});
    }
    record["accordion"] = {{{"slot", 0},
                            {"ordinal", 3},
                            {"windows", windows},
                            {"high_windows", windows - 2},
                            {"lr_drops", 1},
                            {"decisions_hash", hash},
                            {"decisions", decisions}}};
    return record;
}

TEST(Report, DecisionsOfAnAccordionAreShownAndCompared) {
    const ScratchFolder folder;
    const std::string r0 =
        folder.write("r0", text_of({process(), comm(0, 3), paced_key(0, 5, "aa")}));
    const std::string r1 =
        folder.write("r1", text_of({process(), comm(1, 3), paced_key(1, 5, "aa")}));
    // One that reported a window earlier is not different.
    const std::string r2 =
        folder.write("r2", text_of({process(), comm(2, 3), paced_key(2, 4, "bb")}));
    const Ended text = run_slimwire({"report", r0, r1, r2});
    EXPECT_EQ(text.exit_code, 0) << text.err;
    EXPECT_HAS(text.out,
               "allreduce of 1024 f32, tensor 0.3: 3 of 5 windows by powersgd:rank=1, 1 drops of "
               "the rate; the last: LLHHH");
    EXPECT_HAS_NOT(text.out, "decided differently");
    bool found = false;
    for (const std::string& line : lines_of(run_slimwire({"report", "--json", r0, r1, r2}).out)) {
        const Json record = Json::parse(line);
        if (record.at("record") == "report_key") {
            found = true;
            EXPECT_EQ(record.at("accordion").at(0).at("decisions"), "LLHHH");
            EXPECT_EQ(record.at("accordion").at(0).at("high_windows"), 3);
        }
    }
    EXPECT_TRUE(found);
    const std::string other =
        folder.write("r2", text_of({process(), comm(2, 3), paced_key(2, 5, "bb")}));
    EXPECT_HAS(run_slimwire({"report", r0, r1, other}).out,
               "tensor 0.3: ranks 0, 1 and rank 2 decided differently in 5 windows");
}

TEST(Report, AveragingOfResidualsIsShownApart) {
    const ScratchFolder folder;
    std::vector<std::string> files;
    for (int rank = 0; rank < 2; ++rank) {
        Json of = key(rank, 100, "topk:fraction=0.001+ef14");
        of["averagings"] = 5;
        of["averaging_wire_bytes"] = 2048;
        files.push_back(
            folder.write("r" + std::to_string(rank), text_of({process(), comm(rank, 2), of})));
    }
    EXPECT_HAS(run_slimwire({"report", files[0], files[1]}).out,
               "allreduce of 1024 f32 by topk:fraction=0.001+ef14: residuals averaged 10 times, "
               "4 KiB of the ");
    size_t found = 0;
    for (const std::string& line :
         lines_of(run_slimwire({"report", "--json", files[0], files[1]}).out)) {
        const Json record = Json::parse(line);
        if (record.at("record") == "report_key") {
            ++found;
            EXPECT_EQ(record.at("averagings"), 10);
            EXPECT_EQ(record.at("averaging_wire_bytes"), 4096);
        }
    }
    EXPECT_EQ(found, 1u);
}

TEST(Report, PreviewsAreShown) {
    const ScratchFolder folder;
    std::vector<std::string> files;
    for (int rank = 0; rank < 2; ++rank) {
        Json of = key(rank, 100, "topk:fraction=0.001+ef14");
        of["previews"] = 7;
        of["step_size"] = rank == 0 ? 0.125 : 0.0;
        files.push_back(
            folder.write("r" + std::to_string(rank), text_of({process(), comm(rank, 2), of})));
    }
    EXPECT_HAS(run_slimwire({"report", files[0], files[1]}).out,
               "14 gathers moved by what is owed, steps of 0.125");
    EXPECT_HAS(run_slimwire({"report", "--json", files[0], files[1]}).out, "\"previews\":14");
}

TEST(Report, RanksThatDifferAreNamed) {
    const ScratchFolder folder;
    const std::string r0 = folder.write("r0", text_of({process(), comm(0, 4), key(0, 10)}));
    const std::string r1 = folder.write(
        "r1",
        text_of({process("00000000000000bb"), comm(1, 4, "native: why"), key(1, 10, "native")}));
    const std::string r2 = folder.write("r2", text_of({process(), comm(2, 4), key(2, 9)}));
    const Result<MergedReport> merged = merge_reports({r0, r1, r2});
    ASSERT_TRUE(merged.ok());
    std::string all;
    for (const std::string& line : merged.value().comms[0].differences) {
        all += line + "\n";
    }
    EXPECT_HAS(all, "ranks agreed differently: ranks 0, 2 'go'; rank 1 'native: why'");
    EXPECT_HAS(all, "no report of rank 3");
    EXPECT_HAS(all, "by int4: 0 calls on rank 1; 9 calls on rank 2; 10 calls on rank 0");
    ASSERT_EQ(merged.value().differences.size(), 1u);
    EXPECT_HAS(merged.value().differences[0], "processes differ in configuration");
    EXPECT_HAS(run_slimwire({"report", r0, r1, r2}).out, "  ! no report of rank 3");

    // The same rank from two files is told, not silently added.
    const Result<MergedReport> twice = merge_reports({r0, folder.write("r3", read_file(r0))});
    ASSERT_TRUE(twice.ok());
    EXPECT_HAS(twice.value().comms[0].differences.at(0), "rank 0 is reported twice");
    Json older = process(), newer = process();
    older["version"] = "0.1.0";
    newer["version"] = "0.2.0";
    const std::string a = folder.write("a", text_of({older, comm(0, 2)}));
    const std::string b = folder.write("b", text_of({newer, comm(1, 2)}));
    EXPECT_HAS(run_slimwire({"report", a, b}).out,
               "! processes differ in slimwire's version: 0.1.0 in " + a + "; 0.2.0 in " + b);
}

TEST(Report, PointToPointMayDiffer) {
    const ScratchFolder folder;
    Json send = key(0, 4, "native");
    send["op"] = "send";
    const std::string r0 = folder.write("r0", text_of({process(), comm(0, 2), send}));
    const std::string r1 = folder.write("r1", text_of({process(), comm(1, 2)}));
    const Result<MergedReport> merged = merge_reports({r0, r1});
    ASSERT_TRUE(merged.ok());
    EXPECT_TRUE(merged.value().comms[0].differences.empty());
}

TEST(Report, ModeShadowSaysWhatModeOnWouldSend) {
    const ScratchFolder folder;
    std::vector<std::string> files;
    for (int rank = 0; rank < 2; ++rank) {
        Json shadow = key(rank, 10, "native");
        shadow["shadow_codec"] = "int4";
        shadow["shadow_algorithm"] = "two_shot";
        shadow["shadow_wire_bytes"] = 8000;
        files.push_back(folder.write("report." + std::to_string(rank),
                                     process().dump() + "\n" + comm(rank, 2).dump() + "\n" +
                                         shadow.dump() + "\n" + key(rank, 5, "native", 7).dump() +
                                         "\n"));
    }
    Ended ended = run_slimwire({"report", "--json", files[0], files[1]});
    ASSERT_EQ(ended.exit_code, 0) << ended.err;
    Json found, total;
    for (const std::string& line : lines_of(ended.out)) {
        const Json json = Json::parse(line);
        if (json.contains("shadow_codec")) {
            found = json;
        }
        total = json;
    }
    EXPECT_EQ(found["shadow_codec"], "int4");
    EXPECT_EQ(found["shadow_calls"], 20);
    EXPECT_EQ(found["shadow_wire_bytes"], 16000);
    EXPECT_EQ(found["shadow_native_bytes"], 122880);
    EXPECT_EQ(total["record"], "report_total");
    EXPECT_EQ(total["calls"], 30);
    EXPECT_EQ(total["shadow_calls"], 20);
    EXPECT_EQ(total["shadow_wire_bytes"], 16000);
    ended = run_slimwire({"report", files[0], files[1]});
    EXPECT_HAS(ended.out, "mode on would do");
    EXPECT_HAS(ended.out, "mode on would compress 20 calls");
    // Where only the second rank is in mode shadow.
    const std::string recorded =
        folder.write("recorded", text_of({process(), comm(0, 2), key(0, 10, "native")}));
    EXPECT_EQ(run_slimwire({"report", recorded, files[1]}).exit_code, 0);
}

}  // namespace
}  // namespace slimwire::cli::test
