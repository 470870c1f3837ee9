#include "collectives/communicator/process.h"

#include <pthread.h>
#include <stdlib.h>

#include <algorithm>
#include <utility>

#include "collectives/call/backend.h"
#include "collectives/call/launcher.h"
#include "collectives/call/log.h"
#include "collectives/call/nccl_types.h"
#include "collectives/call/per_thread.h"

namespace slimwire {

std::atomic<Runtime*> Runtime::g_runtime{nullptr};
std::atomic<bool> Runtime::g_forked{false};
constinit thread_local bool ReentryGuard::t_inside = false;

namespace {

std::atomic<bool> g_unavailable{false};  // no memory for it

// NCCL_VERSION's code as text: 22809 -> "2.28.9"; before 2.9 it was 2804.
std::string version_text(int code) {
    const int divisor = code < 10000 ? 1000 : 10000;
    return std::to_string(code / divisor) + "." + std::to_string(code % divisor / 100) + "." +
           std::to_string(code % 100);
}

}  // namespace

void Runtime::begin_child() noexcept {
    CommUse::begin_child();
    const Runtime* runtime = g_runtime.load(std::memory_order_relaxed);
    if (runtime != nullptr && runtime->reporter_ == nullptr) {
        g_runtime.store(nullptr, std::memory_order_relaxed);  // left as it is: others may be in it
    } else if (runtime != nullptr) {
        g_forked.store(true, std::memory_order_relaxed);
    }
}

Runtime* Runtime::create(const void* caller, MakeListener make_listener) noexcept {
    if (g_unavailable.load(std::memory_order_acquire)) {
        return nullptr;
    }
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&mutex);
    Runtime* runtime = g_runtime.load(std::memory_order_acquire);
    if (runtime == nullptr && !g_unavailable.load(std::memory_order_acquire)) {
        try {
            auto made = std::make_unique<Runtime>();
            Result<Config> config = load_config(process_getenv);
            if (config.ok()) {
                made->config = std::move(config).value();
            } else {
                made->config_status = config.status();
                made->config.settings = usable_settings(process_getenv);
            }
            made->memory.set_limit(made->config.settings.max_memory_bytes);
            log_configure(made->config.settings.log_level, made->config.settings.log_file);
            made->libraries.set_named(made->config.settings.nccl_library);
            // Another caller may have one.
            if (made->libraries.caller(caller).nccl != nullptr) {
                made->listener = make_listener(*made);
                made->listener->started();
                static const int once = pthread_atfork(nullptr, nullptr, begin_child);
                (void)once;
                if (const char* run = process_getenv(kRunSocketVariable); run != nullptr) {
                    tell_run(run, true);
                }
                runtime = made.release();
                g_runtime.store(runtime, std::memory_order_release);
            }
        } catch (const std::exception& error) {
            log_line(LogLevel::kError, std::string("slimwire cannot start: ") + error.what());
            g_unavailable.store(true, std::memory_order_release);
        }
    }
    pthread_mutex_unlock(&mutex);
    return runtime;
}

const Result<DeviceApi>& Runtime::device() {
    std::lock_guard lock(mutex_);
    if (!device_) {
        use_device(load_device_api());
    }
    return *device_;
}

void Runtime::use_device(Result<DeviceApi> table) {
    device_ = std::make_unique<Result<DeviceApi>>(std::move(table));
    emulator_.store(device_->ok() ? device_->value().emulator : nullptr, std::memory_order_release);
}

Reporter& Runtime::reporter() {
    std::lock_guard lock(mutex_);
    if (!reporter_) {
        reporter_ = std::make_unique<Reporter>(config.settings.report_pattern,
                                               config.settings.summary, make_plugin_source());
        ProcessInfo info;
        info.version = SLIMWIRE_VERSION;
        info.config_hash = config.hash;
        info.policy_source = config.policy.source;
        info.active = config.active;
        info.max_memory_bytes = config.settings.max_memory_bytes;
        info.stated_mb_s =
            static_cast<uint32_t>(std::min(config.settings.bandwidth_bits / 8e6, 4e9));
        info.nccl_version = version_text(libraries.first().version);
        info.nccl_path = libraries.first().path;
        info.backend = emulator() != nullptr ? "emulator" : "cuda";
        reporter_->set_process_info(std::move(info));
        log_policy_warnings(config);
        std::atexit([] {
            if (Runtime* runtime = g_runtime.load(std::memory_order_acquire);
                runtime != nullptr && !forked()) {
                runtime->reporter_->finish();
            }
        });
    }
    return *reporter_;
}

std::string& Runtime::last_error() noexcept {
    struct LastError {
        std::string text;
    };
    return per_thread<LastError>().text;
}

ncclResult_t Runtime::fail(const Status& status) noexcept {
    last_error() = "slimwire: " + status.message();
    log_line(LogLevel::kError, status.message());
    return nccl_result_of(status.code());
}

}  // namespace slimwire
