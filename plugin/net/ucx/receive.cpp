#include <algorithm>
#include <cstring>

#include "plugin/net/ucx/connections.h"

namespace slimwire::net {
namespace {

// Posted receives are told to the sender when so many have gathered, and a large one at once. What
// is not told is then always less than what the sender may have sent without knowing, so it never
// waits for a word that does not come.
constexpr uint64_t kControlBatch = kControlSlots / 4;
constexpr uint64_t kDataBatch = 16;
constexpr size_t kLargeBytes = 64 << 10;
static_assert(kDataBatch * kLargeBytes < kAheadBytes / 2);

}  // namespace

UcxReceiveWire::~UcxReceiveWire() {
    link_->close(std::nullopt);
}

void UcxReceiveWire::read_bye() noexcept {
    while (!bye_over_ && bye_bytes_ < sizeof bye_) {
        bool end = false;
        const long got =
            receive_some(link_->socket(), reinterpret_cast<uint8_t*>(&bye_) + bye_bytes_,
                         sizeof bye_ - bye_bytes_, &end);
        if (got <= 0) {
            bye_over_ = true;  // the socket was at its end when it was looked at
            return;
        }
        bye_bytes_ += static_cast<size_t>(got);
    }
}

Outlook UcxReceiveWire::outlook(const UcxRequest& request) const noexcept {
    if (bye_bytes_ < sizeof bye_ || bye_.magic != kByeMagic) {
        return Outlook::kOpen;
    }
    return request.sequence < bye_.messages[static_cast<int>(request.lane)] ? Outlook::kPromised
                                                                            : Outlook::kNever;
}

Status UcxReceiveWire::test(WireRequest* opaque, bool* done, size_t* bytes) {
    const std::lock_guard lock(link_->mutex());
    auto* request = reinterpret_cast<UcxRequest*>(opaque);
    if (link_->hung_up() && link_->failure().ok()) {
        read_bye();
    }
    return link_->advance(request, outlook(*request), done, bytes);
}

Status UcxReceiveWire::give_credit(Lane lane, size_t capacity) {
    const uint64_t posted = posted_[static_cast<int>(lane)];
    const uint64_t told = told_.posted[static_cast<int>(lane)];
    const uint64_t batch = lane == Lane::kControl   ? kControlBatch
                           : capacity > kLargeBytes ? 1
                                                    : kDataBatch;
    if (posted < told + batch || link_->hung_up()) {
        return {};
    }
    const Credit credit = {{std::max(posted_[0], told_.posted[0]), posted_[1]},
                           word_.raw_bytes_per_s,
                           word_.coded_bytes_per_s};
    const long sent = send_some(link_->socket(), &credit, sizeof credit);
    if (sent == static_cast<long>(sizeof credit)) {
        told_ = credit;
        return {};
    }
    if (sent < 0) {
        link_->hang_up();  // what has come already may still be received
        return {};
    }
    return link_->fail("it does not read its credits");
}

// Goes with the next credit.
void UcxReceiveWire::tell(const Word& word) noexcept {
    const std::lock_guard lock(link_->mutex());
    word_ = word;
}

Status UcxReceiveWire::receive(
    Lane lane, void* data, size_t capacity, WireMemory*, WireRequest** request) {
    *request = nullptr;
    const std::lock_guard lock(link_->mutex());
    SLIMWIRE_TRY(link_->failure());
    uint64_t& posted = posted_[static_cast<int>(lane)];
    UcxRequest* started = link_->new_request(lane, posted);
    if (started == nullptr) {
        return {};
    }
    started->capacity = capacity;
    ++posted;
    link_->post_receive(data, started);
    SLIMWIRE_TRY(give_credit(lane, capacity));
    *request = reinterpret_cast<WireRequest*>(started);
    return {};
}

}  // namespace slimwire::net
