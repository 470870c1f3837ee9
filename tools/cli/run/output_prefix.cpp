#include "tools/cli/run/output_prefix.h"

#include <poll.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <string_view>

namespace slimwire::cli {
namespace {

// A longer line is cut here, so that a rank that never writes a newline cannot fill our memory.
constexpr size_t kMaxLineBytes = size_t{1} << 20;

bool write_all(int fd, std::string_view text) {
    while (!text.empty()) {
        const ssize_t n = ::write(fd, text.data(), text.size());
        if (n > 0) {
            text.remove_prefix(static_cast<size_t>(n));
        } else if (n < 0 && errno == EAGAIN) {
            pollfd wait{fd, POLLOUT, 0};
            (void)::poll(&wait, 1, -1);
        } else if (n < 0 && errno != EINTR) {
            return false;
        }
    }
    return true;
}

}  // namespace

void OutputPrefix::pump() {
    std::array<char, 65536> buffer;
    while (source_.valid()) {
        const ssize_t n = ::read(source_.fd(), buffer.data(), buffer.size());
        if (n > 0) {
            pending_.append(buffer.data(), static_cast<size_t>(n));
            write_lines(false);
            if (static_cast<size_t>(n) < buffer.size()) {
                return;
            }
        } else if (n < 0 && errno == EINTR) {
            continue;
        } else if (n < 0 && errno == EAGAIN) {
            return;
        } else {
            finish();
        }
    }
}

void OutputPrefix::finish() {
    write_lines(true);
    source_.reset();
}

void OutputPrefix::write_lines(bool last) {
    std::string out;
    size_t begin = 0;
    while (begin < pending_.size()) {
        size_t end = pending_.find('\n', begin);
        if (end == std::string::npos) {
            if (!last && pending_.size() - begin < kMaxLineBytes) {
                break;
            }
            end = pending_.size();
        }
        out += prefix_;
        out.append(pending_, begin, end - begin);
        out += '\n';
        begin = end + 1;
    }
    pending_.erase(0, begin);
    if (!write_all(target_fd_, out)) {
        lost_ = errno;
        pending_.clear();
        source_.reset();
    }
}

}  // namespace slimwire::cli
