#include "collectives/call/training.h"

namespace slimwire {

const char* phase_name(Phase phase) noexcept {
    switch (phase) {
        case Phase::kTraining:
            return "training";
        case Phase::kEvaluation:
            return "evaluation";
        case Phase::kOther:
            return "other";
    }
    return "";
}

}  // namespace slimwire
