// Entry of demo_train: one rank of a data-parallel training job, written against the CUDA runtime
// and NCCL only. It runs unchanged on GPUs and on the emulator; whether slimwire is below it is for
// its launcher to say. Exit codes: 0 trained, 1 failed (one line on stderr says why), 2 wrong
// usage.
#include <fmt/core.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <filesystem>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "tools/demo_train/communicator.h"
#include "tools/demo_train/dataset.h"
#include "tools/demo_train/error.h"
#include "tools/demo_train/exchange.h"
#include "tools/demo_train/openblas_core.h"
#include "tools/demo_train/record.h"
#include "tools/demo_train/rendezvous.h"

namespace demo {
namespace {

// The training loop: batches in, gradients out to the exchange, accuracy measured after each epoch.
// One object a process and rank. All ranks make the same NCCL calls in the same order.
class Trainer {
  public:
    // The data must outlive the trainer.
    Trainer(const Options& options,
            Communicator& communicator,
            const Dataset& train,
            const Dataset& test);

    // Trains, then checks that all ranks hold the same parameters, bit for bit; throws TrainError
    // if they do not. The record is complete on rank 0.
    RunRecord run();

  private:
    struct Score {
        double loss = 0, accuracy = 0;
    };

    double train_step(const std::vector<uint32_t>& order, int step_of_epoch, float rate);
    void forward(int rows);
    Score evaluate();
    void dump_gradients(int step) const;
    void check_equal_parameters();
    void finish_timing(const std::vector<double>& step_ms);
    void say(const std::string& line) const;

