// The engine of the process: settings, then the wire they name.
#include <unistd.h>

#include <cstdlib>
#include <mutex>
#include <string>

#include "plugin/net/engine.h"
#include "plugin/net/nccl_log.h"
#include "plugin/net/report/net_report.h"
#include "plugin/net/settings.h"
#include "plugin/net/wrapped/wrapped_wire.h"
#ifdef SLIMWIRE_HAVE_UCX
#include "plugin/net/ucx/ucx_wire.h"
#endif

namespace slimwire::net {
namespace {

// How long the end of the process waits for receivers that have not taken yet what was sent to
// them.
constexpr int kEndLimitMs = 10'000;

// `wire` is kept, as its engine. Children of a fork have none of its threads.
void finish_at_exit(Wire* wire) {
    static Wire* const kept = wire;
    static const pid_t owner = getpid();
    std::atexit([] {
        if (getpid() == owner) {
            kept->finish(kEndLimitMs);
        }
    });
}

Result<std::unique_ptr<Wire>> open_wire(const EngineSettings& settings, DebugLogger log) {
    if (!settings.inner.empty()) {
        return open_wrapped_wire(settings.inner, log);
    }
#ifdef SLIMWIRE_HAVE_UCX
    UcxSettings ucx = read_ucx_settings();
    ucx.warn = nccl_warn;
    return open_ucx_wire(std::move(ucx));
#else
    return Status(Code::kUnsupported,
                  "this build has no transport of its own (it was made without UCX); name another "
                  "plugin's library in SLIMWIRE_NET_INNER");
#endif
}

Result<std::unique_ptr<Engine>> open_engine(DebugLogger log) {
    set_nccl_log(log);
    SLIMWIRE_TRY_ASSIGN(const EngineSettings settings, read_engine_settings());
    SLIMWIRE_TRY_ASSIGN(std::unique_ptr<Wire> wire, open_wire(settings, log));
    static Traffic* const traffic = new Traffic;  // kept, as the engine
    start_net_report(settings, *wire, traffic);
    Wire* const kept = wire.get();
    auto engine = std::make_unique<Engine>(std::move(wire), settings, traffic);
    finish_at_exit(kept);
    return engine;
}

}  // namespace

Result<Engine*> plugin_engine(DebugLogger log) {
    static std::mutex mutex;
    static Engine* engine = nullptr;  // kept: NCCL's threads may use it until the process ends
    static pid_t owner = 0;
    const std::lock_guard lock(mutex);
    if (engine != nullptr && owner != getpid()) {
        return Status(Code::kInvalidUsage,
                      "process " + std::to_string(getpid()) + " is a fork of " +
                          std::to_string(owner) +
                          ", which had started the net plugin, whose threads are not in it; start "
                          "processes that use NCCL by exec, or fork them before the first "
                          "communicator");
    }
    if (engine == nullptr) {
        SLIMWIRE_TRY_ASSIGN(std::unique_ptr<Engine> opened, open_engine(log));
        engine = opened.release();
        owner = getpid();
    }
    return engine;
}

}  // namespace slimwire::net
