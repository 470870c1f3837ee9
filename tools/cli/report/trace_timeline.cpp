#include "tools/cli/report/trace_timeline.h"

#include <algorithm>
#include <utility>

#include "collectives/plan/plan.h"
#include "collectives/policy/names.h"

namespace slimwire::cli {
namespace {

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

// Smaller calls tell of latency and not of the link's rate.
constexpr uint64_t kLeastTimedBytes = 65536;
// Keeps every other one once there are too many.
constexpr size_t kMostMarks = 4096;

}  // namespace

void TimelineReader::end_part() {
    calls_.clear();
    if (line_.training.empty()) {
        line_.training = std::move(marks_);
    }
    marks_.clear();
    mark_stride_ = 1, marks_seen_ = 0;
}

TraceTimeline TimelineReader::finish() {
    end_part();
    line_.used = std::min(kMostSlices, slice_of(line_.end_us) + 1);
    return std::move(line_);
}

size_t TimelineReader::slice_of(double at_us) {
    while (at_us >= line_.slice_us * static_cast<double>(kMostSlices)) {
        halve(&line_.slices);
        line_.slice_us *= 2;
    }
    return static_cast<size_t>(std::max(at_us, 0.0) / line_.slice_us);
}

void TimelineReader::take_call(const Record& record) {
    Call call;
    call.at_us = record.value("at_us", 0.0);
    call.alone = record.value("group", uint64_t{0}) == 0;
    CallSignature signature;
    const auto op = parse_op(record.at("op").get<std::string>());
    const auto dtype = parse_dtype(record.at("dtype").get<std::string>());
    const auto ranks = ranks_of_comm_.find(record.value("comm", ""));
    if (op && dtype && ranks != ranks_of_comm_.end() && ranks->second > 0) {
        signature.op = *op;
        signature.dtype = *dtype;
        signature.count = record.at("count");
        call.wire_bytes = native_wire_bytes(signature, ranks->second);
    }
    line_.end_us = std::max(line_.end_us, call.at_us);
    calls_[record.at("call")] = call;
}

void TimelineReader::take_training(const Record& record) {
    TrainingMark mark;
    mark.at_us = record.value("at_us", 0.0);
    mark.phase = record.value("phase", "");
    mark.step = record.value("step", int64_t{-1});
    mark.learning_rate = record.value("learning_rate", -1.0);
    mark.loss_scale = record.value("loss_scale", -1.0);
    line_.end_us = std::max(line_.end_us, mark.at_us);
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

void TimelineReader::take(const Record& record) {
    const std::string kind = record.at("record");
    if (kind == "call") {
        take_call(record);
        return;
    }
    if (kind == "trace_comm") {
        ranks_of_comm_[record.at("comm")] = record.value("ranks", 0);
        return;
    }
    if (kind == "training") {
        take_training(record);
        return;
    }
    const auto call = calls_.find(record.value("call", uint64_t{0}));
    if (kind == "time" && call != calls_.end() && call->second.alone &&
        call->second.wire_bytes >= kLeastTimedBytes) {
        TraceSlice& slice = line_.slices[slice_of(call->second.at_us)];
        slice.timed_wire_bytes += call->second.wire_bytes;
        slice.timed_us += record.at("device_us").get<double>();
    }
}

}  // namespace slimwire::cli
