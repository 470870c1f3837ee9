#include "tools/cli/report/trace_table.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "collectives/plan/plan.h"
#include "collectives/policy/names.h"
#include "tools/cli/common/commands.h"
#include "tools/cli/common/text.h"
#include "tools/cli/report/record_files.h"

namespace slimwire::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMostErrors = 200;
// Smaller calls tell of latency and not of the link's rate.
constexpr uint64_t kLeastTimedBytes = 65536;
// Keeps every other one once there are too many.
constexpr size_t kMostMarks = 4096;

// Each two neighbours become one.
void halve(std::array<TraceSlice, kMostSlices>* slices) {
    for (size_t i = 0; i < kMostSlices; ++i) {
        TraceSlice both;
        if (i < kMostSlices / 2) {
            for (const TraceSlice& of : {(*slices)[2 * i], (*slices)[2 * i + 1]}) {
                both.timed_wire_bytes += of.timed_wire_bytes;
                both.timed_us += of.timed_us;
            }
        }
        (*slices)[i] = both;
    }
}

double mean(double sum, uint64_t count) {
    return count == 0 ? 0 : sum / static_cast<double>(count);
}

class Reader {
  public:
    Result<std::vector<std::string>> distinct(const std::vector<std::string>& files) {
        return distinct_files(files, &table_.notes);
    }
    Status read(const std::string& path);
    TraceTable finish();

  private:
    void take(const Record& record);
    void take_call(const Record& record);
    void take_time(const Record& record);
    void take_training(const Record& record);
    void take_decision(const Record& record);
    size_t slice_of(double at_us);
    // Each file is a part, or has several, one behind the other (cat). Of the parts of a process
    // the first one says how many calls are in none of them.
    void end_part();
    // A tensor on communicators of so many ranks: another job, or another group of one, may have
    // the same key on others.
    using Key = std::pair<std::string, int>;
    Key key_of(const Record& record) {
        return {record.at("tensor"), ranks_of_comm_[record.at("comm")]};
    }
    TracedTensor& tensor(const Record& record) {
        const Key key = key_of(record);
        TracedTensor& found = tensors_[key];
        found.tensor = key.first;
        found.ranks = key.second;
        return found;
    }
    struct Call {
        Key tensor;
        double at_us = 0;
        uint64_t wire_bytes = 0;  // natively, by the ring formula
        bool alone = false;       // in no group
    };
    // Null where it is not in this part.
    const Call* call_of(uint64_t number) {
        const auto call = calls_.find(number);
        return call == calls_.end() ? nullptr : &call->second;
    }

    TraceTable table_;
    std::map<Key, TracedTensor> tensors_;
    std::map<uint64_t, Call> calls_;  // of the part that is read
    std::vector<TrainingMark> marks_;
    size_t mark_stride_ = 1, marks_seen_ = 0;
    std::set<std::string> comms_;
    std::map<std::string, int> ranks_of_comm_;
    // Of a process and tensor: what one call would send, natively and by mode on, and the calls.
    struct Would {
        uint64_t wire_bytes = 0, native_bytes = 0, calls = 0;
    };
    std::map<uint64_t, double> second_of_call_;  // of that part
    uint64_t calls_of_part_ = 0;
    double first_us_ = 0, last_us_ = 0;            // of these
    std::string path_;                             // of the file that is read
    std::set<std::pair<std::string, int>> parts_;  // of processes
    std::string process_;                          // that wrote the file that is read
    bool in_part_ = false;
    // Records of calls in the files before one, and items that were lost there.
    struct Before {
        uint64_t calls = 0, items = 0;
    };
    Before before_;                               // the part that is read
    std::map<std::string, Before> before_first_;  // part of a process
    std::map<std::pair<std::string, Key>, Would> would_;
};

