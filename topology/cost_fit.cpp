#include "topology/cost_fit.h"

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

double slope_misfit(const std::vector<FitSample>& samples, double slope) {
    double sum = 0;
    for (const FitSample& sample : samples) {
        const double off = slope * sample.x / sample.seconds - 1;
        sum += off * off;
    }
    return sum;
}

// A floor below d, a straight line through the origin from d on; d tried between all sizes, and the
// least misfit taken. Sizes sorted.
void fit_floor(std::vector<FitSample> samples, McbenchConstants* k) {
    std::sort(samples.begin(), samples.end(),
              [](const FitSample& left, const FitSample& right) { return left.x < right.x; });
    double least = -1;
    for (size_t split = 0; split <= samples.size(); ++split) {
        if (split > 0 && split < samples.size() && samples[split].x == samples[split - 1].x) {
            continue;
        }
        double top = 0, bottom = 0;
        for (size_t i = 0; i < split; ++i) {
            top += 1 / samples[i].seconds;
            bottom += 1 / (samples[i].seconds * samples[i].seconds);
        }
        const double floor = split > 0 ? top / bottom : 0;
        const std::vector<FitSample> rest(samples.begin() + static_cast<std::ptrdiff_t>(split),
                                          samples.end());
        const double slope = fit_slope(rest);
        double misfit = slope_misfit(rest, slope);
        for (size_t i = 0; i < split; ++i) {
            const double off = floor / samples[i].seconds - 1;
            misfit += off * off;
        }
        if (least < 0 || misfit < least) {
            least = misfit;
            k->b = slope;
            k->c = floor;
            // Where the line meets the floor, if that is between the two samples.
            const double low = split > 0 ? samples[split - 1].x : 0;
            const double high = split < samples.size() ? samples[split].x : samples.back().x * 2;
            const double meets = slope > 0 ? floor / slope : high;
            k->d = split == 0 ? 0 : std::clamp(meets, low * (1 + 1e-9), high);
        }
    }
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

double mcbench_operations(const McbenchLayer& layer) noexcept {
    return 96 * layer.batch * layer.sequence * layer.hidden * layer.hidden +
           16 * layer.batch * layer.sequence * layer.sequence * layer.hidden;
}

double mcbench_communication_s(const McbenchConstants& k, double elements) noexcept {
    return elements < k.d ? k.c : k.b * elements;
}

double mcbench_layer_s(const McbenchConstants& k, const McbenchLayer& layer) noexcept {
    return k.a * mcbench_operations(layer) +
           mcbench_communication_s(k, layer.batch * layer.sequence * layer.hidden);
}

double mcbench_encoded_layer_s(const McbenchConstants& k,
                               const McbenchLayer& layer,
                               double code) noexcept {
    return k.a * mcbench_operations(layer) +
           mcbench_communication_s(k, layer.batch * layer.sequence * code) +
           k.g * layer.batch * layer.sequence * layer.hidden;
}

double mcbench_step_s(const McbenchCluster& cluster,
                      double layer_s,
                      double boundary_elements) noexcept {
    return ((cluster.micro_batches - 1) / cluster.nodes + 1) * cluster.layers * layer_s +
           (cluster.nodes - 1) * boundary_elements / cluster.elements_per_s;
}

Result<McbenchFit> fit_mcbench(const std::vector<FitSample>& compute,
                               const std::vector<FitSample>& communicate,
                               const std::vector<FitSample>& encode) {
    SLIMWIRE_TRY(check("computing", compute, 1));
    SLIMWIRE_TRY(check("communicating", communicate, 2));
    SLIMWIRE_TRY(check("encoding", encode, 1));
    McbenchFit fit;
    McbenchConstants& k = fit.constants;
    k.a = fit_slope(compute);
    k.g = fit_slope(encode);
    fit_floor(communicate, &k);
    fit.compute = quality_of(compute, [&k](double x) { return k.a * x; });
    fit.communicate =
        quality_of(communicate, [&k](double x) { return mcbench_communication_s(k, x); });
    fit.encode = quality_of(encode, [&k](double x) { return k.g * x; });
    return fit;
}

std::vector<McbenchLayer> mcbench_grid() {
    std::vector<McbenchLayer> grid;
    for (const double hidden :
         {1024, 2304, 3072, 4096, 6144, 8192, 10240, 12288, 16384, 20480, 25600}) {
        for (const double batch : {16, 32, 64, 128}) {
            grid.push_back({batch, 128, hidden});
        }
    }
    return grid;
}

}  // namespace slimwire
