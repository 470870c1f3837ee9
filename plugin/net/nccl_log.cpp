#include "plugin/net/nccl_log.h"

#include <atomic>

#include "collectives/call/log.h"

namespace slimwire::net {
namespace {

constexpr unsigned long kSubsystems = 0x1 | 0x10;  // NCCL_INIT, NCCL_NET

std::atomic<DebugLogger> g_log{nullptr};

bool to_nccl(net::LogLevel level, const std::string& line) noexcept {
    const DebugLogger log = g_log.load(std::memory_order_acquire);
    if (log == nullptr) {
        return false;
    }
    log(level, kSubsystems, "slimwire", 0, "NET/slimwire: %s", line.c_str());
    return true;
}

}  // namespace

void set_nccl_log(DebugLogger log) noexcept {
    if (log != nullptr) {
        g_log.store(log, std::memory_order_release);
    }
}

void nccl_warn(const std::string& line) noexcept {
    if (!to_nccl(kLogWarn, line)) {
        log_line(slimwire::LogLevel::kWarn, line);
    }
}

void nccl_info(const std::string& line) noexcept {
    if (!to_nccl(kLogInfo, line)) {
        log_line(slimwire::LogLevel::kInfo, line);
    }
}

void nccl_error(const std::string& line) noexcept {
    (void)to_nccl(kLogWarn, line);
    log_once(slimwire::LogLevel::kError, line, line);
}

}  // namespace slimwire::net