void Reader::take(const Record& record) {
    const std::string kind = record.at("record");
    if (kind == "call") {
        take_call(record);
    } else if (kind == "time") {
        take_time(record);
    } else if (kind == "training") {
        take_training(record);
    } else if (kind == "codec_time") {
        if (const Call* call = call_of(record.at("call")); call != nullptr) {
            TracedShadow& of = tensors_[call->tensor].shadow;
            ++of.codec_times;
            of.codec_us += record.at("device_us").get<double>();
        }
    } else if (kind == "rehearsal") {
        TracedShadow& of = tensor(record).shadow;
        const double error = record.at("rel_error");
        ++of.rehearsed;
        of.rel_error += error;
        if (const Call* call = call_of(record.value("call", uint64_t{0})); call != nullptr) {
            of.errors.emplace_back(call->at_us * 1e-6, error);
        }
        of.largest_rel_error = std::max(of.largest_rel_error, error);
    } else if (kind == "decision") {
        take_decision(record);
    } else if (kind == "trace") {
        end_part();
        process_ = record.value("host", "") + ":" + std::to_string(record.value("pid", 0));
        if (record.contains("pid") && !parts_.insert({process_, record.value("part", 0)}).second) {
            table_.notes.push_back(path_ + ": a copy of another of these traces, counted again");
        }
    } else if (kind == "sample") {
        TracedSamples& of = tensor(record).data;
        ++of.samples;
        of.mean_square += record.at("mean_square").get<double>();
        of.zeros_percent += record.at("zeros_percent").get<double>();
        of.exponent_bits += record.at("exponent_bits").get<double>();
        of.nonfinite += record.at("nonfinite").get<uint64_t>();
    } else if (kind == "trace_comm") {
        comms_.insert(record.at("comm"));
        ranks_of_comm_[record.at("comm")] = std::max(record.value("ranks", 0), 0);
    } else if (kind == "dropped") {
        table_.lost_items += record.at("items").get<uint64_t>();
    } else if (kind == "rotated") {
        before_ = {record.at("calls"), record.value("items", uint64_t{0})};
    }
}

void Reader::take_call(const Record& record) {
    TracedTensor& of = tensor(record);
    of.op = record.at("op");
    of.dtype = record.at("dtype");
    of.redop = record.at("redop");
    of.count = record.at("count");
    const double at_us = record.value("at_us", 0.0);
    first_us_ = calls_of_part_++ == 0 ? at_us : std::min(first_us_, at_us);
    last_us_ = calls_of_part_ == 1 ? at_us : std::max(last_us_, at_us);
    const uint64_t bytes = record.at("bytes");
    ++of.calls;
    of.bytes += bytes;
    of.captured += record.value("captured", false) ? 1 : 0;
    const int result = record.value("result", 0);
    of.refused += result != 0 && result != 7 ? 1 : 0;  // 7 is "in progress"
    of.host_us += record.at("host_us").get<double>();
    if (record.contains("path")) {
        ++of.places[record.at("place")];
    }
    if (record.value("would_compress", false)) {
        ++would_[{process_, key_of(record)}].calls;
    }
    Call call{key_of(record), at_us, 0, record.value("group", uint64_t{0}) == 0};
    const auto op = parse_op(of.op);
    const auto dtype = parse_dtype(of.dtype);
    if (op && dtype && of.ranks > 0) {
        CallSignature signature;
        signature.op = *op;
        signature.dtype = *dtype;
        signature.count = of.count;
        call.wire_bytes = native_wire_bytes(signature, of.ranks);
    }
    table_.timeline.end_us = std::max(table_.timeline.end_us, at_us);
    calls_[record.at("call")] = call;
    table_.bytes_by_second[static_cast<uint64_t>(std::max(0.0, at_us) * 1e-6)] += bytes;
    ++table_.calls;
    table_.bytes += bytes;
}

size_t Reader::slice_of(double at_us) {
    TraceTimeline& line = table_.timeline;
    while (at_us >= line.slice_us * static_cast<double>(kMostSlices)) {
        halve(&line.slices);
        line.slice_us *= 2;
    }
    return static_cast<size_t>(std::max(at_us, 0.0) / line.slice_us);
}

void Reader::take_time(const Record& record) {
    const Call* const call = call_of(record.at("call"));
    if (call == nullptr) {
        return;
    }
    const auto us = record.at("device_us").get<double>();
    TracedTensor& of = tensors_[call->tensor];
    ++of.timed_calls;
    of.device_us += us;
    if (call->alone && call->wire_bytes >= kLeastTimedBytes) {
        TraceSlice& slice = table_.timeline.slices[slice_of(call->at_us)];
        slice.timed_wire_bytes += call->wire_bytes;
        slice.timed_us += us;
    }
}

