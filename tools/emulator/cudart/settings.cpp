#include "tools/emulator/cudart/settings.h"

#include <unistd.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace slimwire::emulator {

namespace {

// The sanitizer's shadow leaves less room for mappings.
#if defined(__SANITIZE_THREAD__)
constexpr size_t kDeviceMemoryBytes = size_t{8} << 30;
#else
constexpr size_t kDeviceMemoryBytes = size_t{80} << 30;
#endif

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
    if (const char* strict = std::getenv("SLIMWIRE_EMU_STRICT"); strict != nullptr) {
        settings.strict = std::strcmp(strict, "1") == 0;
        if (!settings.strict && std::strcmp(strict, "0") != 0 && *strict != '\0') {
            say("SLIMWIRE_EMU_STRICT=%s is neither 0 nor 1", strict);
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
