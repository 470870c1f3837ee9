// How well the emulator keeps the rate of its shaped links: send/recv of two ranks and ring
// all-reduce of four, each rank a process and a node. Prints one JSON line a point: `ratio` is the
// achieved share of the set rate (send_recv), or of the ring's ideal 2 (N-1)/N bytes / rate
// (all_reduce). The committed figures under tests/bench/results come from
//   tests/bench/measure link
// on an idle machine; `--bytes` and `--rates` (mbit/s, by comma) choose other points.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <sstream>
#include <vector>

#include "tests/support/nccl_program.h"
#include "tests/support/ranks.h"

namespace {

using slimwire::test::Job;

double seconds_since(std::chrono::steady_clock::time_point start) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// One rank: repeats the operation and prints the median time in seconds.
int work(const std::string& operation, size_t bytes, int repeats) {
    const int rank = slimwire::test::launcher_rank();
    const int ranks = slimwire::test::launcher_ranks();
    ncclComm_t comm = nullptr;
    cudaStream_t stream = nullptr;
    float* data = nullptr;
    const ncclUniqueId id = slimwire::test::exchange_id(rank);
    CHECK_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CHECK_CUDA(cudaMalloc(reinterpret_cast<void**>(&data), bytes));
    CHECK_CUDA(cudaMemset(data, 0, bytes));
    CHECK_CUDA(cudaDeviceSynchronize());
    CHECK_NCCL(ncclCommInitRank(&comm, ranks, id, rank));
    const size_t count = bytes / sizeof(float);
    const auto run = [&](size_t elems) {
        if (operation == "all_reduce") {
            CHECK_NCCL(ncclAllReduce(data, data, elems, ncclFloat32, ncclSum, comm, stream));
        } else if (rank == 0) {
            CHECK_NCCL(ncclSend(data, elems, ncclFloat32, 1, comm, stream));
        } else {
            CHECK_NCCL(ncclRecv(data, elems, ncclFloat32, 0, comm, stream));
        }
    };
    run(std::min<size_t>(count, 1024));  // connects
    CHECK_CUDA(cudaStreamSynchronize(stream));
    std::vector<double> times;
    for (int i = 0; i < repeats; ++i) {
        slimwire::test::barrier("round" + std::to_string(i), rank, ranks);
        const auto start = std::chrono::steady_clock::now();
        run(count);
        CHECK_CUDA(cudaStreamSynchronize(stream));
        times.push_back(seconds_since(start));
    }
    std::sort(times.begin(), times.end());
    std::printf("%.9f\n", times[times.size() / 2]);
    CHECK_NCCL(ncclCommDestroy(comm));
    return 0;
}

// Runs one point and prints its line. Returns the ratio; 0 when a rank failed.
double measure(const std::string& self,
               const std::string& operation,
               int ranks,
               double mbit,
               size_t bytes,
               int repeats) {
    Job job;
    job.command = {self, "--worker", operation, std::to_string(bytes), std::to_string(repeats)};
    job.ranks = ranks;
    job.limit_s = 300;
    if (mbit > 0) {
        job.environment["SLIMWIRE_EMU_LINK"] = std::to_string(mbit) + "mbit";
    }
    const auto ended = slimwire::test::run_ranks(job);
    const std::string trouble = slimwire::test::unless_all_exit(ended);
    if (!trouble.empty()) {
        std::fprintf(stderr, "%s\n", trouble.c_str());
        return 0;
    }
    // The rank that left the barrier first saw the whole time.
    double seconds = 0;
    for (const auto& rank : ended) {
        seconds = std::max(seconds, std::atof(rank.out.c_str()));
    }
    const double factor = operation == "all_reduce" ? 2.0 * (ranks - 1) / ranks : 1.0;
    const double ideal = mbit > 0 ? static_cast<double>(bytes) * 8 * factor / (mbit * 1e6) : 0;
    std::printf(
        "{\"v\":1,\"case\":\"%s\",\"ranks\":%d,\"link_mbit\":%g,\"bytes\":%zu,"
        "\"time_us\":%.1f,\"ideal_us\":%.1f,\"achieved_mbit\":%.1f,\"ratio\":%.4f}\n",
        operation.c_str(), ranks, mbit, bytes, seconds * 1e6, ideal * 1e6,
        static_cast<double>(bytes) * 8 * factor / seconds / 1e6, ideal / seconds);
    std::fflush(stdout);
    return ideal / seconds;
}

}  // namespace

int main(int argc, char** argv) {
    const std::vector<std::string> arguments(argv, argv + argc);
    if (argc == 5 && arguments[1] == "--worker") {
        return work(arguments[2], std::stoul(arguments[3]), std::stoi(arguments[4]));
    }
    size_t bytes = size_t{64} << 20;
    int repeats = 3;
    double at_least = 0;
    std::string rates = "100,200,500,1000,2000,5000";
    std::string ring_rates = "1000,2000";
    for (int i = 1; i + 1 < argc; i += 2) {
        const std::string& value = arguments[static_cast<size_t>(i) + 1];
        if (arguments[static_cast<size_t>(i)] == "--bytes") {
            bytes = std::stoul(value);
        } else if (arguments[static_cast<size_t>(i)] == "--rates") {
            rates = value;
        } else if (arguments[static_cast<size_t>(i)] == "--ring-rates") {
            ring_rates = value;
        } else if (arguments[static_cast<size_t>(i)] == "--repeats") {
            repeats = std::stoi(value);
        } else if (arguments[static_cast<size_t>(i)] == "--at-least") {
            at_least = std::stod(value);
        } else {
            std::fprintf(stderr,
                         "usage: %s [--bytes N] [--rates MBIT,..] [--ring-rates MBIT,..] "
                         "[--repeats N] [--at-least RATIO]\n",
                         argv[0]);
            return 2;
        }
    }
    char self[4096] = {};
    if (readlink("/proc/self/exe", self, sizeof self - 1) <= 0) {
        return 2;
    }
    bool good = true;
    for (const auto& [operation, list] :
         {std::pair<std::string, std::string>{"send_recv", rates}, {"all_reduce", ring_rates}}) {
        std::istringstream stream(list);
        for (std::string rate; std::getline(stream, rate, ',');) {
            const int ranks = operation == "all_reduce" ? 4 : 2;
            // A machine that is busy with something else makes a link slow, but never fast: a ratio
            // above one would mean that it let too much through.
            double ratio = 0;
            for (int look = 0; look < 5 && good && (look == 0 || ratio < at_least); ++look) {
                ratio = measure(self, operation, ranks, std::stod(rate), bytes, repeats);
                good = ratio > 0 && ratio <= 1.02;
            }
            good = good && ratio >= at_least;
        }
    }
    return good ? 0 : 1;
}
