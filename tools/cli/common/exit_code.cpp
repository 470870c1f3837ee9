#include "tools/cli/common/exit_code.h"

#include <fmt/core.h>
#include <unistd.h>

#include <cstring>
#include <string>

#include "collectives/call/log.h"

namespace slimwire::cli {
namespace {

// One write per line, so that lines of several processes do not mix.
void write_line(std::string_view text) {
    const std::string line = visible(text) + '\n';
    size_t done = 0;
    while (done < line.size()) {
        const ssize_t n = ::write(STDERR_FILENO, line.data() + done, line.size() - done);
        if (n <= 0) {
            return;
        }
        done += static_cast<size_t>(n);
    }
}

}  // namespace

int fail(int exit_code, std::string_view text) {
    write_line(fmt::format("slimwire: error: {}", text));
    return exit_code;
}

int output_lost(int code, int error) {
    return fail(
        code == kSuccess ? kCannotStart : code,
        fmt::format("standard output: {}; what was printed is not complete", std::strerror(error)));
}

void note(std::string_view text) {
    write_line(fmt::format("slimwire: {}", text));
}

}  // namespace slimwire::cli
