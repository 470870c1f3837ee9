// The first calls of a plan: native ones before start_step, and the codecs of its ramp, each until
// a call. A plan's calls are counted on one communicator, whatever their tensors are.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "collectives/adaptive/controller.h"

namespace slimwire {

class WarmupRule final : public ControllerRule {
  public:
    uint64_t start_call = 0;
    std::vector<uint64_t> until;  // ascending
    std::vector<std::shared_ptr<const Plan>> variants;

    [[nodiscard]] std::unique_ptr<Controller> make(const PlanEntry& entry,
                                                   const Communicator& communicator,
                                                   Progress* progress) const override;
    [[nodiscard]] std::shared_ptr<const ControllerRule> without_variants() const override;
};

}  // namespace slimwire
