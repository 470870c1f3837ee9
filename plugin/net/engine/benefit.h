// Whether compressing pays on a connection: compares the goodput with and without, so that a
// network faster than the codec is left alone.
//
// Goodput is bytes of messages over the time the connection was busy with them: from the end of the
// message before, or from its own begin where the connection was idle, to its end. The receiver
// measures it and tells the sender (wire.h, Word), because a sender sees a message end when the
// network has taken it, which holds megabytes that the receiver has yet to get and decode. Where no
// word comes back the sender's own measure counts; for that case the codec must also be able to
// encode kHeadroom times as fast as the connection moves raw bytes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace slimwire::net {

enum class Way : uint8_t { kRaw = 0, kCoded = 1 };

// What one end of a connection sees. After a change of the way the first messages do not count:
// they wait for, or overtake, what is still under way of those sent the other way.
class Meter {
  public:
    // A message is over; in their order. Times are of one steady clock, in ns. Returns the time
    // that the connection was busy with it, 0 when it does not count.
    uint64_t finished(Way way, size_t bytes, uint64_t began_ns, uint64_t ended_ns) noexcept;
    // Bytes a second, 0 while unknown.
    [[nodiscard]] double goodput(Way way) const noexcept;
    void forget(Way way) noexcept { measured_[static_cast<size_t>(way)] = {}; }

    struct Measure {
        double bytes = 0;
        double busy_ns = 0;

        void add(double more_bytes, double more_ns) noexcept;
        [[nodiscard]] double rate() const noexcept {
            return busy_ns > 0 ? bytes / busy_ns * 1e9 : 0;
        }
    };

  private:
    std::array<Measure, 2> measured_{};
    uint64_t last_end_ns_ = 0;
    Way last_ = Way::kCoded;
    int alike_ = 0;  // messages since the last change
};

// The sender's choice.
class Benefit {
  public:
    // How the next message that could be compressed should be sent.
    [[nodiscard]] Way choose() noexcept;
    uint64_t finished(Way way, size_t bytes, uint64_t began_ns, uint64_t ended_ns) noexcept {
        return own_.finished(way, bytes, began_ns, ended_ns);
    }
    // The receiver's word, bytes a second; 0 is unknown. Once one has come only these count.
    void heard(double raw, double coded) noexcept;
    // Tells that a codec thread took so long for so many bytes; `threads` work side by side.
    void encoded(size_t bytes, uint64_t ns, int threads) noexcept;
    // What counts: the receiver's, else the sender's.
    [[nodiscard]] double goodput(Way way) const noexcept;

  private:
    [[nodiscard]] bool better(Way way, Way than) const noexcept;

    Meter own_;
    std::array<double, 2> heard_{};
    Meter::Measure encoded_;
    Way current_ = Way::kCoded;
    int left_ = 0;        // messages until the other way is tried again
    int trial_left_ = 0;  // messages of the trial under way
    int interval_ = 64;   // messages between trials
};

}  // namespace slimwire::net
