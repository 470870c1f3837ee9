// The seed of random tests: the same at every run, so that a change is judged by itself and not by
// luck, unless SLIMWIRE_TEST_SEED says otherwise; 0 there draws another one for each test, which is
// what long runs use (tests/e2e/soak). A test prints its seed with every failure.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <random>

namespace slimwire {

inline uint32_t test_seed() {
    const char* given = std::getenv("SLIMWIRE_TEST_SEED");
    const bool said = given != nullptr && given[0] != 0;
    const uint32_t seed = said ? static_cast<uint32_t>(std::strtoul(given, nullptr, 10)) : 1;
    return seed != 0 ? seed : std::random_device{}();
}

}  // namespace slimwire
