// A slower network before a faster one: a Wire around a Wire that hands messages over at a given
// rate and later by a given latency. What SLIMWIRE_NET_LINK switches on.
//
// Each device has one bucket for what leaves and one for what comes, shared by all connections of
// the process. A message leaves in the order of send() over all connections; it is given to the
// inner wire when its last bit would have left, plus the latency. A message that came is done when
// its last bit would have come, so many senders share the rate of their one receiver. Only message
// bytes count, no headers of the inner wire. Nothing waits here: time passes between the caller's
// test() calls, and idle time is not saved up.
//
// Thread contract: as wire.h.
#pragma once

#include <cstdint>
#include <memory>

#include "plugin/net/wire.h"

namespace slimwire::net {

// Nanoseconds since some time; any thread.
using ThrottleClock = double (*)();
[[nodiscard]] double throttle_ns();  // the steady clock's

// `rate_bytes_per_s` 0 is no limit. The devices announce the lower speed and the longer latency.
std::unique_ptr<Wire> make_throttled_wire(std::unique_ptr<Wire> inner,
                                          double rate_bytes_per_s,
                                          uint64_t latency_ns,
                                          ThrottleClock clock = throttle_ns);

}  // namespace slimwire::net
