// `slimwire report`: files of several ranks, whole, cut off, and of ranks that did not do the same.
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <regex>

#include "tests/tools/cli_program.h"

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

class Report : public testing::Test {
  protected:
    // A file of a rank, with what its process and its communicator say before `more`.
    std::string write(int rank, std::vector<Json> more, const Json& of_comm, int ranks = 2) {
        Json own = comm(rank, ranks);
        own.update(of_comm);
        more.insert(more.begin(), {process(), own});
        return folder_.write("r" + std::to_string(rank), text_of(more));
    }
    // Those of `ranks` ranks.
    std::vector<std::string> write_all(int ranks,
                                       const std::function<std::vector<Json>(int rank)>& keys,
                                       const Json& of_comm = Json::object()) {
        std::vector<std::string> files;
        for (int rank = 0; rank < ranks; ++rank) {
            files.push_back(write(rank, keys(rank), of_comm, ranks));
        }
        return files;
    }
    static std::string table_of(const std::vector<std::string>& files) {
        return succeed(with({"report"}, files)).out;
    }
    // Of --json, those of a kind.
    static std::vector<Json> records(const std::string& kind,
                                     const std::vector<std::string>& files) {
        std::vector<Json> found = records_of(with({"report"}, files));
        std::erase_if(found, [&](const Json& one) { return one.at("record") != kind; });
        return found;
    }

    const ScratchFolder folder_;
};

// A key with other members.
Json other_key(int rank, const Json& members, const std::string& codec = "int4") {
    Json of = key(rank, 10, codec);
    of.update(members);
    return of;
}

