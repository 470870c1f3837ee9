// `slimwire bench codec`: speed, ratio and error of codecs against a copy of the same buffer.
#pragma once

#include <cstdint>
#include <functional>
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
    std::string isa;           // empty: the best
    std::string data_folder;   // of bucket and weights; empty: bench-data in the build folder
    bool compressors = false;  // general-purpose ones too
    int inputs = 8;            // of the two reductions
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

// One line of the result.
struct CodecLine {
    std::string codec, op;
    DType dtype = DType::kFloat32;
    std::string data, hash;
    int64_t bytes = 0;
    double gbps = 0;  // of the user's side, each byte counted once
    std::string baseline;
    double baseline_gbps = 0;
    double fraction = 0;   // of the baseline
    double ratio = 0;      // user bytes over encoded bytes
    double rel_error = 0;  // relative L2; not finite where an element is not
    int inputs = 0;        // 0: no reduction
    int max_blocks = -1;   // thread blocks allowed to a kernel, 0: any number; -1: host
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

// Without its measurements.
[[nodiscard]] CodecLine line_of(const BenchInput& input,
                                const std::string& codec,
                                const std::string& op);

// Prints the head of the table, unless lines are JSON; then one line as it is measured.
void print_head(const CodecBenchOptions& options);
void print_line(const CodecBenchOptions& options, const CodecLine& line);

// Measures the plan's codecs on the current CUDA device. kUnsupported: there is none, or this build
// has no kernels.
Status bench_codec_cuda(const CodecBenchPlan& plan, const CodecBenchOptions& options);

// Prints ratio and relative error of the plan's codecs, a line each, on each of its data sets.
Status bench_codec_table(const CodecBenchPlan& plan, const CodecBenchOptions& options);

int bench_codec(const CodecBenchOptions& options);

}  // namespace slimwire::cli
