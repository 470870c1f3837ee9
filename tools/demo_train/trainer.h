// The training loop: batches in, gradients out to the exchange, accuracy measured after each epoch.
// One object a process and rank. All ranks make the same NCCL calls in the same order.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tools/demo_train/communicator.h"
#include "tools/demo_train/dataset.h"
#include "tools/demo_train/exchange.h"
#include "tools/demo_train/options.h"
#include "tools/demo_train/record.h"

namespace demo {

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

}  // namespace demo
