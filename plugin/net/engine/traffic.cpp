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
#define SLIMWIRE_NET_COUNTER(name) name += counters.name.load(std::memory_order_relaxed);
    SLIMWIRE_NET_COUNTERS(SLIMWIRE_NET_COUNTER)
#undef SLIMWIRE_NET_COUNTER
}

void PeerTotals::add(const PeerTotals& other) noexcept {
    connections += other.connections;
    open += other.open;
#define SLIMWIRE_NET_COUNTER(name) name += other.name;
    SLIMWIRE_NET_COUNTERS(SLIMWIRE_NET_COUNTER)
#undef SLIMWIRE_NET_COUNTER
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
