// Fills the device table: the emulator's functions when it is mapped into this process, else the
// CUDA runtime linked into the library. Called once, at the first communicator; makes no CUDA call.
#pragma once

#include "codecs/base/device.h"

namespace slimwire {

// kUnsupported when this build has no CUDA and no emulator is present; the text says what to do.
Result<DeviceApi> load_device_api();

}  // namespace slimwire
