// The generator against the vectors that its authors publish with Random123, for the numbers of
// rounds that they publish, and the bytes that the lanes draw against the plain function.
#include "codecs/threefry.h"

#include <gtest/gtest.h>

#include <array>

namespace slimwire::testing {
namespace {

template <int kRounds>
std::array<uint32_t, 4> draw(const std::array<uint32_t, 4>& counter, const RandomWords& key) {
    uint32_t x[4] = {counter[0], counter[1], counter[2], counter[3]};
    threefry<WordArithmetic, kRounds>(x, key);
    return {x[0], x[1], x[2], x[3]};
}

using Words = std::array<uint32_t, 4>;

constexpr Words kOnes = {~0u, ~0u, ~0u, ~0u};
constexpr Words kPi = {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344};
constexpr RandomWords kPiKey = {{0xa4093822, 0x299f31d0, 0x082efa98, 0xec4e6c89}};

TEST(Threefry, EqualsThePublishedVectors) {
    EXPECT_EQ(draw<13>({}, {}), (Words{0x531c7e4f, 0x39491ee5, 0x2c855a92, 0x3d6abf9a}));
    EXPECT_EQ(draw<20>({}, {}), (Words{0x9c6ca96a, 0xe17eae66, 0xfc10ecd4, 0x5256a7d8}));
    EXPECT_EQ(draw<20>(kOnes, {{~0u, ~0u, ~0u, ~0u}}),
              (Words{0x2a881696, 0x57012287, 0xf6c7446e, 0xa16a6732}));
    EXPECT_EQ(draw<20>(kPi, kPiKey), (Words{0x59cd1dbb, 0xb8879579, 0x86b5d00c, 0xac8b6d84}));
}

}  // namespace
}  // namespace slimwire::testing
