#include "tools/emulator/nccl/transport/ucx.h"

#include <dlfcn.h>

#include <cstdlib>
#include <mutex>
#include <string>

#include "codecs/base/signal_keeper.h"

namespace slimwire::emu {
namespace {

Status ucx_error(const UcxApi& api, const char* what, ucs_status_t status) {
    return {Code::kSystemError, std::string("UCX: ") + what + ": " + api.ucs_status_string(status)};
}

// Quiet logging, and no complaint about UCX_* variables that are meant for other programs.
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

// Shared memory first: all emulated nodes are processes of one machine; TCP serves where shared
// memory cannot be made. Messages are always sent eagerly: a rendezvous ends with a word from the
// receiver, which UCX may keep back until the receiver calls it again, and a receiver that has its
// data has no reason to call. (Seen as a sender that waited for ever when the receiver's job was
// over.)
Status make_context(Ucx* ucx, const char* transports) {
    ucp_config_t* config = nullptr;
    ucs_status_t status = ucx->api.ucp_config_read(nullptr, nullptr, &config);
    if (status != UCS_OK) {
        return ucx_error(ucx->api, "configuration", status);
    }
    if (getenv("UCX_TLS") == nullptr) {
        ucx->api.ucp_config_modify(config, "TLS", transports);
    }
    ucx->api.ucp_config_modify(config, "RNDV_THRESH", "inf");
    // Of receive buffers, which a worker touches when it is made; more come when they are needed.
    if (getenv("UCX_POSIX_RX_BUFS_GROW") == nullptr) {
        ucx->api.ucp_config_modify(config, "MM_RX_BUFS_GROW", "96");
    }
    ucp_params_t params{};
    params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_MT_WORKERS_SHARED;
    params.features = UCP_FEATURE_TAG;
    params.mt_workers_shared = 1;
    status =
        ucx->api.ucp_init_version(UCP_API_MAJOR, UCP_API_MINOR, &params, config, &ucx->context);
    ucx->api.ucp_config_release(config);
    if (status != UCS_OK) {
        return ucx_error(ucx->api, "initialisation", status);
    }
    // A context may come up with transports that cannot make a worker (a /dev/shm too small).
    ucp_worker_params_t worker_params{};
    ucp_worker_h worker = nullptr;
    status = ucx->api.ucp_worker_create(ucx->context, &worker_params, &worker);
    if (status != UCS_OK) {
        ucx->api.ucp_cleanup(ucx->context);
        return ucx_error(ucx->api, "worker", status);
    }
    ucx->api.ucp_worker_destroy(worker);
    return {};
}

Status open_ucx(Ucx* ucx) {
    const SignalHandlerKeeper keeper;
    void* library = dlopen("libucp.so.0", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
        return {Code::kSystemError, std::string("the emulator's transport needs UCX (Debian: "
                                                "apt-get install libucx0): ") +
                                        dlerror()};
    }
#define SLIMWIRE_UCX_LOAD(name)                                                                   \
    ucx->api.name = reinterpret_cast<decltype(ucx->api.name)>(dlsym(library, #name));             \
    if (ucx->api.name == nullptr) {                                                               \
        return {Code::kSystemError, "libucp.so.0 has no " #name ": UCX 1.11 or newer is needed"}; \
    }
    SLIMWIRE_UCX_FUNCTIONS(SLIMWIRE_UCX_LOAD)
#undef SLIMWIRE_UCX_LOAD
    set_global_options(library);
    Status status;
    for (const char* transports : {"posix,self", "sysv,self", "tcp,self"}) {
        status = make_context(ucx, transports);
        if (status.ok()) {
            break;
        }
    }
    return status;
}

}  // namespace

Result<const Ucx*> load_ucx() {
    static std::mutex mutex;
    static Ucx* ucx = nullptr;
    const std::lock_guard lock(mutex);
    if (ucx == nullptr) {
        Ucx opened;
        SLIMWIRE_TRY(open_ucx(&opened));
        ucx = new Ucx(opened);  // kept: threads of streams may use it until the process ends
    }
    return static_cast<const Ucx*>(ucx);
}

}  // namespace slimwire::emu
