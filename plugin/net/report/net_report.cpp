#include "plugin/net/report/net_report.h"

#include <dlfcn.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>

#include "codecs/base/number_text.h"
#include "collectives/call/log.h"
#include "collectives/observe/report.h"
#include "collectives/observe/stats.h"
#include "collectives/policy/config.h"

namespace slimwire::net {
namespace {

// Members in the order written.
using Json = nlohmann::ordered_json;

// One line; bytes that are no UTF-8 (names of devices, paths) are replaced.
void append(const Json& record, std::string* out) {
    *out += record.dump(-1, ' ', false, Json::error_handler_t::replace) + '\n';
}

Json net_json(const NetFacts& facts) {
    const EngineSettings& s = facts.settings;
    return {{"v", 1},
            {"record", "net"},
            {"transport", s.inner.empty() ? "ucx" : "chain"},
            {"inner", s.inner},
            {"devices", facts.devices},
            {"codec", s.codec ? "palette" : "off"},
            {"min_bytes", s.min_bytes},
            {"threads", s.threads},
            {"checksum", s.checksum},
            {"throttled", s.rate_bytes_per_s > 0 || s.latency_ns > 0},
            {"rate_bytes_per_s", s.rate_bytes_per_s},
            {"latency_us", static_cast<double>(s.latency_ns) / 1000.0}};
}

Json peer_json(const PeerTraffic& peer) {
    const PeerTotals& t = peer.totals;
    return {{"v", 1},
            {"record", "net_peer"},
            {"direction", peer.key.direction == Direction::kSend ? "send" : "receive"},
            {"peer", peer.key.host},
            {"wire", peer.key.wire},
            {"device", peer.key.device},
            {"connections", t.connections},
            {"open", t.open},
            {"messages", t.messages},
            {"bytes", t.bytes},
            {"wire_bytes", t.wire_bytes},
            {"coded_messages", t.coded_messages},
            {"coded_bytes", t.coded_bytes},
            {"coded_wire_bytes", t.coded_wire_bytes},
            {"flagged_messages", t.flagged_messages},
            {"flagged_bytes", t.flagged_bytes},
            {"timed_raw_bytes", t.timed_raw_bytes},
            {"timed_raw_us", static_cast<double>(t.timed_raw_ns) / 1000.0},
            {"timed_coded_bytes", t.timed_coded_bytes},
            {"timed_coded_us", static_cast<double>(t.timed_coded_ns) / 1000.0}};
}

}  // namespace

std::string net_lines(const NetFacts& facts, const std::vector<PeerTraffic>& peers) {
    std::string out;
    append(net_json(facts), &out);
    for (const PeerTraffic& peer : peers) {
        append(peer_json(peer), &out);
    }
    return out;
}

std::string net_summary(const std::vector<PeerTraffic>& peers) {
    PeerTotals all;
    std::set<std::string> hosts;
    for (const PeerTraffic& peer : peers) {
        if (peer.totals.messages > 0) {
            all.add(peer.totals);
            hosts.insert(peer.key.host);
        }
    }
    if (all.bytes == 0 || all.wire_bytes == 0) {
        return {};
    }
    const double bytes = static_cast<double>(all.bytes);
    const double ratio = bytes / static_cast<double>(all.wire_bytes);
    const double percent = 100.0 * static_cast<double>(all.coded_bytes) / bytes;
    return "net: " + std::to_string(all.messages) + " messages of " + format_bytes(all.bytes) +
           " to and from " + std::to_string(hosts.size()) +
           (hosts.size() == 1 ? " host" : " hosts") + " as " + format_bytes(all.wire_bytes) + ", " +
           fixed_text(ratio, 2) + "x less; " + fixed_text(percent, 0) + "% of the bytes compressed";
}

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
