// UCX's functions, found at run time: a missing libucp.so.0 is one clear line, and UCX, which reads
// settings and installs signal handlers when it is loaded, leaves the process as it was. The
// library stays open until the process ends. load_ucx() from any thread; the table is constant.
#pragma once

#include <ucp/api/ucp.h>

#include <string>

#include "codecs/base/status.h"

namespace slimwire::net {

#define SLIMWIRE_NET_UCX_FUNCTIONS(X) \
    X(ucp_config_read)                \
    X(ucp_config_modify)              \
    X(ucp_config_release)             \
    X(ucp_init_version)               \
    X(ucp_cleanup)                    \
    X(ucp_mem_map)                    \
    X(ucp_mem_unmap)                  \
    X(ucp_worker_create)              \
    X(ucp_worker_destroy)             \
    X(ucp_worker_get_address)         \
    X(ucp_worker_release_address)     \
    X(ucp_worker_get_efd)             \
    X(ucp_worker_arm)                 \
    X(ucp_worker_flush_nbx)           \
    X(ucp_worker_progress)            \
    X(ucp_ep_create)                  \
    X(ucp_tag_send_nbx)               \
    X(ucp_tag_recv_nbx)               \
    X(ucp_request_free)               \
    X(ucs_status_string)

struct UcxApi {
#define SLIMWIRE_NET_UCX_MEMBER(name) decltype(&::name) name = nullptr;
    SLIMWIRE_NET_UCX_FUNCTIONS(SLIMWIRE_NET_UCX_MEMBER)
#undef SLIMWIRE_NET_UCX_MEMBER
};

// kNotFound: no library, or one that is too old.
Result<const UcxApi*> load_ucx();

[[nodiscard]] Status ucx_error(const UcxApi& api, const std::string& what, ucs_status_t status);

}  // namespace slimwire::net
