// An ordinary NCCL program: random calls from a printed seed, every result compared with float64
// and between ranks. It knows nothing of slimwire; told about a codec (--codec NAME --block N
// --min-bytes N) it grants the calls that codec may take its error and nothing else. One rank a
// process (the launcher's RANK, WORLD_SIZE, TEST_FOLDER), or --threads N: N devices of one process,
// a thread each. Ends with 0, or with 3 (CUDA), 4 (NCCL), 5 (wrong result). The last line of rank 0
// is "digest HEX calls N": equal for equal arguments.
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "tests/e2e/conformance/messages.h"
#include "tests/support/nccl_program.h"

namespace conformance {
namespace {

struct Options {
    uint64_t seed = 1;
    uint64_t calls = 1000;
    int threads = 0;
    Codec codec;
    Weights weights;
};

// Relative error of a code: half a step, or a whole one when rounded stochastically, the scale
// being rounded up to bf16 (2^-7). A rotation of 64 elements may grow its largest by as much.
void set_codec(const std::string& name, Codec* codec) {
    const double up = (1 + 0x1p-7) * (1 + 0x1p-16);
    codec->any = name != "none";
    if (name == "int8") {
        codec->error = 0.5 / 127 * up;
    } else if (name == "int4") {
        codec->error = 0.5 / 7 * up;
    } else if (name == "int2") {
        codec->error = 0.5 * up;
    } else if (name == "int6_stochastic") {
        codec->error = 1.0 / 31 * up;
        codec->stochastic = true;
    } else if (name == "int8_rotated") {
        codec->error = 64 * 0.5 / 127 * up;
    } else if (name == "fp8e4m3") {
        codec->error = 1.0 / 28 * up;
    } else if (name == "bf16" || name == "fp16") {
        codec->error = name == "bf16" ? 0x1p-8 : 0x1p-11;
        codec->float32_only = true;
    } else if (codec->any) {
        std::fprintf(stderr, "unknown codec '%s'\n", name.c_str());
        std::exit(2);
    }
}

Options parse(int argc, char** argv) {
    Options options;
    for (int i = 1; i + 1 < argc; i += 2) {
        const std::string name = argv[i];
        const uint64_t value = std::strtoull(argv[i + 1], nullptr, 10);
        if (name == "--seed") {
            options.seed = value;
        } else if (name == "--calls") {
            options.calls = value;
        } else if (name == "--threads") {
            options.threads = static_cast<int>(value);
        } else if (name == "--codec") {
            set_codec(argv[i + 1], &options.codec);
        } else if (name == "--block") {
            options.codec.block = value;
        } else if (name == "--min-bytes") {
            options.codec.min_bytes = value;
        } else if (name == "--max-count") {
            options.weights.max_count = value;
        } else if (name == "--compressible") {
            options.weights.compressible_percent = static_cast<int>(value);
        } else if (name == "--all-reduces") {
            options.weights.all_reduce_percent = static_cast<int>(value);
        } else {
            std::fprintf(stderr, "unknown option '%s'\n", name.c_str());
            std::exit(2);
        }
    }
    return options;
}

void play_rank(const Options& options, int device, int rank, int ranks, ncclComm_t world) {
    constexpr uint64_t kCompareEvery = 50;
    Player player(device, world, options.codec, options.weights.max_count);
    Messenger messenger(player.members(), options.codec, options.weights);
    Chance chance(options.seed);
    uint64_t calls = 0, batches = 0;
    while (calls < options.calls) {
        if (chance.below(3) == 0) {
            const Traffic traffic = draw_traffic(chance, options.weights, ranks);
            messenger.play(traffic, batches);
            calls += traffic.messages.size();
        }
        const Batch batch = draw_batch(chance, options.weights, ranks);
        player.play(batch, batches);
        calls += batch.calls.size() * (batch.repeat ? 2 : 1);
        if (++batches % kCompareEvery == 0) {
            player.compare_digests(batches);
        }
    }
    player.compare_digests(batches);
    if (rank == 0) {
        std::printf("digest %016" PRIx64 " calls %" PRIu64 "\n", player.own_digest(), calls);
    }
}

int run(const Options& options) {
    if (options.threads == 0) {
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
    std::vector<ncclComm_t> worlds(static_cast<size_t>(options.threads));
    CHECK_NCCL(ncclCommInitAll(worlds.data(), options.threads, nullptr));
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
