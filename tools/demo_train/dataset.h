// Fashion-MNIST in memory: images as bytes, labels, and the order in which ranks visit them. Reads
// gzip-compressed IDX files once (Debian's dataset-fashion-mnist); bytes become floats when a batch
// is taken. Format: big-endian magic 0x00000803 (images) or 0x00000801 (labels), sizes, raw bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace demo {

inline constexpr char kDefaultDataFolder[] = "/usr/share/datasets/fashion-mnist";

struct Dataset {
    size_t count = 0;
    size_t pixels = 0;            // of one image
    std::vector<uint8_t> images;  // count * pixels
    std::vector<uint8_t> labels;  // count, each below `classes`
    static constexpr int kClasses = 10;

    // Writes image `index` as (value / 255 - mean) / deviation of the training set.
    void copy_normalised(size_t index, float* output) const;
};

// Reads <folder>/<prefix>-images-idx3-ubyte.gz and <prefix>-labels-idx1-ubyte.gz ("train" or
// "t10k"). Throws TrainError naming the file and what is wrong with it; a missing file names the
// package.
Dataset read_dataset(const std::string& folder, const std::string& prefix);

// The order of one epoch: a permutation of 0 .. count-1 that depends on seed and epoch only, so
// every rank computes the same one and every codec sees the same batches.
std::vector<uint32_t> epoch_order(size_t count, uint64_t seed, int epoch);

}  // namespace demo
