#include "tools/cli/nccl_tests_print.h"

#include <fmt/core.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "tools/cli/stamp.h"
#include "tools/cli/variables_help.h"

namespace slimwire::cli {
namespace {

const char* expected_check(const NcclTestsRun& run) {
    return run.check == NcclTestsCheck::kExact ? "zero" : "none";
}

std::string wrong_text(const NcclTestsTiming& timing) {
    return timing.wrong ? std::to_string(*timing.wrong) : "N/A";
}

nlohmann::ordered_json stamped_by(const char* record, const NcclTestsTable& table) {
    auto json = stamped(record);
    if (table.emulated) {
        json["machine"] = json["machine"].get<std::string>() + ", emulator";
    }
    return json;
}

}  // namespace

void print_nccl_tests_json(const NcclTestsProgram& program,
                           const NcclTestsAbout& about,
                           const MergedNcclTestsRow& merged) {
    const NcclTestsRow& row = *merged.row;
    auto json = stamped_by("bench_nccl_tests", merged.run->table);
    json["program"] = program.name;
    json["codec"] = merged.run->codec;
    json["algorithm"] = merged.wire.algorithm.empty() ? "native" : merged.wire.algorithm;
    json["dtype"] = row.type;
    json["redop"] = row.redop;
    json["root"] = row.root;
    json["ranks"] = merged.run->table.ranks;
    json["link"] = about.link;
    json["bytes"] = row.bytes;
    json["count"] = row.count;
    const auto timing = [](const NcclTestsTiming& one) {
        nlohmann::ordered_json part = {{"time_us", one.time_us},
                                       {"algorithm_gbps", one.algorithm_gbps},
                                       {"bus_gbps", one.bus_gbps},
                                       {"wrong", nullptr}};
        if (one.wrong) {
            part["wrong"] = *one.wrong;
        }
        return part;
    };
    json["out_of_place"] = timing(row.out_of_place);
    json["in_place"] = timing(row.in_place);
    json["expected_wrong"] = expected_check(*merged.run);
    json["wire_bytes"] = std::llround(merged.wire.bytes);
    json["native_wire_bytes"] = std::llround(merged.wire.native_bytes);
    json["speedup"] = merged.speedup;
    json["efficiency"] = merged.efficiency;
    if (merged.run->compressed && merged.wire.algorithm.empty()) {
        json["reason"] = merged.wire.reason;
    } else if (merged.run->compressed && merged.wire.codec == "native") {
        json["reason"] = merged.wire.reason;
    }
    fmt::print("{}\n", json.dump());
}

void print_nccl_tests_table(const NcclTestsProgram& program,
                            const std::vector<MergedNcclTestsRow>& rows) {
    fmt::print(
        "# {}\n# {:>10} {:>12} {:>8} {:>7} {:>4} {:>10} {:>8} {:>8} {:>6} {:>10} {:>8} "
        "{:>8} {:>6}  {:<20} {:>10} {:>7} {:>10}\n",
        program.name, "size (B)", "count", "type", "redop", "root", "time (us)", "algbw", "busbw",
        "#wrong", "in place", "algbw", "busbw", "#wrong", "codec", "wire", "speedup", "efficiency");
    for (const MergedNcclTestsRow& merged : rows) {
        const NcclTestsRow& row = *merged.row;
        const NcclTestsTiming& out = row.out_of_place;
        const NcclTestsTiming& in = row.in_place;
        const bool not_compressed =
            merged.run->compressed && (merged.wire.codec.empty() || merged.wire.codec == "native");
        fmt::print(
            "{:>12} {:>12} {:>8} {:>7} {:>4} {:>10.1f} {:>8.3f} {:>8.3f} {:>6} {:>10.1f} "
            "{:>8.3f} {:>8.3f} {:>6}  {:<20} {:>10} {:>7.2f} {:>10.3f}{}\n",
            row.bytes, row.count, row.type, row.redop, row.root, out.time_us, out.algorithm_gbps,
            out.bus_gbps, wrong_text(out), in.time_us, in.algorithm_gbps, in.bus_gbps,
            wrong_text(in), merged.run->codec, format_bytes(merged.wire.bytes), merged.speedup,
            merged.efficiency, not_compressed ? "  not compressed: " + merged.wire.reason : "");
    }
}

void print_nccl_tests_run(const NcclTestsProgram& program,
                          const NcclTestsAbout& about,
                          const NcclTestsRun& run,
                          bool json) {
    if (!json) {
        fmt::print("# {:<20} average bus bandwidth {:>8}, check: {}{}\n", run.codec,
                   run.table.average_bus_gbps ? fmt::format("{:.3f}", *run.table.average_bus_gbps)
                                              : "none",
                   run.check == NcclTestsCheck::kExact
                       ? "on, every #wrong must be 0 or, where the program checks nothing, N/A"
                   : run.compressed && !run.lossless
                       ? "off, #wrong must be N/A: it compares exactly, and this codec rounds"
                       : "off, as asked",
                   run.failed.empty() ? "" : "; failed: " + run.failed);
        return;
    }
    auto line = stamped_by("bench_nccl_tests_run", run.table);
    line["program"] = program.name;
    line["codec"] = run.codec;
    line["dtype"] = run.half ? "bfloat16" : about.dtype;
    line["lossless"] = !run.compressed || run.lossless;
    line["expected_wrong"] = expected_check(run);
    line["average_bus_gbps"] = nullptr;
    if (run.table.average_bus_gbps) {
        line["average_bus_gbps"] = *run.table.average_bus_gbps;
    }
    if (!run.failed.empty()) {
        line["failed"] = run.failed;
    }
    fmt::print("{}\n", line.dump());
}

}  // namespace slimwire::cli
