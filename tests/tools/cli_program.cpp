#include "tests/tools/cli_program.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <thread>
#include <utility>

namespace slimwire::cli::test {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

void drain(int* fd, std::string* text) {
    std::array<char, 65536> buffer;
    const ssize_t n = ::read(*fd, buffer.data(), buffer.size());
    if (n > 0) {
        text->append(buffer.data(), static_cast<size_t>(n));
    } else if (n == 0 || errno != EINTR) {
        ::close(*fd);
        *fd = -1;
    }
}

}  // namespace

std::string ScratchFolder::write(const std::string& name,
                                 const std::string& content,
                                 int mode) const {
    const fs::path file = path_ / name;
    fs::create_directories(file.parent_path());
    std::ofstream(file, std::ios::binary) << content;
    ::chmod(file.c_str(), static_cast<mode_t>(mode));
    return file.string();
}

std::vector<std::string> lines_of(const std::string& text) {
    std::vector<std::string> lines;
    std::istringstream stream(text);
    for (std::string line; std::getline(stream, line);) {
        lines.push_back(line);
    }
    return lines;
}

std::vector<std::string> sorted(std::vector<std::string> lines) {
    std::sort(lines.begin(), lines.end());
    return lines;
}

Program::Program(const std::vector<std::string>& command,
                 const std::map<std::string, std::string>& environment,
                 const std::string& stdin_text) {
    std::map<std::string, std::string> variables;
    for (char** entry = environ; *entry != nullptr; ++entry) {
        const std::string line = *entry;
        const size_t equals = line.find('=');
        if (equals != std::string::npos && line.rfind("SLIMWIRE_", 0) != 0) {
            variables[line.substr(0, equals)] = line.substr(equals + 1);
        }
    }
    for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"}) {
        variables.erase(name);
    }
    variables.emplace("SLIMWIRE_EMU_STRICT", "1");
    for (const auto& [name, value] : environment) {
        if (value.empty()) {
            variables.erase(name);
        } else {
            variables[name] = value;
        }
    }
    std::vector<std::string> lines;
    for (const auto& [name, value] : variables) {
        lines.push_back(name + "=" + value);
    }
    std::vector<std::string> words = command;
    std::vector<char*> arguments;
    std::vector<char*> pointers;
    for (std::string& word : words) {
        arguments.push_back(word.data());
    }
    for (std::string& line : lines) {
        pointers.push_back(line.data());
    }
    arguments.push_back(nullptr);
    pointers.push_back(nullptr);

    int in[2];
    int out[2];
    int err[2];
    if (::pipe2(in, O_CLOEXEC) != 0 || ::pipe2(out, O_CLOEXEC) != 0 ||
        ::pipe2(err, O_CLOEXEC) != 0) {
        throw std::runtime_error("pipe");
    }
    pid_ = ::fork();
    if (pid_ == 0) {
        ::dup2(in[0], STDIN_FILENO);
        ::dup2(out[1], STDOUT_FILENO);
        ::dup2(err[1], STDERR_FILENO);
        ::execvpe(arguments[0], arguments.data(), pointers.data());
        ::_exit(99);
    }
    ::close(in[0]);
    ::close(out[1]);
    ::close(err[1]);
    (void)!::write(in[1], stdin_text.data(), stdin_text.size());
    ::close(in[1]);
    out_fd_ = out[0];
    err_fd_ = err[0];
}

Program::~Program() {
    if (pid_ > 0) {
        ::kill(pid_, SIGKILL);
        ::waitpid(pid_, nullptr, 0);
    }
    close_out();
    if (err_fd_ >= 0) {
        ::close(err_fd_);
    }
}

void Program::send(int signal) const {
    ::kill(pid_, signal);
}

void Program::close_out() {
    if (out_fd_ >= 0) {
        ::close(std::exchange(out_fd_, -1));
    }
}

