// Keeps the program's handlers of error signals while a library is loaded that replaces them (UCX).
#pragma once

#include <signal.h>

#include <array>

namespace slimwire {

class SignalHandlerKeeper {
  public:
    SignalHandlerKeeper() {
        for (size_t i = 0; i < kErrorSignals.size(); ++i) {
            sigaction(kErrorSignals[i], nullptr, &saved_[i]);
        }
    }
    ~SignalHandlerKeeper() {
        for (size_t i = 0; i < kErrorSignals.size(); ++i) {
            sigaction(kErrorSignals[i], &saved_[i], nullptr);
        }
    }
    SignalHandlerKeeper(const SignalHandlerKeeper&) = delete;
    SignalHandlerKeeper& operator=(const SignalHandlerKeeper&) = delete;

  private:
    static constexpr std::array kErrorSignals = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT};

    std::array<struct sigaction, kErrorSignals.size()> saved_{};
};

}  // namespace slimwire
