#include "topology/cost/cost_fit.h"

#include <algorithm>
#include <string>

namespace slimwire {
namespace {

Status check(const char* what, const std::vector<FitSample>& samples, size_t different) {
    std::vector<double> sizes;
    for (const FitSample& sample : samples) {
        if (!(sample.x > 0) || !(sample.seconds > 0) || sample.x > 1e30 || sample.seconds > 1e30) {
            return {Code::kInvalidArgument,
                    std::string(what) + ": a sample of no size or time; accepted: both above 0"};
        }
        sizes.push_back(sample.x);
    }
    std::sort(sizes.begin(), sizes.end());
    const auto count = static_cast<size_t>(std::unique(sizes.begin(), sizes.end()) - sizes.begin());
    if (count < different) {
        return {Code::kInvalidArgument,
                std::string(what) + ": samples of " + std::to_string(count) +
                    " sizes; accepted: " + std::to_string(different) + " or more"};
    }
    return {};
}

template <class Predict>
FitQuality quality_of(const std::vector<FitSample>& samples, const Predict& predict) {
    std::vector<double> errors;
    double mean = 0;
    for (const FitSample& sample : samples) {
        mean += sample.seconds / static_cast<double>(samples.size());
    }
    double left = 0, spread = 0;
    for (const FitSample& sample : samples) {
        const double off = predict(sample.x) - sample.seconds;
        errors.push_back((off < 0 ? -off : off) / sample.seconds);
        left += off * off;
        spread += (sample.seconds - mean) * (sample.seconds - mean);
    }
    std::sort(errors.begin(), errors.end());
    const size_t half = errors.size() / 2;
    return {errors.size() % 2 == 1 ? errors[half] : (errors[half - 1] + errors[half]) / 2,
            errors.back(),
            spread > 0  ? 1 - left / spread
            : left == 0 ? 1.0
                        : 0.0};
}

// t = k x with the least relative errors.
double fit_slope(const std::vector<FitSample>& samples) {
    double top = 0, bottom = 0;
    for (const FitSample& sample : samples) {
        const double u = sample.x / sample.seconds;
        top += u;
        bottom += u * u;
    }
    return bottom > 0 ? top / bottom : 0;
}

}  // namespace

Result<AlphaBetaFit> fit_alpha_beta(const std::vector<FitSample>& samples) {
    SLIMWIRE_TRY(check("latency and bandwidth", samples, 2));
    // Least squares of (alpha + beta x) / t - 1; x in units of the largest, so that sums stay
    // near 1.
    double scale = 0;
    for (const FitSample& sample : samples) {
        scale = std::max(scale, sample.x);
    }
    double uu = 0, uv = 0, vv = 0, u1 = 0, v1 = 0;
    for (const FitSample& sample : samples) {
        const double u = 1 / sample.seconds;
        const double v = sample.x / scale / sample.seconds;
        uu += u * u;
        uv += u * v;
        vv += v * v;
        u1 += u;
        v1 += v;
    }
    const double determinant = uu * vv - uv * uv;
    double alpha = determinant > 0 ? (u1 * vv - v1 * uv) / determinant : 0;
    double beta = determinant > 0 ? (v1 * uu - u1 * uv) / determinant : v1 / vv;
    if (alpha < 0) {
        alpha = 0;
        beta = v1 / vv;
    }
    if (!(beta > 0)) {
        return Status(Code::kInvalidArgument,
                      "latency and bandwidth: larger messages take no longer; accepted: sizes that "
                      "reach beyond the latency");
    }
    AlphaBetaFit fit;
    fit.link = {alpha, scale / beta / 1e9};
    fit.quality = quality_of(samples, [&](double bytes) { return alpha + beta * bytes / scale; });
    return fit;
}

Result<RateFit> fit_rate(const std::vector<FitSample>& samples) {
    SLIMWIRE_TRY(check("a rate", samples, 1));
    RateFit fit;
    fit.seconds_per_unit = fit_slope(samples);
    fit.quality = quality_of(samples, [&fit](double x) { return fit.seconds_per_unit * x; });
    return fit;
}

}  // namespace slimwire
