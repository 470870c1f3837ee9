// Log lines of the shipped libraries: "slimwire: <level>: rank 2 comm 1f..: text". Lower case,
// exact cause, value after the word; callers write rank and communicator into the text. Nothing is
// opened before the first line is due; never throws. Any thread; a line is one write() in append
// mode, so lines of several processes do not mix.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace slimwire {

enum class LogLevel : uint8_t { kError, kWarn, kInfo, kDebug };

// `file_pattern` as for reports; empty: stderr. Before this call the level is warn, to stderr. A
// file that cannot be opened is named once on stderr, where the lines then go.
void log_configure(LogLevel level, std::string_view file_pattern);
[[nodiscard]] bool log_enabled(LogLevel level) noexcept;
void log_line(LogLevel level, std::string_view text) noexcept;
// `text` on one line: line ends and tabs become spaces, other control characters, Unicode's too,
// what C writes for them, as "\r".
[[nodiscard]] std::string visible(std::string_view text);
// As log_line, once per process for equal `key`.
void log_once(LogLevel level, std::string_view key, std::string_view text) noexcept;

// Expands %h (host name), %r (`rank`), %p (process id), %% in a file name pattern. A negative
// `rank` is unknown and written "none".
[[nodiscard]] std::string expand_pattern_for(std::string_view pattern, int rank);

}  // namespace slimwire
