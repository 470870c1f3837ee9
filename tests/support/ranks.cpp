#include "tests/support/ranks.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <future>
#include <iterator>
#include <stdexcept>

#include "tests/support/runtime_keys.h"

extern char** environ;

namespace slimwire::test {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
}

struct Process {
    pid_t pid = -1;
    int out = -1, err = -1;  // read ends
    bool reaped = false;
};

std::string joined(const std::vector<std::string>& parts) {
    std::string text;
    for (const std::string& part : parts) {
        text += (text.empty() ? "" : ":") + part;
    }
    return text;
}

bool inherited(const std::string& entry) {
    for (const char* prefix : {"SLIMWIRE_", "NCCL_", "UCX_", "LD_PRELOAD=", "LD_LIBRARY_PATH=",
                               "RANK=", "WORLD_SIZE=", "LOCAL_RANK=", "MASTER_"}) {
        if (entry.compare(0, std::strlen(prefix), prefix) == 0) {
            return false;
        }
    }
    return true;
}

std::vector<std::string> environment_of(const Job& job, int rank, const std::string& folder) {
    Environment merged;
    for (char** entry = environ; *entry != nullptr; ++entry) {
        const std::string text = *entry;
        const size_t equals = text.find('=');
        if (equals != std::string::npos && inherited(text)) {
            merged[text.substr(0, equals)] = text.substr(equals + 1);
        }
    }
    merged["RANK"] = merged["LOCAL_RANK"] = std::to_string(rank);
    merged["WORLD_SIZE"] = std::to_string(job.ranks);
    merged["MASTER_ADDR"] = "127.0.0.1";
    merged["MASTER_PORT"] = "29500";
    merged["SLIMWIRE_EMU_JOB"] = std::filesystem::path(folder).filename().string();
    merged["TEST_FOLDER"] = folder;
    merged["SLIMWIRE_EMU_STRICT"] = "calls";
    merged["LD_LIBRARY_PATH"] = joined(job.library_path);
    const bool preloads = !job.preload.empty() &&
                          std::find(job.without_preload.begin(), job.without_preload.end(), rank) ==
                              job.without_preload.end();
    if (preloads) {
        std::vector<std::string> preload = job.preload;
#ifdef SLIMWIRE_TEST_SANITIZER_RUNTIME
        preload.insert(preload.begin(), SLIMWIRE_TEST_SANITIZER_RUNTIME);
#endif
        merged["LD_PRELOAD"] = joined(preload);
    }
#ifdef SLIMWIRE_TEST_SANITIZER_RUNTIME
    // What a stranger's process leaks, and what NCCL keeps until exit, is not the subject.
    merged["ASAN_OPTIONS"] = "detect_leaks=0:handle_sigill=1";
#endif
#ifdef __SANITIZE_THREAD__
    // UCX's hooks of the allocator crash beneath the sanitizer's.
    merged["UCX_MEM_EVENTS"] = "n";
#endif
    for (const auto& [name, value] : job.environment) {
        merged[name] = value;
    }
    if (const auto own = job.of_rank.find(rank); own != job.of_rank.end()) {
        for (const auto& [name, value] : own->second) {
            merged[name] = value;
        }
    }
    runtime_into_policy(&merged);
    std::vector<std::string> entries;
    for (const auto& [name, value] : merged) {
        entries.push_back(name + "=" + value);
    }
    return entries;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
    std::vector<char*> list;
    for (std::string& text : texts) {
        list.push_back(text.data());
    }
    list.push_back(nullptr);
    return list;
}

Process start(const Job& job, int rank, const std::string& folder) {
    std::vector<std::string> command = job.command;
    std::vector<std::string> environment = environment_of(job, rank, folder);
    const std::vector<char*> argv = pointers(command);
    const std::vector<char*> envp = pointers(environment);
    int out[2], err[2];
    if (pipe2(out, O_CLOEXEC) != 0 || pipe2(err, O_CLOEXEC) != 0) {
        throw std::runtime_error(std::string("pipe: ") + std::strerror(errno));
    }
    const pid_t pid = fork();
    if (pid < 0) {
        throw std::runtime_error(std::string("fork: ") + std::strerror(errno));
    }
    if (pid == 0) {
        setpgid(0, 0);
        dup2(out[1], STDOUT_FILENO);
        dup2(err[1], STDERR_FILENO);
        if (!job.working_folder.empty() && chdir(job.working_folder.c_str()) != 0) {
            _exit(127);
        }
        execvpe(argv[0], argv.data(), envp.data());
        dprintf(STDERR_FILENO, "cannot run %s: %s\n", argv[0], std::strerror(errno));
        _exit(127);
    }
    close(out[1]);
    close(err[1]);
    return {pid, out[0], err[0], false};
}

