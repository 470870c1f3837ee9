// Two processes that exchange random messages over the library that ships, as NCCL's proxies would
// (proxy.h), and check every byte; run by ./soak.
//
//   plugin_net_soak [--seconds N] [--runs N] [--rounds N] [--seed N] [--flip 1]
//
// A run is two processes with SLIMWIRE_NET_* drawn from the seed; it plays rounds until the seconds
// (default 20) are over or the rounds are played. A round has connections of both directions. A
// connection has lives: it is opened, carries messages and is closed, in order or with requests in
// flight, then the next life begins on the same listener. --flip damages a message of each life,
// which must be noticed. The first failure is printed and ends the program with 1. Each process
// prints the library's records and one JSON object with what it received, and its resident memory
// after the first rounds and at the end, which may not grow by more than kGrowthKib.
#include <dlfcn.h>
#include <malloc.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <fstream>

#include "collectives/observe/report_source.h"
#include "tests/plugin/net/proxy.h"
#include "tests/support/seed.h"

namespace slimwire::net {
namespace {

constexpr uint64_t kWarmRounds = 5;
constexpr long kGrowthKib = 64 << 10;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;  // which keep freed memory
#else
constexpr bool kSanitized = false;
#endif

struct Options {
    double seconds = 20;
    uint64_t runs = 1, rounds = UINT64_MAX, seed = test_seed();
    bool flip = false;
};

uint64_t the_seed = 0;
int the_rank = 0, the_socket = -1;

[[noreturn]] void give_up(const std::string& what) {
    std::fprintf(stderr, "failed: rank %d: %s\n  repeat: --seed %llu\n", the_rank, what.c_str(),
                 static_cast<unsigned long long>(the_seed));
    _exit(1);
}

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

void require(ncclResult_t result, const char* call) {
    if (result != ncclSuccess) {
        give_up(std::string(call) + " gave " + std::to_string(result));
    }
}

// Numbers that both processes draw alike.
class Draws {
  public:
    explicit Draws(uint64_t seed) : random_(seed) {}
    uint64_t operator()(uint64_t least, uint64_t most) {
        return least + random_() % (most - least + 1);
    }
    template <class T, size_t N>
    const T& of(const T (&choices)[N]) {
        return choices[random_() % N];
    }