    const Options& options_;
    Communicator& communicator_;
    const Dataset& train_;
    const Dataset& test_;
    Mlp mlp_;
    BucketLayout layout_;
    std::unique_ptr<Exchange> exchange_;
    std::vector<std::vector<size_t>> buckets_of_layer_;
    std::vector<std::vector<float>> comm_ms_;  // of each step, of each call
    RunRecord record_;
    int step_ = 0;  // done
};

using Clock = std::chrono::steady_clock;

constexpr int kStepsPerPoint = 13;   // of the loss curve; 18 points an epoch of 234 steps
constexpr size_t kUntimedSteps = 5;  // first steps connect, allocate and warm up
constexpr SgdSettings kSgd{};

double milliseconds_since(Clock::time_point start) {
    return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

std::vector<int> widths_of(const Options& options, const Dataset& data) {
    std::vector<int> widths{static_cast<int>(data.pixels)};
    widths.insert(widths.end(), options.hidden.begin(), options.hidden.end());
    widths.push_back(Dataset::kClasses);
    return widths;
}

// FNV-1a over 64-bit words; enough to tell parameters that differ.
uint64_t checksum_of(const float* values, size_t elems) {
    uint64_t hash = 0xcbf29ce484222325ull;
    for (size_t i = 0; i < elems; ++i) {
        hash = (hash ^ std::bit_cast<uint32_t>(values[i])) * 0x100000001b3ull;
    }
    return hash;
}

Trainer::Trainer(const Options& options,
                 Communicator& communicator,
                 const Dataset& train,
                 const Dataset& test)
    : options_(options),
      communicator_(communicator),
      train_(train),
      test_(test),
      mlp_(widths_of(options, train), std::max(options.batch, 256)),
      layout_(make_buckets(mlp_.tensors(), options.bucket_bytes, communicator.size())) {
    const SgdSettings sgd{kSgd.momentum, options.weight_decay};
    exchange_ = options.shard ? make_sharded_exchange(communicator, layout_, sgd)
                              : make_replicated_exchange(communicator, layout_, sgd);
    buckets_of_layer_.resize(static_cast<size_t>(mlp_.layers()));
    for (size_t i = 0; i < layout_.placements.size(); ++i) {
        const Placement place = layout_.placements[i];
        mlp_.bind(i, exchange_->parameters() + place.offset, exchange_->gradients() + place.offset);
        std::vector<size_t>& buckets =
            buckets_of_layer_[static_cast<size_t>(mlp_.tensors()[i].layer)];
        if (std::find(buckets.begin(), buckets.end(), place.bucket) == buckets.end()) {
            buckets.push_back(place.bucket);
        }
    }
    record_.ranks = communicator.size();
    record_.parameters = mlp_.parameters();
    record_.blas_core = openblas_core_in_use();
    for (const Bucket& bucket : layout_.buckets) {
        record_.bucket_bytes.push_back(bucket.elems * sizeof(float));
    }
}

void Trainer::say(const std::string& line) const {
    if (communicator_.rank() == 0) {
        std::printf("demo_train: %s\n", line.c_str());
        std::fflush(stdout);
    }
}

void Trainer::forward(int rows) {
    for (int layer = 0; layer < mlp_.layers(); ++layer) {
        for (const size_t bucket : buckets_of_layer_[static_cast<size_t>(layer)]) {
            exchange_->need(bucket);
        }
        mlp_.forward_layer(layer, rows);
    }
}

double Trainer::train_step(const std::vector<uint32_t>& order, int step_of_epoch, float rate) {
    const auto batch = static_cast<size_t>(options_.batch);
    const size_t first =
        (static_cast<size_t>(step_of_epoch) * static_cast<size_t>(communicator_.size()) +
         static_cast<size_t>(communicator_.rank())) *
        batch;
    exchange_->begin_step();
    std::vector<uint8_t> labels(batch);
    for (size_t i = 0; i < batch; ++i) {
        const uint32_t sample = order[first + i];
        labels[i] = train_.labels[sample];
        train_.copy_normalised(sample, mlp_.input() + i * train_.pixels);
    }
    forward(options_.batch);
    exchange_->end_forward();
    const LossSum sum = mlp_.loss(labels.data(), options_.batch, true);

    const bool dump = !options_.dump_gradients.empty() &&
                      std::find(options_.dump_steps.begin(), options_.dump_steps.end(),
                                step_ + 1) != options_.dump_steps.end();
    size_t ready = 0;
    for (int layer = mlp_.layers() - 1; layer >= 0; --layer) {
        for (const size_t bucket : buckets_of_layer_[static_cast<size_t>(layer)]) {
            exchange_->need(bucket);
        }
        mlp_.backward_layer(layer, options_.batch);
        // Reductions overwrite the gradients, so a dump comes before the first of them.
        while (!dump && ready < layout_.buckets.size() &&
               layout_.buckets[ready].first_layer >= layer) {
            exchange_->reduce(ready++);
        }
    }
    if (dump) {
        dump_gradients(step_ + 1);
        for (; ready < layout_.buckets.size(); ++ready) {
            exchange_->reduce(ready);
        }
    }
    for (size_t bucket = 0; bucket < layout_.buckets.size(); ++bucket) {
        exchange_->update(bucket, rate);
    }
    comm_ms_.push_back(exchange_->step_times());
    return sum.loss / static_cast<double>(batch);
}

Trainer::Score Trainer::evaluate() {
    exchange_->gather_parameters();
    constexpr size_t kRows = 256;
    const auto ranks = static_cast<size_t>(communicator_.size());
    const auto rank = static_cast<size_t>(communicator_.rank());
    const size_t end = test_.count * (rank + 1) / ranks;
    LossSum sum;
    for (size_t first = test_.count * rank / ranks; first < end; first += kRows) {
        const size_t rows = std::min(kRows, end - first);
        for (size_t i = 0; i < rows; ++i) {
            test_.copy_normalised(first + i, mlp_.input() + i * test_.pixels);
        }
        forward(static_cast<int>(rows));
        const LossSum part = mlp_.loss(test_.labels.data() + first, static_cast<int>(rows), false);
        sum.loss += part.loss;
        sum.hits += part.hits;
    }
    std::vector<double> totals{sum.loss, static_cast<double>(sum.hits)};
    communicator_.sum(totals);
    const auto count = static_cast<double>(test_.count);
    return {totals[0] / count, 100.0 * totals[1] / count};
}

void Trainer::dump_gradients(int step) const {
    std::filesystem::create_directories(options_.dump_gradients);
    for (size_t i = 0; i < layout_.buckets.size(); ++i) {
        const Bucket& bucket = layout_.buckets[i];
        const std::string name =
            fmt::format("gradient-step{:05}-rank{}-bucket{}.npy", step, communicator_.rank(), i);
        write_npy((std::filesystem::path(options_.dump_gradients) / name).string(),
                  exchange_->gradients() + bucket.offset, bucket.elems);
    }
}

void Trainer::check_equal_parameters() {
    exchange_->gather_parameters();
    record_.parameter_checksum = checksum_of(exchange_->parameters(), layout_.flat_elems);
    const std::vector<uint64_t> sums = communicator_.all_gather(record_.parameter_checksum);
    for (size_t rank = 1; rank < sums.size(); ++rank) {
        if (sums[rank] != sums[0]) {
            throw TrainError(fmt::format(
                "parameters of rank {} differ from those of rank 0 after step {}", rank, step_));
        }
    }
}

void Trainer::finish_timing(const std::vector<double>& step_ms) {
    record_.step_ms = median_after(step_ms, kUntimedSteps);
    record_.dense_bytes_per_step = exchange_->dense_bytes_per_step();
    std::vector<float> shortest;
    for (const std::vector<float>& times : comm_ms_) {
        shortest.insert(shortest.end(), times.begin(), times.end());
    }
    if (shortest.empty()) {
        return;
    }
    communicator_.minimum(shortest);
    std::vector<double> own, least;
    size_t at = 0;
    for (const std::vector<float>& times : comm_ms_) {
        own.push_back(std::accumulate(times.begin(), times.end(), 0.0));
        least.push_back(std::accumulate(
            shortest.begin() + static_cast<std::ptrdiff_t>(at),
            shortest.begin() + static_cast<std::ptrdiff_t>(at + times.size()), 0.0));
        at += times.size();
    }
    record_.comm_wait_ms = median_after(own, kUntimedSteps);
    record_.comm_ms = median_after(least, kUntimedSteps);
}

RunRecord Trainer::run() {
    const auto global_batch =
        static_cast<size_t>(options_.batch) * static_cast<size_t>(communicator_.size());
    const int epoch_steps = static_cast<int>(train_.count / global_batch);
    if (epoch_steps == 0) {
        throw TrainError(fmt::format("a batch of {} on {} ranks is more than the {} samples",
                                     options_.batch, communicator_.size(), train_.count));
    }
    const int scheduled_steps = epoch_steps * options_.epochs;
    const int wanted_steps =
        options_.steps > 0 ? std::min(options_.steps, scheduled_steps) : scheduled_steps;
    const int warmup_steps = std::max(1, epoch_steps / 4);
    say(fmt::format("{} ranks, {} parameters in {} buckets, {} steps, blas {}",
                    communicator_.size(), record_.parameters, layout_.buckets.size(), wanted_steps,
                    record_.blas_core));

    mlp_.initialise(options_.seed);
    exchange_->broadcast_parameters();
    std::vector<double> step_ms;
    for (int epoch = 0; step_ < wanted_steps; ++epoch) {
        const std::vector<uint32_t> order = epoch_order(train_.count, options_.seed, epoch);
        const int steps = std::min(epoch_steps, wanted_steps - step_);
        const auto epoch_start = Clock::now();
        std::vector<double> losses(static_cast<size_t>(steps));
        for (int step = 0; step < steps; ++step) {
            const auto start = Clock::now();
            const float rate =
                learning_rate(options_.learning_rate, step_, warmup_steps, scheduled_steps);
            losses[static_cast<size_t>(step)] = train_step(order, step, rate);
            step_ms.push_back(milliseconds_since(start));
            ++step_;
        }
        EpochRecord result;
        result.epoch = epoch + 1;
        result.step = step_;
        result.seconds = milliseconds_since(epoch_start) / 1000.0;

        communicator_.sum(losses);
        const double ranks = communicator_.size();
        for (int first = 0; first < steps; first += kStepsPerPoint) {
            const int end = std::min(steps, first + kStepsPerPoint);
            const double total = std::accumulate(losses.begin() + first, losses.begin() + end, 0.0);
            record_.loss_curve.emplace_back(step_ - steps + end, total / (ranks * (end - first)));
        }
        result.train_loss = std::accumulate(losses.begin(), losses.end(), 0.0) / (ranks * steps);
        std::string accuracy;
        if (options_.test) {
            const Score score = evaluate();
            result.test_loss = score.loss;
            result.test_accuracy = score.accuracy;
            accuracy = fmt::format(", test accuracy {:.2f} %", score.accuracy);
        }
        say(fmt::format("epoch {}/{}, step {}/{}, loss {:.4f}{}, {:.1f} s", result.epoch,
                        options_.epochs, step_, wanted_steps, result.train_loss, accuracy,
                        result.seconds));
        record_.epochs.push_back(result);
    }
    record_.steps = step_;
    check_equal_parameters();
    finish_timing(step_ms);
    say(fmt::format(
        "step {:.2f} ms, communication {:.2f} ms (medians), parameters equal on all ranks "
        "({:016x})",
        record_.step_ms, record_.comm_ms, record_.parameter_checksum));
    if (!options_.dump_parameters.empty() && communicator_.rank() == 0) {
        write_npy(options_.dump_parameters, exchange_->parameters(), layout_.flat_elems);
    }
    return record_;
}

}  // namespace
}  // namespace demo

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
        const std::string place = rank >= 0 ? fmt::format("rank {}: ", rank) : "";
        std::fprintf(stderr, "demo_train: %serror: %s\n", place.c_str(), error.what());
        return 1;
    }
}
