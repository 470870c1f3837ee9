#include "plugin/net/engine/traffic.h"

#include <algorithm>
#include <cctype>

namespace slimwire::net {
namespace {

constexpr char kFolded[] = "folded";

// Grows with everything that a report shows of `counters`.
uint64_t mark_of(const Counters& counters) noexcept {
    return counters.messages.load(std::memory_order_relaxed) +
           counters.wire_bytes.load(std::memory_order_relaxed) +
           counters.timed_raw_bytes.load(std::memory_order_relaxed) +
           counters.timed_coded_bytes.load(std::memory_order_relaxed);
}

size_t count_of(Direction direction, const std::map<PeerKey, PeerTotals>& all) {
    return static_cast<size_t>(std::count_if(all.begin(), all.end(), [&](const auto& entry) {
        return entry.first.direction == direction && entry.first.host != kFolded;
    }));
}

}  // namespace

PeerKey peer_key(Direction direction, const std::string& peer, const char* device) {
    PeerKey key{direction, peer, "", device != nullptr ? device : ""};
    const size_t open = peer.find(" (");
    if (open != std::string::npos && peer.back() == ')') {
        key.wire = peer.substr(open + 2, peer.size() - open - 3);
        key.host.resize(open);
    }
    const size_t colon = key.host.rfind(':');
    if (colon != std::string::npos && colon + 1 < key.host.size() &&
        std::all_of(key.host.begin() + static_cast<std::ptrdiff_t>(colon) + 1, key.host.end(),
                    [](unsigned char c) { return std::isdigit(c) != 0; })) {
        key.host.resize(colon);
    }
    return key;
}

void PeerTotals::add(const Counters& counters) noexcept {
    const auto read = [](const std::atomic<uint64_t>& counter) {
        return counter.load(std::memory_order_relaxed);
    };
    messages += read(counters.messages);
    bytes += read(counters.bytes);
    wire_bytes += read(counters.wire_bytes);
    coded_messages += read(counters.coded_messages);
    coded_bytes += read(counters.coded_bytes);
    coded_wire_bytes += read(counters.coded_wire_bytes);
    flagged_messages += read(counters.flagged_messages);
    flagged_bytes += read(counters.flagged_bytes);
    timed_raw_bytes += read(counters.timed_raw_bytes);
    timed_raw_ns += read(counters.timed_raw_ns);
    timed_coded_bytes += read(counters.timed_coded_bytes);
    timed_coded_ns += read(counters.timed_coded_ns);
}

void PeerTotals::add(const PeerTotals& other) noexcept {
    connections += other.connections;
    open += other.open;
    messages += other.messages;
    bytes += other.bytes;
    wire_bytes += other.wire_bytes;
    coded_messages += other.coded_messages;
    coded_bytes += other.coded_bytes;
    coded_wire_bytes += other.coded_wire_bytes;
    flagged_messages += other.flagged_messages;
    flagged_bytes += other.flagged_bytes;
    timed_raw_bytes += other.timed_raw_bytes;
    timed_raw_ns += other.timed_raw_ns;
    timed_coded_bytes += other.timed_coded_bytes;
    timed_coded_ns += other.timed_coded_ns;
}

void Traffic::add_peer(const PeerKey& key, const PeerTotals& totals, Totals* all) {
    auto found = all->find(key);
    if (found == all->end()) {
        const bool fits = count_of(key.direction, *all) < kMostPeers;
        found = all->try_emplace(fits ? key : PeerKey{key.direction, kFolded, "", ""}).first;
    }
    found->second.add(totals);
}

std::vector<PeerTraffic> Traffic::peers() const {
    Totals all;
    {
        const std::lock_guard lock(mutex_);
        all = closed_;
        for (const Live& live : live_) {
            PeerTotals totals{.connections = 1, .open = 1};
            totals.add(live.counters);
            add_peer(live.key, totals, &all);
        }
    }
    std::vector<PeerTraffic> peers;
    for (auto& [key, totals] : all) {
        peers.push_back({key, totals});
    }
    std::stable_sort(peers.begin(), peers.end(), [](const PeerTraffic& a, const PeerTraffic& b) {
        const auto place = [](const PeerTraffic& peer) {
            return std::pair(peer.key.direction, peer.key.host == kFolded);
        };
        return place(a) < place(b);
    });
    return peers;
}

uint64_t Traffic::mark() const {
    const std::lock_guard lock(mutex_);
    uint64_t mark = changes_ + closed_mark_;
    for (const Live& live : live_) {
        mark += mark_of(live.counters);
    }
    return mark;
}

void Traffic::context_ended() const noexcept {
    if (void (*const call)() = context_end_.load(); call != nullptr) {
        call();
    }
}

TrafficEntry::TrafficEntry(Traffic* traffic,
                           Direction direction,
                           const std::string& peer,
                           const char* device)
    : traffic_(traffic) {
    std::list<Traffic::Live> made;
    made.emplace_back().key = peer_key(direction, peer, device);
    live_ = made.begin();
    const std::lock_guard lock(traffic_->mutex_);
    traffic_->live_.splice(traffic_->live_.end(), made);
    ++traffic_->changes_;
}

TrafficEntry::~TrafficEntry() {
    const std::lock_guard lock(traffic_->mutex_);
    PeerTotals totals{.connections = 1};
    totals.add(live_->counters);
    traffic_->closed_mark_ += mark_of(live_->counters);
    ++traffic_->changes_;
    try {
        Traffic::add_peer(live_->key, totals, &traffic_->closed_);
    } catch (...) {
        // Out of memory: this connection's totals are lost, the rest is not.
    }
    traffic_->live_.erase(live_);
}

}  // namespace slimwire::net