  private:
    std::mt19937_64 random_;
};

void set(const char* name, const std::string& value) {
    value.empty() ? unsetenv(name) : setenv(name, value.c_str(), 1);
}

// The network is the same for both, the rest is not.
void draw_settings() {
    Draws both(the_seed * 3);
    constexpr const char* kLinks[] = {"", "", "", "1gbit", "1gbit,2ms", "2500mbit,50us", "10gbit"};
    set("SLIMWIRE_NET_LINK", both.of(kLinks));
    set("UCX_TLS", both(0, 4) == 0 ? "posix,cma" : "");
    set("SLIMWIRE_SOCKET_IFNAME", "=lo");
    Draws own(the_seed * 3 + 1 + static_cast<uint64_t>(the_rank));
    const std::string codec = own(0, 9) == 0 ? "off" : "palette";
    set("SLIMWIRE_NET_CODEC", codec + (own(0, 9) == 0 ? "" : ",checksum"));
    constexpr const char* kThreads[] = {"", "1", "2", "4"};
    set("SLIMWIRE_NET_THREADS", own.of(kThreads));
    constexpr const char* kMinBytes[] = {"", "", "0", "5000", "200KiB"};
    set("SLIMWIRE_NET_MIN_BYTES", own.of(kMinBytes));
}

enum class End : uint8_t { kInOrder, kSenderLeaves, kReceiverLeaves };

struct Life {
    Traffic traffic;
    End end = End::kInOrder;
    int leave_after = 0;  // messages over at the side that leaves
};

struct Connection {
    int sender = 0;  // rank
    std::vector<Life> lives;
};

std::vector<Connection> plan_round(uint64_t seed, bool flip) {
    Draws draw(seed);
    std::vector<Connection> round(draw(2, 8));
    for (size_t i = 0; i < round.size(); ++i) {
        Connection& made = round[i];
        made.sender = static_cast<int>(i < 2 ? i : draw(0, 1));
        constexpr std::pair<size_t, int> kShapes[] = {
            {1 << 20, 8}, {1 << 20, 8}, {8 << 20, 3}, {128 << 10, 32}, {512 << 10, 16}};
        const auto [most_bytes, window] = draw.of(kShapes);
        made.lives.resize(draw(1, 4));
        for (Life& life : made.lives) {
            life.traffic = {.seed = static_cast<uint32_t>(draw(1, UINT32_MAX)),
                            .messages = static_cast<int>(draw(0, most_bytes > 1 << 20 ? 30 : 120)),
                            .most_bytes = most_bytes,
                            .window = window,
                            .damaged = flip ? 3 : -1};
            const uint64_t end = draw(0, 7);
            life.end = end == 0   ? End::kSenderLeaves
                       : end == 1 ? End::kReceiverLeaves
                                  : End::kInOrder;
            life.leave_after =
                static_cast<int>(draw(0, static_cast<uint64_t>(life.traffic.messages)));
        }
    }
    return round;
}

// What a process received; of all its threads.
struct Totals {
    std::atomic<uint64_t> connections{0}, cut_short{0}, messages{0};
};

// This process's end of one connection: `listen_comm` where it receives.
void live(InnerTable& net,
          void* context,
          const Connection& connection,
          void* listen_comm,
          const char* handle,
          Totals* totals) {
    const bool sends = connection.sender == the_rank;
    const End own = sends ? End::kSenderLeaves : End::kReceiverLeaves;
    for (const Life& life : connection.lives) {
        const Traffic& traffic = life.traffic;
        const bool leaves = life.end == own, is_left = life.end != own && life.end != End::kInOrder;
        alignas(16) char attempt[kNetHandleBytes];
        std::memcpy(attempt, handle, sizeof attempt);
        ncclResult_t result = ncclSuccess;
        void* const comm = sends ? connect_polling(net, context, attempt, &result)
                                 : accept_polling(net, listen_comm, &result);
        if (comm == nullptr) {
            // A peer that leaves at once may be gone before this side has seen its answer.
            const bool at_once = traffic.messages == 0 || (is_left && life.leave_after == 0);
            if (!sends || !at_once || result != ncclRemoteError) {
                give_up("no connection: result " + std::to_string(result));
            }
            continue;
        }
        // Now and then a proxy gets no processor.
        std::mt19937 pauses(traffic.seed + static_cast<uint32_t>(the_rank));
        const StopAt stop = [&](int over) {
            if (pauses() % 512 == 0) {
                std::this_thread::sleep_for(std::chrono::microseconds(pauses() % 20'000));
            }
            return leaves && over >= life.leave_after;
        };
        Outcome outcome;
        if (!leaves || life.leave_after > 0) {
            outcome = sends ? send_stream(net, comm, traffic, stop)
                            : receive_stream(net, comm, traffic, stop);
        }
        if (!outcome.what.empty() ||
            (outcome.result != ncclSuccess && !(is_left && outcome.result == ncclRemoteError))) {
            give_up(std::string(sends ? "sending" : "receiving") + ", message " +
                    std::to_string(outcome.messages) + " of " + std::to_string(traffic.messages) +
                    " of seed " + std::to_string(traffic.seed) + ": result " +
                    std::to_string(outcome.result) + " " + outcome.what);
        }
        require(sends ? net.close_send(comm) : net.close_recv(comm), "close");
        if (!sends) {
            ++totals->connections;
            totals->cut_short += outcome.messages < traffic.messages ? 1 : 0;
            totals->messages += static_cast<uint64_t>(outcome.messages);
        }
    }
}

void play(InnerTable& net, const std::vector<Connection>& round, Totals* totals) {
    void* context = nullptr;
    require(net.init(&context, 1, -1, log_to_stderr), "init");
    using Handle = std::array<char, kNetHandleBytes>;
    const size_t count = round.size();
    std::vector<Handle> own(count), others(count);
    std::vector<void*> listeners(count);
    for (size_t i = 0; i < count; ++i) {
        if (round[i].sender != the_rank) {
            require(net.listen(context, 0, own[i].data(), &listeners[i]), "listen");
        }
    }
    say(own.data(), count * sizeof(Handle));
    hear(others.data(), count * sizeof(Handle));
    std::vector<std::thread> threads;
    for (size_t i = 0; i < count; ++i) {
        threads.emplace_back(
            [&, i] { live(net, context, round[i], listeners[i], others[i].data(), totals); });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    // Nobody may be left without a peer before all of this is over.
    char over = 1;
    say(&over, 1);
    hear(&over, 1);
    for (void* listener : listeners) {
        if (listener != nullptr) {
            require(net.close_listen(listener), "close_listen");
        }
    }
    require(net.finalize(context), "finalize");
}

long resident_kib() {
    malloc_trim(0);
    std::ifstream file("/proc/self/statm");
    long total = 0, resident = 0;
    file >> total >> resident;
    return resident * (sysconf(_SC_PAGESIZE) / 1024);
}

void print_records() {
    void* const library = dlopen(SLIMWIRE_TEST_NET_PLUGIN, RTLD_LAZY | RTLD_NOLOAD);
    const auto report = reinterpret_cast<NetReportFunction>(dlsym(library, kNetReportSymbol));
    report(
        kNetReportRecords,
        [](void*, const char* text, size_t bytes) { std::fwrite(text, 1, bytes, stdout); },
        nullptr);
}

// One of the two processes. The first decides whether there is another round.
int run(const Options& options) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    draw_settings();
    auto opened = InnerTable::open(SLIMWIRE_TEST_NET_PLUGIN);
    if (!opened.ok()) {
        give_up(opened.status().message());
    }
    const auto begin = std::chrono::steady_clock::now();
    Draws rounds_of(the_seed);
    Totals totals;
    uint64_t rounds = 0;
    long begin_kib = 0;
    while (true) {
        const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begin;
        bool another = rounds < options.rounds && passed.count() < options.seconds;
        the_rank == 0 ? say(&another, 1) : hear(&another, 1);
        if (!another) {
            break;
        }
        begin_kib = rounds == kWarmRounds ? resident_kib() : begin_kib;
        play(*opened.value(), plan_round(rounds_of(0, UINT64_MAX - 1), options.flip), &totals);
        ++rounds;
    }
    const long end_kib = resident_kib();
    if (!kSanitized && rounds > kWarmRounds && end_kib > begin_kib + kGrowthKib) {
        give_up("the resident memory grew from " + std::to_string(begin_kib) + " to " +
                std::to_string(end_kib) + " KiB in " + std::to_string(rounds) + " rounds");
    }
    char turn = 0;
    if (the_rank == 1) {
        hear(&turn, 1);
    }
    print_records();
    std::printf(
        "{\"record\":\"soak\",\"seed\":%llu,\"rank\":%d,\"rounds\":%llu,\"connections\":%llu,"
        "\"cut_short\":%llu,\"messages\":%llu,\"resident_kib_begin\":%ld,\"resident_kib_end\":"
        "%ld}\n",
        static_cast<unsigned long long>(the_seed), the_rank,
        static_cast<unsigned long long>(rounds),
        static_cast<unsigned long long>(totals.connections),
        static_cast<unsigned long long>(totals.cut_short),
        static_cast<unsigned long long>(totals.messages), begin_kib, end_kib);
    std::fflush(stdout);
    if (the_rank == 0) {
        say(&turn, 1);
    }
    return 0;
}

// Two processes; whether both ended well.
bool run_both(const Options& options) {
    int sockets[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) != 0) {
        give_up("socketpair");
    }
    pid_t children[2];
    for (int rank = 0; rank < 2; ++rank) {
        children[rank] = fork();
        if (children[rank] == 0) {
            the_rank = rank;
            the_socket = sockets[rank];
            close(sockets[1 - rank]);
            std::exit(run(options));
        }
    }
    close(sockets[0]);
    close(sockets[1]);
    bool good = true;
    for (int ended = 0; ended < 2; ++ended) {
        int status = 0;
        wait(&status);
        if (status != 0 && good) {
            good = false;
            std::fprintf(stderr, "seed %llu: a process ended with %d\n",
                         static_cast<unsigned long long>(the_seed), status);
            kill(children[0], SIGKILL);
            kill(children[1], SIGKILL);
        }
    }
    return good;
}

Options read_options(int argc, char** argv) {
    Options options;
    for (int i = 1; i + 1 < argc; i += 2) {
        const std::string name = argv[i];
        const double number = std::strtod(argv[i + 1], nullptr);
        if (name == "--seconds") {
            options.seconds = number;
        } else if (name == "--flip") {
            options.flip = number != 0;
        } else {
            uint64_t& value = name == "--runs"     ? options.runs
                              : name == "--rounds" ? options.rounds
                                                   : options.seed;
            value = static_cast<uint64_t>(number);
        }
    }
    return options;
}

}  // namespace
}  // namespace slimwire::net

int main(int argc, char** argv) {
    using namespace slimwire::net;
    const Options options = read_options(argc, argv);
    // The C library keeps what is free of each thread's heap; one heap, and large blocks by
    // themselves, so that what is resident is what is in use.
    mallopt(M_ARENA_MAX, 1);
    mallopt(M_MMAP_THRESHOLD, 256 << 10);
    Draws seeds(options.seed);
    for (uint64_t number = 0; number < options.runs; ++number) {
        the_seed = number == 0 ? options.seed : seeds(1, UINT32_MAX);
        if (!run_both(options)) {
            return 1;
        }
    }
    return 0;
}
