#include "codecs/ops/advance.h"

#include "codecs/launch.h"

namespace slimwire {

void advance_on_host(const AdvanceArgs& args) {
    *device_view_as<uint32_t>(args.counter) += args.by;
}

SLIMWIRE_ENQUEUE(advance, AdvanceArgs)

}  // namespace slimwire
