// Threads inherit the mask of the one that starts them: those started within the scope get none of
// the program's signals, so that its handlers run on threads it knows. Faults of a thread's own
// stay with it, as a blocked one would end the process without the program's handler.
#pragma once

#include <pthread.h>
#include <signal.h>

#include <initializer_list>

namespace slimwire {

class BlockedSignals {
  public:
    BlockedSignals() {
        sigset_t all;
        sigfillset(&all);
        for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP}) {
            sigdelset(&all, fault);
        }
        pthread_sigmask(SIG_SETMASK, &all, &before_);
    }
    ~BlockedSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
    BlockedSignals(const BlockedSignals&) = delete;
    BlockedSignals& operator=(const BlockedSignals&) = delete;

  private:
    sigset_t before_;
};

}  // namespace slimwire
