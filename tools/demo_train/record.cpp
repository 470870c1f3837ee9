#include "tools/demo_train/record.h"

#include <fmt/core.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>

#include "tools/demo_train/dataset.h"
#include "tools/demo_train/error.h"

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

std::string to_json(const Options& options, const RunRecord& record) {
    using nlohmann::ordered_json;
    ordered_json curve = ordered_json::array();
    for (const auto& [step, loss] : record.loss_curve) {
        curve.push_back({{"step", step}, {"train_loss", loss}});
    }
    ordered_json epochs = ordered_json::array();
    for (const EpochRecord& epoch : record.epochs) {
        ordered_json entry = {{"epoch", epoch.epoch},
                              {"step", epoch.step},
                              {"train_loss", epoch.train_loss},
                              {"seconds", epoch.seconds}};
        if (options.test) {
            entry["test_loss"] = epoch.test_loss;
            entry["test_accuracy"] = epoch.test_accuracy;
        }
        epochs.push_back(std::move(entry));
    }
    ordered_json json = {{"v", 1},
                         {"program", "demo_train"},
                         {"ranks", record.ranks},
                         {"seed", options.seed},
                         {"shard", options.shard},
                         {"batch", options.batch},
                         {"learning_rate", options.learning_rate},
                         {"parameters", record.parameters},
                         {"bucket_bytes", record.bucket_bytes},
                         {"blas_core", record.blas_core},
                         {"steps", record.steps},
                         {"step_ms", record.step_ms},
                         {"comm_ms", record.comm_ms},
                         {"comm_wait_ms", record.comm_wait_ms},
                         {"dense_bytes_per_step", record.dense_bytes_per_step},
                         {"parameter_checksum", fmt::format("{:016x}", record.parameter_checksum)}};
    json["accuracy"] = options.test && !record.epochs.empty()
                           ? ordered_json(record.epochs.back().test_accuracy)
                           : ordered_json(nullptr);
    json["epochs"] = std::move(epochs);
    json["loss_curve"] = std::move(curve);
    return json.dump(1) + "\n";
}

double median_after(const std::vector<double>& values, size_t skip) {
    std::vector<double> sorted(
        values.begin() + static_cast<std::ptrdiff_t>(values.size() > skip ? skip : 0),
        values.end());
    if (sorted.empty()) {
        return 0;
    }
    std::sort(sorted.begin(), sorted.end());
    const size_t middle = sorted.size() / 2;
    return sorted.size() % 2 == 1 ? sorted[middle] : 0.5 * (sorted[middle - 1] + sorted[middle]);
}

static_assert(std::endian::native == std::endian::little,
              "descr '<f4' is written as memory holds it");

std::string npy_header(size_t elems) {
    constexpr size_t kAlignment = 64;
    constexpr size_t kPrefix = 10;  // magic, version, length of the dictionary
    std::string dictionary =
        "{'descr': '<f4', 'fortran_order': False, 'shape': (" + std::to_string(elems) + ",), }";
    const size_t unpadded = kPrefix + dictionary.size() + 1;
    dictionary.append((kAlignment - unpadded % kAlignment) % kAlignment, ' ');
    dictionary += '\n';
    std::string header("\x93NUMPY\x01\x00", 8);
    header += static_cast<char>(dictionary.size() & 0xff);
    header += static_cast<char>(dictionary.size() >> 8);
    return header + dictionary;
}

void write_npy(const std::string& path, const float* values, size_t elems) {
    struct Close {
        void operator()(std::FILE* file) const { std::fclose(file); }
    };
    std::unique_ptr<std::FILE, Close> file(std::fopen(path.c_str(), "wb"));
    const std::string header = npy_header(elems);
    if (!file || std::fwrite(header.data(), 1, header.size(), file.get()) != header.size() ||
        std::fwrite(values, sizeof(float), elems, file.get()) != elems ||
        std::fflush(file.get()) != 0) {
        throw TrainError(path + ": " + std::strerror(errno));
    }
}

}  // namespace demo
