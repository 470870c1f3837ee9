// The effective configuration of this process: every SLIMWIRE_* variable, the policy, and the hash
// that ranks compare. Read once, at the first NCCL call; precedence is command line (which sets
// variables), environment, file.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "collectives/call/launcher.h"
#include "collectives/call/log.h"
#include "collectives/policy/policy.h"

namespace slimwire {

struct Calibration;  // topology/cost/calibration.h

// What slimwire does with a job: nothing; leaves it native and writes a trace; the same, and tries
// on the side what the policy would do; compresses.
enum class Mode : uint8_t { kOff, kRecord, kShadow, kOn };
[[nodiscard]] const char* mode_name(Mode mode) noexcept;
// The job is native, and nothing of ours may make it fail.
[[nodiscard]] constexpr bool observes(Mode mode) noexcept {
    return mode == Mode::kRecord || mode == Mode::kShadow;
}

// Settings::min_bytes of "auto".
inline constexpr uint64_t kAutoBytes = ~uint64_t{0};

// SLIMWIRE_STATE. An empty folder: nothing is saved or loaded.
struct StateRingSetting {
    std::string folder;
    uint64_t every = 500;  // steps
    std::string load;      // a step, "newest", "none"; empty: by the step that is marked first
    // Of other ranks (ConversionOptions).
    bool flat_shards = false;
    SumUse sums = SumUse::kWhole;
};

// One member per variable and key of [runtime] in collectives/policy/variables.def, converted and
// checked.
// Absent and empty variables have the default of the table.
struct Settings {
    Mode mode = Mode::kOn;                 // SLIMWIRE_MODE
    std::string policy;                    // SLIMWIRE_POLICY: a path or the text
    std::string codec;                     // SLIMWIRE_CODEC
    std::string error_feedback;            // SLIMWIRE_EF
    std::string operations;                // SLIMWIRE_OPS, comma separated
    uint64_t min_bytes = 0;                // SLIMWIRE_MIN_BYTES; kAutoBytes: auto
    double bandwidth_bits = 0;             // SLIMWIRE_BANDWIDTH, a second; 0: as found
    std::string calibration_path;          // SLIMWIRE_CALIBRATION
    std::string rule_off;                  // SLIMWIRE_RULE_OFF, comma separated
    std::string report_pattern;            // SLIMWIRE_REPORT
    StateRingSetting state_ring;           // SLIMWIRE_STATE
    LogLevel log_level = LogLevel::kWarn;  // SLIMWIRE_LOG
    std::string log_file;                  // [runtime] log_file: a pattern; empty: stderr
    std::string nccl_library;              // SLIMWIRE_NCCL_LIBRARY
    uint64_t agree_timeout_us = 0;         // [runtime] agree_timeout
    std::string socket_ifname;             // SLIMWIRE_SOCKET_IFNAME
    uint64_t slice_bytes = 16 << 20;       // [runtime] slice_bytes, plan-affecting
    uint64_t max_memory_bytes = 0;         // SLIMWIRE_MAX_MEMORY, plan-affecting; 0: no limit
    uint32_t seed = 0;                     // SLIMWIRE_SEED, plan-affecting
    bool summary = true;                   // [runtime] summary
    bool free_suspended = false;           // [runtime] free_suspended
    std::string trace_pattern;             // SLIMWIRE_TRACE
    uint64_t trace_bytes = 256 << 20;      // [runtime] trace_bytes
    uint32_t trace_sample = 64;            // [runtime] trace_sample; 0: never
};

struct Config {
    Settings settings;
    Policy policy;
    // What SLIMWIRE_CALIBRATION holds; null without one.
    std::shared_ptr<const std::vector<Calibration>> calibrations;
    uint64_t calibration_hash = 0;
    uint64_t hash = 0;  // of policy.canonical(), every plan-affecting setting and the calibration
    // False: every call is native (another mode than on, or no rule has a codec).
    bool active = false;
    // Whether a rule asks for what is read from calls after they were made: the parameters that
    // they carry, the flags of steps, whether results are finite, rows of messages.
    bool listens = false;
};

// One variable of the table for a reader that has no member in Settings: absent and empty have the
// table's default. The type must be what the variable's kind is converted to: bool, uint64_t bytes
// or microseconds, uint32_t, double bits a second (0 where the default is empty), text. An error
// names variable, value and what would be accepted.
template <class T>
Status read_variable(GetenvFunction getenv_function, const char* name, T* out);
// Sets the member of a key of [runtime]. An error says what would be accepted.
Status set_runtime(std::string_view key, const std::string& text, Settings* settings);
// Whether it is "1", "true", "off" or the like, which no file is meant to be called.
[[nodiscard]] bool is_switch(const std::string& text);
// Variables whose relative paths a process would look for in another folder later, the usual
// trace's too, and what to say in place of them. Else the text stays: of a policy, or the name of a
// library that the loader looks up.
std::vector<std::pair<const char*, std::string>> absolute_paths(GetenvFunction getenv_function);
// An error when `environment` (null: the process's) has a SLIMWIRE_ variable that nobody knows.
Status check_variable_names(const char* const* environment = nullptr);

// Where a value came from, for `slimwire policy check` and `explain`.
struct SettingOrigin {
    std::string variable, value, source;  // source: "environment" or "default"
};

// Reads the environment through `getenv_function` (so tests pass their own). An unknown variable
// that begins with SLIMWIRE_ and is not known to any of our programs is an error that names the
// nearest. Such variables are looked for in `environment`, a null-terminated array of "NAME=value"
// as environ has; null: the process's own. With SLIMWIRE_MODE=off nothing else is read, with record
// of the policy only [runtime].
Result<Config> load_config(GetenvFunction getenv_function,
                           const char* const* environment = nullptr);
// All that Config::hash is of, for people (the error of ranks that differ names the setting and
// both values), in words KEY=VALUE: a line of settings, then one for each rule that is not off,
// which begins with the rule's name.
[[nodiscard]] std::string compared_text(const Config& config);
// What is left when load_config() fails: every setting that can be read, defaults for the others. A
// process with a wrong policy still has to agree with the other ranks and to write its log.
[[nodiscard]] Settings usable_settings(GetenvFunction getenv_function);
[[nodiscard]] std::vector<SettingOrigin> setting_origins(GetenvFunction getenv_function);
// Writes the policy's warnings to the log, each once, from the launcher's first rank (every process
// when there is no launcher). Called at the first communicator.
void log_policy_warnings(const Config& config);

// "10gbit", "100 mbit", "2.5gbit/s" -> bits a second (decimal prefixes, always the word "bit");
// "1000000", "64KiB", "1.5 MiB", "2GiB" -> bytes; "50us", "10ms", "2s" -> microseconds. The case of
// units does not matter, since no two of them differ by case only. What is not a whole number of
// bytes or microseconds, has no unit where one is needed, or overflows is an error that names the
// text and the accepted units.
Result<uint64_t> parse_bytes(std::string_view text);
Result<double> parse_bits_per_second(std::string_view text);
Result<uint64_t> parse_duration_us(std::string_view text);

}  // namespace slimwire
