#include "collectives/call/log.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <set>

#include "collectives/call/launcher.h"

namespace slimwire {
namespace {

constexpr int kNotOpened = -1;

// Constant-initialised and never destroyed: lines may be due before and after static objects live.
std::atomic<LogLevel> g_level{LogLevel::kWarn};
std::atomic<int> g_file{kNotOpened};
std::mutex g_mutex;
std::string* g_pattern = nullptr;  // under g_mutex

const char* level_name(LogLevel level) noexcept {
    switch (level) {
        case LogLevel::kError:
            return "error";
        case LogLevel::kWarn:
            return "warn";
        case LogLevel::kInfo:
            return "info";
        case LogLevel::kDebug:
            return "debug";
    }
    return "log";
}

std::string line_of(LogLevel level, std::string_view text) {
    return std::string("slimwire: ") + level_name(level) + ": " + visible(text) + '\n';
}

void write_line(int file, std::string_view line) noexcept {
    while (::write(file, line.data(), line.size()) < 0 && errno == EINTR) {
    }
}

// The descriptor lines go to; opens the file when the first line is due.
int log_file() {
    const int opened = g_file.load(std::memory_order_acquire);
    if (opened != kNotOpened) {
        return opened;
    }
    const std::lock_guard<std::mutex> lock(g_mutex);
    int file = g_file.load(std::memory_order_relaxed);
    if (file == kNotOpened) {
        file = STDERR_FILENO;
        if (g_pattern != nullptr && !g_pattern->empty()) {
            const std::string path = expand_pattern_for(*g_pattern, launcher_rank().value_or(-1));
            file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
            if (file < 0) {
                const std::string why = std::strerror(errno);
                file = STDERR_FILENO;
                write_line(file, line_of(LogLevel::kWarn, "log file '" + path +
                                                              "' cannot be opened: " + why +
                                                              "; logging to stderr"));
            }
        }
        g_file.store(file, std::memory_order_release);
    }
    return file;
}

}  // namespace

void log_configure(LogLevel level, std::string_view file_pattern) {
    g_level.store(level, std::memory_order_relaxed);
    const std::lock_guard<std::mutex> lock(g_mutex);
    if (g_pattern == nullptr) {
        g_pattern = new std::string;
    }
    if (*g_pattern != file_pattern) {
        *g_pattern = file_pattern;
        const int file = g_file.exchange(kNotOpened, std::memory_order_acq_rel);
        if (file > STDERR_FILENO) {
            ::close(file);
        }
    }
}

std::string visible(std::string_view text) {
    std::string line;
    for (size_t i = 0; i < text.size(); ++i) {
        const char c = text[i];
        auto code = static_cast<unsigned char>(c);
        const auto next = static_cast<unsigned char>(i + 1 < text.size() ? text[i + 1] : 0);
        const bool of_unicode = code == 0xc2 && next >= 0x80 && next < 0xa0;
        if (of_unicode) {
            code = next;
            ++i;
        }
        if (code >= 0x20 && code != 0x7f && !of_unicode) {
            line += c;
        } else if (c == '\n' || c == '\t') {
            line += ' ';
        } else if (c == '\r') {
            line += "\\r";
        } else {
            constexpr char kDigits[] = "0123456789abcdef";
            line += {'\\', 'x', kDigits[code >> 4], kDigits[code & 15]};
        }
    }
    return line;
}

bool log_enabled(LogLevel level) noexcept {
    return level <= g_level.load(std::memory_order_relaxed);
}

void log_line(LogLevel level, std::string_view text) noexcept {
    if (!log_enabled(level)) {
        return;
    }
    try {
        write_line(log_file(), line_of(level, text));
    } catch (...) {
        // Out of memory: a lost line is the smaller harm.
    }
}

void log_once(LogLevel level, std::string_view key, std::string_view text) noexcept {
    if (!log_enabled(level)) {
        return;
    }
    try {
        {
            static std::set<std::string, std::less<>>* const seen =
                new std::set<std::string, std::less<>>;
            const std::lock_guard<std::mutex> lock(g_mutex);
            if (!seen->emplace(key).second) {
                return;
            }
        }
        log_line(level, text);
    } catch (...) {
        // As above.
    }
}

std::string expand_pattern_for(std::string_view pattern, int rank) {
    std::string out;
    for (size_t i = 0; i < pattern.size(); ++i) {
        if (pattern[i] != '%' || i + 1 == pattern.size()) {
            out += pattern[i];
            continue;
        }
        const char what = pattern[++i];
        if (what == 'h') {
            out += host_name();
        } else if (what == 'r') {
            out += rank < 0 ? "none" : std::to_string(rank);
        } else if (what == 'p') {
            out += std::to_string(::getpid());
        } else if (what == '%') {
            out += '%';
        } else {
            out += '%';
            out += what;
        }
    }
    return out;
}

}  // namespace slimwire
