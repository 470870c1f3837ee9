// The one unit grammar: sizes, rates and durations, declared in config.h. A value that is not a
// whole number of its unit is an error, so nothing is rounded silently.
#include <algorithm>
#include <cctype>
#include <limits>
#include <string>

#include "collectives/policy/config.h"

namespace slimwire {
namespace {

__extension__ using Wide = unsigned __int128;

struct Unit {
    std::string_view name;  // lower case
    uint64_t factor;
};

constexpr Unit kByteUnits[] = {{"", 1},
                               {"b", 1},
                               {"kib", 1ull << 10},
                               {"mib", 1ull << 20},
                               {"gib", 1ull << 30},
                               {"tib", 1ull << 40}};
constexpr Unit kBitUnits[] = {{"bit", 1},
                              {"kbit", 1'000},
                              {"mbit", 1'000'000},
                              {"gbit", 1'000'000'000},
                              {"tbit", 1'000'000'000'000}};
constexpr Unit kTimeUnits[] = {{"us", 1}, {"ms", 1'000}, {"s", 1'000'000}};

constexpr char kBytesAccepted[] = "a number of bytes or one with KiB, MiB, GiB or TiB, like 64KiB";
constexpr char kBitsAccepted[] =
    "a number with bit, kbit, mbit, gbit or tbit (a second), like 10gbit";
constexpr char kTimeAccepted[] = "a number with us, ms or s, like 50us";

std::string_view trimmed(std::string_view text) {
    while (!text.empty() && text.front() == ' ') {
        text.remove_prefix(1);
    }
    while (!text.empty() && text.back() == ' ') {
        text.remove_suffix(1);
    }
    return text;
}

// `mantissa` / 10^`decimals`, and what follows the number.
struct Number {
    uint64_t mantissa = 0;
    int decimals = 0;
    std::string unit;  // lower case
};

// False when there is no plain decimal number or it has more digits than 64 bits hold.
bool split(std::string_view text, Number* number) {
    text = trimmed(text);
    bool has_digit = false;
    bool after_point = false;
    size_t i = 0;
    for (; i < text.size(); ++i) {
        const char c = text[i];
        if (c == '.' && !after_point && has_digit) {
            after_point = true;
            continue;
        }
        if (c < '0' || c > '9') {
            break;
        }
        const uint64_t digit = static_cast<uint64_t>(c - '0');
        if (number->mantissa > (std::numeric_limits<uint64_t>::max() - digit) / 10) {
            return false;
        }
        number->mantissa = number->mantissa * 10 + digit;
        number->decimals += after_point ? 1 : 0;
        if (number->decimals > 18) {
            return false;
        }
        has_digit = true;
    }
    if (!has_digit || text[i - 1] == '.') {
        return false;
    }
    for (const char c : trimmed(text.substr(i))) {
        number->unit += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    }
    return true;
}

template <size_t N>
const Unit* find_unit(const Unit (&units)[N], std::string_view name) {
    const Unit* found = std::find_if(std::begin(units), std::end(units),
                                     [&](const Unit& u) { return u.name == name; });
    return found == std::end(units) ? nullptr : found;
}

Status refuse(const char* what,
              std::string_view text,
              const std::string& why,
              const char* accepted) {
    return {Code::kInvalidArgument,
            std::string(what) + " '" + std::string(text) + "': " + why + "; accepted: " + accepted};
}

// `value` / `divisor` of the smallest unit.
struct Scaled {
    Wide value = 0, divisor = 1;
};

template <size_t N>
Result<Scaled> parse_scaled(const char* what,
                            std::string_view text,
                            const Unit (&units)[N],
                            const char* accepted,
                            std::string_view ending = {}) {
    Number number;
    if (!split(text, &number)) {
        return refuse(what, text, "not a number", accepted);
    }
    if (number.unit.ends_with(ending)) {
        number.unit.resize(number.unit.size() - ending.size());
    }
    const Unit* unit = find_unit(units, number.unit);
    if (unit == nullptr) {
        return refuse(what, text,
                      number.unit.empty() ? "no unit" : "unknown unit '" + number.unit + "'",
                      accepted);
    }
    Scaled scaled{static_cast<Wide>(number.mantissa) * unit->factor};
    for (int i = 0; i < number.decimals; ++i) {
        scaled.divisor *= 10;
    }
    return scaled;
}

template <size_t N>
Result<uint64_t> parse_whole(const char* what,
                             std::string_view text,
                             const Unit (&units)[N],
                             const char* accepted,
                             const char* smallest) {
    SLIMWIRE_TRY_ASSIGN(const Scaled scaled, parse_scaled(what, text, units, accepted));
    if (scaled.value % scaled.divisor != 0) {
        return refuse(what, text, std::string("not a whole number of ") + smallest, accepted);
    }
    if (scaled.value / scaled.divisor > std::numeric_limits<uint64_t>::max()) {
        return refuse(what, text, "too large", accepted);
    }
    return static_cast<uint64_t>(scaled.value / scaled.divisor);
}

}  // namespace

Result<uint64_t> parse_bytes(std::string_view text) {
    return parse_whole("size", text, kByteUnits, kBytesAccepted, "bytes");
}

Result<uint64_t> parse_duration_us(std::string_view text) {
    return parse_whole("duration", text, kTimeUnits, kTimeAccepted, "microseconds");
}

Result<double> parse_bits_per_second(std::string_view text) {
    SLIMWIRE_TRY_ASSIGN(const Scaled scaled,
                        parse_scaled("rate", text, kBitUnits, kBitsAccepted, "/s"));
    const double rate = static_cast<double>(scaled.value) / static_cast<double>(scaled.divisor);
    return rate > 0 ? Result<double>(rate) : refuse("rate", text, "zero", kBitsAccepted);
}

}  // namespace slimwire