void Reader::take_training(const Record& record) {
    TrainingMark mark;
    mark.at_us = record.value("at_us", 0.0);
    mark.phase = record.value("phase", "");
    mark.step = record.value("step", int64_t{-1});
    mark.learning_rate = record.value("learning_rate", -1.0);
    mark.loss_scale = record.value("loss_scale", -1.0);
    table_.timeline.end_us = std::max(table_.timeline.end_us, mark.at_us);
    if (marks_seen_++ % mark_stride_ != 0 && mark.phase == marks_.back().phase) {
        return;
    }
    if (marks_.size() >= kMostMarks) {
        for (size_t i = 1; 2 * i < marks_.size(); ++i) {
            marks_[i] = marks_[2 * i];
        }
        marks_.resize(marks_.size() / 2);
        mark_stride_ *= 2;
    }
    marks_.push_back(mark);
}

void Reader::take_decision(const Record& record) {
    TracedTensor& of = tensor(record);
    of.shadow.codec = record.at("codec");
    of.shadow.algorithm = record.at("algorithm");
    of.shadow.rule = record.at("rule");
    of.shadow.reason = record.at("reason");
    of.shadow.stand_in = record.value("stand_in", false);
    Would& would = would_[{process_, key_of(record)}];
    would.wire_bytes = record.value("wire_bytes", uint64_t{0});
    would.native_bytes = record.at("native_wire_bytes");
}

Status Reader::read(const std::string& path) {
    path_ = path;
    in_part_ = false;
    ++table_.files;
    SLIMWIRE_TRY(read_records(path, &table_.notes, [&](const Record& record) -> Status {
        const std::string kind = record.value("record", "");
        if (!in_part_ && kind != "trace") {
            return invalid(
                fmt::format("begins with a record \"{}\"; accepted: traces "
                            "(SLIMWIRE_MODE=record or shadow), with their first lines",
                            kind));
        }
        take(record);
        return {};
    }));
    end_part();
    return {};
}

void Reader::end_part() {
    if (in_part_) {
        Before& first = before_first_.try_emplace(process_, before_).first->second;
        first = {std::min(first.calls, before_.calls), std::min(first.items, before_.items)};
        table_.recorded_us += last_us_ - first_us_;
    }
    in_part_ = true;
    if (table_.timeline.training.empty()) {
        table_.timeline.training = std::move(marks_);
    }
    marks_.clear();
    mark_stride_ = 1, marks_seen_ = 0;
    before_ = {};
    calls_.clear();
    calls_of_part_ = 0;
    first_us_ = last_us_ = 0;
}

TraceTable Reader::finish() {
    table_.communicators = comms_.size();
    table_.timeline.used = std::min(kMostSlices, slice_of(table_.timeline.end_us) + 1);
    for (const auto& [process, before] : before_first_) {
        table_.lost_calls += before.calls;
        table_.lost_items += before.items;
    }
    for (const auto& [of_process, would] : would_) {
        TracedTensor& of = tensors_[of_process.second];
        of.shadow.calls += would.calls;
        of.shadow.wire_bytes += would.calls * would.wire_bytes;
        of.shadow.native_bytes += would.calls * would.native_bytes;
    }
    for (auto& [key, of] : tensors_) {
        if (of.calls == 0) {
            continue;  // which are in files before these
        }
        std::sort(of.shadow.errors.begin(), of.shadow.errors.end());
        const size_t step = of.shadow.errors.size() / kMostErrors + 1;
        for (size_t i = 0; i * step < of.shadow.errors.size(); ++i) {
            of.shadow.errors[i] = of.shadow.errors[i * step];
        }
        of.shadow.errors.resize((of.shadow.errors.size() + step - 1) / step);
        table_.tensors.push_back(std::move(of));
    }
    std::stable_sort(table_.tensors.begin(), table_.tensors.end(),
                     [](const auto& a, const auto& b) { return a.bytes > b.bytes; });
    return std::move(table_);
}

