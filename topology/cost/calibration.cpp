#include "topology/cost/calibration.h"

#include <algorithm>

namespace slimwire {
namespace {

// Straight between two samples, in proportion beyond the last and below the first.
double at_size(const std::vector<CalibrationSample>& samples, double bytes) {
    const auto above = std::lower_bound(
        samples.begin(), samples.end(), bytes,
        [](const CalibrationSample& one, double size) { return one.bytes < size; });
    if (above == samples.begin() || above == samples.end()) {
        const CalibrationSample& end = above == samples.end() ? samples.back() : samples.front();
        return end.wire_bytes * bytes / end.bytes;
    }
    const CalibrationSample& below = *(above - 1);
    const double share = (bytes - below.bytes) / (above->bytes - below.bytes);
    return below.wire_bytes + share * (above->wire_bytes - below.wire_bytes);
}

Status check(const CalibratedWay& way) {
    for (size_t i = 0; i < way.samples.size(); ++i) {
        const CalibrationSample& sample = way.samples[i];
        if (!(sample.bytes > 0) || !(sample.wire_bytes > 0) || !(sample.seconds > 0) ||
            (i > 0 && sample.bytes <= way.samples[i - 1].bytes)) {
            return {Code::kInvalidArgument,
                    way.codec + ": samples that are not of rising sizes, bytes and times above 0"};
        }
    }
    return way.samples.empty() ? Status(Code::kInvalidArgument, way.codec + ": no samples")
                               : Status();
}

}  // namespace

double CalibratedWay::wire_bytes(double bytes) const {
    return at_size(samples, bytes);
}

double CalibratedWay::seconds(double bytes, double gb_s) const {
    return rest.seconds(bytes) + wire_bytes(bytes) / (gb_s * 1e9);
}

const CalibratedWay* Calibration::find(const std::string& codec,
                                       const std::string& algorithm) const {
    const auto found = std::find_if(ways.begin(), ways.end(), [&](const CalibratedWay& way) {
        return way.codec == codec && way.algorithm == algorithm;
    });
    return found == ways.end() ? nullptr : &*found;
}

double Calibration::expected_gb_s(double nominal) const {
    return nominal_gb_s > 0 ? nominal * link.gb_s / nominal_gb_s : nominal;
}

Threshold Calibration::threshold(const CalibratedWay& way, double gb_s, double gain) const {
    const auto largest = static_cast<uint64_t>(
        std::min(way.samples.back().bytes, ways.front().samples.back().bytes));
    return find_threshold(
        largest, gain, [&](double bytes) { return ways.front().seconds(bytes, gb_s); },
        [&](double bytes) { return way.seconds(bytes, gb_s); });
}

Result<Calibration> fit_calibration(Calibration measured) {
    if (measured.ways.empty() || measured.ways.front().codec != "native") {
        return Status(Code::kInvalidArgument, "a calibration whose first way is not native");
    }
    for (const CalibratedWay& way : measured.ways) {
        SLIMWIRE_TRY(check(way));
    }
    std::vector<FitSample> native;
    for (const CalibrationSample& sample : measured.ways.front().samples) {
        native.push_back({sample.wire_bytes, sample.seconds});
    }
    SLIMWIRE_TRY_ASSIGN(const AlphaBetaFit fit, fit_alpha_beta(native));
    measured.link = fit.link;
    measured.quality = fit.quality;
    for (CalibratedWay& way : measured.ways) {
        way.rest.points.clear();
        for (const CalibrationSample& sample : way.samples) {
            // What overlaps the wire has no time of its own; a little is always left.
            const double rest =
                std::max(sample.seconds - sample.wire_bytes / (measured.link.gb_s * 1e9),
                         0.01 * sample.seconds);
            way.rest.points.push_back({sample.bytes, rest});
        }
    }
    return measured;
}

}  // namespace slimwire
