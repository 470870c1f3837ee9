// This test program again, as another process that a test talks to by pipes; and what that process
// does when something is wrong.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <string>
#include <vector>

#include "codecs/base/status.h"

namespace slimwire::net {

class OtherProcess {
  public:
    explicit OtherProcess(const std::vector<std::string>& arguments) {
        int in[2], out[2];
        EXPECT_EQ(pipe2(in, O_CLOEXEC), 0);
        EXPECT_EQ(pipe2(out, O_CLOEXEC), 0);
        std::vector<char*> words = {const_cast<char*>("other_process")};
        for (const std::string& argument : arguments) {
            words.push_back(const_cast<char*>(argument.c_str()));
        }
        words.push_back(nullptr);
        pid_ = fork();
        if (pid_ == 0) {
            dup2(in[0], STDIN_FILENO);
            dup2(out[1], STDOUT_FILENO);
            execv("/proc/self/exe", words.data());
            _exit(127);
        }
        close(in[0]);
        close(out[1]);
        in_ = in[1];
        out_ = out[0];
    }
    ~OtherProcess() {
        end();
        close(in_);
        close(out_);
    }
    OtherProcess(const OtherProcess&) = delete;
    OtherProcess& operator=(const OtherProcess&) = delete;

    [[nodiscard]] pid_t pid() const { return pid_; }
    void signal(int number) const { kill(pid_, number); }
    void end() {
        if (pid_ > 0) {
            kill(pid_, SIGKILL);
            waitpid(pid_, nullptr, 0);
            pid_ = -1;
        }
    }
    [[nodiscard]] bool tell(const void* data, size_t bytes) const {
        return write(in_, data, bytes) == static_cast<ssize_t>(bytes);
    }
    // False when it says nothing for a minute.
    [[nodiscard]] bool hear(void* data, size_t bytes) const {
        auto* to = static_cast<char*>(data);
        while (bytes > 0) {
            pollfd entry{out_, POLLIN, 0};
            const ssize_t got = poll(&entry, 1, 60'000) == 1 ? read(out_, to, bytes) : 0;
            if (got <= 0) {
                return false;
            }
            to += got;
            bytes -= static_cast<size_t>(got);
        }
        return true;
    }
    // It says an R when it is as far as the test wants.
    [[nodiscard]] bool ready() const {
        char byte = 0;
        return hear(&byte, 1);
    }

  private:
    pid_t pid_ = -1;
    int in_ = -1, out_ = -1;
};

// --- The other process's

[[noreturn]] inline void failed(const std::string& why) {
    fprintf(stderr, "other process: %s\n", why.c_str());
    _exit(3);
}
inline void must(const Status& status) {
    if (!status.ok()) {
        failed(status.message());
    }
}
inline void write_out(const void* data, size_t bytes) {
    if (write(STDOUT_FILENO, data, bytes) != static_cast<ssize_t>(bytes)) {
        failed("nobody listens");
    }
}
inline void read_in(void* data, size_t bytes) {
    if (read(STDIN_FILENO, data, bytes) != static_cast<ssize_t>(bytes)) {
        failed("no handle");
    }
}

}  // namespace slimwire::net
