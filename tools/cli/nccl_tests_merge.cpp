#include "tools/cli/nccl_tests_merge.h"

#include <algorithm>
#include <optional>

#include "collectives/names.h"

namespace slimwire::cli {
namespace {

bool is(const NcclTestsProgram& program, std::string_view name) {
    return program.name == name;
}

// Bytes that a rank gives to the transport natively, in units of a row's size; the mean over ranks
// for the rooted ones, which is what the report's sums are too.
double native_factor(const NcclTestsProgram& program, int ranks) {
    if (ranks < 1) {
        return 0;
    }
    const double others = (ranks - 1.0) / ranks;
    if (is(program, "all_reduce_perf")) {
        return 2 * others;
    }
    if (is(program, "gather_perf") || is(program, "scatter_perf")) {
        return others / ranks;
    }
    if (is(program, "sendrecv_perf")) {
        return 1;
    }
    return others;
}

// How one measurement of a row is made of messages: `times` of count times `multiple` from each
// rank.
struct Messages {
    uint64_t multiple = 1;
    double times = 1;
};
std::vector<Messages> messages_of(const NcclTestsProgram& program, int ranks) {
    std::vector<Messages> messages;
    if (is(program, "alltoall_perf")) {
        messages.push_back({1, ranks - 1.0});
    } else if (is(program, "hypercube_perf")) {
        for (int mask = 1; mask < ranks; mask <<= 1) {
            messages.push_back({static_cast<uint64_t>(mask), 1});
        }
    } else if (is(program, "sendrecv_perf")) {
        messages.push_back({1, 1});
    } else {
        messages.push_back({1, (ranks - 1.0) / std::max(ranks, 1)});
    }
    return messages;
}
std::optional<NcclTestsWire> wire_of(const NcclTestsProgram& program,
                                     const NcclTestsRun& run,
                                     const NcclTestsRow& row) {
    const std::optional<DType> dtype = parse_dtype(row.type);
    const std::string redop = row.redop == "mulsum" ? "premulsum" : row.redop;
    NcclTestsWire wire;
    bool found = false;
    for (const Op op : program.ops) {
        const std::vector<Messages> messages = is_point_to_point(op)
                                                   ? messages_of(program, run.table.ranks)
                                                   : std::vector<Messages>{Messages{}};
        for (const Messages& part : messages) {
            double calls = 0;
            double bytes = 0;
            double native = 0;
            for (const MergedComm& comm : run.report.comms) {
                for (const MergedKey& key : comm.keys) {
                    if (key.op != op_name(op) || !dtype || key.dtype != dtype_name(*dtype) ||
                        key.count != row.count * part.multiple || key.calls == 0 ||
                        (reduces(op) && key.redop != redop)) {
                        continue;
                    }
                    calls += static_cast<double>(key.calls);
                    bytes += static_cast<double>(key.wire_bytes);
                    native += static_cast<double>(key.native_wire_bytes);
                    if (wire.codec.empty() || wire.codec == "native") {
                        wire.codec = key.codec;
                        wire.algorithm = key.algorithm;
                        wire.reason = key.reason;
                    }
                }
            }
            if (calls > 0) {
                found = true;
                wire.bytes += bytes / calls * part.times;
                wire.native_bytes += native / calls * part.times;
            }
        }
        if (found) {
            break;
        }
    }
    return found ? std::optional(wire) : std::nullopt;
}

const NcclTestsRow* partner(const NcclTestsTable& table, const NcclTestsRow& row, bool same_type) {
    for (const NcclTestsRow& other : table.rows) {
        if (other.count == row.count && other.redop == row.redop && other.root == row.root &&
            (!same_type || other.type == row.type)) {
            return &other;
        }
    }
    return nullptr;
}

MergedNcclTestsRow merge(const NcclTestsProgram& program,
                         const NcclTestsRun& native,
                         const NcclTestsRun& run,
                         const NcclTestsRow& row) {
    MergedNcclTestsRow merged{&run, &row, {}, 0, 0};
    const NcclTestsRow* beside = partner(native.table, row, !run.half);
    const double factor = native_factor(program, run.table.ranks);
    if (run.compressed) {
        merged.wire =
            wire_of(program, run, row).value_or(NcclTestsWire{"", "", "not in the report", 0, 0});
    } else {
        merged.wire.codec = "native";
        merged.wire.algorithm = "native";
        merged.wire.bytes = factor * static_cast<double>(row.bytes);
        merged.wire.native_bytes =
            beside == nullptr ? 0 : factor * static_cast<double>(beside->bytes);
    }
    if (beside != nullptr && row.out_of_place.time_us > 0) {
        merged.speedup = beside->out_of_place.time_us / row.out_of_place.time_us;
        if (merged.wire.bytes > 0 && merged.wire.native_bytes > 0) {
            merged.efficiency = merged.speedup * merged.wire.bytes / merged.wire.native_bytes;
        }
    }
    return merged;
}

}  // namespace

std::vector<MergedNcclTestsRow> merge_runs(const NcclTestsProgram& program,
                                           const std::vector<NcclTestsRun>& runs) {
    std::vector<MergedNcclTestsRow> merged;
    for (const NcclTestsRow& row : runs.front().table.rows) {
        for (const NcclTestsRun& run : runs) {
            if (const NcclTestsRow* own = partner(run.table, row, !run.half)) {
                merged.push_back(merge(program, runs.front(), run, *own));
            }
        }
    }
    for (const NcclTestsRun& run : runs) {
        for (const NcclTestsRow& row : run.table.rows) {
            if (partner(runs.front().table, row, !run.half) == nullptr) {
                merged.push_back(merge(program, runs.front(), run, row));
            }
        }
    }
    return merged;
}

}  // namespace slimwire::cli
