// Two processes that exchange random messages over the net plugin's engine and the UCX wire, and
// check every byte; run by ../soak.
//
//   plugin_net_soak [--seconds N] [--rounds N] [--seed N] [--round N] [--flip 1 | --drop 1]
//
// Plays rounds (plan.h) until the seconds (default 20) are over or the rounds are played. --round
// begins at that round of the seed: "--seed S --round N --rounds 1" repeats one. --flip and --drop
// damage a data message of each connection, and must be noticed. The first failure
// is printed and ends the program with 1. The last line is one JSON object with what was carried,
// and the resident memory of both processes after the first rounds and at the end, which may not
// grow by more than kGrowthKib.
#include <malloc.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <thread>

#include "plugin/net/throttle.h"
#include "plugin/net/ucx/ucx_wire.h"
#include "tests/plugin/net/soak_parts/counting_wire.h"
#include "tests/plugin/net/soak_parts/lines.h"
#include "tests/support/seed.h"

namespace slimwire::net::soak {
namespace {

constexpr int kWarmRounds = 5;
constexpr long kGrowthKib = 64 << 10;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;  // which keep freed memory
#else
constexpr bool kSanitized = false;
#endif

uint64_t the_seed = 0, the_round = 0;
int the_rank = 0;
int the_socket = -1;

void say(const void* data, size_t bytes) {
    if (::send(the_socket, data, bytes, MSG_NOSIGNAL) != static_cast<ssize_t>(bytes)) {
        give_up("the other process is gone");
    }
}

void hear(void* data, size_t bytes) {
    if (::recv(the_socket, data, bytes, MSG_WAITALL) != static_cast<ssize_t>(bytes)) {
        give_up("the other process is gone");
    }
}

template <class T>
T hear() {
    T value{};
    hear(&value, sizeof value);
    return value;
}

void require(const Status& status) {
    if (!status.ok()) {
        give_up(status.message());
    }
}

long resident_kib() {
    malloc_trim(0);
    std::ifstream file("/proc/self/statm");
    long total = 0, resident = 0;
    file >> total >> resident;
    return resident * (sysconf(_SC_PAGESIZE) / 1024);
}

std::unique_ptr<Engine> open_engine(const RoundPlan& plan, Totals* totals) {
    Result<EngineSettings> settings = draw_settings(plan, the_rank);
    require(settings.status());
    UcxSettings ucx = read_ucx_settings();
    ucx.interfaces = "=lo";
    ucx.transports = plan.transports;
    Result<std::unique_ptr<Wire>> opened = open_ucx_wire(std::move(ucx));
    require(opened.status());
    std::unique_ptr<Wire> wire = std::move(opened).value();
    const EngineSettings& read = settings.value();
    if (read.rate_bytes_per_s > 0 || read.latency_ns > 0) {
        wire = make_throttled_wire(std::move(wire), read.rate_bytes_per_s, read.latency_ns);
    }
    return make_engine(std::make_unique<CountingWire>(std::move(wire), totals), read);
}

// What one thread does: its lines in turn, with pauses as a busy proxy has them.
void drive(std::vector<std::unique_ptr<Line>> lines, uint64_t seed) {
    std::mt19937_64 random(seed);
    while (!lines.empty()) {
        bool moved = false;
        for (const std::unique_ptr<Line>& line : lines) {
            moved = line->step() || moved;
        }
        std::erase_if(lines, [](const auto& line) { return line->over(); });
        if (random() % 512 == 0) {
            std::this_thread::sleep_for(std::chrono::microseconds(random() % 20'000));
        } else if (!moved) {
            std::this_thread::sleep_for(std::chrono::microseconds(random() % 4 * 20));
        }
    }
}

void play(const RoundPlan& plan, const Bytes& bytes, Totals* totals) {
    const std::unique_ptr<Engine> engine = open_engine(plan, totals);
    std::unique_ptr<Context> context;
    require(engine->open(plan.seed, -1, &context));

    using Handle = std::array<char, kNetHandleBytes>;
    const size_t count = plan.connections.size();
    std::vector<Handle> own(count), others(count);
    std::vector<std::unique_ptr<Listener>> listeners(count);
    for (size_t i = 0; i < count; ++i) {
        if (plan.connections[i].sender != the_rank) {
            require(context->listen(0, own[i].data(), &listeners[i]));
        }
    }
    say(own.data(), count * sizeof(Handle));
    hear(others.data(), count * sizeof(Handle));

    std::vector<std::vector<std::unique_ptr<Line>>> work(static_cast<size_t>(plan.threads));
    for (size_t i = 0; i < count; ++i) {
        const ConnectionPlan& each = plan.connections[i];
        std::unique_ptr<Line> line;
        if (each.sender == the_rank) {
            line = std::make_unique<SendLine>(each, bytes, totals, context.get(), others[i].data());
        } else {
            line = std::make_unique<ReceiveLine>(each, bytes, totals, std::move(listeners[i]));
        }
        work[static_cast<size_t>(each.thread)].push_back(std::move(line));
    }
    std::vector<std::thread> threads;
    for (size_t i = 0; i < work.size(); ++i) {
        threads.emplace_back(drive, std::move(work[i]),
                             draw(plan.seed, i, static_cast<uint64_t>(the_rank)));
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    // Nobody may be left without a peer before all of this is over.
    const char over = 1;
    say(&over, 1);
    static_cast<void>(hear<char>());
}

struct Options {
    double seconds = 20;
    uint64_t rounds = UINT64_MAX;
    uint64_t seed = 0;
    uint64_t first_round = 0;
};

// The first process decides whether there is another round, and tells the second.
bool another_round(bool wanted) {
    if (the_rank == 0) {
        say(&wanted, sizeof wanted);
        return wanted;
    }
    return hear<bool>();
}

struct Sums {
    uint64_t messages, bytes, lives, cut_short, sent, wire, large, coded;
    long begin_kib, end_kib;
};

Sums run(const Options& options, uint64_t* rounds) {
    const auto begin = std::chrono::steady_clock::now();
    const Bytes bytes;
    Totals totals;
    Sums sums{};
    for (*rounds = 0;; ++*rounds) {
        const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begin;
        if (!another_round(*rounds < options.rounds && passed.count() < options.seconds)) {
            break;
        }
        if (*rounds == kWarmRounds) {
            sums.begin_kib = resident_kib();
        }
        the_round = options.first_round + *rounds;
        play(plan_round(draw(the_seed, the_round)), bytes, &totals);
    }
    sums.end_kib = resident_kib();
    sums = {totals.messages,       totals.bytes,          totals.lives,
            totals.cut_short,      totals.sent_bytes,     totals.data_wire_bytes,
            totals.large_messages, totals.coded_messages, sums.begin_kib,
            sums.end_kib};
    if (!kSanitized && *rounds > kWarmRounds && sums.end_kib > sums.begin_kib + kGrowthKib) {
        give_up("the resident memory grew from " + std::to_string(sums.begin_kib) + " to " +
                std::to_string(sums.end_kib) + " KiB in " + std::to_string(*rounds) + " rounds");
    }
    return sums;
}

int first_process(const Options& options, pid_t child) {
    uint64_t rounds = 0;
    const auto begin = std::chrono::steady_clock::now();
    const Sums own = run(options, &rounds);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    const Sums other = hear<Sums>();
    int status = 0;
    waitpid(child, &status, 0);
    if (status != 0) {
        give_up("the other process ended with " + std::to_string(status));
    }
    const auto share = [](uint64_t part, uint64_t whole) {
        return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 0.0;
    };
    std::printf(
        "{\"seed\":%llu,\"rounds\":%llu,\"connections\":%llu,\"cut_short\":%llu,\"messages\":%llu,"
        "\"bytes\":%llu,\"coded_share\":%.3f,\"wire_share\":%.3f,\"seconds\":%.1f,"
        "\"resident_kib_begin\":[%ld,%ld],\"resident_kib_end\":[%ld,%ld]}\n",
        static_cast<unsigned long long>(the_seed), static_cast<unsigned long long>(rounds),
        static_cast<unsigned long long>(own.lives + other.lives),
        static_cast<unsigned long long>(own.cut_short + other.cut_short),
        static_cast<unsigned long long>(own.messages + other.messages),
        static_cast<unsigned long long>(own.bytes + other.bytes),
        share(own.coded + other.coded, own.large + other.large),
        share(own.wire + other.wire, own.sent + other.sent), seconds.count(), own.begin_kib,
        other.begin_kib, own.end_kib, other.end_kib);
    return 0;
}

// A failure of the second process ends the first.
void on_child(int, siginfo_t* info, void*) {
    if (info->si_code != CLD_EXITED || info->si_status != 0) {
        _exit(1);
    }
}

int second_process(const Options& options) {
    uint64_t rounds = 0;
    const Sums own = run(options, &rounds);
    say(&own, sizeof own);
    return 0;
}

[[noreturn]] void refuse(const char* argument) {
    std::fprintf(
        stderr,
        "soak: bad argument '%s'; accepted: --seconds --rounds --seed --round --flip --drop\n",
        argument);
    std::exit(2);
}

Options read_options(int argc, char** argv) {
    Options options;
    options.seed = test_seed();
    for (int i = 1; i < argc; i += 2) {
        const std::string name = argv[i];
        char* end = nullptr;
        const double number = i + 1 < argc ? std::strtod(argv[i + 1], &end) : -1;
        if (end == nullptr || *end != 0 || end == argv[i + 1] || number < 0) {
            refuse(argv[i]);
        }
        if (name == "--seconds") {
            options.seconds = number;
        } else if (name == "--rounds") {
            options.rounds = static_cast<uint64_t>(number);
        } else if (name == "--seed") {
            options.seed = static_cast<uint64_t>(number);
        } else if (name == "--round") {
            options.first_round = static_cast<uint64_t>(number);
        } else if (name == "--flip" || name == "--drop") {
            the_damage = name == "--flip" ? Damage::kFlip : Damage::kDrop;
        } else {
            refuse(argv[i]);
        }
    }
    return options;
}

}  // namespace

void give_up(const std::string& what) {
    std::fprintf(stderr, "failed: rank %d: %s\n  repeat: --seed %llu --round %llu --rounds 1\n",
                 the_rank, what.c_str(), static_cast<unsigned long long>(the_seed),
                 static_cast<unsigned long long>(the_round));
    std::fflush(stderr);
    _exit(1);
}

}  // namespace slimwire::net::soak

int main(int argc, char** argv) {
    using namespace slimwire::net::soak;
    const auto options = read_options(argc, argv);
    the_seed = options.seed;
    std::printf("seed %llu\n", static_cast<unsigned long long>(the_seed));
    std::fflush(stdout);
    // The C library keeps what is free of each thread's heap; one heap, and large blocks by
    // themselves, so that what is resident is what is in use.
    mallopt(M_ARENA_MAX, 1);
    mallopt(M_MMAP_THRESHOLD, 256 << 10);
    int sockets[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) != 0) {
        std::perror("soak: socketpair");
        return 1;
    }
    struct sigaction action {};
    action.sa_sigaction = on_child;
    action.sa_flags = SA_SIGINFO | SA_RESTART | SA_NOCLDSTOP;
    sigaction(SIGCHLD, &action, nullptr);
    const pid_t child = fork();
    if (child < 0) {
        std::perror("soak: fork");
        return 1;
    }
    the_rank = child == 0 ? 1 : 0;
    the_socket = sockets[the_rank];
    close(sockets[1 - the_rank]);
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        return second_process(options);
    }
    return first_process(options, child);
}
