// Device times of single pieces of work: events before and after, asked for later by whoever comes
// by. A few at once; while all are on their way nothing more is timed. Used by the observing modes.
//
// Thread contract: one thread at a time. Nothing waits, and no error is left to the program.
#pragma once

#include <array>
#include <cstdint>

#include "codecs/base/device.h"
#include "collectives/observe/stats.h"
#include "collectives/observe/trace.h"

namespace slimwire {

class CallTimes {
  public:
    struct Timing {
        cudaEvent_t begin = nullptr, end = nullptr;
        TraceKind kind = TraceKind::kTime;
        uint64_t call = 0;
        CallStats* stats = nullptr;  // counts the time; may be null
        bool busy = false;
    };

    // Begins here on `stream`, of the current device; null when no pair is free, or CUDA refuses.
    Timing* start(const DeviceApi& api, cudaStream_t stream);
    // The work began later than start() said.
    static void restart(const DeviceApi& api, const Timing* timing, cudaStream_t stream);
    // Ends here. A timing that is not ended is free again.
    static void end(const DeviceApi& api, Timing* timing, cudaStream_t stream);
    // Tells the trace what has come since the last time.
    void read(const DeviceApi& api, Trace* trace);
    // Gives the events back.
    void clear(const DeviceApi& api);

  private:
    std::array<Timing, 4> timings_;
    bool failed_ = false;
};

}  // namespace slimwire
