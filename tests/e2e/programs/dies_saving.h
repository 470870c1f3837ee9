// For a job's program: SIGKILL of all its ranks inside a file system's call of the thread that
// writes the saving (SLIMWIRE_STATE). TEST_DIES_AT=N on one rank: before its Nth such call where N
// is odd (in the middle, where it writes), else behind it; two points a call. Calls of libraries
// come here because the program's own functions are found first.
#pragma once

#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>

namespace slimwire::test {

inline std::string pid_file(int rank) {
    return std::string(std::getenv("TEST_FOLDER")) + "/pid." + std::to_string(rank);
}

// Of this rank, at its beginning.
inline void may_die_saving(int rank) {
    std::ofstream(pid_file(rank)) << ::getpid() << std::flush;
}

inline void die_at(int point) {
    static const char* const wanted = std::getenv("TEST_DIES_AT");
    if (wanted == nullptr || point <= 0 || std::atoi(wanted) != point) {
        return;
    }
    const char* const ranks = std::getenv("WORLD_SIZE");
    for (int rank = 0; rank < std::atoi(ranks); ++rank) {
        pid_t other = 0;
        if (std::ifstream(pid_file(rank)) >> other && other != ::getpid()) {
            ::kill(other, SIGKILL);
        }
    }
    ::raise(SIGKILL);
}

// Calls of the saving thread are counted from 1 on; 0: another thread.
inline int saving_call() {
    static std::atomic<int> calls{0};
    char name[16] = {};
    ::pthread_getname_np(::pthread_self(), name, sizeof name);
    return std::strcmp(name, "slimwire-state") == 0 ? ++calls : 0;
}

template <class Function, class... Arguments>
auto pass_on(Function* real, Arguments... arguments) {
    const int call = saving_call();
    die_at(2 * call - 1);
    const auto result = real(arguments...);
    die_at(2 * call);
    return result;
}

template <class Function>
Function* next(const char* name) {
    return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

}  // namespace slimwire::test

#pragma GCC visibility push(default)
extern "C" {
ssize_t write(int file, const void* bytes, size_t count) {
    static auto* const real = slimwire::test::next<ssize_t(int, const void*, size_t)>("write");
    const int call = slimwire::test::saving_call();
    if (call == 0) {
        return real(file, bytes, count);
    }
    const ssize_t half = real(file, bytes, count / 2);
    slimwire::test::die_at(2 * call - 1);
    const auto done = static_cast<size_t>(half);
    const ssize_t rest = real(file, static_cast<const char*>(bytes) + done, count - done);
    slimwire::test::die_at(2 * call);
    return half + rest;
}
int fsync(int file) {
    static auto* const real = slimwire::test::next<int(int)>("fsync");
    return slimwire::test::pass_on(real, file);
}
int rename(const char* from, const char* to) noexcept {
    static auto* const real = slimwire::test::next<int(const char*, const char*)>("rename");
    return slimwire::test::pass_on(real, from, to);
}
int mkdir(const char* path, mode_t mode) noexcept {
    static auto* const real = slimwire::test::next<int(const char*, mode_t)>("mkdir");
    return slimwire::test::pass_on(real, path, mode);
}
int unlink(const char* path) noexcept {
    static auto* const real = slimwire::test::next<int(const char*)>("unlink");
    return slimwire::test::pass_on(real, path);
}
int rmdir(const char* path) noexcept {
    static auto* const real = slimwire::test::next<int(const char*)>("rmdir");
    return slimwire::test::pass_on(real, path);
}
}
#pragma GCC visibility pop
