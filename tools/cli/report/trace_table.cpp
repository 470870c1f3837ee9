#include "tools/cli/report/trace_table.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "tools/cli/common/byte_text.h"
#include "tools/cli/common/run_metadata.h"

namespace slimwire::cli {
namespace {

using Json = nlohmann::json;

constexpr size_t kMostErrors = 200;

double mean(double sum, uint64_t count) {
    return count == 0 ? 0 : sum / static_cast<double>(count);
}

class Reader {
  public:
    Status read(const std::string& path);
    TraceTable finish();

  private:
    void take(const Json& record);
    TracedTensor& tensor(const Json& record) {
        TracedTensor& found = tensors_[record.at("tensor")];
        found.tensor = record.at("tensor");
        return found;
    }

    TraceTable table_;
    std::map<std::string, TracedTensor> tensors_;
    std::map<uint64_t, std::string> tensor_of_call_;  // of the file that is read
    std::set<std::string> comms_;
    std::map<std::string, int> ranks_of_comm_;
    // Of a process and tensor: what one call would send, natively and by mode on, and the calls.
    struct Would {
        uint64_t wire_bytes = 0, native_bytes = 0, calls = 0;
    };
    std::map<uint64_t, double> second_of_call_;  // of that file
    uint64_t calls_of_file_ = 0;
    double first_us_ = 0, last_us_ = 0;  // of these
    std::string process_;                // that wrote the file that is read
    std::map<std::pair<std::string, std::string>, Would> would_;
};

void Reader::take(const Json& record) {
    const std::string kind = record.at("record");
    if (kind == "call") {
        TracedTensor& of = tensor(record);
        of.op = record.at("op");
        of.dtype = record.at("dtype");
        of.redop = record.at("redop");
        of.count = record.at("count");
        of.ranks = ranks_of_comm_[record.at("comm")];
        const double at_us = record.value("at_us", 0.0);
        first_us_ = calls_of_file_++ == 0 ? at_us : std::min(first_us_, at_us);
        last_us_ = calls_of_file_ == 1 ? at_us : std::max(last_us_, at_us);
        ++of.calls;
        of.bytes += record.at("bytes").get<uint64_t>();
        of.captured += record.value("captured", false) ? 1 : 0;
        const int result = record.value("result", 0);
        of.refused += result != 0 && result != 7 ? 1 : 0;  // 7 is "in progress"
        of.host_us += record.at("host_us").get<double>();
        if (record.contains("path")) {
            ++of.places[record.at("place")];
        }
        if (record.value("would_compress", false)) {
            ++would_[{process_, of.tensor}].calls;
        }
        tensor_of_call_[record.at("call")] = of.tensor;
        second_of_call_[record.at("call")] = at_us * 1e-6;
        table_.bytes_by_second[static_cast<uint64_t>(std::max(0.0, at_us) * 1e-6)] +=
            record.at("bytes").get<uint64_t>();
        ++table_.calls;
        table_.bytes += record.at("bytes").get<uint64_t>();
    } else if (kind == "time") {
        if (const auto call = tensor_of_call_.find(record.at("call"));
            call != tensor_of_call_.end()) {
            TracedTensor& of = tensors_[call->second];
            ++of.timed_calls;
            of.device_us += record.at("device_us").get<double>();
        }
    } else if (kind == "codec_time") {
        if (const auto call = tensor_of_call_.find(record.at("call"));
            call != tensor_of_call_.end()) {
            TracedTensor& of = tensors_[call->second];
            ++of.codec_times;
            of.codec_us += record.at("device_us").get<double>();
        }
    } else if (kind == "rehearsal") {
        TracedTensor& of = tensor(record);
        const double error = record.at("rel_error");
        ++of.rehearsed;
        of.rel_error += error;
        if (const auto made = second_of_call_.find(record.value("call", uint64_t{0}));
            made != second_of_call_.end()) {
            of.errors.emplace_back(made->second, error);
        }
        of.largest_rel_error = std::max(of.largest_rel_error, error);
    } else if (kind == "decision") {
        TracedTensor& of = tensor(record);
        of.codec = record.at("codec");
        of.algorithm = record.at("algorithm");
        of.rule = record.at("rule");
        of.reason = record.at("reason");
        of.stand_in = record.value("stand_in", false);
        of.ranks = ranks_of_comm_[record.at("comm")];
        Would& would = would_[{process_, of.tensor}];
        would.wire_bytes = record.value("wire_bytes", uint64_t{0});
        would.native_bytes = record.at("native_wire_bytes");
    } else if (kind == "trace") {
        process_ = record.value("host", "") + ":" + std::to_string(record.value("pid", 0));
    } else if (kind == "sample") {
        TracedTensor& of = tensor(record);
        ++of.samples;
        of.mean_square += record.at("mean_square").get<double>();
        of.zeros_percent += record.at("zeros_percent").get<double>();
        of.exponent_bits += record.at("exponent_bits").get<double>();
        of.nonfinite += record.at("nonfinite").get<uint64_t>();
    } else if (kind == "trace_comm") {
        comms_.insert(record.at("comm"));
        ranks_of_comm_[record.at("comm")] = record.value("ranks", 0);
    } else if (kind == "dropped") {
        table_.lost_items += record.at("items").get<uint64_t>();
    } else if (kind == "rotated") {
        table_.lost_calls += record.at("calls").get<uint64_t>();
    }
}

Status Reader::read(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    if (!file) {
        return {Code::kNotFound, path + ": cannot be read"};
    }
    tensor_of_call_.clear();
    second_of_call_.clear();
    calls_of_file_ = 0;
    first_us_ = last_us_ = 0;
    ++table_.files;
    int number = 0;
    for (std::string line; std::getline(file, line);) {
        const std::string where = fmt::format("{}:{}: ", path, ++number);
        const Json record = Json::parse(line, nullptr, false);
        if (record.is_discarded() && file.eof()) {
            table_.notes.push_back(where + "cut off last line left out");
            break;
        }
        if (!record.is_object() || !record.contains("record")) {
            return {Code::kInvalidArgument, where + "no record of a trace"};
        }
        if (record.value("v", 0) != 1) {
            return {Code::kInvalidArgument, where + "another format version; accepted: 1"};
        }
        try {
            take(record);
        } catch (const Json::exception& error) {
            return {Code::kInvalidArgument, where + error.what()};
        }
    }
    table_.recorded_us += last_us_ - first_us_;
    return {};
}

TraceTable Reader::finish() {
    table_.communicators = comms_.size();
    for (const auto& [of_process, would] : would_) {
        TracedTensor& of = tensors_[of_process.second];
        of.would_calls += would.calls;
        of.would_wire_bytes += would.calls * would.wire_bytes;
        of.would_native_bytes += would.calls * would.native_bytes;
    }
    for (auto& [key, of] : tensors_) {
        std::sort(of.errors.begin(), of.errors.end());
        const size_t step = of.errors.size() / kMostErrors + 1;
        for (size_t i = 0; i * step < of.errors.size(); ++i) {
            of.errors[i] = of.errors[i * step];
        }
        of.errors.resize((of.errors.size() + step - 1) / step);
        table_.tensors.push_back(std::move(of));
    }
    std::stable_sort(table_.tensors.begin(), table_.tensors.end(),
                     [](const auto& a, const auto& b) { return a.bytes > b.bytes; });
    return std::move(table_);
}

std::string places_of(const TracedTensor& of) {
    uint64_t sure = 0;
    for (const auto& [place, calls] : of.places) {
        sure += calls;
    }
    if (sure == 0) {
        return "-";
    }
    return fmt::format("{}{}", of.places.begin()->first,
                       of.places.size() > 1 ? fmt::format(" +{}", of.places.size() - 1) : "");
}

constexpr char kRow[] =
    "{:<16} {:<14} {:<6} {:<8} {:>11} {:>9} {:>10} {:>10} {:>9} {:>7} {:>9} {:>8}\n";

constexpr char kShadowRow[] =
    "{:<16} {:<22} {:<12} {:>9} {:>10} {:>10} {:>6} {:>10} {:>10} {:>9} {:>9} {:>5}  {}\n";

void print_shadow(const TraceTable& table) {
    std::map<std::string, uint64_t> native;  // why -> tensors
    bool any = false;
    for (const TracedTensor& of : table.tensors) {
        any = any || !of.codec.empty();
        if (of.algorithm == "native") {
            ++native[of.reason];
        }
    }
    if (!any) {
        return;
    }
    fmt::print("\nmode on would do\n");
    fmt::print(kShadowRow, "tensor", "codec", "algorithm", "calls", "wire", "native", "ratio",
               "error", "largest", "codec us", "us/call", "pays", "why");
    for (const TracedTensor& of : table.tensors) {
        if (of.codec.empty() || of.algorithm == "native") {
            continue;
        }
        const auto error = [&](double value) {
            return of.rehearsed == 0 ? std::string("-")
                                     : fmt::format("{:.3g}{}", value, of.stand_in ? "*" : "");
        };
        fmt::print(kShadowRow, of.tensor, of.codec, of.algorithm, of.would_calls,
                   format_bytes(static_cast<double>(of.would_wire_bytes)),
                   format_bytes(static_cast<double>(of.would_native_bytes)) + "~",
                   of.would_wire_bytes == 0
                       ? std::string("-")
                       : fmt::format("{:.2f}", static_cast<double>(of.would_native_bytes) /
                                                   static_cast<double>(of.would_wire_bytes)),
                   error(mean(of.rel_error, of.rehearsed)), error(of.largest_rel_error),
                   of.codec_times == 0 ? std::string("-")
                                       : fmt::format("{:.1f}", mean(of.codec_us, of.codec_times)),
                   of.timed_calls == 0 ? std::string("-")
                                       : fmt::format("{:.1f}", mean(of.device_us, of.timed_calls)),
                   pays(of), of.reason);
    }
    if (std::any_of(table.tensors.begin(), table.tensors.end(),
                    [](const TracedTensor& of) { return of.stand_in; })) {
        fmt::print("* of a rank's own part, which stands in for what would be encoded\n");
    }
    for (const auto& [why, tensors] : native) {
        fmt::print("native: {} tensors: {}\n", tensors, why);
    }
}

}  // namespace

// Whether mode on would save time. Its exchange encodes and decodes what a rank gives at most
// twice, or as often as there are ranks where it decodes the contributions of all. "yes": even then
// it is faster, if the native time shrinks as the bytes do; "no": the codec alone takes as long.
std::string pays(const TracedTensor& of) {
    const double native_us = mean(of.device_us, of.timed_calls);
    const double codec_us = mean(of.codec_us, of.codec_times);
    if (of.timed_calls == 0 || of.codec_times == 0 || of.would_native_bytes == 0) {
        return "-";
    }
    const double share =
        static_cast<double>(of.would_wire_bytes) / static_cast<double>(of.would_native_bytes);
    const bool of_all = of.algorithm == "gather" || of.op == "allgather";
    const double most = codec_us * std::max(2, of_all ? of.ranks : 0);
    return most + share * native_us < native_us ? "yes" : codec_us >= native_us ? "no" : "?";
}

bool is_trace(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    std::string line;
    std::getline(file, line);
    const Json record = Json::parse(line, nullptr, false);
    return record.is_object() && record.contains("record") && record.at("record") == "trace";
}

Result<TraceTable> read_traces(const std::vector<std::string>& files) {
    Reader reader;
    for (const std::string& path : files) {
        SLIMWIRE_TRY(reader.read(path));
    }
    return reader.finish();
}

void print_traces(const TraceTable& table, bool json) {
    if (!json) {
        fmt::print(kRow, "tensor", "operation", "type", "reduce", "elements", "calls", "bytes",
                   "us/call", "host us", "place", "rms", "exp bits");
    }
    for (const TracedTensor& of : table.tensors) {
        const double device_us = mean(of.device_us, of.timed_calls);
        const double host_us = mean(of.host_us, of.calls);
        const double rms = std::sqrt(mean(of.mean_square, of.samples));
        const double exponent_bits = mean(of.exponent_bits, of.samples);
        if (json) {
            nlohmann::ordered_json line = json_record("trace_tensor");
            line["tensor"] = of.tensor;
            line["op"] = of.op;
            line["dtype"] = of.dtype;
            line["redop"] = of.redop;
            line["count"] = of.count;
            line["calls"] = of.calls;
            line["bytes"] = of.bytes;
            line["captured"] = of.captured;
            line["refused"] = of.refused;
            line["timed_calls"] = of.timed_calls;
            line["device_us"] = device_us;
            line["host_us"] = host_us;
            line["samples"] = of.samples;
            line["rms"] = rms;
            line["zeros_percent"] = mean(of.zeros_percent, of.samples);
            line["nonfinite"] = of.nonfinite;
            line["exponent_bits"] = exponent_bits;
            if (!of.codec.empty()) {
                line["would"] = {{"codec", of.codec},
                                 {"algorithm", of.algorithm},
                                 {"rule", of.rule},
                                 {"reason", of.reason},
                                 {"stand_in", of.stand_in},
                                 {"calls", of.would_calls},
                                 {"wire_bytes", of.would_wire_bytes},
                                 {"native_wire_bytes", of.would_native_bytes},
                                 {"rehearsed", of.rehearsed},
                                 {"rel_error", mean(of.rel_error, of.rehearsed)},
                                 {"largest_rel_error", of.largest_rel_error},
                                 {"codec_times", of.codec_times},
                                 {"codec_us", mean(of.codec_us, of.codec_times)},
                                 {"pays", pays(of)}};
            }
            for (const auto& [place, calls] : of.places) {
                line["places"][std::to_string(place)] = calls;
            }
            fmt::print("{}\n", line.dump());
            continue;
        }
        fmt::print(kRow, of.tensor, of.op, of.dtype, of.redop, of.count, of.calls,
                   format_bytes(static_cast<double>(of.bytes)),
                   of.timed_calls == 0 ? std::string("-") : fmt::format("{:.1f}", device_us),
                   fmt::format("{:.1f}", host_us), places_of(of),
                   of.samples == 0 ? std::string("-") : fmt::format("{:.3g}", rms),
                   of.samples == 0 ? std::string("-") : fmt::format("{:.2f}", exponent_bits));
    }
    if (json) {
        nlohmann::ordered_json line = json_record("trace_total");
        line["files"] = table.files;
        line["communicators"] = table.communicators;
        line["tensors"] = table.tensors.size();
        line["calls"] = table.calls;
        line["bytes"] = table.bytes;
        line["lost_items"] = table.lost_items;
        line["rotated_calls"] = table.lost_calls;
        line["notes"] = table.notes;
        fmt::print("{}\n", line.dump());
        return;
    }
    print_shadow(table);
    fmt::print("\ntotal of {} trace files: {} calls, {} in buffers, {} tensors, {} communicators\n",
               table.files, table.calls, format_bytes(static_cast<double>(table.bytes)),
               table.tensors.size(), table.communicators);
    if (table.lost_items != 0) {
        fmt::print("! {} items came faster than they could be written and are not in the trace\n",
                   table.lost_items);
    }
    if (table.lost_calls != 0) {
        fmt::print("! {} calls are in files before these, as far as they are kept (FILE.1)\n",
                   table.lost_calls);
    }
}

}  // namespace slimwire::cli
