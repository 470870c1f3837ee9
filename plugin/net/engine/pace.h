// Whether compressing pays on a connection: compares the goodput it measured with and without, so
// that a network faster than the codec is left alone. One object for each sending connection, used
// by its thread.
//
// What a sender sees of coded messages is too good where the network holds some megabytes that the
// receiver has yet to decode; so the codec must also be able to encode kHeadroom times as fast as
// the connection moves raw bytes.
//
// Goodput is bytes of messages over the time the connection was busy with them: from the end of the
// message before, or from its own begin where the connection was idle, to its end.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace slimwire::net {

class Pace {
  public:
    enum Way : int { kRaw = 0, kCoded = 1 };

    struct Choice {
        Way way;
        // Whether its time counts. After a change the first messages wait for what the network
        // still holds of those sent the other way, which says nothing of their own.
        bool counts;
    };
    // How the next message that could be compressed should be sent.
    [[nodiscard]] Choice choose() noexcept;
    // Tells what became of a message; times are of one steady clock, in ns.
    void finished(Choice choice, size_t bytes, uint64_t began_ns, uint64_t ended_ns) noexcept;
    // Tells that a codec thread took so long for so many bytes; `threads` work side by side.
    void encoded(size_t bytes, uint64_t ns, int threads) noexcept;
    // Bytes a second, 0 while unknown.
    [[nodiscard]] double goodput(Way way) const noexcept;

  private:
    struct Measure {
        double bytes = 0;
        double busy_ns = 0;
    };
    [[nodiscard]] double rate(const Measure& measure) const noexcept {
        return measure.busy_ns > 0 ? measure.bytes / measure.busy_ns * 1e9 : 0;
    }
    [[nodiscard]] Way next() noexcept;
    static void add(Measure* measure, double bytes, double ns) noexcept;
    [[nodiscard]] bool better(Way way, Way than) const noexcept;

    std::array<Measure, 2> measured_{};
    Measure encoded_;
    uint64_t last_end_ns_ = 0;
    Way current_ = kCoded;
    Way last_ = kCoded;   // that was chosen
    int alike_ = 0;       // choices since the last change
    int left_ = 0;        // messages until the other way is tried again
    int trial_left_ = 0;  // messages of the trial under way
    int interval_ = 64;   // messages between trials
};

}  // namespace slimwire::net
