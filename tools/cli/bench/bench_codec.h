// `slimwire bench codec`: speed, ratio and error of codecs against a copy of the same buffer.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "codecs/base/dtype.h"
#include "codecs/base/status.h"
#include "codecs/codec.h"

namespace slimwire::cli {

struct CodecBenchOptions {
    std::string device = "host";
    std::vector<std::string> codecs;  // specifications; empty: all of codec_bench_specs()
    std::string ops;                  // comma list; empty: all
    std::string data;                 // comma list, or "all"; empty: gaussian, of a table all
    std::string dtypes = "bf16";      // comma list
    std::string bytes = "16MiB";
    std::string isa;          // empty: the best
    std::string data_folder;  // of bucket and weights; empty: bench-data in the build folder
    int inputs = 8;           // of the two reductions
    int rounds = 11;
    bool table = false;  // ratios and errors alone
    bool json = false;
};

// One data set in one type.
struct BenchInput {
    DType dtype;
    std::string data, hash;
    int64_t count, bytes;
    const uint8_t* elements;
};

// What to measure, checked.
struct CodecBenchPlan {
    std::vector<CodecSpec> specs;
    std::vector<std::string> ops, data;
    std::vector<DType> dtypes;
    int64_t bytes = 0;
    int inputs = 0;
    int rounds = 0;
    std::string data_folder;
};

// Every codec of the registry with its defaults, and the variants whose speed is promised.
[[nodiscard]] std::vector<CodecSpec> codec_bench_specs();

// Every data set of the plan in every type of it; ends with the first error.
Status for_each_input(const CodecBenchPlan& plan,
                      const std::function<Status(const BenchInput&)>& measure);

// The record of one operation of a codec, before it is measured.
[[nodiscard]] nlohmann::ordered_json line_of(const CodecBenchOptions& options,
                                             const BenchInput& input,
                                             const std::string& codec,
                                             const std::string& op);
// Speeds are of the user's side, each byte counted once; `fraction` is of the baseline.
void set_speed(double gbps,
               const char* baseline,
               double baseline_gbps,
               double fraction,
               nlohmann::ordered_json* line);
// User bytes over encoded bytes, and the relative L2 error, null where an element is not finite.
void set_quality(double ratio, double rel_error, nlohmann::ordered_json* line);

// Prints the head of the table, unless lines are JSON; then one line as it is measured.
void print_head(const CodecBenchOptions& options);
void print_line(const CodecBenchOptions& options, const nlohmann::ordered_json& line);

// Measures the plan's codecs on the current CUDA device. kUnsupported: there is none, or this build
// has no kernels.
Status bench_codec_cuda(const CodecBenchPlan& plan, const CodecBenchOptions& options);

// Prints ratio and relative error of the plan's codecs, a line each, on each of its data sets.
Status bench_codec_table(const CodecBenchPlan& plan, const CodecBenchOptions& options);

int bench_codec(const CodecBenchOptions& options);

}  // namespace slimwire::cli
