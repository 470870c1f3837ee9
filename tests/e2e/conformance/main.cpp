// An ordinary NCCL program: random calls from a printed seed, every result compared with float64
// and between ranks. It knows nothing of slimwire; told about codecs (the options of rules.h, like
// --codec SPEC --min-bytes N) it grants the calls that a codec may take its error and nothing else.
// --series N: among them N series of calls on the same tensors, in which nothing may get lost
// (series.h). One rank a process (the launcher's RANK, WORLD_SIZE, TEST_FOLDER), or --threads N: N
// devices of one process, a thread each, or --devices N: one thread for all of them. With
// --own-ways 1 each rank makes its calls in a way of its own (player.h), from buffers of a kind of
// its own, but not those of one thread; with more, so many times, like the steps of a job, whatever
// their values are; with --graphs-alike 1 all ranks capture the same calls.
// Ends with 0, or with 3 (CUDA), 4 (NCCL), 5 (wrong result). The last line of rank 0 is "digest HEX
// calls N": equal for equal arguments.
#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "tests/e2e/conformance/series.h"
#include "tests/e2e/conformance/together.h"
#include "tests/support/nccl_program.h"

namespace conformance {
namespace {

struct Options {
    uint64_t seed = 1;
    uint64_t calls = 1000;
    uint64_t series = 0;
    int threads = 0, devices = 0;
    uint64_t own_ways = 0;      // passes in which each rank makes the calls in its own way
    bool graphs_alike = false;  // of them a graph is one on all ranks
    Rules rules;
    Weights weights;
    [[nodiscard]] size_t arena_elems() const {
        return std::max(weights.max_count, series > 0 ? kSeriesArenaElems : 0);
    }
};

Options parse(int argc, char** argv) {
    Options options;
    for (int i = 1; i + 1 < argc; i += 2) {
        const std::string name = argv[i];
        const uint64_t value = std::strtoull(argv[i + 1], nullptr, 10);
        if (name == "--seed") {
            options.seed = value;
        } else if (name == "--calls") {
            options.calls = value;
        } else if (name == "--series") {
            options.series = value;
        } else if (name == "--threads") {
            options.threads = static_cast<int>(value);
        } else if (name == "--devices") {
            options.devices = static_cast<int>(value);
        } else if (name == "--max-count") {
            options.weights.max_count = value;
        } else if (name == "--min-count") {
            options.weights.min_count = value;
        } else if (name == "--compressible") {
            options.weights.compressible_percent = static_cast<int>(value);
        } else if (name == "--own-ways") {
            options.own_ways = value;
        } else if (name == "--graphs-alike") {
            options.graphs_alike = value != 0;
        } else if (name == "--alike") {
            options.weights.alike = value != 0;
        } else if (name == "--all-reduces") {
            options.weights.all_reduce_percent = static_cast<int>(value);
        } else if (!options.rules.take(name, argv[i + 1])) {
            std::fprintf(stderr, "unknown option '%s'\n", name.c_str());
            std::exit(2);
        }
    }
    return options;
}

// Draws and plays until there were enough calls; returns how many.
template <class PlayBatch, class PlayTraffic, class PlaySeries, class Compare>
uint64_t play_all(const Options& options,
                  int ranks,
                  const PlayBatch& play_batch,
                  const PlayTraffic& play_traffic,
                  const PlaySeries& play_series,
                  const Compare& compare) {
    constexpr uint64_t kCompareEvery = 50;
    Chance chance(options.seed);
    uint64_t calls = 0, batches = 0;
    SeriesDrawer drawer(options.rules, ranks);
    while (calls < options.calls || drawer.drawn() < options.series) {
        if (drawer.drawn() < options.series) {
            const Series series = drawer.draw(chance);
            play_series(series, batches);
            calls += series.calls();
        }
        if (chance.below(3) == 0) {
            const Traffic traffic = draw_traffic(chance, options.weights, ranks);
            play_traffic(traffic, batches);
            calls += traffic.messages.size() + traffic.batch.calls.size();
        }
        const Batch batch = draw_batch(chance, options.weights, ranks);
        play_batch(batch, batches);
        calls += batch.calls.size() * (batch.repeat ? 2 : 1);
        if (++batches % kCompareEvery == 0) {
            compare(batches);
        }
    }
    compare(batches);
    return calls;
}

void print_digest(uint64_t digest, uint64_t calls) {
    std::printf("digest %016" PRIx64 " calls %" PRIu64 "\n", digest, calls);
}

void play_rank(const Options& options, int device, int rank, int ranks, ncclComm_t world) {
    CHECK_CUDA(cudaSetDevice(device));
    std::vector<ncclComm_t> splits;
    split_worlds({world}, &splits);
    const uint64_t own = options.seed * static_cast<uint64_t>(ranks) + static_cast<uint64_t>(rank);
    OwnWays ways{Chance(own), Chance(options.graphs_alike ? options.seed : own + 1),
                 options.own_ways < 2};
    const bool pinned = options.own_ways > 0 && ways.own.below(2) == 0;
    Player player(device, world, splits[0], options.rules, options.arena_elems(), pinned);
    Messenger messenger(&player, options.rules, options.weights);
    const auto pass = [&] {
        return play_all(
            options, ranks,
            [&](const Batch& batch, uint64_t number) {
                if (options.own_ways > 0) {
                    player.play_own_way(batch, number, &ways);
                } else {
                    player.play(batch, number);
                }
            },
            [&](const Traffic& traffic, uint64_t number) {
                messenger.play(traffic, number, ways.judged);
            },
            [&](const Series& series, uint64_t number) {
                SeriesJudge judge(series, options.rules);
                for (size_t step = 0; step < series.steps.size(); ++step) {
                    player.play(series.steps[step], number, judge.of_step(step));
                }
            },
            [&](uint64_t number) { player.compare_digests(number); });
    };
    uint64_t calls = pass();
    for (uint64_t more = 1; more < options.own_ways; ++more) {
        calls += pass();
    }
    if (rank == 0) {
        print_digest(player.own_digest(), calls);
    }
}

void play_together(const Options& options, const std::vector<ncclComm_t>& worlds) {
    Together together(worlds, options.rules, options.weights, options.arena_elems(),
                      options.own_ways < 2);
    const auto play = [&](const auto& what, uint64_t number) { together.play(what, number); };
    uint64_t calls = 0;
    for (uint64_t pass = 0; pass < std::max<uint64_t>(options.own_ways, 1); ++pass) {
        calls += play_all(options, options.devices, play, play, play,
                          [&](uint64_t number) { together.compare_digests(number); });
    }
    print_digest(together.own_digest(), calls);
}

int run(const Options& options) {
    if (options.threads == 0 && options.devices == 0) {
        const int rank = slimwire::test::launcher_rank();
        const int ranks = slimwire::test::launcher_ranks();
        if (rank == 0) {
            std::printf("seed %" PRIu64 "\n", options.seed);
        }
        CHECK_CUDA(cudaSetDevice(0));
        ncclComm_t world = nullptr;
        const ncclUniqueId id = slimwire::test::exchange_id(rank);
        CHECK_NCCL(ncclCommInitRank(&world, ranks, id, rank));
        play_rank(options, 0, rank, ranks, world);
        CHECK_NCCL(ncclCommDestroy(world));
        return 0;
    }
    std::printf("seed %" PRIu64 "\n", options.seed);
    const int devices = std::max(options.threads, options.devices);
    std::vector<ncclComm_t> worlds(static_cast<size_t>(devices));
    CHECK_NCCL(ncclCommInitAll(worlds.data(), devices, nullptr));
    if (options.devices > 0) {
        play_together(options, worlds);
    }
    std::vector<std::thread> threads;
    for (int rank = 0; rank < options.threads; ++rank) {
        threads.emplace_back([&, rank] {
            play_rank(options, rank, rank, options.threads, worlds[static_cast<size_t>(rank)]);
        });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    for (ncclComm_t world : worlds) {
        CHECK_NCCL(ncclCommDestroy(world));
    }
    return 0;
}

}  // namespace
}  // namespace conformance

int main(int argc, char** argv) {
    return conformance::run(conformance::parse(argc, argv));
}
