#include "plugin/net/settings.h"

#include <sched.h>

#include <algorithm>
#include <thread>

#include "collectives/config.h"

namespace slimwire::net {
namespace {

// What the engine's frames can say (engine/frame.h).
constexpr uint64_t kLeastPieceBytes = 4096;
constexpr uint64_t kMostPieceBytes = 4 << 20;
constexpr uint32_t kMostThreads = 256;

Status refuse(const char* variable, const char* accepted) {
    const char* const value = process_getenv(variable);
    return {Code::kInvalidArgument, std::string(variable) + ": bad value '" +
                                        (value != nullptr ? value : "") +
                                        "'; accepted: " + accepted};
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

}  // namespace

Result<EngineSettings> read_engine_settings() {
    SLIMWIRE_TRY(check_variable_names());
    EngineSettings settings;
    std::string codec;
    SLIMWIRE_TRY(read_variable(process_getenv, "SLIMWIRE_NET_CODEC", &codec));
    settings.codec = codec != "off";
    uint64_t bytes = 0;
    SLIMWIRE_TRY(read_variable(process_getenv, "SLIMWIRE_NET_MIN_BYTES", &bytes));
    settings.min_bytes = bytes;
    SLIMWIRE_TRY(read_variable(process_getenv, "SLIMWIRE_NET_PIECE_BYTES", &bytes));
    if (bytes < kLeastPieceBytes || bytes > kMostPieceBytes || bytes % kLeastPieceBytes != 0) {
        return refuse("SLIMWIRE_NET_PIECE_BYTES", "a multiple of 4KiB, from 4KiB to 4MiB");
    }
    settings.piece_bytes = bytes;
    SLIMWIRE_TRY(read_threads(&settings.threads));
    SLIMWIRE_TRY(read_variable(process_getenv, "SLIMWIRE_NET_SIMPLE_FROM", &bytes));
    settings.simple_from = bytes;
    SLIMWIRE_TRY(read_variable(process_getenv, "SLIMWIRE_NET_CHECKSUM", &settings.checksum));
    SLIMWIRE_TRY(read_variable(process_getenv, "SLIMWIRE_NET_INNER", &settings.inner));
    double bits_per_s = 0;
    SLIMWIRE_TRY(read_variable(process_getenv, "SLIMWIRE_NET_RATE", &bits_per_s));
    settings.rate_bytes_per_s = bits_per_s / 8;
    uint64_t latency_us = 0;
    SLIMWIRE_TRY(read_variable(process_getenv, "SLIMWIRE_NET_LATENCY", &latency_us));
    if (latency_us > 3'600'000'000ull) {
        return refuse("SLIMWIRE_NET_LATENCY", "a time up to an hour, like 50us");
    }
    settings.latency_ns = latency_us * 1000;
    return settings;
}

}  // namespace slimwire::net
