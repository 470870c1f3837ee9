// `slimwire report --html`: well-formed pages whose figures are those of the records, whatever
// names a job has, of reports, of traces, of nothing; in a real browser where there is one.
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/tools/cli_program.h"
#include "tools/cli/report/report_page.h"
#include "topology/readers/machine_xml.h"

namespace slimwire::cli::test {
namespace {

MergedKey key_of(const std::string& codec, uint64_t count, uint64_t wire, uint64_t native) {
    MergedKey key;
    key.op = "allreduce";
    key.dtype = "f32";
    key.redop = "sum";
    key.count = count;
    key.codec = codec;
    key.algorithm = codec == "native" ? "native" : "two_shot";
    key.reason = codec == "native" ? "no rule matches" : "rule 'grads'";
    key.calls = 10;
    key.wire_bytes = wire;
    key.native_wire_bytes = native;
    return key;
}

MergedReport report_of(std::vector<MergedKey> keys) {
    MergedReport report;
    report.processes = 2;
    report.uptime_us = 1e7;
    MergedComm& comm = report.comms.emplace_back();
    comm.comm = "c0ffee";
    comm.ranks = 2;
    comm.nodes = 2;
    comm.ranks_seen = {0, 1};
    comm.agreements["go"] = {0, 1};
    comm.links.slowest_between_nodes = {PathClass::kNet, 100, false};
    for (const MergedKey& key : keys) {
        report.total.calls += key.calls;
        report.total.wire_bytes += key.wire_bytes;
        report.total.native_wire_bytes += key.native_wire_bytes;
    }
    comm.keys = std::move(keys);
    return report;
}

// The page, which must be well-formed.
std::string page_of(const MergedReport& report, const TraceTable& traces = {}) {
    std::string page = report_page(report, traces);
    EXPECT_EQ(page.rfind("<!DOCTYPE html>\n", 0), 0u);
    const auto parsed = parse_xml(page.substr(page.find('\n') + 1));
    EXPECT_TRUE(parsed.ok()) << parsed.status().message();
    for (const char* outside : {"http://", "https://", "<script", "url(", "<link"}) {
        EXPECT_HAS_NOT(page, outside);
    }
    return page;
}

TEST(ReportPage, FiguresAreThoseOfTheRecords) {
    MergedKey adapted = key_of("int4", 1000000, 100 << 20, 800 << 20);
    adapted.timed_calls = 4;
    adapted.time_us = 500;
    adapted.features.thresholds.wanted = 1000;
    adapted.features.thresholds.survivors = 970;
    MergedKey paced = key_of("topk", 2000, 10 << 20, 20 << 20);
    paced.features.accordions[{0, 3}] = {6, 4, 1, "LLHHHH", {}};
    paced.features.residual_norms = {{0, {4.0, 1.0}}, {61, {1.0, 9.0}}, {122, {1.0, 4.0}}};
    MergedKey small = key_of("native", 9, 1 << 10, 1 << 10);
    small.reason = "too small";
    small.remedy = "a smaller min_bytes";
    const std::string page =
        page_of(report_of({adapted, paced, key_of("native", 7, 200 << 20, 200 << 20), small}));
    EXPECT_HAS(page, "<b>3.29 x</b>fewer bytes on the wire");  // 1020 of 310
    EXPECT_HAS(page, "310 MiB of 1020 MiB");
    EXPECT_HAS(page, "survivors 0.970 of wanted");
    EXPECT_HAS(page, ">125.0</td>");  // us a call
    EXPECT_HAS(page, "accordion: high in 4 of 6 windows");
    EXPECT_HAS(page, "window 1: low compression");
    EXPECT_HAS(page, "window 2: high compression");
    EXPECT_HAS(page, "aria-label=\"residual over calls\"");
    EXPECT_HAS(page, "by topk, up to 3<");
    // 310 MiB of two ranks in 10 s.
    EXPECT_HAS(page,
               "Slowest link NET, 100 MB/s; 16.3 MB/s a rank sent over the whole run: 16.3 %");
    EXPECT_HAS(page, "64.5 %");  // of all bytes go natively
    EXPECT_HAS(page, "a rule with op = &quot;allreduce&quot; would take it");
    EXPECT_HAS(page, "a smaller min_bytes");
}

TEST(ReportPage, NamesAreOnlyText) {
    MergedKey key = key_of("native", 7, 100, 100);
    key.names = {"</td><script>alert(\"1\")</script>\x01\xff\xc0\xaf'"};
    key.reason = "<img src=x onerror=\"1\">";
    key.codec = "int4<b>";
    MergedReport report = report_of({key});
    report.comms[0].comm = "<i>&amp;";
    report.comms[0].differences = {"rank <0> & \"rank 1\""};
    report.notes = {"file <x>:3"};
    const std::string page = page_of(report);
    EXPECT_HAS(page, "&lt;/td&gt;&lt;script&gt;alert(&quot;1&quot;)&lt;/script&gt; \xef\xbf\xbd");
    EXPECT_HAS(page, "&lt;i&gt;&amp;amp;");
    EXPECT_HAS(page, "! rank &lt;0&gt; &amp; &quot;rank 1&quot;");
}

TEST(ReportPage, WithoutRecordsItSaysHowToHaveThem) {
    const std::string nothing = page_of({});
    EXPECT_HAS(nothing, "SLIMWIRE_REPORT");
    EXPECT_HAS(nothing, "SLIMWIRE_MODE=record");
    MergedReport quiet = report_of({});
    quiet.comms[0].links.slowest_between_nodes.mb_s = 0;
    EXPECT_HAS(page_of(quiet), "SLIMWIRE_BANDWIDTH");
    EXPECT_HAS(page_of(quiet), "No bytes go natively");
}

TEST(ReportPage, TracesHaveATime) {
    TraceTable traces;
    traces.files = 1;
    traces.calls = 30;
    traces.bytes = 3 << 20;
    traces.bytes_by_second = {{0, 1 << 20}, {5, 2 << 20}, {100000, 1}};
    TracedTensor& tensor = traces.tensors.emplace_back();
    tensor.op = "allreduce";
    tensor.dtype = "f32";
    tensor.shadow.codec = "int4";
    tensor.shadow.errors = {{0.5, 0.1}, {1.0, 0.25}, {2.0, 0.2}};
    const std::string page = page_of({}, traces);
    EXPECT_HAS(page, "most 3 MiB");
    EXPECT_HAS(page, "100001 s");
    EXPECT_HAS(page, "error of int4 up to 0.25");
    EXPECT_HAS(page, "M0.0 24.8L200.0 2.0L600.0 9.6");
}

TEST(ReportPage, StaysSmallHoweverMuchAJobHas) {
    std::vector<MergedKey> keys;
    for (uint64_t i = 0; i < 5000; ++i) {
        keys.push_back(key_of(i % 2 == 0 ? "int4" : "native", 10000 - i, 1 << 20, 2 << 20));
    }
    std::string page = page_of(report_of(keys));
    EXPECT_LT(page.size(), 100000u);
    EXPECT_HAS(page, "4940 more kinds of calls");
    EXPECT_HAS(page, "4.824 GiB");  // of these on the wire
    keys.clear();
    for (uint64_t i = 0; i < 200; ++i) {
        MergedKey key = key_of("native", 10000 - i, 1 << 20, 1 << 20);
        key.names = {"begin" + std::string(5000, 'x') + "\u00e9\u00e9\u00e9end"};
        key.reason = std::string(5000, 'y');
        keys.push_back(key);
    }
    MergedReport report = report_of(keys);
    report.comms[0].differences.assign(500, "rank 1 differs");
    for (int i = 0; i < 60; ++i) {
        report.comms.push_back(report.comms[0]);
    }
    for (int i = 0; i < 500; ++i) {
        MergedPeer& peer = report.peers.emplace_back();
        peer.direction = "send";
        peer.peer = "host" + std::to_string(i);
        peer.messages = 3;
        peer.bytes = 1 << 20;
        peer.wire_bytes = 1 << 19;
    }
    page = page_of(report);
    EXPECT_LT(page.size(), 500'000u);
    EXPECT_HAS(page, "and 488 more (report --json has all)");
    EXPECT_HAS(page, "<td>476 more</td><td></td><td class=\"num\">1428</td>");
    EXPECT_HAS(page, "476 MiB");
    EXPECT_HAS(page, "195 more kinds of calls");  // of the last communicators
    EXPECT_HAS(page, "\u00e9\u00e9\u00e9end");
    EXPECT_HAS(page, "x...x");
}

std::string trace_of(const std::string& more, int calls = 300) {
    std::string text = record_line("trace", {{"part", 1}, {"host", "h"}, {"pid", 1}}) +
                       record_line("trace_comm", {{"comm", "c"}, {"ranks", 2}});
    for (int call = 1; call <= calls; ++call) {
        // The later half is half as fast; what is small, in a group or not timed does not count.
        const bool small = call % 10 == 0, counts = call % 10 > 2;
        text += record_line("call", {{"call", call},
                                     {"comm", "c"},
                                     {"op", "allreduce"},
                                     {"dtype", "f32"},
                                     {"redop", "sum"},
                                     {"count", small ? 8 : 1000000},
                                     {"bytes", small ? 32 : 4000000},
                                     {"tensor", small ? "small" : "big"},
                                     {"group", call % 10 == 1 ? 7 : 0},
                                     {"at_us", 1e6 * call},
                                     {"host_us", 1.0},
                                     {"would_compress", !small}});
        if (call % 10 != 2) {
            const double us = !counts ? 1.0 : call <= calls / 2 ? 1e4 : 2e4;
            text += record_line("time", {{"call", call}, {"device_us", us}});
        }
    }
    return text + more;
}

TEST(ReportPage, TracesSayHowFastLinksWereAndWhatTheProgramTold) {
    const ScratchFolder folder;
    const std::string first = folder.write(
        "t0",
        trace_of(
            record_line(
                "training",
                {{"at_us", 1e6}, {"phase", "training"}, {"step", 1}, {"learning_rate", 0.5}}) +
            record_line("training", {{"at_us", 200e6},
                                     {"phase", "evaluation"},
                                     {"step", 200},
                                     {"learning_rate", 0.25}}) +
            record_line("rehearsal",
                        {{"call", 3}, {"comm", "c"}, {"tensor", "big"}, {"rel_error", 0.125}}) +
            record_line("codec_time", {{"call", 3}, {"device_us", 50}}) +
            record_line("decision", {{"comm", "c"},
                                     {"tensor", "big"},
                                     {"codec", "int4"},
                                     {"algorithm", "two_shot"},
                                     {"rule", "a"},
                                     {"reason", "b"},
                                     {"wire_bytes", 1000},
                                     {"native_wire_bytes", 4000}})));
    const std::string second = folder.write("t1", trace_of(""));
    const Result<TraceTable> traces = read_traces({first, second});
    ASSERT_TRUE(traces.ok()) << traces.status().message();
    const TraceTimeline& line = traces.value().timeline;
    EXPECT_EQ(line.training.size(), 2u);
    const std::string several = folder.write("several", read_file(first) + read_file(first));
    EXPECT_EQ(read_traces({several}).value().timeline.training.size(), 2u) << "of one process";
    EXPECT_GT(line.used, kMostSlices / 2);
    uint64_t bytes = 0;
    double busy_us = 0;
    for (const TraceSlice& slice : line.slices) {
        bytes += slice.timed_wire_bytes;
        busy_us += slice.timed_us;
    }
    // Seven of ten calls of both files, as many bytes as a rank's all-reduce of two sends.
    EXPECT_EQ(bytes, 2u * 210 * 4000000);
    EXPECT_DOUBLE_EQ(busy_us, 2 * (105 * 1e4 + 105 * 2e4));
    EXPECT_DOUBLE_EQ(line.slices[2].timed_wire_bytes / line.slices[2].timed_us, 400);
    const Ended ended = run_slimwire({"report", "--html", "-", first, second});
    ASSERT_EQ(ended.exit_code, 0) << ended.err;
    EXPECT_TRUE(parse_xml(ended.out.substr(ended.out.find('\n') + 1)).ok());
    for (const char* part :
         {"were timed; most 381.5 MiB/s", "<span>300 s</span>", "Learning rate; most 0.5",
          "training from 1 s, step 1, evaluation from 200 s, step 200", "What mode on would do",
          // 540 calls.
          "<td class=\"num\">527.3 KiB</td>", "<td class=\"num\">2.06 MiB</td>", ">0.125</td>",
          "<td>yes</td>"}) {
        EXPECT_HAS(ended.out, part);
    }
    EXPECT_EQ(ended.out, run_slimwire({"report", "--html", "-", first, second}).out);
    EXPECT_HAS(run_slimwire({"report", "--html", "-", second}).out,
               "The program told nothing of its training");
}

// Not over what was recorded, as `--html slim-*.jsonl` without a name of its own would.
TEST(ReportPage, RecordsAreNeverOverwritten) {
    const ScratchFolder folder;
    const std::string record = R"({"v":1,"record":"process","config_hash":"a","uptime_us":2000000})"
                               "\n";
    const std::string first = folder.write("r0.jsonl", record);
    const std::string second = folder.write("r1.jsonl", record);
    const auto refused = [&](const std::string& path, int exit_code, const std::string& why) {
        expect_says(exit_code, {"report", "--html", path, second}, {why});
    };
    refused(first, 2, "holds records, which the page would overwrite");
    refused(second, 2, "is one of the files to read");
    refused(folder.path().string(), 1, "is a folder; accepted: a file");
    refused(folder.path() / "no" / "page.html", 1, "there is no folder");
    refused("/dev/full", 1, "/dev/full cannot be written: No space left");
    refused("/nowhere/page.html", 1, "/nowhere/page.html cannot be written");
    EXPECT_EQ(read_file(first), record);
    EXPECT_EQ(read_file(second), record);
    const std::string page = folder.path() / "page.html";
    for (int i = 0; i < 2; ++i) {  // a page is replaced
        succeed({"report", "--html", page, first, second});
        EXPECT_HAS(read_file(page), "<b>2</b>processes");
    }
    expect_says(2, {"report", "--html", "-", "--json", first}, {"--json"});
    using Files = std::filesystem::directory_iterator;
    EXPECT_EQ(std::distance(Files(folder.path()), Files()), 3) << "nothing is left beside it";
}

TEST(ReportPage, NothingStandsBesideANarrowWindow) {
    const char* browser = "/usr/bin/chromium";
    if (access(browser, X_OK) != 0) {
        GTEST_SKIP() << "no " << browser << " to open the page with";
    }
    const ScratchFolder folder;
    MergedKey paced = key_of("topk", 2000, 10 << 20, 20 << 20);
    paced.features.accordions[{0, 3}] = {64, 4, 1, std::string(60, 'L') + "HHHH", {}};
    paced.names = {std::string(150, 'n')};
    MergedReport report = report_of({paced, key_of("native", 7, 200 << 20, 200 << 20)});
    report.differences = {std::string(300, 'd')};
    TraceTable traces;
    traces.files = 1;
    traces.bytes_by_second = {{0, 1 << 20}, {5, 2 << 20}};
    folder.write("page.html", page_of(report, traces));
    // A page around it measures it in a frame; headless windows have 500 pixels at least.
    folder.write("around.html",
                 "<!DOCTYPE html><title>-</title><iframe id=f src=page.html "
                 "style='width:420px;height:900px;border:0'></iframe><script>onload=()=>{const "
                 "d=f.contentDocument;document.title='measured '+[d.documentElement.scrollWidth<="
                 "420,d.querySelectorAll('h2').length,d.querySelector('svg.plot')."
                 "getBoundingClientRect().height]}</script>");
    Program program(
        {browser, "--headless", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files",
         "--user-data-dir=" + (folder.path() / "profile").string(), "--dump-dom",
         "--virtual-time-budget=3000", "file://" + (folder.path() / "around.html").string()});
    const Ended seen = program.wait(100);
    EXPECT_EQ(seen.exit_code, 0) << seen.err;
    EXPECT_HAS(seen.out, "<title>measured true,5,150</title>");
    EXPECT_HAS_NOT(seen.err, "CONSOLE");
}

}  // namespace
}  // namespace slimwire::cli::test
