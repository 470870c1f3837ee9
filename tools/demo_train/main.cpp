// Entry of demo_train: one rank of a data-parallel training job, written against the CUDA runtime
// and NCCL only. It runs unchanged on GPUs and on the emulator; whether slimwire is below it is for
// its launcher to say. Exit codes: 0 trained, 1 failed (one line on stderr says why), 2 wrong
// usage.
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>

#include "tools/demo_train/check.h"
#include "tools/demo_train/communicator.h"
#include "tools/demo_train/dataset.h"
#include "tools/demo_train/openblas_core.h"
#include "tools/demo_train/options.h"
#include "tools/demo_train/rendezvous.h"
#include "tools/demo_train/trainer.h"

namespace {

struct CloseFile {
    void operator()(std::FILE* file) const { std::fclose(file); }
};
using File = std::unique_ptr<std::FILE, CloseFile>;

void train(const demo::Options& options, const demo::World& world) {
    File json;
    if (world.rank == 0 && !options.json.empty()) {
        json.reset(std::fopen(options.json.c_str(), "w"));  // before the work, not after it
        if (!json) {
            throw demo::TrainError(options.json + ": " + std::strerror(errno));
        }
    }
    const demo::Dataset training_set = demo::read_dataset(options.data, "train");
    const demo::Dataset test_set =
        options.test ? demo::read_dataset(options.data, "t10k") : demo::Dataset{};
    if (options.test && test_set.pixels != training_set.pixels) {
        throw demo::TrainError(options.data + ": training and test images differ in size");
    }
    demo::Communicator communicator(world);
    demo::Trainer trainer(options, communicator, training_set, test_set);
    const demo::RunRecord record = trainer.run();
    if (json) {
        const std::string text = demo::to_json(options, record);
        if (std::fputs(text.c_str(), json.get()) < 0 || std::fflush(json.get()) != 0) {
            throw demo::TrainError(options.json + ": " + std::strerror(errno));
        }
    }
}

}  // namespace

int main(int argc, char** argv) {
    demo::restart_with_openblas_core(argv);
    int rank = -1;
    try {
        int exit_code = 0;
        const std::optional<demo::Options> options = demo::parse_options(argc, argv, &exit_code);
        if (!options) {
            return exit_code == 0 ? 0 : 2;
        }
        const demo::World world = demo::world_from_environment();
        rank = world.rank;
        train(*options, world);
        return 0;
    } catch (const std::exception& error) {
        if (rank >= 0) {
            std::fprintf(stderr, "demo_train: rank %d: error: %s\n", rank, error.what());
        } else {
            std::fprintf(stderr, "demo_train: error: %s\n", error.what());
        }
        return 1;
    }
}
