#include "tools/emulator/nccl/transport/link_spec.h"

#include <string>

#include "codecs/base/number_text.h"

namespace slimwire::emu {
namespace {

constexpr uint64_t kMinChunkBytes = 16 * 1024;
constexpr uint64_t kMaxChunkBytes = 256 * 1024;

struct Unit {
    std::string_view name;
    double factor;
};

// A positive number followed by one of `units`; 0 when it is not that.
template <size_t N>
double parse_quantity(std::string_view text, const Unit (&units)[N]) {
    const auto [number, rest] = leading_number(text);
    for (const Unit& unit : units) {
        if (unit.name == rest && number > 0 && number < 1e6) {
            return number * unit.factor;
        }
    }
    return 0;
}

constexpr Unit kRates[] = {{"kbit", 1e3}, {"mbit", 1e6}, {"gbit", 1e9}};
constexpr Unit kTimes[] = {{"ns", 1}, {"us", 1e3}, {"ms", 1e6}, {"s", 1e9}};

}  // namespace

uint64_t LinkSpec::chunk_bytes() const noexcept {
    if (!shaped()) {
        return kMaxChunkBytes;
    }
    uint64_t bytes = kMinChunkBytes;
    while (bytes < kMaxChunkBytes && wire_ns(bytes) < 1'000'000) {
        bytes *= 2;
    }
    return bytes;
}

Result<LinkSpec> parse_link_spec(std::string_view text) {
    LinkSpec spec;
    if (text.empty()) {
        return spec;
    }
    const size_t comma = text.find(',');
    spec.bits_per_second = parse_quantity(text.substr(0, comma), kRates);
    bool good = spec.bits_per_second > 0;
    if (comma != std::string_view::npos) {
        const std::string_view latency(text.substr(comma + 1));
        spec.latency_ns = static_cast<uint64_t>(parse_quantity(latency, kTimes));
        good = good && (spec.latency_ns > 0 || latency == "0" || latency == "0us");
    }
    if (!good) {
        return Status(Code::kInvalidArgument,
                      "SLIMWIRE_EMU_LINK='" + std::string(text) +
                          "': expected a rate and, if wanted, a latency, such as 1gbit or "
                          "100mbit,50us (units kbit mbit gbit; ns us ms s)");
    }
    return spec;
}

}  // namespace slimwire::emu