Json tensor_json(const TracedTensor& of) {
    Json line = json_record("trace_tensor");
    line["tensor"] = of.tensor;
    line["ranks"] = of.ranks;
    line["op"] = of.op;
    line["dtype"] = of.dtype;
    line["redop"] = of.redop;
    line["count"] = of.count;
    line["calls"] = of.calls;
    line["bytes"] = of.bytes;
    line["captured"] = of.captured;
    line["refused"] = of.refused;
    line["timed_calls"] = of.timed_calls;
    line["device_us"] = mean(of.device_us, of.timed_calls);
    line["host_us"] = mean(of.host_us, of.calls);
    line["samples"] = of.data.samples;
    line["rms"] = std::sqrt(mean(of.data.mean_square, of.data.samples));
    line["zeros_percent"] = mean(of.data.zeros_percent, of.data.samples);
    line["nonfinite"] = of.data.nonfinite;
    line["exponent_bits"] = mean(of.data.exponent_bits, of.data.samples);
    if (!of.shadow.codec.empty()) {
        line["would"] = {{"codec", of.shadow.codec},
                         {"algorithm", of.shadow.algorithm},
                         {"rule", of.shadow.rule},
                         {"reason", of.shadow.reason},
                         {"stand_in", of.shadow.stand_in},
                         {"calls", of.shadow.calls},
                         {"wire_bytes", of.shadow.wire_bytes},
                         {"native_wire_bytes", of.shadow.native_bytes},
                         {"rehearsed", of.shadow.rehearsed},
                         {"rel_error", mean(of.shadow.rel_error, of.shadow.rehearsed)},
                         {"largest_rel_error", of.shadow.largest_rel_error},
                         {"codec_times", of.shadow.codec_times},
                         {"codec_us", mean(of.shadow.codec_us, of.shadow.codec_times)},
                         {"pays", pays(of)}};
    }
    for (const auto& [place, calls] : of.places) {
        line["places"][std::to_string(place)] = calls;
    }
    return line;
}

Json total_json(const TraceTable& table) {
    Json line = json_record("trace_total");
    line["files"] = table.files;
    line["communicators"] = table.communicators;
    line["tensors"] = table.tensors.size();
    line["calls"] = table.calls;
    line["bytes"] = table.bytes;
    line["lost_items"] = table.lost_items;
    line["rotated_calls"] = table.lost_calls;
    line["notes"] = table.notes;
    return line;
}

// "3 +1": known places in the step, the first of them and how many others.
std::string places_of(const Json& line) {
    if (!line.contains("places")) {
        return "-";
    }
    const Json& places = line["places"];
    const std::string first = places.begin().key();
    return places.size() > 1 ? fmt::format("{} +{}", first, places.size() - 1) : first;
}

constexpr char kTensorRow[] =
    "{:<16} {:<14} {:<6} {:<8} {:>6} {:>11} {:>9} {:>10} {:>10} {:>9} {:>7} {:>9} {:>8}\n";

constexpr char kTrialRow[] =
    "{:<16} {:<22} {:<12} {:>9} {:>10} {:>10} {:>6} {:>10} {:>10} {:>9} {:>9} {:>5}  {}\n";

void print_trials(const std::vector<Json>& tensors) {
    if (std::none_of(tensors.begin(), tensors.end(),
                     [](const Json& line) { return line.contains("would"); })) {
        return;
    }
    fmt::print("\nmode on would do\n");
    fmt::print(kTrialRow, "tensor", "codec", "algorithm", "calls", "wire", "native", "ratio",
               "error", "largest", "codec us", "us/call", "pays", "why");
    std::map<std::string, uint64_t> native;  // why -> tensors
    bool stand_in = false;
    for (const Json& line : tensors) {
        if (!line.contains("would")) {
            continue;
        }
        const Json& would = line["would"];
        stand_in = stand_in || would["stand_in"];
        if (would["algorithm"] == "native") {
            ++native[would["reason"]];
            continue;
        }
        const char* const error = would["stand_in"] ? "{:.3g}*" : "{:.3g}";
        const double wire = would["wire_bytes"], native_wire = would["native_wire_bytes"];
        fmt::print(kTrialRow, text_of(line, "tensor"), text_of(would, "codec"),
                   text_of(would, "algorithm"), count_of(would, "calls"),
                   bytes_of(would, "wire_bytes"), bytes_of(would, "native_wire_bytes") + "~",
                   wire == 0 ? std::string("-") : fmt::format("{:.2f}", native_wire / wire),
                   mean_of(would, "rel_error", "rehearsed", error),
                   mean_of(would, "largest_rel_error", "rehearsed", error),
                   mean_of(would, "codec_us", "codec_times", "{:.1f}"),
                   mean_of(line, "device_us", "timed_calls", "{:.1f}"), text_of(would, "pays"),
                   text_of(would, "reason"));
    }
    if (stand_in) {
        fmt::print("* of a rank's own part, which stands in for what would be encoded\n");
    }
    for (const auto& [why, count] : native) {
        fmt::print("native: {} tensors: {}\n", count, why);
    }
}