bool Program::read_some(double seconds) {
    std::array<pollfd, 2> polled{{{out_fd_, POLLIN, 0}, {err_fd_, POLLIN, 0}}};
    if (::poll(polled.data(), polled.size(), static_cast<int>(seconds * 1000)) <= 0) {
        return false;
    }
    if (polled[0].revents != 0) {
        drain(&out_fd_, &out_);
    }
    if (polled[1].revents != 0) {
        drain(&err_fd_, &err_);
    }
    return true;
}

bool Program::wait_for_out(const std::string& text) {
    const Clock::time_point end = Clock::now() + std::chrono::seconds(20);
    while (out_.find(text) == std::string::npos && out_fd_ >= 0 && Clock::now() < end) {
        (void)read_some(0.1);
    }
    return out_.find(text) != std::string::npos;
}

Ended Program::wait(double limit_s) {
    const Clock::time_point end = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                                     std::chrono::duration<double>(limit_s));
    while ((out_fd_ >= 0 || err_fd_ >= 0) && Clock::now() < end) {
        (void)read_some(0.1);
    }
    Ended ended;
    int status = 0;
    while (::waitpid(pid_, &status, WNOHANG) == 0) {
        if (Clock::now() >= end) {
            ::kill(pid_, SIGKILL);
            err_ += "\n(killed by the test: it took too long)\n";
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    pid_ = -1;
    if (WIFEXITED(status)) {
        ended.exit_code = WEXITSTATUS(status);
    } else {
        ended.signal = WTERMSIG(status);
    }
    ended.out = out_;
    ended.err = err_;
    return ended;
}

std::vector<std::string> slimwire_command(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), SLIMWIRE_EXECUTABLE);
    return arguments;
}

std::string emulator_folder() {
    return std::filesystem::path(SLIMWIRE_EXECUTABLE).parent_path() / "emulator";
}

Ended run_slimwire(const std::vector<std::string>& arguments,
                   const std::map<std::string, std::string>& environment,
                   const std::string& stdin_text) {
    return Program(slimwire_command(arguments), environment, stdin_text).wait();
}

void expect_one_error_line(const Ended& ended) {
    const std::vector<std::string> lines = lines_of(ended.err);
    ASSERT_EQ(lines.size(), 1u) << ended.err;
    EXPECT_EQ(lines[0].rfind("slimwire: error: ", 0), 0u);
}

void expect_says(int exit_code,
                 const std::vector<std::string>& arguments,
                 const std::vector<std::string>& parts,
                 const std::map<std::string, std::string>& environment) {
    SCOPED_TRACE(::testing::PrintToString(arguments));
    const Ended ended = run_slimwire(arguments, environment);
    EXPECT_EQ(ended.exit_code, exit_code) << ended.err;
    if (exit_code == 2 || exit_code == 125) {
        expect_one_error_line(ended);
    }
    for (const std::string& part : parts) {
        EXPECT_HAS(ended.err, part);
    }
}

void expect_lost_output_fails(const std::vector<std::string>& arguments) {
    for (const std::string redirection : {">/dev/full", ">&-"}) {
        std::vector<std::string> command = {"/bin/sh", "-c", "exec \"$0\" \"$@\" " + redirection};
        const std::vector<std::string> ours = slimwire_command(arguments);
        command.insert(command.end(), ours.begin(), ours.end());
        const Ended ended = Program(command).wait();
        EXPECT_GT(ended.exit_code, 0) << testing::PrintToString(arguments) << redirection;
        EXPECT_HAS(ended.err, "slimwire: error: standard output: ");
        EXPECT_HAS_NOT(ended.err, "a directory");  // the errno of something else
    }
}

bool alive(pid_t pid) {
    std::ifstream stat("/proc/" + std::to_string(pid) + "/stat");
    std::string text;
    std::getline(stat, text);
    const size_t paren = text.rfind(')');
    return paren != std::string::npos && paren + 2 < text.size() && text[paren + 2] != 'Z';
}

bool all_gone(const std::vector<pid_t>& pids) {
    for (int i = 0; i < 1000; ++i) {
        if (std::none_of(pids.begin(), pids.end(), alive)) {
            return true;
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return false;
}

}  // namespace slimwire::cli::test
