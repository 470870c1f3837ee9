// The files of saved states: how fast one is written beside the same bytes written plainly, by
// turns, both until they are on the disk; and how much memory `slimwire state convert` needs for
// what two ranks saved. Two JSON lines.
//   state_bench FOLDER SLIMWIRE [TENSORS [ELEMENTS [PAIRS]]]      (4 16777216 7)
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "collectives/state/residual_map.h"
#include "collectives/state/state_file.h"
#include "tools/cli/common/median.h"

namespace slimwire {
namespace {

using Clock = std::chrono::steady_clock;
using cli::median;
constexpr int kRanks = 2;

void check(bool good, const std::string& what) {
    if (!good) {
        std::fprintf(stderr, "state_bench: %s failed\n", what.c_str());
        std::exit(1);
    }
}

double seconds_since(Clock::time_point begin) {
    return std::chrono::duration<double>(Clock::now() - begin).count();
}

void save(const std::string& path, int rank, uint32_t tensors, const std::vector<float>& residual) {
    StateIndex index;
    index.launcher_rank = rank;
    index.launcher_size = kRanks;
    const uint64_t key = 100 + static_cast<uint64_t>(rank), elems = residual.size();
    index.comms.push_back({key, rank, kRanks, {}, 9, 0, {1}});
    const ResidualMap map{.contributors = kRanks,
                          .stored_elems = elems,
                          .elems = elems,
                          .runs = {{0, static_cast<int64_t>(elems), 0, 0, 0}}};
    const std::vector<std::byte> text = bytes_of(map);
    for (uint32_t i = 0; i < tensors; ++i) {
        const LastingTensor tensor{
            key, {Op::kAllReduce, DType::kFloat32, RedOp::kSum, 0, elems}, 6, i};
        index.tensors.push_back({tensor, 0, 4 * elems, StateKind::kResiduals});
        index.tensors.push_back({tensor, 0, text.size(), StateKind::kMap});
    }
    const auto* const bytes = reinterpret_cast<const std::byte*>(residual.data());
    // As SLIMWIRE_STATE does, from the host's memory.
    const Status status =
        write_state(path, index, {}, [&](size_t i) { return i % 2 == 0 ? bytes : text.data(); });
    check(status.ok(), status.message());
}

// As `dd bs=8M conv=fsync` does, into a file that is new, as a saving's is.
void write_plainly(const std::string& path, uint64_t bytes, const std::vector<float>& from) {
    const std::string fresh = path + ".new";
    const int file = ::open(fresh.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    constexpr uint64_t kBlock = 8 << 20;
    for (uint64_t at = 0; at < bytes; at += kBlock) {
        const uint64_t size = std::min({kBlock, bytes - at, 4 * from.size()});
        check(::write(file, from.data(), size) == static_cast<ssize_t>(size), "write");
    }
    check(::fsync(file) == 0 && ::close(file) == 0 && std::rename(fresh.c_str(), path.c_str()) == 0,
          "fsync");
}

// Bytes of memory that the command needs.
uint64_t memory_of(const std::vector<std::string>& command) {
    std::vector<char*> words;
    for (const std::string& word : command) {
        words.push_back(const_cast<char*>(word.c_str()));
    }
    words.push_back(nullptr);
    (void)std::fflush(stdout);
    const pid_t child = ::fork();
    if (child == 0) {
        (void)::dup2(::open("/dev/null", O_WRONLY | O_CLOEXEC), STDOUT_FILENO);
        ::execv(words[0], words.data());
        ::_exit(127);
    }
    int status = 0;
    rusage used{};
    check(::wait4(child, &status, 0, &used) == child && status == 0, command[0]);
    return static_cast<uint64_t>(used.ru_maxrss) << 10;
}

}  // namespace
}  // namespace slimwire

int main(int argc, char** argv) {
    using namespace slimwire;
    const auto number = [&](int i, uint64_t otherwise) {
        return argc > i ? std::strtoull(argv[i], nullptr, 10) : otherwise;
    };
    const auto tensors = static_cast<uint32_t>(number(3, 4));
    const uint64_t elems = number(4, 16 << 20), pairs = number(5, 7);
    check(argc > 2 && tensors > 0 && elems > 0 && pairs > 0,
          "FOLDER SLIMWIRE [TENSORS [ELEMENTS [PAIRS]]]");
    const std::string folder = std::string(argv[1]) + "/state_bench_" + std::to_string(getpid());
    std::filesystem::create_directories(folder + "/saved");
    std::vector<float> residual(elems);
    for (size_t i = 0; i < elems; ++i) {
        residual[i] = static_cast<float>(i % 1009) - 504;
    }
    const std::string path = folder + "/saved/state.";
    std::vector<double> saved, plain, ratios;
    uint64_t bytes = 0;
    for (uint64_t pair = 0; pair <= pairs; ++pair) {  // one to warm up
        auto begin = Clock::now();
        save(path + "0", 0, tensors, residual);
        const double save_s = seconds_since(begin);
        bytes = std::filesystem::file_size(path + "0");
        begin = Clock::now();
        write_plainly(folder + "/plain", bytes, residual);
        const double plain_s = seconds_since(begin);
        if (pair > 0) {
            saved.push_back(static_cast<double>(bytes) / save_s);
            plain.push_back(static_cast<double>(bytes) / plain_s);
            ratios.push_back(plain_s / save_s);
        }
    }
    std::printf(
        "{\"v\":1,\"record\":\"bench_state_write\",\"bytes\":%llu,\"pairs\":%llu,"
        "\"bytes_per_s\":%.0f,\"plain_bytes_per_s\":%.0f,\"of_plain\":%.3f}\n",
        static_cast<unsigned long long>(bytes), static_cast<unsigned long long>(pairs),
        median(saved), median(plain), median(ratios));
    std::filesystem::remove(folder + "/plain");
    save(path + "1", 1, tensors, residual);
    std::vector<float>().swap(residual);  // a child's memory begins with this process's
    const std::string cli = argv[2];
    const uint64_t base = memory_of({cli, "state", "--help"});
    const uint64_t all = memory_of(
        {cli, "state", "convert", folder + "/saved", "--ranks", "3", "--out", folder + "/new"});
    std::printf(
        "{\"v\":1,\"record\":\"bench_state_convert\",\"tensors\":%u,\"atom_bytes\":%llu,"
        "\"state_bytes\":%llu,\"memory_bytes\":%llu,\"of_which_idle\":%llu,\"of_atom\":%.3f}\n",
        tensors, static_cast<unsigned long long>(4 * elems),
        static_cast<unsigned long long>(kRanks * bytes), static_cast<unsigned long long>(all),
        static_cast<unsigned long long>(base),
        static_cast<double>(all - base) / static_cast<double>(4 * elems));
    std::filesystem::remove_all(folder);
    return 0;
}
