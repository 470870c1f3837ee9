// Reads a trace of the modes record and shadow (collectives/SCHEMA.md), for tests: of the trace
// itself, and of whatever wants the calls of a real program as input, like the step detector.
#pragma once

#include <cstdint>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "collectives/policy/names.h"

namespace slimwire::test {

struct TracedCall {
    uint64_t call = 0, occurrence = 0, bytes = 0, step = 0;
    std::string comm, tensor, name;
    std::string path;  // empty where the place is unsure
    CallSignature signature;
    uint32_t group = 0, place = 0;
    int result = 0;
    bool in_place = false, captured = false, would_compress = false;
    double at_us = 0, host_us = 0;
    double device_us = -1, codec_us = -1;  // below 0: not timed
    double rel_error = -1;                 // below 0: not rehearsed, or not compared
};

struct ReadTrace {
    nlohmann::json header;
    std::vector<TracedCall> calls;  // in the order of the file
    std::vector<nlohmann::json> comms, groups, samples, trainings, rehearsals, decisions;
    uint64_t dropped = 0, rotated = 0, dropped_before = 0;
};

// Throws std::runtime_error or what nlohmann-json throws for what is no trace.
inline ReadTrace read_trace(const std::string& path) {
    std::ifstream file(path);
    ReadTrace trace;
    std::map<uint64_t, double> times, codec_times, errors;
    for (std::string line; std::getline(file, line);) {
        nlohmann::json json = nlohmann::json::parse(line);
        const std::string record = json.at("record");
        if (json.at("v") != 1 || (trace.header.is_null() && record != "trace")) {
            throw std::runtime_error(path + " is no trace");
        }
        if (record == "trace") {
            trace.header = json;
        } else if (record == "trace_comm") {
            trace.comms.push_back(json);
        } else if (record == "group") {
            trace.groups.push_back(json);
        } else if (record == "sample") {
            trace.samples.push_back(json);
        } else if (record == "training") {
            trace.trainings.push_back(json);
        } else if (record == "rehearsal") {
            trace.rehearsals.push_back(json);
            errors[json.at("call")] = json.at("rel_error");
        } else if (record == "decision") {
            trace.decisions.push_back(json);
        } else if (record == "time") {
            times[json.at("call")] = json.at("device_us");
        } else if (record == "codec_time") {
            codec_times[json.at("call")] = json.at("device_us");
        } else if (record == "dropped") {
            trace.dropped += json.at("items").get<uint64_t>();
        } else if (record == "rotated") {
            trace.rotated += json.at("calls").get<uint64_t>();
            trace.dropped_before = json.value("items", uint64_t{0});
        } else if (record == "call") {
            TracedCall call;
            call.call = json.at("call");
            call.occurrence = json.at("occurrence");
            call.bytes = json.at("bytes");
            call.comm = json.at("comm");
            call.tensor = json.at("tensor");
            call.name = json.value("name", "");
            call.path = json.value("path", "");
            call.place = json.value("place", 0u);
            call.step = json.value("step", uint64_t{0});
            call.signature.op = parse_op(json.at("op").get<std::string>()).value();
            call.signature.dtype = parse_dtype(json.at("dtype").get<std::string>()).value();
            call.signature.redop = parse_redop(json.at("redop").get<std::string>()).value();
            call.signature.count = json.at("count");
            call.signature.root_or_peer = json.at("root_or_peer");
            call.group = json.at("group");
            call.result = json.value("result", 0);
            call.in_place = json.at("in_place");
            call.captured = json.at("captured");
            call.would_compress = json.value("would_compress", false);
            call.at_us = json.at("at_us");
            call.host_us = json.at("host_us");
            trace.calls.push_back(std::move(call));
        }
    }
    if (trace.header.is_null()) {
        throw std::runtime_error(path + " is empty or missing");
    }
    for (TracedCall& call : trace.calls) {
        const auto take = [&](const std::map<uint64_t, double>& from, double* to) {
            if (const auto found = from.find(call.call); found != from.end()) {
                *to = found->second;
            }
        };
        take(times, &call.device_us);
        take(codec_times, &call.codec_us);
        take(errors, &call.rel_error);
    }
    return trace;
}

}  // namespace slimwire::test
