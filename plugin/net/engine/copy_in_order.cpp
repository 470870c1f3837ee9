#include "plugin/net/engine/copy_in_order.h"

#include <cstdint>
#include <cstring>

namespace slimwire::net {

void copy_in_order(void* output, const void* input, size_t bytes) noexcept {
    using Word [[gnu::may_alias]] = uint64_t;
    auto* to = static_cast<uint8_t*>(output);
    const auto* from = static_cast<const uint8_t*>(input);
    const auto put_bytes = [&](size_t count) {
        for (size_t i = 0; i < count; ++i) {
            __atomic_store_n(to++, *from++, __ATOMIC_RELEASE);
        }
        bytes -= count;
    };
    const size_t before = -reinterpret_cast<uintptr_t>(to) % sizeof(Word);
    put_bytes(before < bytes ? before : bytes);
    for (; bytes >= sizeof(Word); bytes -= sizeof(Word)) {
        uint64_t word = 0;
        std::memcpy(&word, from, sizeof word);
        __atomic_store_n(reinterpret_cast<Word*>(to), word, __ATOMIC_RELEASE);
        to += sizeof(Word);
        from += sizeof(Word);
    }
    put_bytes(bytes);
}

}  // namespace slimwire::net
