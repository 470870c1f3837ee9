// Command line of the demo trainer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
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

}  // namespace demo
