// Numbers in attributes of machine files: what is empty or none is "not told", as NCCL has it.
#pragma once

#include <charconv>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace slimwire {

// "0x0302", "0302": a hexadecimal number; the whole text.
inline std::optional<uint64_t> parse_hex(std::string_view text) noexcept {
    if (text.substr(0, 2) == "0x" || text.substr(0, 2) == "0X") {
        text.remove_prefix(2);
    }
    uint64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
    return !text.empty() && error == std::errc() && end == text.data() + text.size()
               ? std::optional(value)
               : std::nullopt;
}

// A whole decimal number between 0 and `most`, or hexadecimal behind 0x; else `missing`.
inline int parse_number(std::string_view text, int missing, int most = 1 << 30) noexcept {
    if (text.substr(0, 2) == "0x") {
        const auto hex = parse_hex(text);
        return hex && *hex <= static_cast<uint64_t>(most) ? static_cast<int>(*hex) : missing;
    }
    int value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    return error == std::errc() && end == text.data() + text.size() && value >= 0 && value <= most
               ? value
               : missing;
}

inline double parse_real(std::string_view text, double missing) noexcept {
    double value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    return error == std::errc() && end == text.data() + text.size() && value >= 0 && value <= 1e12
               ? value
               : missing;
}

inline std::string lower(std::string_view text) {
    std::string result(text);
    for (char& c : result) {
        c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    }
    return result;
}

// NVML's "00000000:17:00.0" and sysfs's "0000:17:00.0" are one.
inline std::string short_bus_id(std::string_view text) {
    const bool long_domain = text.size() == 16 && text.substr(0, 4) == "0000";
    return lower(long_domain ? text.substr(4) : text);
}

}  // namespace slimwire
