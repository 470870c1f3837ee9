// A slower network before a faster one: wires around the wires of connections, which hand messages
// over at a given rate and later by a given latency. What SLIMWIRE_NET_LINK switches on.
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

// The buckets of a device.
class Throttle;

// `rate_bytes_per_s` 0 is no limit. `device` (may be null) then announces the lower speed and the
// longer latency.
std::shared_ptr<Throttle> make_throttle(double rate_bytes_per_s,
                                        uint64_t latency_ns,
                                        WireDevice* device,
                                        ThrottleClock clock = throttle_ns);

// The wire as it is where there is no throttle.
std::unique_ptr<SendWire> throttled(std::unique_ptr<SendWire> wire,
                                    std::shared_ptr<Throttle> throttle);
std::unique_ptr<ReceiveWire> throttled(std::unique_ptr<ReceiveWire> wire,
                                       std::shared_ptr<Throttle> throttle);

}  // namespace slimwire::net
