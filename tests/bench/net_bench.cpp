// The net plugin's parts between two processes over loopback, beside a plain TCP socket pair in the
// same run, in turn. Prints one JSON line a point.
//
//   net_bench bandwidth [--bytes 1048576] [--messages 64] [--pairs 31]
//   net_bench latency [--bytes 8] [--messages 2000] [--pairs 31]
//   net_bench goodput [--bytes 1048576] [--messages 24] [--pairs 31] [--rate BITS] [--data FILE]
//
// goodput: the engine with its codec against the engine without, at a rate in bits a second
// (default: as fast as loopback is), of messages cut from FILE, a .npy of fp32 taken as bf16
// (default: random bytes); the baseline is the engine without its codec.
//
// Ratios are medians over the pairs, each of the two taken one after the other; `low` and `high`
// are the median's 95 % interval. Latency is half a round trip, against a pair of sockets with one
// a direction, as NCCL's connections are; beside it stands what ucx_perftest finds, where it is
// installed, which answers on the connection it was asked on.
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>

#include "tests/bench/net_contestants.h"

namespace slimwire::bench {
namespace {

struct Game {
    std::string mode;
    size_t bytes = 0;
    int messages = 0;
    int pairs = 31;
    double rate_bits_per_s = 0;
    std::string data;

