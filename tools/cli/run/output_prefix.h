// Carries one output stream of one rank to ours, whole lines at a time, each behind the rank's
// prefix. Used by the launcher's single-threaded loop; the source must be non-blocking.
#pragma once

#include <string>
#include <utility>

#include "codecs/base/descriptor.h"

namespace slimwire::cli {

class OutputPrefix {
  public:
    // Takes ownership of `source_fd`; writes to `target_fd`.
    OutputPrefix(int source_fd, int target_fd, std::string prefix)
        : source_(source_fd), target_fd_(target_fd), prefix_(std::move(prefix)) {}

    // -1 when the source has ended.
    [[nodiscard]] int fd() const noexcept { return source_.fd(); }
    // errno of a write to the target that failed; 0: nothing was lost.
    [[nodiscard]] int lost() const noexcept { return lost_; }
    // Reads what is there and writes the complete lines. At the end of the source the last line is
    // written too, ended by a newline when it had none, so that nothing is glued to it. A target
    // that nobody reads any more closes the source, so that the rank sees the broken pipe itself.
    void pump();
    // Writes what is pending and closes the source.
    void finish();

  private:
    void write_lines(bool last);

    Descriptor source_;
    int target_fd_;
    int lost_ = 0;
    std::string prefix_;
    std::string pending_;
};

}  // namespace slimwire::cli