void print_tensors(const std::vector<Json>& tensors) {
    fmt::print(kTensorRow, "tensor", "operation", "type", "reduce", "ranks", "elements", "calls",
               "bytes", "us/call", "host us", "place", "rms", "exp bits");
    for (const Json& line : tensors) {
        fmt::print(kTensorRow, text_of(line, "tensor"), text_of(line, "op"), text_of(line, "dtype"),
                   text_of(line, "redop"), count_of(line, "ranks"), count_of(line, "count"),
                   count_of(line, "calls"), bytes_of(line, "bytes"),
                   mean_of(line, "device_us", "timed_calls", "{:.1f}"),
                   mean_of(line, "host_us", "calls", "{:.1f}"), places_of(line),
                   mean_of(line, "rms", "samples", "{:.3g}"),
                   mean_of(line, "exponent_bits", "samples", "{:.2f}"));
    }
}

}  // namespace

// Whether mode on would save time. Its exchange encodes and decodes what a rank gives at most
// twice, or as often as there are ranks where it decodes the contributions of all. "yes": even then
// it is faster, if the native time shrinks as the bytes do; "no": the codec alone takes as long.
std::string pays(const TracedTensor& of) {
    const double native_us = mean(of.device_us, of.timed_calls);
    const double codec_us = mean(of.shadow.codec_us, of.shadow.codec_times);
    if (of.timed_calls == 0 || of.shadow.codec_times == 0 || of.shadow.native_bytes == 0) {
        return "-";
    }
    const double share =
        static_cast<double>(of.shadow.wire_bytes) / static_cast<double>(of.shadow.native_bytes);
    const bool of_all = of.shadow.algorithm == "gather" || of.op == "allgather";
    const double most = codec_us * std::max(2, of_all ? of.ranks : 0);
    return most + share * native_us < native_us ? "yes" : codec_us >= native_us ? "no" : "?";
}

bool is_trace(const std::string& path) {
    std::error_code error;
    if (!std::filesystem::is_regular_file(path, error)) {
        return false;  // as who reads it says
    }
    std::ifstream file(path, std::ios::binary);
    std::string line;
    std::getline(file, line);
    const Json record = Json::parse(line, nullptr, false);
    return record.is_object() && record.contains("record") && record.at("record") == "trace";
}

Result<TraceTable> read_traces(const std::vector<std::string>& files) {
    Reader reader;
    SLIMWIRE_TRY_ASSIGN(const std::vector<std::string> distinct, reader.distinct(files));
    for (const std::string& path : distinct) {
        SLIMWIRE_TRY(reader.read(path));
    }
    return reader.finish();
}

void print_traces(const TraceTable& table, bool json) {
    std::vector<Json> tensors;
    for (const TracedTensor& of : table.tensors) {
        tensors.push_back(tensor_json(of));
    }
    const Json total = total_json(table);
    if (json) {
        for (const Json& line : tensors) {
            fmt::print("{}\n", json_line(line));
        }
        fmt::print("{}\n", json_line(total));
        return;
    }
    print_tensors(tensors);
    print_trials(tensors);
    fmt::print("\ntotal of {} trace files: {} calls, {} in buffers, {} tensors, {} communicators\n",
               table.files, table.calls, bytes_of(total, "bytes"), table.tensors.size(),
               table.communicators);
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
