// What a hook costs a process that never uses NCCL: starts a command with and without it in turn
// and prints the median of the paired differences as one JSON line: of the time, and of processor
// time, which other load hardly changes.
//   startup_bench [--audit] LIBRARY [PAIRS [COMMAND]]      (200 pairs of /bin/true)
// LIBRARY becomes LD_PRELOAD (several with colons between them), with --audit LD_AUDIT.
#include <spawn.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace {

// In microseconds, of one process from its start to its end; negative when it failed.
struct Took {
    double us = -1;
    double cpu_us = -1;
};

double us_of(const timeval& time) {
    return 1e6 * static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec);
}

// `hook` is a variable with its value; empty: none.
Took run(const char* command, const std::string& hook) {
    std::string path = "PATH=/usr/bin:/bin";
    std::string library = hook;
    char* const arguments[] = {const_cast<char*>(command), nullptr};
    char* const with[] = {path.data(), library.data(), nullptr};
    char* const without[] = {path.data(), nullptr};
    const auto begin = std::chrono::steady_clock::now();
    pid_t pid = 0;
    int status = 0;
    rusage used{};
    if (posix_spawn(&pid, command, nullptr, nullptr, arguments, hook.empty() ? without : with) !=
            0 ||
        wait4(pid, &status, 0, &used) != pid || status != 0) {
        return {};
    }
    const std::chrono::duration<double, std::micro> time = std::chrono::steady_clock::now() - begin;
    return {time.count(), us_of(used.ru_utime) + us_of(used.ru_stime)};
}

double quantile(std::vector<double> values, double q) {
    const auto at = static_cast<size_t>(q * static_cast<double>(values.size() - 1));
    std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(at),
                     values.end());
    return values[at];
}

// File names of a list of paths.
std::string names_of(const std::string& paths) {
    std::string names;
    for (size_t begin = 0, end = 0; end < paths.size(); begin = end + 1) {
        end = std::min(paths.find(':', begin), paths.size());
        const size_t slash = paths.rfind('/', end);
        const size_t name = slash == std::string::npos || slash < begin ? begin : slash + 1;
        names.append(names.empty() ? "" : ":").append(paths, name, end - name);
    }
    return names;
}

}  // namespace

int main(int argc, char** argv) {
    const bool audit = argc > 1 && std::strcmp(argv[1], "--audit") == 0;
    argv += audit ? 1 : 0;
    argc -= audit ? 1 : 0;
    if (argc < 2) {
        std::fprintf(stderr, "usage: startup_bench [--audit] LIBRARY [PAIRS [COMMAND]]\n");
        return 2;
    }
    const char* variable = audit ? "LD_AUDIT" : "LD_PRELOAD";
    const std::string library = std::string(variable) + "=" + argv[1];
    const int pairs = argc > 2 ? std::max(1, std::atoi(argv[2])) : 200;
    const char* command = argc > 3 ? argv[3] : "/bin/true";
    std::vector<double> plain, differences, plain_cpu, cpu_differences;
    for (int pair = -5; pair < pairs; ++pair) {
        // The order within a pair alternates, so that what the first of two pays falls on both.
        const bool first = pair % 2 == 0;
        Took hooked, bare;
        for (const bool hook : {first, !first}) {
            (hook ? hooked : bare) = run(command, hook ? library : "");
        }
        if (hooked.us < 0 || bare.us < 0) {
            std::fprintf(stderr, "startup_bench: '%s' failed\n", command);
            return 1;
        }
        if (pair >= 0) {  // the first five bring files into memory
            plain.push_back(bare.us);
            differences.push_back(hooked.us - bare.us);
            plain_cpu.push_back(bare.cpu_us);
            cpu_differences.push_back(hooked.cpu_us - bare.cpu_us);
        }
    }
    std::printf(
        "{\"v\":1,\"record\":\"bench_startup\",\"hook\":\"%s\",\"libraries\":\"%s\",\"command\":\"%"
        "s\","
        "\"pairs\":%d,\"plain_us\":%.1f,"
        "\"added_p50_us\":%.1f,\"added_p25_us\":%.1f,\"added_p75_us\":%.1f,"
        "\"plain_cpu_us\":%.1f,\"added_cpu_us\":%.1f}\n",
        variable, names_of(argv[1]).c_str(), command, pairs, quantile(plain, 0.5),
        quantile(differences, 0.5), quantile(differences, 0.25), quantile(differences, 0.75),
        quantile(plain_cpu, 0.5), quantile(cpu_differences, 0.5));
    return 0;
}
