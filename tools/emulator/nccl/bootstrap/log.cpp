#include "tools/emulator/nccl/bootstrap/log.h"

#include <strings.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>

namespace slimwire::emu {
namespace {

constexpr size_t kErrorBytes = 1024;

enum Verbosity : int { kUnread = -1, kSilent, kWarn, kInfo };
std::atomic<Verbosity> g_verbosity{kUnread};
std::mutex g_error_mutex;
char g_last_error[kErrorBytes];

Verbosity read_verbosity() noexcept {
    const char* const set = getenv("NCCL_DEBUG");
    const char* const text = set != nullptr ? set : "";
    const bool all = strcasecmp(text, "INFO") == 0 || strcasecmp(text, "TRACE") == 0;
    return all ? kInfo : strcasecmp(text, "WARN") == 0 ? kWarn : kSilent;
}

void write_line(Verbosity level, const char* format, va_list arguments) noexcept {
    if (g_verbosity == kUnread) {
        g_verbosity = read_verbosity();
    }
    if (g_verbosity < level) {
        return;
    }
    char host[64] = "?";
    gethostname(host, sizeof host - 1);
    char line[kErrorBytes];
    const int head = snprintf(line, sizeof line, "%s:%d:%ld NCCL %s ", host, getpid(),
                              syscall(SYS_gettid), level == kWarn ? "WARN" : "INFO");
    vsnprintf(line + head, sizeof line - static_cast<size_t>(head), format, arguments);
    fprintf(stderr, "%s\n", line);
}

}  // namespace

void reset_verbosity() noexcept {
    g_verbosity = kUnread;
}

void log_warn(const char* format, ...) noexcept {
    va_list arguments;
    va_start(arguments, format);
    write_line(kWarn, format, arguments);
    va_end(arguments);
}

void log_info(const char* format, ...) noexcept {
    va_list arguments;
    va_start(arguments, format);
    write_line(kInfo, format, arguments);
    va_end(arguments);
}

ncclResult_t nccl_code(Code code) noexcept {
    switch (code) {
        case Code::kOk:
            return ncclSuccess;
        case Code::kInvalidArgument:
            return ncclInvalidArgument;
        case Code::kInvalidUsage:
        case Code::kUnsupported:
            return ncclInvalidUsage;
        case Code::kNotFound:
        case Code::kOutOfMemory:
        case Code::kSystemError:
            return ncclSystemError;
        case Code::kCudaError:
            return ncclUnhandledCudaError;
        case Code::kRemoteError:
            return ncclRemoteError;
        case Code::kNcclError:
        case Code::kInternalError:
            return ncclInternalError;
    }
    return ncclInternalError;
}

ncclResult_t to_nccl(const Status& status) noexcept {
    if (!status.ok()) {
        log_warn("%s", status.message().c_str());
        set_last_error(status.message());
    }
    return nccl_code(status.code());
}

void set_last_error(const std::string& text) noexcept {
    const std::lock_guard lock(g_error_mutex);
    snprintf(g_last_error, sizeof g_last_error, "%s", text.c_str());
}

const char* last_error() noexcept {
    static thread_local char copy[kErrorBytes];
    const std::lock_guard lock(g_error_mutex);
    memcpy(copy, g_last_error, sizeof copy);
    return copy;
}

}  // namespace slimwire::emu
