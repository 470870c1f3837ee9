// What a run is told on its command line, and its record, which rank 0 writes as JSON ("v": 1).
// tools/demo reads it; accuracies are in percent, times in milliseconds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace demo {

struct Options {
    int epochs = 4;
    int steps = 0;   // stop after so many; 0: all epochs. The learning rate follows `epochs`
    int batch = 64;  // a rank
    float learning_rate = 0.1f;
    float weight_decay = 1e-4f;
    uint64_t seed = 1;
    std::vector<int> hidden = {1024, 1024};
    bool shard = false;
    bool test = true;  // measure the test accuracy after each epoch
    std::string data;
    size_t bucket_bytes = size_t{4} << 20;
    std::string json;            // rank 0 writes the record of the run here
    std::string dump_gradients;  // folder
    std::vector<int> dump_steps = {220};
    std::string dump_parameters;  // .npy file, written by rank 0 at the end
};

// Empty, with *exit_code set and the text printed, when the program has nothing to run (--help, or
// a wrong command line).
std::optional<Options> parse_options(int argc, char** argv, int* exit_code);

struct EpochRecord {
    int epoch = 0;  // from 1
    int step = 0;   // steps done at its end
    double train_loss = 0;
    double test_loss = 0;
    double test_accuracy = 0;  // percent
    double seconds = 0;        // training only
};

struct RunRecord {
    int ranks = 1;
    size_t parameters = 0;
    std::vector<size_t> bucket_bytes;
    std::string blas_core;
    int steps = 0;
    std::vector<std::pair<int, double>>
        loss_curve;  // step, mean training loss since the last point
    std::vector<EpochRecord> epochs;
    double step_ms = 0;  // median over the steps, without the first few
    double comm_ms = 0;  // median over the steps of the sum over calls; each call's time is the
                         // shortest of all ranks', which leaves out the wait for late ranks
    double comm_wait_ms = 0;  // the same with rank 0's own times, waits included
    size_t dense_bytes_per_step = 0;
    uint64_t parameter_checksum = 0;
};

std::string to_json(const Options& options, const RunRecord& record);

// Median of values[skip ..]; of all when there are not more. 0 for none.
double median_after(const std::vector<double>& values, size_t skip);

// Writes one-dimensional fp32 arrays as NumPy .npy files, version 1.0 (the format's specification
// is part of NumPy's documentation, numpy.lib.format). Used for gradients and parameters that
// become data of benchmarks and checks.
// The header that precedes `elems` little-endian fp32 values; its size is a multiple of 64.
std::string npy_header(size_t elems);

// Throws TrainError with the path and the cause.
void write_npy(const std::string& path, const float* values, size_t elems);

}  // namespace demo
