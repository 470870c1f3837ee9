#include "tools/demo_train/record.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>

#include "tools/demo_train/error.h"

namespace demo {

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
    char checksum[17];
    std::snprintf(checksum, sizeof checksum, "%016llx",
                  static_cast<unsigned long long>(record.parameter_checksum));
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
                         {"parameter_checksum", checksum}};
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
