// A small process that outlives `slimwire run --emulate` for a moment: when slimwire disappears
// without a word (SIGKILL, out of memory) it kills the process groups of the ranks, grandchildren
// included. PR_SET_PDEATHSIG alone reaches only the direct children.
#pragma once

#include <sys/types.h>

#include "codecs/base/status.h"

namespace slimwire::cli {

class OrphanGuard {
  public:
    // Forks the process. Call before any pipe of a rank exists.
    static Result<OrphanGuard> start();
    OrphanGuard(OrphanGuard&& other) noexcept;
    OrphanGuard(const OrphanGuard&) = delete;
    OrphanGuard& operator=(const OrphanGuard&) = delete;
    OrphanGuard& operator=(OrphanGuard&&) = delete;
    // Ends the process without killing anything.
    ~OrphanGuard();

    // Puts the calling process's own group under watch; async-signal-safe, called by a rank's
    // process between fork and exec.
    void watch_own_group() const noexcept;
    // The group is gone: its number may belong to somebody else soon.
    void forget(pid_t group) const noexcept;

  private:
    OrphanGuard(int fd, pid_t pid) : fd_(fd), pid_(pid) {}

    int fd_;
    pid_t pid_;
};

}  // namespace slimwire::cli
