// One operation on the device and on the host, over the same bytes; the results must be equal to
// the last one, untouched bytes included. No test framework, so that a GPU machine needs nothing
// beside nvcc, meson and ninja; tests/codecs compares by it on an execution model.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "codecs/codec.h"

namespace slimwire::gpu {

// Ends the program with the error's text.
void check(cudaError_t error, const char* what);

// Device memory of some bytes.
class DeviceBuffer {
  public:
    explicit DeviceBuffer(size_t bytes);
    ~DeviceBuffer();
    DeviceBuffer(const DeviceBuffer&) = delete;
    DeviceBuffer& operator=(const DeviceBuffer&) = delete;
    [[nodiscard]] uint8_t* data() const { return data_; }
    [[nodiscard]] size_t size() const { return bytes_; }
    void fill(const std::vector<uint8_t>& bytes) const;

  private:
    uint8_t* data_ = nullptr;
    size_t bytes_;
};

// What one comparison varies.
struct Situation {
    DType dtype;
    int64_t count;
    int64_t chunk_elems;
    int64_t misalignment;  // of the user's buffer, in elements
    bool residual;
    bool scale_ptr;
    bool hostile;  // random bits and non-finite values among the data
    bool graph;    // the kernels run as a replay of a captured graph
    int32_t inputs;
    int32_t max_blocks;
    RandomKey random;  // its step_ptr is set by compare()

    [[nodiscard]] std::string to_string() const;
};

// `count` elements: pieces of Gaussian data of one magnitude, some runs of zeros.
std::vector<uint8_t> gaussian_bytes(DType dtype, int64_t count, uint64_t seed);

Situation random_situation(const CodecSpec& spec, int64_t most_elems, std::mt19937_64& random);

// Runs encode, decode, decode of damaged bytes, decode with accumulation and both reductions on the
// host and the device, where the codec has them; workspaces start with random bytes. Returns the
// number of elements compared; adds a line to `failures` for every difference. Thread-safe.
int64_t compare(const CodecSpec& spec,
                const Situation& situation,
                std::mt19937_64& random,
                std::vector<std::string>* failures);

// The operations beside the codecs (codecs/README.md), each `rounds` times with sizes up to
// `most_elems`; a line in `failures` for every difference. Returns how many operations there are.
int compare_operations(int rounds,
                       int64_t most_elems,
                       uint64_t seed,
                       std::vector<std::string>* failures);

}  // namespace slimwire::gpu
