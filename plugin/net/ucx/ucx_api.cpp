#include "plugin/net/ucx/ucx_api.h"

#include <dlfcn.h>
#include <signal.h>

#include <array>
#include <cstdlib>
#include <mutex>

namespace slimwire::net {
namespace {

// Keeps the program's handlers of error signals while UCX is loaded, which replaces them.
class SignalHandlerKeeper {
  public:
    SignalHandlerKeeper() {
        for (size_t i = 0; i < kErrorSignals.size(); ++i) {
            sigaction(kErrorSignals[i], nullptr, &saved_[i]);
        }
    }
    ~SignalHandlerKeeper() {
        for (size_t i = 0; i < kErrorSignals.size(); ++i) {
            sigaction(kErrorSignals[i], &saved_[i], nullptr);
        }
    }
    SignalHandlerKeeper(const SignalHandlerKeeper&) = delete;
    SignalHandlerKeeper& operator=(const SignalHandlerKeeper&) = delete;

  private:
    static constexpr std::array kErrorSignals = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT};

    std::array<struct sigaction, kErrorSignals.size()> saved_{};
};

// Quiet logging (a lost peer is reported by us), and no complaint about UCX_* variables that are
// meant for other programs.
void set_global_options(void* library) {
    using SetValue = ucs_status_t (*)(const char*, const char*);
    const auto set_value = reinterpret_cast<SetValue>(dlsym(library, "ucs_global_opts_set_value"));
    if (set_value != nullptr) {
        set_value("WARN_UNUSED_ENV_VARS", "n");
        if (getenv("UCX_LOG_LEVEL") == nullptr) {
            set_value("LOG_LEVEL", "fatal");
        }
    }
}

Status open_library(UcxApi* api) {
    const SignalHandlerKeeper keeper;
    constexpr const char* kLibrary = "libucp.so.0";
    void* loaded = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
    void* library = loaded != nullptr ? loaded : dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
        const char* why = dlerror();
        return {
            Code::kNotFound,
            std::string("the net plugin needs UCX (Debian: apt-get install libucx0), or another "
                        "plugin named by SLIMWIRE_NET_INNER: ") +
                (why != nullptr ? why : kLibrary)};
    }
#define SLIMWIRE_NET_UCX_LOAD(name)                                                            \
    api->name = reinterpret_cast<decltype(api->name)>(dlsym(library, #name));                  \
    if (api->name == nullptr) {                                                                \
        return {Code::kNotFound, "libucp.so.0 has no " #name ": UCX 1.12 or newer is needed"}; \
    }
    SLIMWIRE_NET_UCX_FUNCTIONS(SLIMWIRE_NET_UCX_LOAD)
#undef SLIMWIRE_NET_UCX_LOAD
    if (loaded == nullptr) {
        set_global_options(library);  // another user's UCX keeps the options that user chose
    }
    return {};
}

}  // namespace

Result<const UcxApi*> load_ucx() {
    static std::mutex mutex;
    static const UcxApi* api = nullptr;
    const std::lock_guard lock(mutex);
    if (api == nullptr) {
        UcxApi opened;
        SLIMWIRE_TRY(open_library(&opened));
        api = new UcxApi(opened);  // kept: threads may be in it until the process ends
    }
    return api;
}

Status ucx_error(const UcxApi& api, const std::string& what, ucs_status_t status) {
    return {Code::kSystemError, "UCX: " + what + ": " + api.ucs_status_string(status)};
}

}  // namespace slimwire::net
