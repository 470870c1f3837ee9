// `slimwire bench footprint`: what slimwire adds to a communicator beside time on the wire: device
// and host memory, sockets, and the time of creation and first call, against native NCCL, for
// several numbers of emulated ranks.
#pragma once

#include <string>

namespace slimwire::cli {

struct FootprintOptions {
    std::string ranks = "2,4,8,16";  // comma list
    std::string codec = "int4";
    std::string error_feedback;
    std::string bytes = "64MiB";  // of the all-reduce
    int ranks_per_node = 1;
    std::string link;
    int rounds = 3;  // jobs of each kind; medians count
    bool json = false;
};

int bench_footprint(const FootprintOptions& options);

}  // namespace slimwire::cli
