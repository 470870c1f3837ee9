// What an nccl-tests program printed, as data. Pure; used by `bench nccl-tests`. The columns are
// found by the names in the table's own head, because releases differ in them (no root before
// 2.12, "error" for "#wrong", a time stamp at the end). hypercube_perf leaves its redop blank.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "codecs/base/status.h"

namespace slimwire::cli {

// One of the two measurements of a row. Rates in the unit the program prints, 1e9 bytes a second.
struct NcclTestsTiming {
    double time_us = 0, algorithm_gbps = 0, bus_gbps = 0;
    std::optional<uint64_t> wrong;  // none: not checked
};

struct NcclTestsRow {
    uint64_t bytes = 0, count = 0;
    std::string type, redop;
    int root = -1;
    NcclTestsTiming out_of_place, in_place;
};

struct NcclTestsTable {
    std::vector<NcclTestsRow> rows;
    std::optional<double> average_bus_gbps;
    int ranks = 0;          // listed above the table; 0: none were
    bool emulated = false;  // one of them says that it is slimwire's
};

// kNotFound when there is no table, kInvalidArgument with the line when a row does not fit its
// head.
Result<NcclTestsTable> parse_nccl_tests(std::string_view output);

}  // namespace slimwire::cli
