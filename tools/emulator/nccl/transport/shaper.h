// SLIMWIRE_EMU_LINK: rate and latency of each emulated node's network card.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "codecs/base/descriptor.h"
#include "codecs/base/status.h"

namespace slimwire::emu {

struct LinkSpec {
    double bits_per_second = 0;  // 0: unshaped
    uint64_t latency_ns = 0;

    [[nodiscard]] bool shaped() const noexcept { return bits_per_second > 0; }
    // Time `bytes` occupy the wire.
    [[nodiscard]] uint64_t wire_ns(uint64_t bytes) const noexcept {
        return static_cast<uint64_t>(static_cast<double>(bytes) * 8e9 / bits_per_second);
    }
    // Bytes of one message into which large transfers are cut: about a millisecond of wire.
    [[nodiscard]] uint64_t chunk_bytes() const noexcept;
};

// "1gbit", "100mbit,50us": rate in kbit/mbit/gbit (decimal, payload), latency in ns/us/ms/s. Empty
// text is an unshaped link; anything else that does not parse is an error that says what would do.
Result<LinkSpec> parse_link_spec(std::string_view text);

// The network cards of the emulated nodes. Each node has one egress and one ingress clock, shared
// by all processes of the job through a small shared-memory segment; a clock says until when that
// direction of the card is busy. Reserving wire time is one compare-and-swap, so a message knows
// when its last bit leaves the sender and when it has arrived, without any thread that paces.
//
// Callers: shared_link.cpp. Thread contract: everything is safe from any
// thread and process. The segment lives while a process of the job holds a lock on it; the last one
// removes it, and what killed jobs left behind is recognised by its missing locks and removed at
// the next start.

inline constexpr int kMaxNodes = 1024;

struct alignas(128) NicClock {
    std::atomic<uint64_t> egress_free_ns;
    std::atomic<uint64_t> ingress_free_ns;
};
static_assert(std::atomic<uint64_t>::is_always_lock_free);

struct WireSlot {
    uint64_t start_ns;
    uint64_t finish_ns;
};

class Shaper {
  public:
    // Opens (or joins) the segment of the job named by `token`.
    static Result<std::unique_ptr<Shaper>> open(const LinkSpec& spec, const std::string& token);
    // Removes segments of this user that no living process holds. Returns how many.
    static int remove_stale_segments();
    // Lets the segment go; the last process removes it. The clocks stay usable until destruction.
    void leave() noexcept;
    ~Shaper();
    Shaper(const Shaper&) = delete;
    Shaper& operator=(const Shaper&) = delete;

    [[nodiscard]] const LinkSpec& spec() const noexcept { return spec_; }
    [[nodiscard]] const std::string& segment_name() const noexcept { return name_; }

    // Wire time for `bytes` leaving `node`, starting no earlier than `earliest_ns`.
    WireSlot reserve_egress(int node, uint64_t earliest_ns, uint64_t bytes) noexcept;
    // The same on the receiving card.
    WireSlot reserve_ingress(int node, uint64_t earliest_ns, uint64_t bytes) noexcept;
    // Moment at which everything reserved so far has left `node`.
    [[nodiscard]] uint64_t egress_free_ns(int node) const noexcept;

  private:
    Shaper() = default;
    WireSlot reserve(std::atomic<uint64_t>& clock, uint64_t earliest_ns, uint64_t bytes) noexcept;

    LinkSpec spec_;
    std::string name_;
    Descriptor segment_;
    int owner_pid_ = 0;
    NicClock* nics_ = nullptr;
};

// The process's shaper for the job: opened at the first call, left at exit. Null without a shaped
// link. `fallback_token` names the job when the environment does not.
Result<Shaper*> job_shaper(const std::string& fallback_token);

}  // namespace slimwire::emu
