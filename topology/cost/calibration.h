// What a communicator's calls were measured to take, and what follows for other sizes and links:
// the bytes that cross the slowest link at its bandwidth, and beside them a part that depends on
// the size alone (latency, launches, codec, the links inside nodes). Files of calibrations are read
// and written by the command line; here they are plain numbers. Pure; no libm.
#pragma once

#include <string>
#include <vector>

#include "codecs/base/status.h"
#include "topology/cost/cost_fit.h"

namespace slimwire {

// One size of one way, measured.
struct CalibrationSample {
    double bytes = 0;       // of the message
    double wire_bytes = 0;  // of these across the slowest link, one direction, the busiest port
    double seconds = 0;
};

// Calls by one codec and algorithm, or native.
struct CalibratedWay {
    std::string codec;  // canonical; "native"
    std::string algorithm;
    std::vector<CalibrationSample> samples;  // sizes rise
    TimeBySize rest;  // of the message's bytes: what the slowest link has no part in

    [[nodiscard]] double wire_bytes(double bytes) const;
    // On a link of this bandwidth.
    [[nodiscard]] double seconds(double bytes, double gb_s) const;
};

struct Calibration {
    std::string op, dtype;
    int ranks = 1, nodes = 1;
    double nominal_gb_s = 0;          // of the link, as it was given; 0: not known
    LinkCost link;                    // fitted: of the native calls' bytes on the slowest link
    FitQuality quality;               // of that fit
    std::vector<CalibratedWay> ways;  // native first

    // Null where no calls went by it.
    [[nodiscard]] const CalibratedWay* find(const std::string& codec,
                                            const std::string& algorithm) const;
    // The bandwidth to expect of a link of another nominal one, by what became of this one's.
    [[nodiscard]] double expected_gb_s(double nominal) const;
    // From which size on the codec saves `gain` of the native time on a link of `gb_s`.
    [[nodiscard]] Threshold threshold(const CalibratedWay& way, double gb_s, double gain) const;
};

// Fits the link and the rests of samples, whose first way is native and has two sizes or more.
Result<Calibration> fit_calibration(Calibration measured);

}  // namespace slimwire
