// `slimwire report` of traces: tensors added up over ranks, and what mode on would do to them.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/tools/cli_program.h"

namespace slimwire::cli::test {
namespace {

using Json = nlohmann::json;

Json traced(uint64_t number, const std::string& tensor, uint64_t count) {
    return {{"v", 1},           {"record", "call"},  {"call", number},
            {"comm", "c0ffee"}, {"op", "allreduce"}, {"dtype", "f32"},
            {"redop", "sum"},   {"count", count},    {"bytes", 4 * count},
            {"tensor", tensor}, {"captured", false}, {"host_us", 2.0}};
}

// Of a process; calls 1 and 2 are of a tensor that mode on would compress, 3 of one that it would
// not.
std::string shadow_trace(int pid, uint64_t wire_bytes, double codec_us) {
    std::string text;
    const auto would = [&](uint64_t call) {
        Json record = traced(call, "big", 1000);
        record["would_compress"] = true;
        return record;
    };
    for (const Json& record :
         {Json{{"v", 1}, {"record", "trace"}, {"part", 1}, {"host", "h"}, {"pid", pid}},
          Json{{"v", 1}, {"record", "trace_comm"}, {"comm", "c0ffee"}, {"ranks", 4}}, would(1),
          would(2), traced(3, "small", 10),
          Json{{"v", 1}, {"record", "time"}, {"call", 1}, {"device_us", 100.0}},
          Json{{"v", 1}, {"record", "codec_time"}, {"call", 2}, {"device_us", codec_us}},
          Json{{"v", 1},
               {"record", "rehearsal"},
               {"comm", "c0ffee"},
               {"tensor", "big"},
               {"rel_error", 0.25}},
          Json{{"v", 1},
               {"record", "rehearsal"},
               {"comm", "c0ffee"},
               {"tensor", "big"},
               {"rel_error", 0.75}},
          Json{{"v", 1},
               {"record", "decision"},
               {"comm", "c0ffee"},
               {"tensor", "big"},
               {"codec", "int4"},
               {"algorithm", "two_shot"},
               {"rule", "all"},
               {"reason", "rule 'all'"},
               {"wire_bytes", wire_bytes},
               {"stand_in", false},
               {"native_wire_bytes", 6000}},
          Json{{"v", 1},
               {"record", "decision"},
               {"comm", "c0ffee"},
               {"tensor", "small"},
               {"codec", "native"},
               {"algorithm", "native"},
               {"rule", ""},
               {"reason", "no rule matches"},
               {"native_wire_bytes", 60}}}) {
        text += record.dump() + "\n";
    }
    return text;
}

TEST(ReportOfTraces, ModeShadowSaysWhatModeOnWouldDo) {
    const ScratchFolder folder;
    const std::string first = folder.write("trace.0", shadow_trace(1, 1000, 10));
    const std::string second = folder.write("trace.1", shadow_trace(2, 2000, 20));
    Ended ended = run_slimwire({"report", "--json", first, second});
    ASSERT_EQ(ended.exit_code, 0) << ended.err;
    const Json big = Json::parse(lines_of(ended.out)[0]);
    EXPECT_EQ(big["tensor"], "big");
    EXPECT_EQ(big["ranks"], 4);
    EXPECT_EQ(big["would"]["codec"], "int4");
    EXPECT_EQ(big["would"]["algorithm"], "two_shot");
    EXPECT_EQ(big["would"]["rule"], "all");
    EXPECT_EQ(big["would"]["calls"], 4);
    EXPECT_EQ(big["would"]["wire_bytes"], 2 * 1000 + 2 * 2000);
    EXPECT_EQ(big["would"]["native_wire_bytes"], 4 * 6000);
    EXPECT_EQ(big["would"]["rehearsed"], 4);
    EXPECT_EQ(big["would"]["rel_error"], 0.5);
    EXPECT_EQ(big["would"]["largest_rel_error"], 0.75);
    EXPECT_EQ(big["would"]["codec_us"], 15.0);
    EXPECT_EQ(big["would"]["pays"], "yes");  // 100 us against a quarter of it and twice 15
    const Json small = Json::parse(lines_of(ended.out)[1]);
    EXPECT_EQ(small["would"]["calls"], 0);
    EXPECT_EQ(small["would"]["pays"], "-");
    ended = run_slimwire({"report", first, second});
    EXPECT_HAS(ended.out, "allreduce      f32    sum           4        1000");
    EXPECT_HAS(ended.out, "mode on would do");
    EXPECT_HAS(ended.out, "int4");
    EXPECT_HAS(ended.out, "native: 1 tensors: no rule matches");
    const std::string slow = folder.write("slow", shadow_trace(3, 1000, 120));
    ended = run_slimwire({"report", "--json", slow});
    EXPECT_EQ(Json::parse(lines_of(ended.out)[0])["would"]["pays"], "no");
    const std::string between = folder.write("between", shadow_trace(4, 1000, 60));
    ended = run_slimwire({"report", "--json", between});
    EXPECT_EQ(Json::parse(lines_of(ended.out)[0])["would"]["pays"], "?");
}

TEST(ReportOfTraces, TensorsAreAddedUpOverRanks) {
    const ScratchFolder folder;
    const auto head = [](int pid) {
        return Json{{"v", 1}, {"record", "trace"}, {"part", 2}, {"pid", pid}}.dump() + "\n";
    };
    std::string text = Json{{"v", 1}, {"record", "trace_comm"}, {"comm", "c0ffee"}}.dump() + "\n";
    // Of a call in a file before.
    text += Json{{"v", 1},
                 {"record", "rehearsal"},
                 {"comm", "c0ffee"},
                 {"tensor", "gone"},
                 {"rel_error", 0.5}}
                .dump() +
            "\n";
    Json placed = traced(2, "big", 1000);
    placed["path"] = "77";
    placed["place"] = 4;
    for (const Json& record : {traced(1, "small", 10), placed,
                               Json{{"v", 1}, {"record", "time"}, {"call", 2}, {"device_us", 8.0}},
                               Json{{"v", 1},
                                    {"record", "sample"},
                                    {"comm", "c0ffee"},
                                    {"tensor", "big"},
                                    {"mean_square", 9.0},
                                    {"zeros_percent", 50.0},
                                    {"exponent_bits", 2.5},
                                    {"nonfinite", 1}},
                               Json{{"v", 1}, {"record", "dropped"}, {"items", 5}},
                               Json{{"v", 1}, {"record", "rotated"}, {"calls", 7}, {"items", 3}}}) {
        text += record.dump() + "\n";
    }
    const std::string first = folder.write("trace.0", head(7) + text + "\n \r\n");
    const std::string second = folder.write("trace.1", head(8) + text + "{\"v\":1,\"rec");
    Ended ended = run_slimwire({"report", "--json", first, second});
    ASSERT_EQ(ended.exit_code, 0) << ended.err;
    EXPECT_HAS(ended.err, "trace.1:10: cut off last line left out");
    std::vector<Json> lines;
    for (const std::string& line : lines_of(ended.out)) {
        lines.push_back(Json::parse(line));
    }
    ASSERT_EQ(lines.size(), 3u) << ended.out;
    EXPECT_EQ(lines[0]["tensor"], "big");
    EXPECT_EQ(lines[0]["calls"], 2);
    EXPECT_EQ(lines[0]["bytes"], 8000);
    EXPECT_EQ(lines[0]["device_us"], 8.0);
    EXPECT_EQ(lines[0]["rms"], 3.0);
    EXPECT_EQ(lines[0]["exponent_bits"], 2.5);
    EXPECT_EQ(lines[0]["nonfinite"], 2);
    EXPECT_EQ(lines[0]["places"]["4"], 2);
    EXPECT_EQ(lines[1]["tensor"], "small");
    EXPECT_EQ(lines[1]["timed_calls"], 0);
    EXPECT_EQ(lines[2]["lost_items"], 16);
    EXPECT_EQ(lines[2]["rotated_calls"], 14);
    EXPECT_EQ(lines[2]["communicators"], 1);
    ended = run_slimwire({"report", first});
    EXPECT_HAS(ended.out, "total of 1 trace files: 2 calls");
    EXPECT_HAS(ended.out, "! 7 calls are in files before these");
    // With the file before it of the same process, those before that are missing alone.
    const std::string before = folder.write(
        "trace.0.1", head(7) + Json{{"v", 1}, {"record", "rotated"}, {"calls", 5}}.dump() + "\n");
    EXPECT_HAS(run_slimwire({"report", first, before}).out, "! 5 calls are in files before these");
    EXPECT_HAS(run_slimwire({"report", first, folder.write("copy", read_file(first))}).err,
               "copy: a copy of another of these traces, counted again");
    const std::string whole = folder.write("trace.0.1", head(7));
    EXPECT_HAS_NOT(run_slimwire({"report", first, whole}).out, "in files before these");
    EXPECT_HAS(ended.out, "! 8 items");
    const std::string report =
        folder.write("report.0", Json{{"v", 1}, {"record", "process"}, {"pid", 1}}.dump() + "\n");
    ended = run_slimwire({"report", first, report});
    EXPECT_EQ(ended.exit_code, 2);
    EXPECT_HAS(ended.err, "all of one kind");
    ended = run_slimwire({"report", first, folder.write("nothing", "")});
    EXPECT_EQ(ended.exit_code, 0);
    EXPECT_HAS(ended.err, "nothing: empty");
    EXPECT_HAS(ended.out, "total of 2 trace files: 2 calls");
    ended = run_slimwire({"report", "/nowhere", first});
    EXPECT_EQ(ended.exit_code, 1);
    EXPECT_HAS(ended.err, "/nowhere: cannot read: No such file or directory");
    const std::string bad = folder.write("bad", "{\"v\":1,\"record\":\"trace\"}\n[]\n");
    ended = run_slimwire({"report", bad});
    EXPECT_HAS(ended.err, "bad:2: not a record");
    ended = run_slimwire({"report", folder.write("null",
                                                 "{\"v\":1,\"record\":\"trace\"}\n"
                                                 "{\"v\":null,\"record\":\"call\"}\n")});
    EXPECT_EQ(ended.exit_code, 1);
    EXPECT_HAS(ended.err, "null:2: format version null; this slimwire reads 1");
    ended = run_slimwire({"report", first, first});
    EXPECT_HAS(ended.err, first + ": the same file as another one, read once");
    EXPECT_HAS(ended.out, "total of 1 trace files: 2 calls");
}

}  // namespace
}  // namespace slimwire::cli::test
