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
    const auto of_tensor = [](const char* kind, const char* tensor, const Json& more) {
        Json members{{"comm", "c0ffee"}, {"tensor", tensor}};
        members.update(more);
        return record_line(kind, members);
    };
    Json would = traced(1, "big", 1000);
    would["would_compress"] = true;
    std::string text = record_line("trace", {{"part", 1}, {"host", "h"}, {"pid", pid}}) +
                       record_line("trace_comm", {{"comm", "c0ffee"}, {"ranks", 4}}) +
                       would.dump() + "\n";
    would["call"] = 2;
    return text + would.dump() + "\n" + traced(3, "small", 10).dump() + "\n" +
           record_line("time", {{"call", 1}, {"device_us", 100.0}}) +
           record_line("codec_time", {{"call", 2}, {"device_us", codec_us}}) +
           of_tensor("rehearsal", "big", {{"rel_error", 0.25}}) +
           of_tensor("rehearsal", "big", {{"rel_error", 0.75}}) +
           of_tensor("decision", "big",
                     {{"codec", "int4"},
                      {"algorithm", "two_shot"},
                      {"rule", "all"},
                      {"reason", "rule 'all'"},
                      {"wire_bytes", wire_bytes},
                      {"stand_in", false},
                      {"native_wire_bytes", 6000}}) +
           of_tensor("decision", "small",
                     {{"codec", "native"},
                      {"algorithm", "native"},
                      {"rule", ""},
                      {"reason", "no rule matches"},
                      {"native_wire_bytes", 60}});
}

TEST(ReportOfTraces, ModeShadowSaysWhatModeOnWouldDo) {
    const ScratchFolder folder;
    const std::string first = folder.write("trace.0", shadow_trace(1, 1000, 10));
    const std::string second = folder.write("trace.1", shadow_trace(2, 2000, 20));
    const std::vector<Json> tensors = records_of({"report", first, second});
    expect_members(tensors.at(0), {{"tensor", "big"}, {"ranks", 4}});
    // 100 us against a quarter of it and twice 15.
    expect_members(tensors[0]["would"], {{"codec", "int4"},
                                         {"algorithm", "two_shot"},
                                         {"rule", "all"},
                                         {"calls", 4},
                                         {"wire_bytes", 2 * 1000 + 2 * 2000},
                                         {"native_wire_bytes", 4 * 6000},
                                         {"rehearsed", 4},
                                         {"rel_error", 0.5},
                                         {"largest_rel_error", 0.75},
                                         {"codec_us", 15.0},
                                         {"pays", "yes"}});
    expect_members(tensors.at(1)["would"], {{"calls", 0}, {"pays", "-"}});
    expect_prints({"report", first, second},
                  {"allreduce      f32    sum           4        1000", "mode on would do", "int4",
                   "native: 1 tensors: no rule matches"});
    for (const auto& [codec_us, pays] : {std::pair(120, "no"), {60, "?"}}) {
        const std::string trace = folder.write("other", shadow_trace(3, 1000, codec_us));
        EXPECT_EQ(records_of({"report", trace}).at(0)["would"]["pays"], pays);
    }
}

TEST(ReportOfTraces, TensorsAreAddedUpOverRanks) {
    const ScratchFolder folder;
    const auto head = [](int pid) { return record_line("trace", {{"part", 2}, {"pid", pid}}); };
    const Json big{{"comm", "c0ffee"},      {"tensor", "big"},      {"mean_square", 9.0},
                   {"zeros_percent", 50.0}, {"exponent_bits", 2.5}, {"nonfinite", 1}};
    Json placed = traced(2, "big", 1000);
    placed["path"] = "77";
    placed["place"] = 4;
    // The rehearsal is of a call in a file before.
    const std::string text =
        record_line("trace_comm", {{"comm", "c0ffee"}}) +
        record_line("rehearsal", {{"comm", "c0ffee"}, {"tensor", "gone"}, {"rel_error", 0.5}}) +
        traced(1, "small", 10).dump() + "\n" + placed.dump() + "\n" +
        record_line("time", {{"call", 2}, {"device_us", 8.0}}) + record_line("sample", big) +
        record_line("dropped", {{"items", 5}}) +
        record_line("rotated", {{"calls", 7}, {"items", 3}});
    const std::string first = folder.write("trace.0", head(7) + text + "\n \r\n");
    const std::string second = folder.write("trace.1", head(8) + text + "{\"v\":1,\"rec");
    Ended ended = run_slimwire({"report", "--json", first, second});
    ASSERT_EQ(ended.exit_code, 0) << ended.err;
    EXPECT_HAS(ended.err, "trace.1:10: cut off last line left out");
    const std::vector<Json> lines = records_of({"report", first, second});
    ASSERT_EQ(lines.size(), 3u) << ended.out;
    expect_members(lines[0], {{"tensor", "big"},
                              {"calls", 2},
                              {"bytes", 8000},
                              {"device_us", 8.0},
                              {"rms", 3.0},
                              {"exponent_bits", 2.5},
                              {"nonfinite", 2},
                              {"places", {{"4", 2}}}});
    expect_members(lines[1], {{"tensor", "small"}, {"timed_calls", 0}});
    expect_members(lines[2], {{"lost_items", 16}, {"rotated_calls", 14}, {"communicators", 1}});
    expect_prints({"report", first}, {"total of 1 trace files: 2 calls",
                                      "! 7 calls are in files before these", "! 8 items"});
    // With the file before it of the same process, those before that are missing alone.
    const std::string before =
        folder.write("trace.0.1", head(7) + record_line("rotated", {{"calls", 5}}));
    EXPECT_HAS(run_slimwire({"report", first, before}).out, "! 5 calls are in files before these");
    EXPECT_HAS(run_slimwire({"report", first, folder.write("copy", read_file(first))}).err,
               "copy: a copy of another of these traces, counted again");
    const std::string whole = folder.write("trace.0.1", head(7));
    EXPECT_HAS_NOT(run_slimwire({"report", first, whole}).out, "in files before these");
    const std::string report = folder.write("report.0", record_line("process", {{"pid", 1}}));
    expect_says(2, {"report", first, report}, {"all of one kind"});
    ended = succeed({"report", first, folder.write("nothing", "")});
    EXPECT_HAS(ended.err, "nothing: empty");
    EXPECT_HAS(ended.out, "total of 2 trace files: 2 calls");
    expect_says(1, {"report", "/nowhere", first},
                {"/nowhere: cannot read: No such file or directory"});
    for (const auto& [line, why] : {std::pair("[]\n", "wrong:2: not a record"),
                                    {"{\"v\":null,\"record\":\"call\"}\n",
                                     "wrong:2: format version null; this slimwire reads 1"}}) {
        expect_says(1, {"report", folder.write("wrong", head(1) + line)}, {why});
    }
    ended = run_slimwire({"report", first, first});
    EXPECT_HAS(ended.err, first + ": the same file as another one, read once");
    EXPECT_HAS(ended.out, "total of 1 trace files: 2 calls");
}

}  // namespace
}  // namespace slimwire::cli::test