TEST_F(Report, AddsUpWhatCrossedTheNetworkByPeer) {
    const Json net = {{"v", 1}, {"record", "net"}, {"transport", "ucx"}, {"throttled", true}};
    const std::vector<std::string> files = {
        folder_.write("r0",
                      text_of({process(), net, net_peer("receive", 10'000),
                               net_peer("send", 1000, "10.0.0.3"), net_peer("send", 20'000)})),
        folder_.write("r1", text_of({process(), net, net_peer("send", 60'000)}))};
    const std::vector<Json> peers = records("report_net_peer", files);
    ASSERT_EQ(peers.size(), 3u);  // received, then sent, the larger first
    EXPECT_EQ(peers[0]["direction"], "receive");
    expect_members(peers[1], {{"direction", "send"},
                              {"peer", "10.0.0.2"},
                              {"processes", 2},
                              {"connections", 4},
                              {"messages", 20},
                              {"bytes", 80'000},
                              {"wire_bytes", 40'000},
                              {"ratio", 2.0},
                              {"coded_bytes", 60'000},
                              {"coded_wire_bytes", 20'000},
                              {"flagged_bytes", 8000},
                              {"timed_coded_bytes", 5000},
                              {"timed_raw_us", 20.0}});
    EXPECT_EQ(peers[2]["peer"], "10.0.0.3");
    const std::string table = table_of(files);
    EXPECT_HAS(table, "network, slowed down");
    EXPECT_TRUE(std::regex_search(
        table, std::regex("\nsend +10\\.0\\.0\\.2 .* 2\\.00 +75% +10% +100 +250\n")))
        << table;
}

TEST_F(Report, ShowsControlCharactersOfNames) {
    const Json named = other_key(0, {{"reason",
                                      "two\nlines \x1b[31m \xc2\x9b"
                                      "1m \x7f"},
                                     {"name", "\x1b]0;title\x07"}});
    const std::string table = table_of({write(0, {named}, {{"agreement", "go\x1b[2J"}}, 1)});
    for (const char* shown :
         {"two lines \\x1b[31m \\x9b1m \\x7f", "\\x1b]0;title\\x07", "go\\x1b[2J"}) {
        EXPECT_HAS(table, shown);
    }
    for (const char* control : {"\x1b", "\x07", "\x7f", "\xc2\x9b"}) {
        EXPECT_HAS_NOT(table, control);
    }
}

TEST_F(Report, AddsUpTheRanks) {
    const std::vector<std::string> files = write_all(4, [](int rank) {
        return std::vector<Json>{key(rank, 10), key(rank, 5, "native", 7)};
    });
    const std::string table = table_of(files);
    for (const char* part : {"communicator c0ffee: 4 of 4 ranks", "int4", "rule 'grads'", "7.68",
                             "no rule matches", "total of 4 processes: 60 calls"}) {
        EXPECT_HAS(table, part);
    }
    EXPECT_HAS_NOT(table, "  steps: ") << "no rule wants places";
    const std::vector<Json> lines = records_of(with({"report"}, files));
    ASSERT_EQ(lines.size(), 4u);  // communicator, two keys, the larger first, total
    expect_members(lines[0], {{"scratch_bytes", 4000}, {"differences", Json::array()}});
    expect_members(lines[1], {{"codec", "int4"},
                              {"calls", 40},
                              {"input_bytes", 4096 * 40},
                              {"wire_bytes", 800 * 40},
                              {"time_us", 400.0},
                              {"ratio", 7.68},
                              {"wire_is_estimate", false}});
    EXPECT_EQ(lines[2]["wire_is_estimate"], true);
    expect_members(lines[3], {{"record", "report_total"},
                              {"v", 1},
                              {"calls", 60},
                              {"wire_bytes", 800 * 40 + 6144 * 20},
                              {"differences", Json::array()}});
}

TEST_F(Report, SaysHowLongTheStepIsAndHowManyCallsHaveAPlace) {
    const Json steps{{"placed_calls", 900}, {"unplaced_calls", 100}, {"step_calls", 8},
                     {"step_flags", 90},    {"skipped_steps", 4},    {"steps", 100}};
    Json later = steps;
    later.update({{"skipped_steps", 3}, {"steps", 101}});
    const std::vector<std::string> files = {write(0, {key(0, 10)}, steps),
                                            write(1, {key(1, 10)}, later)};
    const std::string table = table_of(files);
    EXPECT_HAS(table, "  steps: 8 calls each, 101 followed; place known for 90.0% of calls\n");
    EXPECT_HAS(table, "  skipped steps: 4 of 90 whose overflow flag was seen\n");
    expect_members(records("report_comm", files).at(0), {{"placed_calls", 1800},
                                                         {"unplaced_calls", 200},
                                                         {"step_calls", 8},
                                                         {"steps", 101},
                                                         {"step_flags", 90},
                                                         {"skipped_steps", 4},
                                                         {"other_flags", 0}});
}

TEST_F(Report, ShowsBothWaysOfMessagesAndTheMasksThatWereMissed) {
    const std::vector<std::string> files =
        write_all(2,
                  [](int rank) {
                      const std::string codec = "topk:fraction=0.05,pair=mask";
                      return std::vector<Json>{
                          other_key(rank, {{"direction", "forward"}}, codec),
                          other_key(rank, {{"direction", "backward"}, {"wire_bytes", 4000}}, codec),
                          key(rank, 10, codec)};
                  },
                  {{"missed_masks", 7}});
    const std::string table = table_of(files);
    EXPECT_HAS(table, "  14 gradients came as zeros: the masks they named were not held\n");
    EXPECT_HAS(table, "7.68       10.0  forward: 20.0 times fewer values: rule 'grads'\n");
    EXPECT_HAS(table, "15.36       10.0  backward: 20.0 times fewer values: rule 'grads'\n");
    EXPECT_EQ(records("report_comm", files).at(0)["missed_masks"], 14);
    const std::vector<Json> keys = records("report_key", files);
    ASSERT_EQ(keys.size(), 3u);
    expect_members(keys[0], {{"direction", "forward"}, {"values_ratio", 20.0}});
    EXPECT_EQ(keys[1]["direction"], "backward");
    EXPECT_FALSE(keys[2].contains("direction"));
}

TEST_F(Report, ShowsTheNameThatAllRanksGiveATensor) {
    const std::vector<std::string> files = write_all(2, [](int rank) {
        const Json lonely = rank == 0 ? Json{{"name", "lonely"}} : Json::object();
        Json some = key(rank, 10, "int4", 4096);
        some.update(lonely);
        return std::vector<Json>{
            other_key(rank, {{"name", "decoder.bucket0"}}),
            other_key(rank, {{"name", "rank" + std::to_string(rank)}, {"count", 2048}}), some};
    });
    const std::string table = table_of(files);
    EXPECT_HAS(table, "  decoder.bucket0: rule 'grads'\n");
    EXPECT_HAS_NOT(table, "rank0");
    EXPECT_HAS_NOT(table, "lonely");
    const std::vector<Json> keys = records("report_key", files);
    EXPECT_EQ(keys.at(0)["name"], "decoder.bucket0");
    EXPECT_FALSE(keys.at(1).contains("name"));
}

// What features of a plan did stands apart, added up over the ranks.
TEST_F(Report, FeaturesOfAPlan) {
    const std::string codec = "topk:fraction=0.001+ef14";
    const struct {
        Json of_key, of_first;
        const char* said;
        Json shown;
    } kFeatures[] = {{{{"averagings", 5}, {"averaging_wire_bytes", 2048}},
                      Json::object(),
                      "by topk:fraction=0.001+ef14: residuals averaged 10 times, 4 KiB of the ",
                      {{"averagings", 10}, {"averaging_wire_bytes", 4096}}},
                     {{{"previews", 7}, {"step_size", 0.0}},
                      {{"step_size", 0.125}},
                      "14 gathers moved by what is owed, steps of 0.125",
                      {{"previews", 14}, {"step_size", 0.125}}}};
    for (const auto& one : kFeatures) {
        const std::vector<std::string> files = write_all(2, [&](int rank) {
            Json of = other_key(rank, one.of_key, codec);
            of.update(rank == 0 ? one.of_first : Json::object());
            return std::vector<Json>{of};
        });
        EXPECT_HAS(table_of(files), one.said);
        const std::vector<Json> keys = records("report_key", files);
        ASSERT_EQ(keys.size(), 1u);
        expect_members(keys[0], one.shown);
    }
}

TEST_F(Report, CutOffLastLineIsLeftOut) {
    const std::string whole = text_of({process(), comm(0, 1), key(0, 10)});
    const std::string cut = text_of({key(0, 5, "native", 7)});
    const std::string file = folder_.write("r0", whole + cut.substr(0, cut.size() / 2));
    const Ended ended = succeed({"report", file});
    EXPECT_HAS(ended.err, file + ":4: cut off last line left out");
    EXPECT_HAS(ended.out, "total of 1 processes: 10 calls");
}

TEST_F(Report, ErrorsNameFileAndLine) {
    // A file of another kind is no record that was cut off.
    for (const std::string& text : {std::string(1000, '\0'), std::string("hello")}) {
        EXPECT_HAS(run_slimwire({"report", folder_.write("r0", text)}).err, "r0:1: not a record");
    }
    EXPECT_HAS(run_slimwire({"report", folder_.write("r0", "{\"v\":1,\"re")}).err, ":1: cut off");
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
        const std::string file = folder_.write("r0", text);
        expect_says(1, {"report", file}, {"slimwire: error: " + file + message});
    }
    expect_says(1, {"report", "/no/such/file"}, {"/no/such/file: cannot read"});
    expect_says(1, {"report", folder_.path()}, {"a folder; accepted: a regular file"});
    expect_says(2, {"report"}, {});
}

// Those that have no end are in cli_output_test.cpp.
TEST_F(Report, FilesThatAreNoReports) {
    const std::string good = folder_.write("r0", text_of({process(), comm(0, 2), key(0, 1)}));
    const std::string page = folder_.path() / "page.html";
    const std::string many = folder_.write("many", text_of({process(), comm(0, 2000000000)}));
    const std::string headless = folder_.write("trace", text_of({{{"v", 1}, {"record", "call"}}}));
    for (const std::vector<std::string>& words : std::vector<std::vector<std::string>>{
             {"report"}, {"report", "--html", page}, {"topo", "--report"}}) {
        for (const auto& [file, why] :
             {std::pair(many, ":2: 2000000000 ranks; accepted: at most 1048576"),
              {headless, ":1: a record 'call' of a trace; accepted: files of SLIMWIRE_REPORT"}}) {
            expect_says(1, with(words, {file}), {file + why});
        }
    }
    const std::string other = folder_.write("other", text_of({{{"v", 1}, {"record", "bench"}}}));
    expect_says(1, {"topo", "--report", other},
                {other + ": has records 'bench' and none of a report; accepted: files of"});
    // A rank that was killed early.
    expect_says(1, {"report", folder_.write("empty", "")}, {"no record in any file"});
    expect_says(1, {"advise", "--trace", good},
                {good + ":1: begins with a record \"process\"; accepted: traces"});
    // As many as may be: what is missing is told in a line that can be read.
    expect_prints({"report", folder_.write("l", text_of({comm(0, 1 << 20)}))},
                  {"no report of ranks 1, 2, ", " 16 and 1048559 more\n"});
}

TEST_F(Report, AFileCountsOnce) {
    const std::string file = write(0, {key(0, 10)}, Json::object(), 1);
    const std::string link = folder_.file("again");
    std::filesystem::create_symlink(file, link);
    const Ended ended = succeed({"report", file, link});
    EXPECT_HAS(ended.err, link + ": the same file as another one, read once");
    EXPECT_HAS(ended.out, "total of 1 processes: 10 calls");
    EXPECT_HAS_NOT(ended.out, "reported twice");
    expect_says(0, {"topo", "--report", file, "--report", file}, {"read once"});
}

TEST_F(Report, UnknownRecordsAndMembersAreSkipped) {
    const std::string file =
        write(0, {{{"v", 1}, {"record", "weather"}}, other_key(0, {{"from_the_future", {1, 2}}})},
              Json::object(), 1);
    EXPECT_EQ(records("report_total", {file}).at(0)["calls"], 10);
}

Json paced_key(int rank, uint64_t windows, const std::string& hash) {
    Json decisions = Json::array();
    for (uint64_t window = 0; window < windows; ++window) {
        decisions.push_back({{"window", window}, {"square", 1.5}, {"high", window >= 2}});
    }
    const Json tensor{{"slot", 0},
                      {"ordinal", 3},
                      {"windows", windows},
                      {"high_windows", windows - 2},
                      {"lr_drops", 1},
                      {"decisions_hash", hash},
                      {"decisions", decisions}};
    return other_key(rank, {{"accordion", Json::array({tensor})}}, "powersgd:rank=1");
}

TEST_F(Report, DecisionsOfAnAccordionAreShownAndCompared) {
    const auto files = [&](uint64_t windows) {
        return write_all(3, [&](int rank) {
            return std::vector<Json>{rank == 2 ? paced_key(rank, windows, "bb")
                                               : paced_key(rank, 5, "aa")};
        });
    };
    // One that reported a window earlier is not different.
    const std::string table = table_of(files(4));
    EXPECT_HAS(table,
               "allreduce of 1024 f32, tensor 0.3: 3 of 5 windows by powersgd:rank=1, 1 drops of "
               "the rate; the last: LLHHH");
    EXPECT_HAS_NOT(table, "decided differently");
    expect_members(records("report_key", files(4)).at(0).at("accordion").at(0),
                   {{"decisions", "LLHHH"}, {"high_windows", 3}});
    EXPECT_HAS(table_of(files(5)),
               "tensor 0.3: ranks 0, 1 and rank 2 decided differently in 5 windows");
}

TEST_F(Report, RanksThatDifferAreNamed) {
    const std::string r0 = write(0, {key(0, 10)}, Json::object(), 4);
    const std::string r1 = folder_.write(
        "r1",
        text_of({process("00000000000000bb"), comm(1, 4, "native: why"), key(1, 10, "native")}));
    const std::string r2 = write(2, {key(2, 9)}, Json::object(), 4);
    expect_prints({"report", r0, r1, r2},
                  {"  ! ranks agreed differently: ranks 0, 2 'go'; rank 1 'native: why'\n",
                   "  ! no report of rank 3\n",
                   "by int4: 0 calls on rank 1; 9 calls on rank 2; 10 calls on rank 0\n",
                   "! processes differ in configuration"});
    // The same rank from two files is told, not silently added.
    expect_prints({"report", r0, folder_.write("r3", read_file(r0))}, {"rank 0 is reported twice"});
    Json older = process(), newer = process();
    older["version"] = "0.1.0";
    newer["version"] = "0.2.0";
    const std::string a = folder_.write("a", text_of({older, comm(0, 2)}));
    const std::string b = folder_.write("b", text_of({newer, comm(1, 2)}));
    expect_prints({"report", a, b},
                  {"! processes differ in slimwire's version: 0.1.0 in " + a + "; 0.2.0 in " + b});
    // Messages differ by nature.
    const std::vector<std::string> sends = write_all(2, [](int rank) {
        return rank == 0 ? std::vector<Json>{other_key(0, {{"op", "send"}}, "native")}
                         : std::vector<Json>();
    });
    EXPECT_EQ(records("report_comm", sends).at(0)["differences"], Json::array());
}

TEST_F(Report, ModeShadowSaysWhatModeOnWouldSend) {
    const std::vector<std::string> files = write_all(2, [](int rank) {
        return std::vector<Json>{other_key(rank,
                                           {{"shadow_codec", "int4"},
                                            {"shadow_algorithm", "two_shot"},
                                            {"shadow_wire_bytes", 8000}},
                                           "native"),
                                 key(rank, 5, "native", 7)};
    });
    expect_members(records("report_key", files).at(0), {{"shadow_codec", "int4"},
                                                        {"shadow_calls", 20},
                                                        {"shadow_wire_bytes", 16000},
                                                        {"shadow_native_bytes", 122880}});
    expect_members(records("report_total", files).at(0),
                   {{"calls", 30}, {"shadow_calls", 20}, {"shadow_wire_bytes", 16000}});
    const std::string table = table_of(files);
    EXPECT_HAS(table, "mode on would do");
    EXPECT_HAS(table, "mode on would compress 20 calls");
    // Where only the second rank is in mode shadow.
    const std::string recorded =
        folder_.write("recorded", text_of({process(), comm(0, 2), key(0, 10, "native")}));
    EXPECT_HAS(table_of({recorded, files[1]}), "mode on would compress 10 calls");
}

}  // namespace
}  // namespace slimwire::cli::test
