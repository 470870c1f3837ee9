#include "plugin/net/report/records.h"

#include <nlohmann/json.hpp>
#include <set>

#include "codecs/base/number_text.h"
#include "collectives/observe/report.h"

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

}  // namespace slimwire::net
