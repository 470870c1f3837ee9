// How much a tensor is owed, beside how large its gradient is, for the report: now and then a
// call's contribution is measured in front of it and its residuals behind it, and a later call
// hears what came of that. Nobody waits for it.
//
// Of sums. Residuals stored as int8 are taken into the scratch run by run; of a store that takes
// more runs than kRuns so many are measured, evenly apart, and stand for all. Called by rounds.cpp,
// never under capture.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "codecs/base/device.h"
#include "codecs/ops/measure_args.h"
#include "collectives/identity/step_detector.h"
#include "collectives/observe/stats.h"
#include "collectives/plan/plan.h"

namespace slimwire {

struct Communicator;

// Of one communicator; used by one thread at a time, on its device.
class ResidualNorms {
  public:
    // So many calls of a key are from one reading to the next: a prime, so that all tensors of a
    // step have their turn.
    static constexpr uint64_t kEvery = 61;
    static constexpr int64_t kRuns = 16;

    // In front of a call on `stream`: measures what it gives, if its turn has come. `scratch`: the
    // call's own. What fails is not read. True: end() belongs to it.
    bool begin(const DeviceApi& api,
               const Communicator& state,
               const Plan& plan,
               const StepPosition& place,
               const void* input,
               float scale,
               char* scratch,
               cudaStream_t stream) noexcept;
    // Behind it: measures what it left in `residual`, which is the tensor's own.
    void end(const DeviceApi& api,
             const Plan& plan,
             const void* residual,
             char* scratch,
             cudaStream_t stream) noexcept;
    // Hands what has arrived to the statistics.
    void look(const DeviceApi& api, CommStats* stats) noexcept;
    // Nothing may be under way, unless `lost`: then its memory is left.
    void release(const DeviceApi& api, CommStats* stats, bool lost) noexcept;

  private:
    bool measure(const DeviceApi& api,
                 const void* input,
                 int64_t count,
                 DType dtype,
                 float scale,
                 Measured* result,
                 char* scratch,
                 cudaStream_t stream) noexcept;

    bool measure_runs(const DeviceApi& api,
                      const Plan& plan,
                      const char* residual,
                      char* scratch,
                      cudaStream_t stream) noexcept;

    Measured* found_ = nullptr;  // pinned: of the gradient, of the residuals' runs
    int64_t runs_ = 1;
    double part_ = 1;  // of the residuals that was measured
    cudaEvent_t end_ = nullptr;
    CallStats* key_ = nullptr;  // null: none is under way
    bool ended_ = false;        // end_ was recorded
    OwedSample sample_;
};

}  // namespace slimwire
