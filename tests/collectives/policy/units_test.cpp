// Sizes, rates and durations: what is accepted, and that nothing is rounded or wraps.
#include <gtest/gtest.h>

#include <limits>

#include "collectives/policy/config.h"

namespace slimwire {
namespace {

void expect_error(const Status& status, const std::string& text, const std::string& piece) {
    ASSERT_FALSE(status.ok()) << text;
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    EXPECT_NE(status.message().find("'" + text + "'"), std::string::npos) << status.message();
    EXPECT_NE(status.message().find(piece), std::string::npos) << status.message();
    EXPECT_NE(status.message().find("accepted: "), std::string::npos) << status.message();
}

TEST(Units, sizes) {
    const std::pair<const char*, uint64_t> kCases[] = {
        {"0", 0},
        {"1000000", 1000000},
        {"17B", 17},
        {"64KiB", 65536},
        {"64kib", 65536},
        {"64 KIB", 65536},
        {" 1MiB ", 1048576},
        {"1.5MiB", 1572864},
        {"0.5KiB", 512},
        {"2GiB", 2147483648ull},
        {"3TiB", 3ull << 40},
        {"18446744073709551615", std::numeric_limits<uint64_t>::max()},
    };
    for (const auto& [text, bytes] : kCases) {
        const auto parsed = parse_bytes(text);
        ASSERT_TRUE(parsed.ok()) << text << ": " << parsed.status().message();
        EXPECT_EQ(parsed.value(), bytes) << text;
    }
}

TEST(Units, bad_sizes_name_the_text_and_what_is_accepted) {
    const std::pair<const char*, const char*> kCases[] = {
        {"", "not a number"},           {"-1", "not a number"},
        {"1e6", "unknown unit 'e6'"},   {"64k", "unknown unit 'k'"},
        {"64KB", "unknown unit 'kb'"},  {"64Kbit", "unknown unit 'kbit'"},
        {"1.", "not a number"},         {".5MiB", "not a number"},
        {"1.5", "not a whole number"},  {"0.3KiB", "not a whole number of bytes"},
        {"1 2", "unknown unit '2'"},    {"18446744073709551616", "not a number"},
        {"16777216TiB", "too large"},   {"0x10", "unknown unit 'x10'"},
        {"1.2.3", "unknown unit '.3'"}, {"0.0000000000000000000000001TiB", "not a number"},
    };
    for (const auto& [text, piece] : kCases) {
        expect_error(parse_bytes(text).status(), text, piece);
    }
}

TEST(Units, rates_are_decimal_bits) {
    const std::pair<const char*, double> kCases[] = {
        {"10gbit", 10e9},  {"100 mbit", 100e6}, {"2.5Gbit/s", 2.5e9},
        {"9600bit", 9600}, {"64kbit", 64e3},    {"1.6tbit", 1.6e12},
    };
    for (const auto& [text, rate] : kCases) {
        const auto parsed = parse_bits_per_second(text);
        ASSERT_TRUE(parsed.ok()) << text << ": " << parsed.status().message();
        EXPECT_DOUBLE_EQ(parsed.value(), rate) << text;
    }
    for (const char* text : {"10Gb", "10GB", "10gibit", "10Gbps", "10MiB"}) {
        expect_error(parse_bits_per_second(text).status(), text, "unknown unit");
    }
    expect_error(parse_bits_per_second("10").status(), "10", "no unit");
    expect_error(parse_bits_per_second("0gbit").status(), "0gbit", "zero");
    expect_error(parse_bits_per_second("fast").status(), "fast", "not a number");
}

TEST(Units, durations) {
    const std::pair<const char*, uint64_t> kCases[] = {
        {"50us", 50}, {"10ms", 10000}, {"2s", 2000000}, {"1.5ms", 1500}, {"0s", 0}};
    for (const auto& [text, microseconds] : kCases) {
        const auto parsed = parse_duration_us(text);
        ASSERT_TRUE(parsed.ok()) << text << ": " << parsed.status().message();
        EXPECT_EQ(parsed.value(), microseconds) << text;
    }
    expect_error(parse_duration_us("10").status(), "10", "no unit");
    expect_error(parse_duration_us("500ns").status(), "500ns", "unknown unit 'ns'");
    expect_error(parse_duration_us("0.5us").status(), "0.5us", "not a whole number");
    expect_error(parse_duration_us("99999999999999999s").status(), "99999999999999999s",
                 "too large");
}

}  // namespace
}  // namespace slimwire
