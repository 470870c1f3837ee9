// Learns whether any process of a job called NCCL through slimwire, and says so where none did: the
// job is then native, and would be silent about it. A socket whose name the job inherits
// (SLIMWIRE_RUN_SOCKET) gets a byte from each process that slimwire enters (call/run_socket.h);
// processes that inherit no environment, on other hosts or in other containers, are not heard.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "codecs/base/descriptor.h"
#include "tools/cli/common/environment.h"

namespace slimwire::cli {

class ReachWatch {
  public:
    // Puts the socket's name into the job's environment. None where an outer `slimwire run` watches
    // already, or the machine has no such sockets.
    static std::optional<ReachWatch> start(Environment* environment);

    // Whether a process has said so by now.
    [[nodiscard]] bool reached() const noexcept;
    // Leaves a process behind that waits for the first of two: a process says so, or this process,
    // which is about to become the command, has ended; then it notes `text`. It holds stderr alone,
    // is no child of the command, and gets the terminal's signals.
    void outlive(const std::string& text) const;
    // This process does not become the command after all.
    void dismiss() const noexcept;

  private:
    ReachWatch(Descriptor socket, std::string name)
        : socket_(std::move(socket)), name_(std::move(name)) {}

    Descriptor socket_;
    std::string name_;
};

}  // namespace slimwire::cli
