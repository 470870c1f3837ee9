#include "tools/cli/trace_table.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "tools/cli/stamp.h"
#include "tools/cli/variables_help.h"

namespace slimwire::cli {
namespace {

using Json = nlohmann::json;

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
};

void Reader::take(const Json& record) {
    const std::string kind = record.at("record");
    if (kind == "call") {
        TracedTensor& of = tensor(record);
        of.op = record.at("op");
        of.dtype = record.at("dtype");
        of.redop = record.at("redop");
        of.count = record.at("count");
        ++of.calls;
        of.bytes += record.at("bytes").get<uint64_t>();
        of.captured += record.value("captured", false) ? 1 : 0;
        const int result = record.value("result", 0);
        of.refused += result != 0 && result != 7 ? 1 : 0;  // 7 is "in progress"
        of.host_us += record.at("host_us").get<double>();
        if (record.contains("path")) {
            ++of.places[record.at("place")];
        }
        tensor_of_call_[record.at("call")] = of.tensor;
        ++table_.calls;
        table_.bytes += record.at("bytes").get<uint64_t>();
    } else if (kind == "time") {
        if (const auto call = tensor_of_call_.find(record.at("call"));
            call != tensor_of_call_.end()) {
            TracedTensor& of = tensors_[call->second];
            ++of.timed_calls;
            of.device_us += record.at("device_us").get<double>();
        }
    } else if (kind == "sample") {
        TracedTensor& of = tensor(record);
        ++of.samples;
        of.mean_square += record.at("mean_square").get<double>();
        of.zeros_percent += record.at("zeros_percent").get<double>();
        of.exponent_bits += record.at("exponent_bits").get<double>();
        of.nonfinite += record.at("nonfinite").get<uint64_t>();
    } else if (kind == "trace_comm") {
        comms_.insert(record.at("comm"));
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
    return {};
}

TraceTable Reader::finish() {
    table_.communicators = comms_.size();
    for (auto& [key, of] : tensors_) {
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

}  // namespace

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
            nlohmann::ordered_json line = stamped("trace_tensor");
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
        nlohmann::ordered_json line = stamped("trace_total");
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
