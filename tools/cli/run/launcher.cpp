#include "tools/cli/run/launcher.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "codecs/base/descriptor.h"
#include "tools/cli/common/commands.h"

namespace slimwire::cli {
namespace {

using Clock = std::chrono::steady_clock;

// Carries one output stream of one rank to ours, whole lines at a time, each behind the rank's
// prefix. The source must be non-blocking.
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

constexpr int kForwarded[] = {SIGINT,  SIGTERM, SIGHUP,   SIGQUIT, SIGUSR1,
                              SIGUSR2, SIGCONT, SIGWINCH, SIGTSTP};
// So many SIGINT or SIGTERM in all end the job by SIGKILL.
constexpr int kInterruptsToKill = 3;

struct Rank {
    pid_t pid = -1;
    bool ended = false;  // a zombie until the job's end, so that its group number stays ours
    int exit_code = 0;
};

std::string describe_end(int rank, const siginfo_t& info) {
    if (info.si_code == CLD_EXITED) {
        return fmt::format("rank {} ended with exit code {}", rank, info.si_status);
    }
    const char* name = ::sigabbrev_np(info.si_status);
    return fmt::format("rank {} was killed by signal {} (SIG{}){}", rank, info.si_status,
                       name != nullptr ? name : "?",
                       info.si_code == CLD_DUMPED ? ", core dumped" : "");
}

class Job {
  public:
    explicit Job(LaunchOptions options) : options_(std::move(options)) {}
    Job(const Job&) = delete;
    Job& operator=(const Job&) = delete;
    ~Job();

    int run();

  private:
    enum class Phase { kRunning, kGrace, kTerminating, kKilling };

    int start_all();
    // errno of the failed system call or exec; 0 when the command runs.
    int start(int rank, int stdin_fd);
    int pump_once(int timeout_ms, bool with_signals);
    void loop();
    void on_signals();
    void collect_ended();
    void signal_all(int signal);
    void on_deadline();
    void enter(Phase phase, double seconds);
    [[nodiscard]] int poll_timeout_ms() const;
    void drain_and_reap();
    [[nodiscard]] int output_code() const;
    [[nodiscard]] bool all_ended() const {
        return std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& r) { return r.ended; });
    }

    LaunchOptions options_;
    std::vector<Rank> ranks_;
    std::vector<OutputPrefix> pumps_;
    sigset_t outer_mask_{};
    Descriptor signals_;
    Phase phase_ = Phase::kRunning;
    std::optional<Clock::time_point> deadline_;
    int exit_code_ = 0;
    int interrupts_ = 0;
};

Job::~Job() {
    if (signals_.valid()) {
        ::sigprocmask(SIG_SETMASK, &outer_mask_, nullptr);
    }
}

int Job::run() {
    sigset_t mask;
    sigemptyset(&mask);
    sigaddset(&mask, SIGCHLD);
    for (const int signal : kForwarded) {
        sigaddset(&mask, signal);
    }
    ::sigprocmask(SIG_BLOCK, &mask, &outer_mask_);
    ::signal(SIGPIPE, SIG_IGN);
    signals_ = Descriptor(::signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK));
    if (!signals_.valid()) {
        return fail(kCannotStart, fmt::format("signalfd: {}", std::strerror(errno)));
    }
    if (const int code = start_all(); code != 0) {
        signal_all(SIGKILL);
        drain_and_reap();
        return code;
    }
    loop();
    drain_and_reap();
    return output_code();
}

// The job's exit code, or a failure where not all that ranks printed reached standard output.
int Job::output_code() const {
    for (size_t i = 0; i < pumps_.size(); i += 2) {  // every other one is of standard error
        // Who is told of a pipe that nobody reads fails by itself.
        if (const int error = pumps_[i].lost(); error != 0 && (error != EPIPE || exit_code_ == 0)) {
            return output_lost(exit_code_, error);
        }
    }
    return exit_code_;
}