// Reads what is there; closes and forgets the pipe at its end.
void drain(int* pipe, std::string* text) {
    char buffer[65536];
    const ssize_t got = read(*pipe, buffer, sizeof(buffer));
    if (got > 0) {
        text->append(buffer, static_cast<size_t>(got));
    } else if (got == 0 || errno != EINTR) {
        close(*pipe);
        *pipe = -1;
    }
}

}  // namespace

void let_calls_wait(Job* job, const char* /*why*/) {
    job->environment["SLIMWIRE_EMU_STRICT"] = "1";
}

std::vector<Ended> run_ranks(const Job& job) {
    const TemporaryFolder folder;
    const auto started = Clock::now();
    std::vector<Process> processes;
    std::vector<Ended> ended(static_cast<size_t>(job.ranks));
    for (int rank = 0; rank < job.ranks; ++rank) {
        processes.push_back(start(job, rank, folder.path()));
    }
    bool killed = false;
    for (;;) {
        std::vector<pollfd> polled;
        std::vector<std::pair<int*, std::string*>> targets;
        bool running = false;
        for (size_t i = 0; i < processes.size(); ++i) {
            Process& process = processes[i];
            for (auto [pipe, text] :
                 {std::pair{&process.out, &ended[i].out}, std::pair{&process.err, &ended[i].err}}) {
                if (*pipe >= 0) {
                    polled.push_back({*pipe, POLLIN, 0});
                    targets.emplace_back(pipe, text);
                }
            }
            int status = 0;
            if (!process.reaped && waitpid(process.pid, &status, WNOHANG) == process.pid) {
                process.reaped = true;
                ended[i].exit_code =
                    WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
                ended[i].seconds = seconds_since(started);
            }
            running |= !process.reaped;
        }
        if (!running && targets.empty()) {
            return ended;
        }
        if (!killed && seconds_since(started) > job.limit_s) {
            killed = true;
            for (size_t i = 0; i < processes.size(); ++i) {
                ended[i].expired = !processes[i].reaped;
                kill(-processes[i].pid, SIGKILL);
            }
        }
        if (poll(polled.data(), polled.size(), 20) > 0) {
            for (size_t i = 0; i < polled.size(); ++i) {
                if (polled[i].revents != 0) {
                    drain(targets[i].first, targets[i].second);
                }
            }
        }
        // A grandchild that keeps a pipe open must not hold the test for ever.
        if (killed && !running && seconds_since(started) > job.limit_s + 5) {
            for (Process& process : processes) {
                for (int* pipe : {&process.out, &process.err}) {
                    if (*pipe >= 0) {
                        close(*pipe);
                        *pipe = -1;
                    }
                }
            }
        }
    }
}

std::vector<std::vector<Ended>> run_at_once(const std::vector<Job>& jobs) {
    std::vector<std::future<std::vector<Ended>>> running;
    for (const Job& job : jobs) {
        running.push_back(std::async(std::launch::async, run_ranks, job));
    }
    std::vector<std::vector<Ended>> ended;
    for (auto& job : running) {
        ended.push_back(job.get());
    }
    return ended;
}

std::string unless_all_exit(const std::vector<Ended>& ranks, int exit_code) {
    std::string text;
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
        const Ended& end = ranks[rank];
        const bool waited =
            end.err.find("to hear which element type other ranks name") != std::string::npos;
        if (end.expired || end.exit_code != exit_code || waited) {
            text += "rank " + std::to_string(rank) +
                    (end.expired ? " did not end in time"
                     : waited    ? " was held up in vain"
                                 : " ended with " + std::to_string(end.exit_code)) +
                    "\n--- its stdout\n" + end.out.substr(0, 4000) + "--- its stderr\n" +
                    end.err.substr(0, 4000);
        }
    }
    return text;
}

TemporaryFolder::TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "slimwire-test-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) {
        throw std::runtime_error("mkdtemp " + name + ": " + std::strerror(errno));
    }
    path_ = name;
}

TemporaryFolder::~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
}

std::string read_file(const std::string& path) {
    std::ifstream stream(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
}

}  // namespace slimwire::test
