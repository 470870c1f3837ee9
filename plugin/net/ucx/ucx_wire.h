// The Wire over UCX (wire.h): devices, transports, connections.
#pragma once

#include <memory>
#include <vector>

#include "codecs/base/status.h"
#include "plugin/net/ucx/progress_thread.h"
#include "plugin/net/ucx/ucx_device.h"
#include "plugin/net/wire.h"

namespace slimwire::net {

// kNotFound without libucp.so.0, kInvalidArgument for settings that leave no device.
Result<std::unique_ptr<Wire>> open_ucx_wire(UcxSettings settings);

// What the wire's objects share and keep alive. Constant but for the progress_thread, which ends
// first.
struct UcxState {
    UcxSettings settings;
    std::vector<std::shared_ptr<UcxDevice>> devices;
    ProgressThread progress_thread;
};

}  // namespace slimwire::net
