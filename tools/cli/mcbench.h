// MCBench's model (topology/cost_fit.h) with constants of this place: what a layer computes from a
// file of times (tests/papers/mcbench/layers writes it), what its all-reduce takes and what a codec
// adds from a calibration.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "topology/calibration.h"
#include "topology/cost_fit.h"

namespace slimwire::cli {

// Operations and seconds of one rank's part of a layer, of JSON lines with `batch`, `sequence`,
// `hidden` and `seconds`; an error has the line's number.
Result<std::vector<FitSample>> read_layer_times(const std::string& path);

// A point of MCBench's grid.
struct McbenchPoint {
    McbenchLayer layer;
    double native_s = 0, encoded_s = 0;
};

struct Mcbench {
    std::string codec;
    double ratio = 1;  // wire bytes natively to its own, of the largest all-reduce
    McbenchFit fit;
    std::vector<McbenchPoint> points;
};

// By one codec of a calibration of all-reduces: communicating is its native way, encoding what the
// codec's calls took beyond the native time of as many bytes on the wire.
Result<Mcbench> fit_mcbench_here(const Calibration& calibration,
                                 const CalibratedWay& way,
                                 const std::vector<FitSample>& compute);

[[nodiscard]] std::string mcbench_text(const Mcbench& mcbench);
[[nodiscard]] nlohmann::ordered_json mcbench_json(const Mcbench& mcbench,
                                                  const Calibration& calibration);

}  // namespace slimwire::cli
