// A 64-bit hash that is the same on every machine and in every build: FNV-1a over the bytes, then
// the finalizer of SplitMix64 so that short texts differ in all bits. For comparing configurations
// and making keys, not against an adversary.
#pragma once

#include <cstdint>
#include <string_view>

namespace slimwire {

// SplitMix64's finalizer.
[[nodiscard]] constexpr uint64_t mixed(uint64_t x) noexcept {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

[[nodiscard]] constexpr uint64_t stable_hash(std::string_view bytes) noexcept {
    uint64_t hash = 0xcbf29ce484222325ull;
    for (const char c : bytes) {
        hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
    }
    return mixed(hash);
}

}  // namespace slimwire
