// Constants of the cost models from measurements, by least squares of relative errors (sizes span
// decades, so absolute ones would see the largest alone), with the quality of the fit.
// Pure; no libm.
#pragma once

#include <vector>

#include "codecs/base/status.h"
#include "topology/cost/cost.h"

namespace slimwire {

struct FitSample {
    double x = 0;        // bytes, elements or operations
    double seconds = 0;  // > 0
};

struct FitQuality {
    double median_error = 0;  // relative: |predicted - measured| / measured
    double worst_error = 0;
    double r_squared = 0;  // of absolute times; 1: all of the spread is explained
};

struct AlphaBetaFit {
    LinkCost link;  // x in bytes; of operations gb_s are 1e9 a second
    FitQuality quality;
};
// At least two sizes. alpha is not below 0.
Result<AlphaBetaFit> fit_alpha_beta(const std::vector<FitSample>& samples);

// t = k x.
struct RateFit {
    double seconds_per_unit = 0;
    FitQuality quality;
};
Result<RateFit> fit_rate(const std::vector<FitSample>& samples);

}  // namespace slimwire
