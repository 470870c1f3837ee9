#include "tools/emulator/nccl/transport/shared_link.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string>

#include "tools/emulator/nccl/bootstrap/clock.h"

namespace slimwire::emu {
namespace {

constexpr size_t kRingBytes = 512 << 10;
// A side publishes what it has copied after that much, so that the other one can go on.
constexpr size_t kPieceBytes = 64 << 10;
// A card's queue: messages are accepted while less than this is waiting to leave.
constexpr uint64_t kQueueAheadNs = 4'000'000;
// A sender that comes back late after being refused is credited the wire time that its waiting data
// would have used, up to this much.
constexpr uint64_t kMaxCreditNs = 20'000'000;

// What the receiving side tells of its ring.
struct RingName {
    uint64_t token;  // in the name of the descriptor
    int32_t process;
    int32_t descriptor;
};

std::string ring_name(uint64_t token) {
    return "slimwire-emu-" + std::to_string(token);
}

Status ring_error(const std::string& what) {
    return {Code::kSystemError, "Emulator network: " + what + ": " + strerror(errno)};
}

}  // namespace

// Zero when made. The counters never wrap; a byte's place is its number modulo kRingBytes.
struct SharedRing {
    alignas(64) std::atomic<uint64_t> written;
    alignas(64) std::atomic<uint64_t> read;
    alignas(64) std::atomic<bool> connected;  // the sending side has it too
    alignas(64) unsigned char bytes[kRingBytes];
};

void SharedLink::Unmap::operator()(SharedRing* ring) const noexcept {
    munmap(ring, sizeof(SharedRing));
}

SharedLink::SharedLink(
    const Members& members, Shaper* shaper, int peer, Channel channel, bool sending, bool far)
    : Link(members, peer, channel, sending, far), shaper_(far ? shaper : nullptr) {}

Result<SharedLink::RingView> SharedLink::map(int fd) {
    void* memory = mmap(nullptr, sizeof(SharedRing), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED) {
        return ring_error("mapping a ring");
    }
    return RingView(static_cast<SharedRing*>(memory));
}

Status SharedLink::listen_step() {
    if (ring_ == nullptr) {
        RingName name{random_u64(), getpid(), 0};
        descriptor_ = Socket(memfd_create(ring_name(name.token).c_str(), MFD_CLOEXEC));
        name.descriptor = descriptor_.fd();
        if (!descriptor_.valid() || ftruncate(descriptor_.fd(), sizeof(SharedRing)) != 0) {
            return ring_error("making a ring");
        }
        SLIMWIRE_TRY_ASSIGN(ring_, map(descriptor_.fd()));
        tell_handle(&name, sizeof name);
    }
    connected_ = ring_->connected;
    if (connected_) {
        descriptor_.reset();
    }
    return {};
}

Status SharedLink::connect_step() {
    std::vector<char> told;
    if (!hear_handle(&told)) {
        return {};
    }
    RingName name{};
    if (told.size() != sizeof name) {
        return {Code::kInternalError, "connection handle of the wrong size"};
    }
    memcpy(&name, told.data(), sizeof name);
    const std::string path =
        "/proc/" + std::to_string(name.process) + "/fd/" + std::to_string(name.descriptor);
    // A rank that has given up may have given the descriptor's number to another file. It says so
    // elsewhere; one that was revoked says nothing, and this one waits until it is revoked, too.
    std::error_code error;
    const std::string file = std::filesystem::read_symlink(path, error).string();
    const Socket descriptor(file.find(ring_name(name.token)) != std::string::npos
                                ? open(path.c_str(), O_RDWR | O_CLOEXEC)
                                : -1);
    if (!descriptor.valid()) {
        return {};
    }
    SLIMWIRE_TRY_ASSIGN(ring_, map(descriptor.fd()));
    ring_->connected = true;
    connected_ = true;
    return {};
}

bool SharedLink::move(void* data, size_t bytes, size_t* done) {
    SharedRing& ring = *ring_;
    while (*done < bytes) {
        const uint64_t written = ring.written.load(std::memory_order_acquire);
        const uint64_t read = ring.read.load(std::memory_order_acquire);
        const uint64_t at = sending_ ? written : read;
        const size_t place = at % kRingBytes;
        const size_t room = sending_ ? kRingBytes - (written - read) : written - read;
        const size_t count = std::min({room, bytes - *done, kPieceBytes, kRingBytes - place});
        if (count == 0) {
            return false;
        }
        unsigned char* const own = static_cast<unsigned char*>(data) + *done;
        if (sending_) {
            memcpy(ring.bytes + place, own, count);
        } else {
            memcpy(own, ring.bytes + place, count);
        }
        *done += count;
        (sending_ ? ring.written : ring.read).store(at + count, std::memory_order_release);
    }
    return true;
}

Status SharedLink::progress() {
    for (Message& message : messages_) {
        if (!move(&message.header, sizeof(Header), &message.header_moved)) {
            break;
        }
        const uint64_t bytes = message.header.bytes;
        if (bytes > message.capacity) {
            return {Code::kRemoteError,
                    "Emulator network: receiving from rank " + std::to_string(peer_) +
                        " failed: " + std::to_string(bytes) + " bytes came for a receive of " +
                        std::to_string(message.capacity)};
        }
        if (!move(message.data, bytes, &message.data_moved)) {
            break;
        }
    }
    return {};
}

// Room in the card's queue, or the moment at which to ask again.
bool SharedLink::may_send_now(uint64_t now) {
    if (shaper_ == nullptr) {
        return true;
    }
    const uint64_t free_ns = shaper_->egress_free_ns(own_node());
    if (free_ns <= now + kQueueAheadNs) {
        return true;
    }
    if (refused_since_ns_ == 0) {
        refused_since_ns_ = now;
    }
    hint_wake_at(free_ns - kQueueAheadNs);
    return false;
}

WireSlot SharedLink::reserve_egress(uint64_t now, uint64_t bytes) {
    uint64_t earliest = now;
    if (refused_since_ns_ != 0) {
        earliest = std::max(refused_since_ns_, now - kMaxCreditNs);
    }
    const WireSlot slot = shaper_->reserve_egress(own_node(), earliest, bytes);
    if (slot.finish_ns >= now) {
        refused_since_ns_ = 0;  // caught up
    }
    return slot;
}

bool SharedLink::wire_time_over(Message& message, uint64_t now) {
    if (shaper_ == nullptr) {
        return true;
    }
    if (!sending_ && !message.ingress_reserved) {
        // The receiving card is claimed when the first bit comes, not earlier: messages of several
        // senders then share it in the order of their bits.
        if (now < message.header.start_ns) {
            hint_wake_at(message.header.start_ns);
            return false;
        }
        const WireSlot slot =
            shaper_->reserve_ingress(own_node(), message.header.start_ns, message.header.bytes);
        message.ingress_reserved = true;
        message.done_at_ns = slot.finish_ns + shaper_->spec().latency_ns;
    }
    if (now < message.done_at_ns) {
        hint_wake_at(message.done_at_ns);
        return false;
    }
    return true;
}

Status SharedLink::start(
    void* data, size_t bytes, const WireOperation&, Transfer* transfer, bool* started) {
    *started = false;
    if (!connected_) {
        SLIMWIRE_TRY(sending_ ? connect_step() : listen_step());
    }
    const uint64_t now = now_ns();
    if (!connected_ || (sending_ && !may_send_now(now))) {
        return {};
    }
    Message& message = messages_.emplace_back();
    message.data = static_cast<unsigned char*>(data);
    message.capacity = bytes;
    if (sending_) {
        message.header.bytes = bytes;
        if (shaper_ != nullptr) {
            const WireSlot slot = reserve_egress(now, bytes);
            message.header.start_ns = slot.start_ns;
            message.done_at_ns = slot.finish_ns;
        }
        count_sent(bytes, bytes);
        SLIMWIRE_TRY(progress());
    }
    *transfer = {};
    *started = true;
    return {};
}

// Callers ask for the oldest.
Status SharedLink::test(Transfer*, bool* done, size_t* bytes) {
    *done = false;
    SLIMWIRE_TRY(progress());
    Message& message = messages_.front();
    // The card is claimed in wire order, also while the data is still being copied.
    if (!message.header_here() || !wire_time_over(message, now_ns()) || !message.moved()) {
        return {};
    }
    *done = true;
    *bytes = message.header.bytes;
    messages_.pop_front();
    if (!sending_) {
        count_received(*bytes);
    }
    return {};
}

}  // namespace slimwire::emu
