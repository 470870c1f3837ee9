#include "collectives/plan/timed_calls.h"

#include <algorithm>

namespace slimwire {
namespace {

constexpr double kAllInTimes = 1e12;  // GB/s of the link: the rest of a way is all of its time
constexpr double kLargest = 1 << 30;

CalibratedWay way_of(std::string codec, std::string algorithm, std::vector<TimeBySize::Point> at) {
    const TimeBySize::Point last = at.back(), before = at[at.size() - 2];
    const double slope =
        std::max(0.0, (last.seconds - before.seconds) / (last.bytes - before.bytes));
    at.push_back({kLargest, last.seconds + slope * (kLargest - last.bytes)});
    CalibratedWay way;
    way.codec = std::move(codec);
    way.algorithm = std::move(algorithm);
    for (const TimeBySize::Point& point : at) {
        way.samples.push_back({point.bytes, point.bytes, point.seconds});
    }
    way.rest.points = std::move(at);
    return way;
}

}  // namespace

TimedCalls TimedCalls::median_of(const std::vector<TimedCalls>& ranks) {
    TimedCalls median;
    std::vector<uint32_t> all(ranks.size());
    for (size_t kind = 0; kind < kKinds; ++kind) {
        for (size_t size = 0; size < kBytes.size(); ++size) {
            for (const auto ns : {&Pair::native_ns, &Pair::compressed_ns}) {
                std::transform(ranks.begin(), ranks.end(), all.begin(),
                               [&](const TimedCalls& one) { return one.pairs[kind][size].*ns; });
                std::nth_element(all.begin(), all.begin() + all.size() / 2, all.end());
                median.pairs[kind][size].*ns = all[all.size() / 2];
            }
        }
    }
    return median;
}

bool TimedCalls::goes_on(size_t size) const noexcept {
    if (size >= kBytes.size()) {
        return false;
    }
    double spent_ns = 0, next_ns = 0;
    for (const auto& kind : pairs) {
        for (size_t before = 0; before < size; ++before) {
            const double both = double{kRuns} * (double(kind[before].native_ns) +
                                                 double(kind[before].compressed_ns));
            spent_ns += both;
            next_ns += before + 1 < size ? 0
                                         : both * static_cast<double>(kBytes[size]) /
                                               static_cast<double>(kBytes[before]);
        }
    }
    return spent_ns + next_ns <= static_cast<double>(kBudgetNs);
}

std::vector<Calibration> calibrations_of(const std::vector<TimedKind>& kinds,
                                         const TimedCalls& times,
                                         int ranks,
                                         int nodes) {
    std::vector<Calibration> all;
    for (size_t i = 0; i < kinds.size(); ++i) {
        std::vector<TimeBySize::Point> native, compressed;
        for (size_t size = 0; size < TimedCalls::kBytes.size(); ++size) {
            const TimedCalls::Pair& pair = times.pairs[i][size];
            if (pair.native_ns > 0 && pair.compressed_ns > 0) {
                const auto bytes = static_cast<double>(TimedCalls::kBytes[size]);
                native.push_back({bytes, 1e-9 * pair.native_ns});
                compressed.push_back({bytes, 1e-9 * pair.compressed_ns});
            }
        }
        if (native.size() < 2) {
            continue;
        }
        const std::string op = op_name(kinds[i].op), dtype = dtype_name(kinds[i].dtype);
        auto found = std::find_if(all.begin(), all.end(), [&](const Calibration& one) {
            return one.op == op && one.dtype == dtype;
        });
        if (found == all.end()) {
            Calibration one;
            one.op = op;
            one.dtype = dtype;
            one.ranks = ranks;
            one.nodes = nodes;
            one.link.gb_s = kAllInTimes;
            one.ways.push_back(way_of("native", "native", std::move(native)));
            found = all.insert(all.end(), std::move(one));
        }
        found->ways.push_back(way_of(kinds[i].codec, kinds[i].algorithm, std::move(compressed)));
    }
    return all;
}

}  // namespace slimwire
