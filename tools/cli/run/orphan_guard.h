// A small process that outlives `slimwire run --emulate` for a moment: when slimwire disappears
// without a word (SIGKILL, out of memory) it kills the process groups of the ranks, grandchildren
// included. PR_SET_PDEATHSIG alone reaches only the direct children.
#pragma once

#include <sys/types.h>

#include "codecs/base/descriptor.h"
#include "codecs/base/status.h"

namespace slimwire::cli {

class OrphanGuard {
  public:
    OrphanGuard() = default;
    OrphanGuard(const OrphanGuard&) = delete;
    OrphanGuard& operator=(const OrphanGuard&) = delete;
    // Ends the process without killing anything.
    ~OrphanGuard();

    // Forks the process. Call once, before any pipe of a rank exists.
    Status start();
    // Puts the calling process's own group under watch; async-signal-safe, called by a rank's
    // process between fork and exec.
    void watch_own_group() const noexcept;
    // The group is gone: its number may belong to somebody else soon.
    void forget(pid_t group) const noexcept;

  private:
    Descriptor pipe_;
    pid_t pid_ = -1;
};

}  // namespace slimwire::cli