    [[nodiscard]] bool latency() const { return mode == "latency"; }
    [[nodiscard]] bool goodput() const { return mode == "goodput"; }
};

// The upper halves of the fp32 values behind the header of a .npy, repeated; random without a file.
std::vector<char> make_data(const Game& game) {
    std::vector<char> data(game.bytes * kWindow);
    std::mt19937_64 random(1);
    for (char& byte : data) {
        byte = static_cast<char>(random());
    }
    if (game.data.empty()) {
        return data;
    }
    std::ifstream file(game.data, std::ios::binary);
    const std::string all{std::istreambuf_iterator<char>(file), {}};
    const size_t header = 10 + (all.size() < 10 ? 0
                                                : static_cast<unsigned char>(all[8]) +
                                                      256u * static_cast<unsigned char>(all[9]));
    if (all.rfind("\x93NUMPY", 0) != 0 || all.size() < header + 4) {
        give_up("--data " + game.data +
                ": no .npy of fp32 values; tests/bench/make_data makes some");
    }
    const size_t values = (all.size() - header) / 4;
    for (size_t i = 0; i < data.size() / 2; ++i) {
        std::copy_n(&all[header + i % values * 4 + 2], 2, &data[2 * i]);
    }
    return data;
}

struct Median {
    double value, low, high;
};

// With the interval that covers the median of the distribution in 95 % of the cases, by the order
// of the samples (binomial, normal approximation).
Median median_of(std::vector<double> samples) {
    std::sort(samples.begin(), samples.end());
    const auto n = static_cast<double>(samples.size());
    const double half = 1.96 * std::sqrt(n) / 2;
    const auto at = [&](double place) {
        const double last = n - 1;
        return samples[static_cast<size_t>(std::clamp(place, 0.0, last))];
    };
    return {at(n / 2), at(std::floor(n / 2 - half)), at(std::ceil(n / 2 + half))};
}

// One turn: bytes a second, or the median seconds of half a round trip.
double play(
    Contestant& contestant, const Game& game, const Channel& channel, bool first, char* data) {
    std::vector<double> seconds;
    channel.meet();
    const double begin = now_s();
    if (!game.latency()) {
        contestant.stream(first, data, game.bytes, game.messages);
        channel.meet();
        return static_cast<double>(game.bytes) * game.messages / (now_s() - begin);
    }
    contestant.ping_pong(first, data, game.bytes, game.messages, &seconds);
    return median_of(seconds).value / 2;
}

void run(const Game& game, const Channel& channel, bool first) {
    std::vector<std::unique_ptr<Contestant>> contestants;
    const double rate = game.rate_bits_per_s / 8;
    if (!game.goodput()) {
        contestants.push_back(make_sockets(channel, first, game.latency()));
        contestants.push_back(make_ucx_wire(channel, first));
    }
    contestants.push_back(make_engine_contestant(channel, first, false, rate));
    if (game.goodput()) {
        contestants.push_back(make_engine_contestant(channel, first, true, rate));
    }
    std::vector<char> data = make_data(game);
    std::vector<std::vector<double>> results(contestants.size());
    for (int pair = -2; pair < game.pairs; ++pair) {  // two to warm up
        for (size_t i = 0; i < contestants.size(); ++i) {
            const double result = play(*contestants[i], game, channel, first, data.data());
            if (pair >= 0) {
                results[i].push_back(result);
            }
        }
    }
    if (!first) {
        return;
    }
    const double tool_us =
        game.latency() ? ucx_perftest_latency_us(game.bytes, game.messages * 10) : 0;
    for (size_t i = 0; i < contestants.size(); ++i) {
        std::vector<double> ratios;
        for (size_t k = 0; k < results[i].size(); ++k) {
            ratios.push_back(results[i][k] / results[0][k]);
        }
        const Median ratio = median_of(ratios);
        const double value = median_of(results[i]).value;
        printf("{\"v\":1,\"case\":\"net_%s\",\"way\":\"%s\",\"bytes\":%zu,\"pairs\":%d,",
               game.mode.c_str(), contestants[i]->name().c_str(), game.bytes, game.pairs);
        if (game.goodput()) {
            printf("\"rate_gbit\":%g,\"data\":\"%s\",", game.rate_bits_per_s / 1e9,
                   game.data.empty() ? "random"
                                     : std::filesystem::path(game.data).stem().string().c_str());
        }
        if (!game.latency()) {
            printf("\"mb_per_s\":%.1f,", value / 1e6);
        } else {
            printf("\"half_round_trip_us\":%.3f,", value * 1e6);
        }
        printf("\"to_%s\":%.4f,\"low\":%.4f,\"high\":%.4f",
               game.goodput() ? "codec_off" : "sockets", ratio.value, ratio.low, ratio.high);
        if (tool_us > 0 && i > 0) {
            printf(",\"ucx_perftest_us\":%.3f,\"to_ucx_perftest\":%.4f", tool_us,
                   value * 1e6 / tool_us);
        }
        printf("}\n");
    }
    fflush(stdout);
}

int usage() {
    fprintf(stderr,
            "usage: net_bench bandwidth|latency|goodput [--bytes N] [--messages N] [--pairs N]\n"
            "       goodput also [--rate BITS_PER_SECOND] [--data FILE.npy]\n");
    return 2;
}

int main(int argc, char** argv) {
    Game game;
    game.mode = argc > 1 ? argv[1] : "";
    if (game.mode != "bandwidth" && !game.latency() && !game.goodput()) {
        return usage();
    }
    game.bytes = game.latency() ? 8 : 1 << 20;
    game.messages = game.latency() ? 2000 : game.goodput() ? 24 : 64;
    for (int i = 2; i < argc; i += 2) {
        const std::string name = argv[i];
        if (name == "--data" && game.goodput() && i + 1 < argc) {
            game.data = argv[i + 1];
            continue;
        }
        const long value = i + 1 < argc ? std::atol(argv[i + 1]) : 0;
        if (value <= 0) {
            return usage();
        }
        if (name == "--bytes") {
            game.bytes = static_cast<size_t>(value);
        } else if (name == "--messages") {
            game.messages = static_cast<int>(value);
        } else if (name == "--pairs") {
            game.pairs = static_cast<int>(value);
        } else if (name == "--rate" && game.goodput()) {
            game.rate_bits_per_s = static_cast<double>(value);
        } else {
            return usage();
        }
    }
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) {
        give_up("socketpair");
    }
    const pid_t child = fork();  // before any thread
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(ends[0]);
        run(game, Channel(ends[1]), false);
        return 0;
    }
    close(ends[1]);
    run(game, Channel(ends[0]), true);
    return 0;
}

}  // namespace
}  // namespace slimwire::bench

int main(int argc, char** argv) {
    return slimwire::bench::main(argc, argv);
}
