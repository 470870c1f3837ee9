// Where the ranks of a communicator sit, as far as one of them can tell without asking the others:
// what the launcher said. For mode shadow, whose plans are about what would be.
#pragma once

#include "codecs/base/device.h"
#include "collectives/policy/config.h"
#include "topology/machine/comm_shape.h"

namespace slimwire {

struct LocalShape {
    CommShape shape;
    bool known = false;  // else taken as one rank a node
};

// Of the communicator of `ranks` ranks in which this process has `rank`. Known are communicators of
// a job on one node or with one rank a node, and those of all ranks in the launcher's order, which
// fills node after node.
LocalShape local_shape(const DeviceApi* api,
                       int ranks,
                       int rank,
                       GetenvFunction getenv_function = process_getenv);

}  // namespace slimwire
