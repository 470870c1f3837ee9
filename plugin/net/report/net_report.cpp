#include "plugin/net/report/net_report.h"

#include <dlfcn.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <memory>

#include "collectives/call/log.h"
#include "collectives/observe/stats.h"
#include "collectives/policy/config.h"
#include "plugin/net/report/records.h"

namespace slimwire::net {
namespace {

// How long an interception that is in the process may take until its first communicator is there;
// after that it is taken not to see NCCL's calls.
constexpr std::chrono::seconds kPatience{30};

struct State {
    NetFacts facts;
    const Traffic* traffic = nullptr;
    bool beside_interception = false;
    std::chrono::steady_clock::time_point start = std::chrono::steady_clock::now();
    std::atomic<bool> ending{false};
    // Somebody else writes the records, prints the summary.
    std::atomic<bool> records_taken{false}, summary_taken{false};
    std::unique_ptr<Reporter> reporter;  // null: neither file nor summary is wanted
};

std::atomic<State*> g_state{nullptr};  // never destroyed, as the engine

// For our own reporter.
class OwnSource final : public ReportSource {
  public:
    explicit OwnSource(State* state) : state_(state) {}
    uint64_t mark() noexcept override {
        const bool waits = state_->beside_interception && !state_->ending.load() &&
                           std::chrono::steady_clock::now() - state_->start < kPatience;
        return waits || state_->records_taken.load() ? 0 : state_->traffic->mark();
    }
    std::string records() override { return net_lines(state_->facts, state_->traffic->peers()); }
    std::string summary() override {
        return state_->summary_taken.load() ? std::string() : net_summary(state_->traffic->peers());
    }

  private:
    State* const state_;
};

bool is_loaded(const char* library) noexcept {
    void* const handle = dlopen(library, RTLD_NOW | RTLD_NOLOAD);
    if (handle != nullptr) {
        dlclose(handle);
    }
    return handle != nullptr;
}

}  // namespace

void start_net_report(const EngineSettings& settings, const Wire& wire, Traffic* traffic) {
    if (g_state.load(std::memory_order_acquire) != nullptr) {
        return;  // from an attempt that found no memory for the engine
    }
    auto state = std::make_unique<State>();
    state->facts.settings = settings;
    for (int index = 0; index < wire.devices(); ++index) {
        state->facts.devices.emplace_back(wire.device(index).name);
    }
    state->traffic = traffic;
    state->beside_interception = is_loaded("libslimwire.so") || is_loaded("libnccl-real.so");
    const Settings common = usable_settings(process_getenv);
    if (!common.report_pattern.empty() || common.summary) {
        state->reporter = std::make_unique<Reporter>(common.report_pattern, common.summary,
                                                     std::make_unique<OwnSource>(state.get()));
        ProcessInfo info;
        info.version = SLIMWIRE_VERSION;
        info.policy_source = "none";
        state->reporter->set_process_info(std::move(info));
    }
    State* const kept = state.release();
    g_state.store(kept, std::memory_order_release);
    if (kept->reporter == nullptr) {
        return;
    }
    kept->reporter->start();
    // The last records of a communicator, even if the process is killed after it.
    traffic->on_context_end([] {
        try {
            g_state.load(std::memory_order_acquire)->reporter->flush();
        } catch (const std::exception& error) {
            log_line(slimwire::LogLevel::kWarn, std::string("net: no report: ") + error.what());
        }
    });
    std::atexit([] {
        State* const state = g_state.load(std::memory_order_acquire);
        state->ending.store(true);
        try {
            state->reporter->finish();
        } catch (const std::exception& error) {
            log_line(slimwire::LogLevel::kWarn, std::string("net: no report: ") + error.what());
        }
    });
}

}  // namespace slimwire::net

extern "C" __attribute__((visibility("default"))) uint64_t slimwireNetReport_v1(
    int what, slimwire::NetReportTake take, void* context) noexcept {
    using namespace slimwire;
    net::State* const state = net::g_state.load(std::memory_order_acquire);
    if (state == nullptr) {
        return 0;
    }
    try {
        std::string text;
        switch (static_cast<NetReportWhat>(what)) {
            case kNetReportMark:
                state->records_taken.store(true);
                break;
            case kNetReportRecords:
                state->records_taken.store(true);
                text = net::net_lines(state->facts, state->traffic->peers());
                break;
            case kNetReportSummary:
                state->summary_taken.store(true);
                text = net::net_summary(state->traffic->peers());
                break;
        }
        if (take != nullptr && !text.empty()) {
            take(context, text.data(), text.size());
        }
        return state->traffic->mark();
    } catch (const std::exception&) {
        return 0;  // no memory: asked again later
    }
}
