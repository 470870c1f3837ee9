// UCX, opened at the first communicator and not before: a missing libucp.so.0 is one clear line,
// and UCX, which reads settings and installs signal handlers when it is loaded, leaves the process
// as it was. Thread contract: load_ucx from any thread; the table is constant afterwards.
#pragma once

#include <ucp/api/ucp.h>

#include "codecs/base/status.h"

namespace slimwire::emu {

#define SLIMWIRE_UCX_FUNCTIONS(X) \
    X(ucp_config_read)            \
    X(ucp_config_modify)          \
    X(ucp_config_release)         \
    X(ucp_init_version)           \
    X(ucp_cleanup)                \
    X(ucp_worker_create)          \
    X(ucp_worker_destroy)         \
    X(ucp_worker_get_address)     \
    X(ucp_worker_release_address) \
    X(ucp_worker_flush_nbx)       \
    X(ucp_worker_progress)        \
    X(ucp_ep_create)              \
    X(ucp_tag_send_nbx)           \
    X(ucp_tag_recv_nbx)           \
    X(ucp_request_cancel)         \
    X(ucp_request_free)           \
    X(ucs_status_string)

struct UcxApi {
#define SLIMWIRE_UCX_MEMBER(name) decltype(&::name) name = nullptr;
    SLIMWIRE_UCX_FUNCTIONS(SLIMWIRE_UCX_MEMBER)
#undef SLIMWIRE_UCX_MEMBER
};

// The library's functions and the process's one context; opened once, kept until the process ends.
struct Ucx {
    UcxApi api;
    ucp_context_h context = nullptr;
};

Result<const Ucx*> load_ucx();

}  // namespace slimwire::emu
