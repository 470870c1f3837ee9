#include "plugin/net/hints/hint.h"

#include <array>
#include <cstring>
#include <utility>

#include "plugin/net/abi/profiler.h"

namespace slimwire::net {
namespace {

// magic << 16 | protocol << 8 | element + 1
constexpr uintptr_t kHandleMagic = 0x534C486Eull;

constexpr std::array kTypeNames = {
    std::pair{"ncclInt8", DType::kInt8},
    std::pair{"ncclUint8", DType::kUint8},
    std::pair{"ncclInt32", DType::kInt32},
    std::pair{"ncclUint32", DType::kUint32},
    std::pair{"ncclInt64", DType::kInt64},
    std::pair{"ncclUint64", DType::kUint64},
    std::pair{"ncclFloat16", DType::kFloat16},
    std::pair{"ncclFloat32", DType::kFloat32},
    std::pair{"ncclFloat64", DType::kFloat64},
    std::pair{"ncclBfloat16", DType::kBfloat16},
    std::pair{"ncclFloat8e4m3", DType::kFloat8e4m3},
    std::pair{"ncclFloat8e5m2", DType::kFloat8e5m2},
};
static_assert(kTypeNames.size() == kDTypeCount);

}  // namespace

void* handle_of(const Hint& hint) noexcept {
    const uintptr_t element =
        hint.element.has_value() ? static_cast<uintptr_t>(*hint.element) + 1 : 0;
    return reinterpret_cast<void*>(kHandleMagic << 16 | static_cast<uintptr_t>(hint.protocol) << 8 |
                                   element);
}

Hint hint_of(const void* handle) noexcept {
    const auto bits = reinterpret_cast<uintptr_t>(handle);
    const uintptr_t element = bits & 0xFF;
    const uintptr_t protocol = bits >> 8 & 0xFF;
    if (bits >> 16 != kHandleMagic || element > kDTypeCount ||
        protocol > static_cast<uintptr_t>(Protocol::kSimple)) {
        return {};
    }
    Hint hint;
    if (element > 0) {
        hint.element = static_cast<DType>(element - 1);
    }
    hint.protocol = static_cast<Protocol>(protocol);
    return hint;
}

Hint hint_from_names(const char* datatype, const char* protocol) noexcept {
    Hint hint;
    for (const auto& [name, element] : kTypeNames) {
        if (datatype != nullptr && std::strcmp(datatype, name) == 0) {
            hint.element = element;
        }
    }
    for (const auto& [name, value] :
         {std::pair{"LL", Protocol::kLl}, std::pair{"LL128", Protocol::kLl128},
          std::pair{"SIMPLE", Protocol::kSimple}}) {
        if (protocol != nullptr && std::strcmp(protocol, name) == 0) {
            hint.protocol = value;
        }
    }
    return hint;
}

Hint ask_hint(ProfilerCallback callback, void* phandle) noexcept {
    if (callback == nullptr || phandle == nullptr) {
        return {};
    }
    HintQuestion question{kQuestionMagic, {}};
    void* event = nullptr;
    if (callback(&event, kNetEventStart, phandle, kHintPluginId, &question) != ncclSuccess) {
        return {};
    }
    if (event != nullptr) {
        static_cast<void>(callback(&event, kNetEventStop, phandle, kHintPluginId, nullptr));
    }
    return question.answer;
}

}  // namespace slimwire::net
