// Times calls of new communicators where rules say min_bytes = "auto" and nothing is calibrated:
// the same ones natively and compressed, over the private communicator, before the program has it.
// What follows (plan/timed_calls.h) stands in the place of a calibration.
//
// Ranks agree on each step over the new communicator, so that all time the same sizes and take the
// same times: a table that some rank has of an earlier communicator of this shape (the lowest such
// rank's), else the median of theirs. Where a rank is late, by the clock or for want of
// memory, all go by the estimate. Calls are enqueued on a thread of their own, which may be left;
// work that did not run in time is retired, and later calls are chained behind it.
#pragma once

#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "collectives/communicator/pending_creations.h"
#include "collectives/communicator/process.h"
#include "collectives/plan/timed_calls.h"

namespace slimwire {

class CallTimer {
  public:
    explicit CallTimer(Runtime& runtime) : runtime_(runtime) {}
    // CommunicatorListener::time_calls().
    Status time(const std::vector<Communicator*>& made, AbortWatch* watch);

  private:
    Runtime& runtime_;
    std::mutex mutex_;                         // of the next
    std::map<std::string, TimedCalls> known_;  // by kinds of calls and shape
};

}  // namespace slimwire
