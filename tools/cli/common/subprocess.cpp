#include "tools/cli/common/subprocess.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "codecs/base/descriptor.h"
#include "tools/cli/common/commands.h"

namespace slimwire::cli {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kAskSeconds = 10;

// Adds `pid`, what it started and what those did: a script's program, a launcher's ranks. They
// stop, so that none starts another one meanwhile.
void stop_all(pid_t pid, std::vector<pid_t>* all) {
    ::kill(pid, SIGSTOP);
    all->push_back(pid);
    std::error_code error;
    for (const auto& thread : std::filesystem::directory_iterator(
             fmt::format("/proc/{}/task", static_cast<int>(pid)), error)) {
        std::ifstream children(thread.path() / "children");
        for (pid_t child = 0; children >> child;) {
            stop_all(child, all);
        }
    }
}

// Starts a child that runs `body` with its stdout in a pipe, waits for both to end.
Result<Captured> capture(const std::function<int()>& body, double timeout_seconds, bool quiet) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) {
        return Status(Code::kSystemError, fmt::format("pipe: {}", std::strerror(errno)));
    }
    Descriptor reading(ends[0]), writing(ends[1]);
    const pid_t pid = ::fork();
    if (pid < 0) {
        return Status(Code::kSystemError, fmt::format("fork: {}", std::strerror(errno)));
    }
    if (pid == 0) {
        ::prctl(PR_SET_PDEATHSIG, SIGKILL);
        const int null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
        ::dup2(null, STDIN_FILENO);
        ::dup2(writing.fd(), STDOUT_FILENO);
        if (quiet) {
            ::dup2(null, STDERR_FILENO);
        }
        ::_exit(body());
    }
    writing.reset();
    const Clock::time_point end =
        Clock::now() +
        std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(timeout_seconds));
    Captured captured;
    bool late = false;
    for (;;) {
        const auto left =
            std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now()).count();
        pollfd wait{reading.fd(), POLLIN, 0};
        const int ready = left <= 0 ? 0 : ::poll(&wait, 1, static_cast<int>(left));
        if (ready == 0) {
            late = true;
            std::vector<pid_t> all;
            stop_all(pid, &all);
            for (const pid_t one : all) {
                ::kill(one, SIGKILL);
            }
            break;
        }
        std::array<char, 65536> buffer;
        const ssize_t n = ready < 0 ? -1 : ::read(reading.fd(), buffer.data(), buffer.size());
        if (n > 0) {
            captured.output.append(buffer.data(), static_cast<size_t>(n));
        } else if (n == 0 || errno != EINTR) {
            break;
        }
    }
    reading.reset();
    int status = 0;
    while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
    }
    if (late) {
        return Status(Code::kSystemError, fmt::format("no answer within {:g} s", timeout_seconds));
    }
    captured.exit_code = WIFSIGNALED(status) ? kSignalBase + WTERMSIG(status) : WEXITSTATUS(status);
    return captured;
}

}  // namespace

Result<Captured> run_captured(const std::vector<std::string>& command,
                              Environment environment,
                              double timeout_seconds,
                              bool quiet) {
    std::vector<std::string> copy = command;
    const std::vector<char*> arguments = pointers_to(&copy);
    const std::vector<char*> variables = environment.pointers();
    Result<Captured> result = capture(
        [&] {
            ::execvpe(arguments[0], arguments.data(), variables.data());
            return errno == ENOENT ? kNotFound : kNotExecutable;
        },
        timeout_seconds, quiet);
    if (!result.ok()) {
        return Status(result.status().code(),
                      fmt::format("{}: {}", command[0], result.status().message()));
    }
    return result;
}

std::string ask_in_child(const std::function<std::string()>& body) {
    const Result<Captured> result = capture(
        [&] {
            const int answer_fd = ::fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3);
            const int null = ::open("/dev/null", O_WRONLY | O_CLOEXEC);
            ::dup2(null, STDOUT_FILENO);
            const std::string answer = body();
            return ::write(answer_fd, answer.data(), answer.size()) ==
                           static_cast<ssize_t>(answer.size())
                       ? 0
                       : 1;
        },
        kAskSeconds, true);
    return result.ok() && result.value().exit_code == 0 ? result.value().output : std::string();
}

}  // namespace slimwire::cli
