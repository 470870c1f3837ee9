// `slimwire report --html`: well-formed pages whose figures are those of the records, whatever
// names a job has, of reports, of traces, of nothing; in a real browser where there is one.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/tools/cli_program.h"
#include "tools/cli/report_page.h"
#include "topology/xml.h"

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
    comm.slowest_class = "NET";
    comm.slowest_mb_s = 100;
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
    MergedKey gated = key_of("int4", 1000000, 100 << 20, 800 << 20);
    gated.timed_calls = 4;
    gated.time_us = 500;
    gated.gate.trials = 2;
    gated.gate.looks = 7;
    gated.gate.decisions = {{15, true, 5, 2e-3, 3e-3}, {600, false, 10, 4e-3, 1e-3}};
    gated.aims.wanted = 1000;
    gated.aims.survivors = 970;
    MergedKey paced = key_of("topk", 2000, 10 << 20, 20 << 20);
    paced.accordions[{0, 3}] = {6, 4, 1, "LLHHHH", {}};
    paced.budgets[{0, 5}] = {3, "int2", {0.04, 0.01}, {}};
    const std::string page =
        page_of(report_of({gated, paced, key_of("native", 7, 200 << 20, 200 << 20)}));
    EXPECT_HAS(page, "<b>3.29 x</b>fewer bytes on the wire");  // 1020 of 310
    EXPECT_HAS(page, "310 MiB of 1020 MiB");
    EXPECT_HAS(page, "survivors 0.970 of wanted");
    EXPECT_HAS(page, ">125.0</td>");  // us a call
    EXPECT_HAS(page, "gate: compressed, 0.25 of the native time; 7 looks since");
    EXPECT_HAS(page, "from call 15: native, native 2000.0 us, compressed 3000.0 us by 5 pairs");
    EXPECT_HAS(page, "accordion: high in 4 of 6 windows");
    EXPECT_HAS(page, "window 1: low compression");
    EXPECT_HAS(page, "window 2: high compression");
    EXPECT_HAS(page, "errors of the ladder: 0.2, 0.1");
    EXPECT_HAS(page, "max_error: int2 after 3 probes");
    // 310 MiB of two ranks in 10 s.
    EXPECT_HAS(page,
               "Slowest link NET, 100 MB/s; 16.3 MB/s a rank sent over the whole run: 16.3 %");
    EXPECT_HAS(page, "64.5 %");  // of all bytes go natively
    EXPECT_HAS(page, "a rule with op = &quot;allreduce&quot; would take it");
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
    EXPECT_HAS(page, "&lt;/td&gt;&lt;script&gt;alert(&quot;1&quot;)&lt;/script&gt; ?");
    EXPECT_HAS(page, "&lt;i&gt;&amp;amp;");
    EXPECT_HAS(page, "! rank &lt;0&gt; &amp; &quot;rank 1&quot;");
}

TEST(ReportPage, ManyKeysAreAddedUp) {
    std::vector<MergedKey> keys;
    for (uint64_t i = 0; i < 5000; ++i) {
        keys.push_back(key_of(i % 2 == 0 ? "int4" : "native", 10000 - i, 1 << 20, 2 << 20));
    }
    const std::string page = page_of(report_of(keys));
    EXPECT_LT(page.size(), 100000u);
    EXPECT_HAS(page, "4940 more kinds of calls");
    EXPECT_HAS(page, "4.824 GiB");  // of these on the wire
}

TEST(ReportPage, WithoutRecordsItSaysHowToHaveThem) {
    const std::string nothing = page_of({});
    EXPECT_HAS(nothing, "SLIMWIRE_REPORT");
    EXPECT_HAS(nothing, "SLIMWIRE_MODE=record");
    MergedReport quiet = report_of({});
    quiet.comms[0].slowest_mb_s = 0;
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
    tensor.codec = "int4";
    tensor.errors = {{0.5, 0.1}, {1.0, 0.25}, {2.0, 0.2}};
    const std::string page = page_of({}, traces);
    EXPECT_HAS(page, "most 3 MiB");
    EXPECT_HAS(page, "100001 s");
    EXPECT_HAS(page, "error of int4 up to 0.25");
    EXPECT_HAS(page, "M0.0 24.8L200.0 2.0L600.0 9.6");
}

TEST(ReportPage, TheCommandWritesIt) {
    const ScratchFolder folder;
    const std::string report = folder.write(
        "report.jsonl",
        R"({"v":1,"record":"process","config_hash":"a","uptime_us":2000000})"
        "\n"
        R"({"v":1,"record":"comm","comm":"c","rank":0,"ranks":1,"nodes":1,"agreement":"go"})"
        "\n"
        R"({"v":1,"record":"key","comm":"c","rank":0,"op":"allreduce","dtype":"f32","count":4,"calls":3,"codec":"int4","wire_bytes":100,"native_wire_bytes":400,"gate":{"choice":"compressed","trials":1,"looks":0,"decisions_hash":"x","decisions":[{"call":15,"choice":"compressed","pairs":5,"native_us":20,"compressed_us":10}]}})"
        "\n");
    const std::string page = folder.path() / "page.html";
    Ended ended = run_slimwire({"report", "--html", page, report});
    ASSERT_EQ(ended.exit_code, 0) << ended.err;
    EXPECT_HAS(read_file(page), "<b>4.00 x</b>");
    EXPECT_HAS(read_file(page), "gate: compressed, 0.50 of the native time");
    ended = run_slimwire({"report", report});
    EXPECT_HAS(ended.out, "compressed by its gate, 1 trials and 0 looks; the last: native 20.0 us");
    ended = run_slimwire({"report", "--html", "/nowhere/page.html", report});
    EXPECT_EQ(ended.exit_code, 1);
    EXPECT_HAS(ended.err, "/nowhere/page.html cannot be written");
    EXPECT_EQ(run_slimwire({"report", "--html", "-", "--json", report}).exit_code, 2);
    // As a browser sees it.
    const char* browser = "/usr/bin/chromium";
    if (access(browser, X_OK) != 0) {
        GTEST_SKIP() << "no " << browser << " to open the page with";
    }
    Program program({browser, "--headless", "--no-sandbox", "--disable-gpu",
                     "--user-data-dir=" + (folder.path() / "profile").string(), "--dump-dom",
                     "file://" + page});
    const Ended seen = program.wait();
    EXPECT_EQ(seen.exit_code, 0) << seen.err;
    EXPECT_HAS(seen.out, "<b>4.00 x</b>");
    EXPECT_HAS_NOT(seen.err, "CONSOLE");
}

}  // namespace
}  // namespace slimwire::cli::test
