// The data sets of `slimwire bench codec`: the same bits on every machine, so that ratios and
// errors can be compared between runs; each line of the benchmark carries their hash.
//
//   gaussian  normal deviates
//   synth     layers of them: scales log-uniform from 1e-6 to 1e-2, log-normal row scales
//   bucket    gradients of all ranks of the demo at step 220, concatenated
//   weights   the same run's parameters
//   zeros90   rows of 320, nine of ten all zeros, else normal deviates
//   random    random bits
//
// bucket and weights are files of a training run (tests/bench/make_data); shorter ones repeat.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "codecs/base/dtype.h"
#include "codecs/base/status.h"

namespace slimwire::cli {

// Their names, in the order above.
[[nodiscard]] const std::vector<std::string>& data_set_names();

// `count` elements of `dtype` of one of them in `to`, which has the room. `folder` holds the files.
// kNotFound says how to make a file that is missing.
Status fill_data_set(std::string_view name,
                     const std::filesystem::path& folder,
                     DType dtype,
                     int64_t count,
                     uint8_t* to);

// 16 hexadecimal digits.
[[nodiscard]] std::string data_hash(const uint8_t* bytes, int64_t size);

}  // namespace slimwire::cli
