// Numbers as text and back with a decimal point, whatever locale the process has set: printf,
// strtod, std::to_string of a float and streams all follow the locale.
#pragma once

#include <charconv>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

namespace slimwire {

namespace detail {

inline std::string number_text(double value, std::chars_format format, int precision) {
    char text[400];  // the largest double has 309 digits
    const auto [end, error] = std::to_chars(text, text + sizeof text, value, format, precision);
    return {text, error == std::errc() ? end : text};
}

}  // namespace detail

// As printf's "%.<decimals>f"; at most 64 decimals.
inline std::string fixed_text(double value, int decimals) {
    return detail::number_text(value, std::chars_format::fixed, decimals);
}

// As printf's "%.<digits>g"; at most 64 digits.
inline std::string general_text(double value, int digits) {
    return detail::number_text(value, std::chars_format::general, digits);
}

// The decimal number that `text` begins with and the text behind it; {0, text} without one.
inline std::pair<double, std::string_view> leading_number(std::string_view text) noexcept {
    double value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc()) {
        return {0, text};
    }
    return {value, text.substr(static_cast<size_t>(end - text.data()))};
}

}  // namespace slimwire