int Job::start_all() {
    // A rank in a background group that reads the terminal would be stopped, so only a pipe or a
    // file is handed on, to rank 0.
    const Descriptor null(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    const int count = static_cast<int>(options_.environments.size());
    for (int rank = 0; rank < count; ++rank) {
        const bool hand_on = rank == 0 && ::isatty(STDIN_FILENO) == 0;
        const int error = start(rank, hand_on ? STDIN_FILENO : null.fd());
        if (error != 0) {
            const int code = error == ENOENT   ? kNotFound
                             : error == EACCES ? kNotExecutable
                                               : kCannotStart;
            return fail(code, fmt::format("cannot start rank {}: {}: {}", rank, options_.command[0],
                                          std::strerror(error)));
        }
    }
    return 0;
}

int Job::start(int rank, int stdin_fd) {
    const std::vector<char*> arguments = pointers_to(&options_.command);
    const std::vector<char*> environment =
        options_.environments[static_cast<size_t>(rank)].pointers();

    int out[2];
    int err[2];
    int report[2];  // closed by a successful exec, else carries errno
    if (::pipe2(out, O_CLOEXEC) != 0 || ::pipe2(err, O_CLOEXEC) != 0 ||
        ::pipe2(report, O_CLOEXEC) != 0) {
        return errno;
    }
    const pid_t parent = ::getpid();
    const pid_t pid = ::fork();
    if (pid < 0) {
        return errno;
    }
    if (pid == 0) {
        ::setpgid(0, 0);
        ::prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (::getppid() != parent) {
            ::_exit(kCannotStart);
        }
        if (stdin_fd != STDIN_FILENO) {
            ::dup2(stdin_fd, STDIN_FILENO);
        }
        ::dup2(out[1], STDOUT_FILENO);
        ::dup2(err[1], STDERR_FILENO);
        ::signal(SIGPIPE, SIG_DFL);
        ::sigprocmask(SIG_SETMASK, &outer_mask_, nullptr);
        ::execvpe(arguments[0], arguments.data(), environment.data());
        const int error = errno;
        (void)!::write(report[1], &error, sizeof error);
        ::_exit(kCannotStart);
    }
    ::setpgid(pid, pid);  // whoever comes first
    ::close(out[1]);
    ::close(err[1]);
    ::close(report[1]);
    ranks_.push_back({.pid = pid});
    int error = 0;
    ssize_t n;
    while ((n = ::read(report[0], &error, sizeof error)) < 0 && errno == EINTR) {
    }
    ::close(report[0]);
    const std::string prefix = options_.prefix ? fmt::format("[{}] ", rank) : std::string();
    for (const auto& [source, target] :
         {std::pair(out[0], STDOUT_FILENO), {err[0], STDERR_FILENO}}) {
        ::fcntl(source, F_SETFL, O_NONBLOCK);
        pumps_.emplace_back(source, target, prefix);
    }
    return n == sizeof error ? error : 0;
}

// Carries what ranks say within `timeout_ms`; what poll() said.
int Job::pump_once(int timeout_ms, bool with_signals) {
    // A negative fd is skipped.
    std::vector<pollfd> polled{{with_signals ? signals_.fd() : -1, POLLIN, 0}};
    for (const OutputPrefix& pump : pumps_) {
        polled.push_back({pump.fd(), POLLIN, 0});
    }
    const int ready = ::poll(polled.data(), polled.size(), timeout_ms);
    for (size_t i = 0; ready > 0 && i < pumps_.size(); ++i) {
        if (polled[i + 1].revents != 0) {
            pumps_[i].pump();
        }
    }
    if (ready > 0 && polled[0].revents != 0) {
        on_signals();
    }
    return ready;
}

void Job::loop() {
    while (!all_ended()) {
        if (pump_once(poll_timeout_ms(), true) < 0 && errno != EINTR) {
            return;
        }
        on_deadline();
    }
}

void Job::on_signals() {
    signalfd_siginfo info;
    while (::read(signals_.fd(), &info, sizeof info) == sizeof info) {
        const int signal = static_cast<int>(info.ssi_signo);
        if (signal == SIGCHLD) {
            continue;
        }
        if ((signal == SIGINT || signal == SIGTERM) && ++interrupts_ >= kInterruptsToKill) {
            enter(Phase::kKilling, 0);
            continue;
        }
        signal_all(signal);
        if (signal == SIGTSTP) {
            ::kill(::getpid(), SIGSTOP);
        }
    }
    collect_ended();
}

void Job::collect_ended() {
    for (size_t i = 0; i < ranks_.size(); ++i) {
        siginfo_t info{};
        if (ranks_[i].ended ||
            ::waitid(P_PID, static_cast<id_t>(ranks_[i].pid), &info, WEXITED | WNOHANG | WNOWAIT) !=
                0 ||
            info.si_pid == 0) {
            continue;
        }
        ranks_[i].ended = true;
        ranks_[i].exit_code =
            info.si_code == CLD_EXITED ? info.si_status : kSignalBase + info.si_status;
        if (ranks_[i].exit_code != 0 && exit_code_ == 0) {
            exit_code_ = ranks_[i].exit_code;
            // What it said last stands before what we say about it.
            for (size_t stream : {2 * i, 2 * i + 1}) {
                pumps_[stream].pump();
            }
            note(describe_end(static_cast<int>(i), info));
            if (phase_ == Phase::kRunning && interrupts_ == 0) {
                enter(Phase::kGrace, options_.grace_seconds);
            }
        }
    }
}

// To the groups, so that what a rank started (a launcher, a shell's child) gets it too.
void Job::signal_all(int signal) {
    for (const Rank& rank : ranks_) {
        if (!rank.ended && ::kill(-rank.pid, signal) != 0) {
            ::kill(rank.pid, signal);
        }
    }
}

void Job::enter(Phase phase, double seconds) {
    phase_ = phase;
    if (phase == Phase::kKilling) {
        deadline_.reset();
        signal_all(SIGKILL);
        return;
    }
    if (phase == Phase::kTerminating) {
        signal_all(SIGTERM);
        signal_all(SIGCONT);
    }
    deadline_ = Clock::now() +
                std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

void Job::on_deadline() {
    if (!deadline_ || Clock::now() < *deadline_ || all_ended()) {
        return;
    }
    std::string waiting;
    for (size_t i = 0; i < ranks_.size(); ++i) {
        waiting += ranks_[i].ended ? "" : fmt::format("{}{}", waiting.empty() ? "" : ", ", i);
    }
    if (phase_ == Phase::kGrace) {
        note(fmt::format("still running {:g} s after that: rank {}; sending SIGTERM",
                         options_.grace_seconds, waiting));
        enter(Phase::kTerminating, options_.kill_seconds);
    } else {
        note(fmt::format("still running: rank {}; sending SIGKILL", waiting));
        enter(Phase::kKilling, 0);
    }
}

int Job::poll_timeout_ms() const {
    if (!deadline_) {
        return -1;
    }
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(*deadline_ - Clock::now()).count();
    return static_cast<int>(std::clamp<decltype(left)>(left, 0, 60'000));
}

// Kills what the ranks left in their groups, takes the last output, and only then lets go of the
// group numbers.
void Job::drain_and_reap() {
    for (const Rank& rank : ranks_) {
        ::kill(-rank.pid, SIGKILL);
    }
    // A process that left its group may hold a pipe open for ever.
    const Clock::time_point end = Clock::now() + std::chrono::milliseconds(500);
    const auto open = [](const OutputPrefix& pump) { return pump.fd() >= 0; };
    while (std::any_of(pumps_.begin(), pumps_.end(), open)) {
        const auto left =
            std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now()).count();
        if (left <= 0 || pump_once(static_cast<int>(left), false) == 0) {
            break;
        }
    }
    for (OutputPrefix& pump : pumps_) {
        pump.finish();
    }
    for (const Rank& rank : ranks_) {
        while (::waitpid(rank.pid, nullptr, 0) < 0 && errno == EINTR) {
        }
    }
}

}  // namespace

int launch_ranks(LaunchOptions options) {
    return Job(std::move(options)).run();
}

}  // namespace slimwire::cli
