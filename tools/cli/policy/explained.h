// What `slimwire explain` found out of a call, and how it says it: explain_command.cpp finds it,
// explain_print.cpp writes it.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "collectives/plan/plan.h"
#include "collectives/policy/config.h"
#include "tools/cli/advise/advise.h"
#include "topology/cost/cost.h"

namespace slimwire::cli {

// The call and the communicator that the options name.
struct Asked {
    CallSignature signature;
    PlanShape shape;
    int nodes = 0;
    std::optional<ParameterRanges> parameters;
    GpuModel gpu{};
    CommCost links;
};

struct Explained {
    Plan plan;
    uint64_t bytes = 0, native = 0, wire = 0, node_wire = 0;
    uint64_t averaging_wire = 0;  // each time that residuals are averaged
    std::vector<std::pair<const Rule*, std::string>> passed;  // over, and for lack of what
    std::vector<std::string> warnings;                        // of the rule that decides
    std::vector<AlgorithmTime> times;                         // on paper; none by factors
    // By a calibration of this shape, on its link; 0: it has none of the call's.
    double measured_native_s = 0, measured_s = 0;
    Threshold pays;  // from which size its codec does
};

// For --json: SCHEMA.md has its members.
[[nodiscard]] nlohmann::ordered_json json_of(const Explained& found,
                                             const Asked& asked,
                                             const Config& config);
// On standard output, for people.
void print(const Explained& found, const Asked& asked, const Config& config);

}  // namespace slimwire::cli
