#include "topology/machine/link_speed.h"

#include <array>

#include "codecs/base/number_text.h"

namespace slimwire {

double pcie_gb_s(double gt_s, int width) noexcept {
    const double rate = gt_s > 0 ? gt_s : kDefaultPcieGtS;
    // 8b/10b below the third generation, 128b/130b from there on, and what packets cost.
    const double lane = rate < 8 ? rate * 0.075 : rate * 0.09375;
    return lane * (width > 0 ? width : kDefaultPcieWidth);
}

double parse_pcie_speed(std::string_view text) noexcept {
    const auto [value, unit] = leading_number(text);
    const bool known = unit.starts_with(" GT/s") || unit.starts_with("GT/s");
    return known && value > 0 && value <= 1024 ? value : 0;
}

double pcie_generation_gt_s(int generation) noexcept {
    constexpr std::array<double, 8> kRates = {0, 2.5, 5, 8, 16, 32, 64, 128};
    return generation >= 1 && generation < static_cast<int>(kRates.size())
               ? kRates[static_cast<size_t>(generation)]
               : 0;
}

double nvlink_gb_s(int compute_capability) noexcept {
    return compute_capability >= 100  ? 40.1
           : compute_capability >= 90 ? 20.6
           : compute_capability == 86 ? 12
           : compute_capability >= 70 ? 20
           : compute_capability >= 60 ? 18
                                      : 20;
}

double xgmi_gb_s(int gcn) noexcept {
    return gcn >= 940 ? 48 : gcn >= 910 ? 36 : 24;
}

double cpu_link_gb_s(const Device& cpu) noexcept {
    if (cpu.arch == "ppc64" || cpu.arch == "ppc64le") {
        return 32;
    }
    if (cpu.arch == "arm64" || cpu.arch == "aarch64") {
        return 6;
    }
    if (cpu.vendor == "AuthenticAMD") {
        return 16;
    }
    if (cpu.vendor == "GenuineIntel" && cpu.family == 6) {
        return cpu.model >= 0xcf ? 40 : cpu.model >= 0x8f ? 22 : cpu.model >= 0x55 ? 10 : 6;
    }
    return 6;
}

}  // namespace slimwire
