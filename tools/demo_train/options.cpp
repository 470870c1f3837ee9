#include "tools/demo_train/options.h"

#include <CLI/CLI.hpp>

#include "tools/demo_train/dataset.h"

namespace demo {

std::optional<Options> parse_options(int argc, char** argv, int* exit_code) {
    Options options;
    options.data = kDefaultDataFolder;
    CLI::App app{
        "Trains a multi-layer perceptron on Fashion-MNIST with NCCL, data parallel: one process a "
        "rank,\n"
        "found by RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT. Knows nothing of "
        "slimwire.",
        "demo_train"};
    app.add_option("--epochs", options.epochs, "passes over the training set")
        ->check(CLI::Range(1, 1000))
        ->capture_default_str();
    app.add_option("--steps", options.steps, "stop after this many steps; 0: after all epochs")
        ->check(CLI::NonNegativeNumber);
    app.add_option("--batch", options.batch, "samples a rank and step")
        ->check(CLI::Range(1, 8192))
        ->capture_default_str();
    app.add_option("--lr", options.learning_rate,
                   "peak learning rate; warm-up, then a cosine to zero")
        ->check(CLI::PositiveNumber)
        ->capture_default_str();
    app.add_option("--weight-decay", options.weight_decay)
        ->check(CLI::NonNegativeNumber)
        ->capture_default_str();
    app.add_option("--seed", options.seed, "of the initial parameters and the order of the data")
        ->capture_default_str();
    app.add_option("--hidden", options.hidden, "widths of the hidden layers")
        ->check(CLI::Range(1, 65536))
        ->delimiter(',')
        ->capture_default_str();
    app.add_flag("--shard", options.shard,
                 "shard the parameters: all-gather them, reduce-scatter the gradients (FSDP)");
    app.add_flag("!--no-test", options.test, "do not measure the test accuracy");
    app.add_option("--data", options.data, "folder of the four Fashion-MNIST files")
        ->capture_default_str();
    app.add_option("--bucket-bytes", options.bucket_bytes, "size at which a bucket is closed")
        ->check(CLI::PositiveNumber)
        ->capture_default_str();
    app.add_option("--json", options.json, "rank 0 writes the record of the run to this file");
    app.add_option(
        "--dump-gradients", options.dump_gradients,
        "each rank writes its own gradients, before the reduction, bucket by bucket as .npy "
        "into this folder");
    app.add_option("--dump-step", options.dump_steps, "steps (from 1) whose gradients are dumped")
        ->check(CLI::PositiveNumber)
        ->delimiter(',')
        ->capture_default_str();
    app.add_option("--dump-parameters", options.dump_parameters,
                   "rank 0 writes all parameters, in bucket order, to this .npy file at the end");
    try {
        app.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
        *exit_code = app.exit(error);
        return std::nullopt;
    }
    return options;
}

}  // namespace demo
