#include "tools/emulator/cudart/machine/settings.h"

#include <unistd.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "codecs/base/number_text.h"
#include "tools/emulator/fault_plan.h"

namespace slimwire::emulator {

namespace {

// The sanitizer's shadow leaves less room for mappings.
#if defined(__SANITIZE_THREAD__)
constexpr size_t kDeviceMemoryBytes = size_t{8} << 30;
#else
constexpr size_t kDeviceMemoryBytes = size_t{80} << 30;
#endif

void read_strict(Settings* settings) {
    const char* text = std::getenv("SLIMWIRE_EMU_STRICT");
    const std::string_view said = text != nullptr ? text : "";
    settings->strict = said == "1" || said == "calls";
    settings->may_wait_in_calls = said != "calls";
    if (!settings->strict && !said.empty() && said != "0") {
        say("SLIMWIRE_EMU_STRICT=%s is none of 0, 1, calls", text);
        settings->error = cudaErrorInitializationError;
    }
    // As CUDA, which takes its default for what is none.
    constexpr int kConnections = 8, kMostConnections = 32;
    const char* connections = std::getenv("CUDA_DEVICE_MAX_CONNECTIONS");
    if (settings->strict && connections != nullptr &&
        !parse_count(connections, 1, kMostConnections, &settings->connections)) {
        settings->connections = kConnections;
    }
}

// Whole pages, at least what the smallest program needs and at most what a device reports.
bool parse_bytes(const char* text, size_t* bytes) {
    const auto [number, unit] = leading_number(text);
    const double factor = unit == "KiB"   ? 1024.0
                          : unit == "MiB" ? 1048576.0
                          : unit == "GiB" ? 1073741824.0
                                          : 0;
    const double wanted = number * factor;
    if (!(wanted >= 65536 && wanted <= static_cast<double>(kDeviceMemoryBytes))) {
        return false;
    }
    *bytes = static_cast<size_t>(wanted) / 4096 * 4096;
    return true;
}

bool parse_fraction(const char* text, double* fraction) {
    const auto [number, rest] = leading_number(text);
    if (*text == '\0' || !rest.empty() || !(number >= 0 && number < 1)) {
        return false;
    }
    *fraction = number;
    return true;
}

}  // namespace

void say(const char* format, ...) {
    char line[1024];
    int used = std::snprintf(line, sizeof line, "slimwire emulator: ");
    va_list arguments;
    va_start(arguments, format);
    used += std::vsnprintf(line + used, sizeof line - static_cast<size_t>(used), format, arguments);
    va_end(arguments);
    const size_t length =
        used < static_cast<int>(sizeof line) - 1 ? static_cast<size_t>(used) : sizeof line - 2;
    line[length] = '\n';
    // One write, so that lines of several ranks do not mix.
    [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line, length + 1);
}

Settings read_settings() {
    Settings settings;
    settings.device_memory_bytes = kDeviceMemoryBytes;
    if (const char* devices = std::getenv("SLIMWIRE_EMU_DEVICES"); devices != nullptr) {
        if (!parse_count(devices, 0, kMaxDevices, &settings.device_count)) {
            say("SLIMWIRE_EMU_DEVICES=%s is not a number of devices from 0 to %d", devices,
                kMaxDevices);
            settings.error = cudaErrorInitializationError;
        } else if (settings.device_count == 0) {
            settings.error = cudaErrorNoDevice;
        }
    }
    read_strict(&settings);
    if (const char* memory = std::getenv("SLIMWIRE_EMU_MEMORY");
        memory != nullptr && !parse_bytes(memory, &settings.device_memory_bytes)) {
        say("SLIMWIRE_EMU_MEMORY=%s is not a size from 64KiB to 80GiB, such as 256MiB", memory);
        settings.error = cudaErrorInitializationError;
    }
    if (const char* text = std::getenv("SLIMWIRE_EMU_CHECK_ERROR");
        text != nullptr && !parse_fraction(text, &settings.check_error)) {
        say("SLIMWIRE_EMU_CHECK_ERROR=%s is not a number from 0 to 1, such as 0.03", text);
        settings.error = cudaErrorInitializationError;
    }
    if (const char* faults = std::getenv("SLIMWIRE_EMU_FAULT"); faults != nullptr) {
        settings.faults = faults;
        if (!FaultPlan().parse(faults)) {
            say("SLIMWIRE_EMU_FAULT=%s is not %s", faults, FaultPlan::kAccepted);
            settings.error = cudaErrorInitializationError;
        }
    }
    settings.rank = launcher_rank();
    settings.first_device_index = first_device_index(settings.device_count);
    settings.nodes = node_map_from_environment();
    if (!settings.nodes.valid) {
        say("SLIMWIRE_EMU_NODES=%s is not NxM, nodes times devices per node, such as 2x4",
            std::getenv("SLIMWIRE_EMU_NODES"));
        settings.error = cudaErrorInitializationError;
    }
    return settings;
}

}  // namespace slimwire::emulator
