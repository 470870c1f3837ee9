#include "plugin/net/settings.h"

#include <sched.h>
#include <strings.h>

#include <algorithm>
#include <iterator>
#include <thread>

#include "collectives/policy/config.h"

namespace slimwire::net {
namespace {

constexpr uint64_t kMostLatencyUs = 3'600'000'000;
constexpr uint32_t kMostThreads = 256;

Status refuse(const char* variable, const char* accepted) {
    const char* const value = process_getenv(variable);
    return {Code::kInvalidArgument, std::string(variable) + ": bad value '" +
                                        (value != nullptr ? value : "") +
                                        "'; accepted: " + accepted};
}

// A misspelt switch is no reason to be on.
Status check_mode() {
    std::string mode;
    SLIMWIRE_TRY(read_variable(process_getenv, "SLIMWIRE_MODE", &mode));
    constexpr const char* kModes[] = {"", "off", "record", "shadow", "on"};
    const bool known = std::any_of(std::begin(kModes), std::end(kModes), [&](const char* one) {
        return strcasecmp(mode.c_str(), one) == 0;
    });
    return known ? Status() : refuse("SLIMWIRE_MODE", "off, record, shadow, on");
}

int processors() {
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof set, &set) == 0) {
        return std::max(1, CPU_COUNT(&set));
    }
    return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

Status read_threads(int* threads) {
    std::string text;
    SLIMWIRE_TRY(read_variable(process_getenv, "SLIMWIRE_NET_THREADS", &text));
    if (text.empty()) {
        *threads = std::clamp(processors() / 2, 1, 4);
        return {};
    }
    uint32_t value = 0;
    SLIMWIRE_TRY(read_variable(process_getenv, "SLIMWIRE_NET_THREADS", &value));
    if (value == 0 || value > kMostThreads) {
        return refuse("SLIMWIRE_NET_THREADS", "a whole number from 1 to 256");
    }
    *threads = static_cast<int>(value);
    return {};
}

Status read_link(EngineSettings* settings) {
    std::string text;
    SLIMWIRE_TRY(read_variable(process_getenv, "SLIMWIRE_NET_LINK", &text));
    if (text.empty()) {
        return {};
    }
    const size_t comma = text.find(',');
    const Result<double> bits_per_s = parse_bits_per_second(text.substr(0, comma));
    const Result<uint64_t> latency_us = comma == std::string::npos
                                            ? Result<uint64_t>(uint64_t{0})
                                            : parse_duration_us(text.substr(comma + 1));
    if (!bits_per_s.ok() || !latency_us.ok() || latency_us.value() > kMostLatencyUs) {
        return refuse("SLIMWIRE_NET_LINK",
                      "rate or rate,latency, like 1gbit,50us, of up to an hour");
    }
    settings->rate_bytes_per_s = bits_per_s.value() / 8;
    settings->latency_ns = latency_us.value() * 1000;
    return {};
}

}  // namespace

bool switched_off() noexcept {
    const char* const mode = process_getenv("SLIMWIRE_MODE");
    return mode != nullptr && strcasecmp(mode, "off") == 0;
}

Result<EngineSettings> read_engine_settings() {
    SLIMWIRE_TRY(check_variable_names());
    SLIMWIRE_TRY(check_mode());
    EngineSettings settings;
    std::string codec;
    SLIMWIRE_TRY(read_variable(process_getenv, "SLIMWIRE_NET_CODEC", &codec));
    const size_t comma = codec.find(',');
    settings.codec = codec.substr(0, comma) != "off";
    settings.checksum = comma != std::string::npos;
    uint64_t bytes = 0;
    SLIMWIRE_TRY(read_variable(process_getenv, "SLIMWIRE_NET_MIN_BYTES", &bytes));
    settings.min_bytes = bytes;
    SLIMWIRE_TRY(read_threads(&settings.threads));
    SLIMWIRE_TRY(read_variable(process_getenv, "SLIMWIRE_NET_INNER", &settings.inner));
    SLIMWIRE_TRY(read_link(&settings));
    return settings;
}

}  // namespace slimwire::net
