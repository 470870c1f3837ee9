// Ways to move bytes between two processes, for net_bench: each is made in both processes (the
// program forks itself) and then plays the same game in either role. A further one implements
// Contestant. A failure ends the program with a line: there is nothing to measure then.
#pragma once

#include <sched.h>

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

namespace slimwire::bench {

// A UNIX socket between the two processes.
class Channel {
  public:
    explicit Channel(int fd) : fd_(fd) {}
    void say(const void* data, size_t bytes) const;
    void hear(void* data, size_t bytes) const;
    // Each tells the other so many bytes, the first one first.
    void exchange(bool first, const void* mine, void* other, size_t bytes) const;
    // Both come here before one goes on.
    void meet() const;

  private:
    int fd_;
};

[[noreturn]] void give_up(const std::string& why);

class Contestant {
  public:
    virtual ~Contestant() = default;
    [[nodiscard]] virtual std::string name() const = 0;
    // Moves `count` messages from buffer `data` of the first process into that of the second, which
    // holds kWindow messages, used in turn.
    virtual void stream(bool first, char* data, size_t bytes, int count) = 0;
    // To and fro `count` times; the first process gets the seconds of each round trip.
    virtual void ping_pong(
        bool first, char* data, size_t bytes, int count, std::vector<double>* seconds) = 0;
};
inline constexpr int kWindow = 8;

[[nodiscard]] double now_s();

// TCP sockets over loopback: one, or with `one_way` one a direction, as NCCL's connections are.
std::unique_ptr<Contestant> make_sockets(const Channel& channel, bool first, bool one_way);
// The UCX wire over loopback.
std::unique_ptr<Contestant> make_ucx_wire(const Channel& channel, bool first);
// The plugin's engine above it, on a network of `rate_bytes_per_s` (0: as fast as it is).
std::unique_ptr<Contestant> make_engine_contestant(const Channel& channel,
                                                   bool first,
                                                   bool codec,
                                                   double rate_bytes_per_s);

// Polls as NCCL's proxy does, but leaves the processor after a while of nothing.
class Idle {
  public:
    void none() {
        if (++polls_ > 200) {
            sched_yield();
        }
    }
    void some() { polls_ = 0; }

  private:
    int polls_ = 0;
};

// Half round trip in microseconds (its median) as ucx_perftest finds over loopback TCP; 0 when the
// tool is not installed.
double ucx_perftest_latency_us(size_t bytes, int count);

}  // namespace slimwire::bench
