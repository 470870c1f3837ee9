#include "codecs/base/device_scope.h"

namespace slimwire {

DeviceScope::DeviceScope(const DeviceApi& api, int device) noexcept : api_(api) {
    if (tolerate(api_, api_.get_device(&former_)) && former_ != device) {
        changed_ = tolerate(api_, api_.set_device(device));
    }
    relaxed_ = tolerate(api_, api_.exchange_capture_mode(&capture_mode_));
}

DeviceScope::~DeviceScope() {
    if (relaxed_) {
        tolerate(api_, api_.exchange_capture_mode(&capture_mode_));
    }
    if (changed_) {
        tolerate(api_, api_.set_device(former_));
    }
}

}  // namespace slimwire
