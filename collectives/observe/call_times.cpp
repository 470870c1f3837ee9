#include "collectives/observe/call_times.h"

namespace slimwire {

CallTimes::Timing* CallTimes::start(const DeviceApi& api, cudaStream_t stream) {
    for (Timing& timing : timings_) {
        if (timing.busy || failed_) {
            continue;
        }
        if (timing.begin == nullptr) {
            failed_ =
                !tolerate(api, api.event_create_with_flags(&timing.begin, cudaEventDefault)) ||
                !tolerate(api, api.event_create_with_flags(&timing.end, cudaEventDefault));
        }
        return !failed_ && tolerate(api, api.event_record(timing.begin, stream)) ? &timing
                                                                                 : nullptr;
    }
    return nullptr;
}

void CallTimes::restart(const DeviceApi& api, const Timing* timing, cudaStream_t stream) {
    tolerate(api, api.event_record(timing->begin, stream));
}

void CallTimes::end(const DeviceApi& api, Timing* timing, cudaStream_t stream) {
    timing->busy = tolerate(api, api.event_record(timing->end, stream));
}

void CallTimes::read(const DeviceApi& api, Trace* trace) {
    if (api.peek_at_last_error() != cudaSuccess) {
        return;  // the program's own: an event that is not ready would take its place
    }
    for (Timing& timing : timings_) {
        if (!timing.busy || !tolerate(api, api.event_query(timing.end))) {
            continue;
        }
        float elapsed_ms = 0;
        if (tolerate(api, api.event_elapsed_time(&elapsed_ms, timing.begin, timing.end))) {
            TraceItem item;
            item.kind = timing.kind;
            item.call = timing.call;
            item.device_ns = static_cast<uint64_t>(static_cast<double>(elapsed_ms) * 1e6);
            trace->push(item);
            if (timing.stats != nullptr) {
                timing.stats->count_time(item.device_ns);
            }
        }
        timing.busy = false;
    }
}

void CallTimes::clear(const DeviceApi& api) {
    for (Timing& timing : timings_) {
        for (const cudaEvent_t event : {timing.begin, timing.end}) {
            if (event != nullptr) {
                tolerate(api, api.event_destroy(event));
            }
        }
        timing = {};
    }
}

}  // namespace slimwire
