// The optional C API that libslimwire.so and the drop-in export beside NCCL's functions: checks
// what can be checked here, hands the rest to collectives/, and turns Status into the codes of
// slimwire.h. Any thread; no function makes slimwire's runtime, so a program may call them before
// NCCL is there.
#define SLIMWIRE_DECLARATIONS_ONLY
#pragma GCC visibility push(default)
#include "plugin/capi/slimwire.h"
#pragma GCC visibility pop

#include <cmath>
#include <string>

#include "codecs/base/number_text.h"
#include "collectives/call/per_thread.h"
#include "collectives/call/training.h"
#include "collectives/communicator/process.h"
#include "collectives/dispatch/dispatch.h"
#include "collectives/dispatch/dispatch_state.h"
#include "collectives/dispatch/parameter_moves.h"
#include "collectives/dispatch/save_state.h"
#include "collectives/dispatch/shadow/observer.h"
#include "collectives/dispatch/thread_group.h"
#include "collectives/identity/parameter_registry.h"
#include "collectives/identity/tensor_names.h"

using namespace slimwire;

namespace {

std::string& last_error() noexcept {
    struct LastError {
        std::string text;
    };
    return per_thread<LastError>().text;
}

int said(int code, const char* text) noexcept {
    try {
        last_error() = text;
    } catch (...) {
        last_error().clear();
    }
    return code;
}

int code_of(const Status& status) noexcept {
    switch (status.code()) {
        case Code::kOk:
            return SLIMWIRE_OK;
        case Code::kInvalidArgument:
            return SLIMWIRE_INVALID;
        case Code::kInvalidUsage:
            return SLIMWIRE_REFUSED;
        case Code::kUnsupported:
        case Code::kNotFound:
        case Code::kOutOfMemory:
        case Code::kCudaError:
        case Code::kNcclError:
        case Code::kSystemError:
        case Code::kRemoteError:
        case Code::kInternalError:
            return SLIMWIRE_FAILED;
    }
    return SLIMWIRE_FAILED;
}

// Runs one function's work, which returns a Status.
template <class Work>
int run(const Work& work) noexcept {
    if (Runtime::forked()) {
        return said(SLIMWIRE_ABSENT,
                    "this process was forked from one that used NCCL: slimwire is not in it");
    }
    try {
        const Status status = work();
        last_error() = status.message();
        return code_of(status);
    } catch (const std::exception& error) {
        return said(SLIMWIRE_FAILED, error.what());
    }
}

// There already, or not wanted: a program may load before it chose its NCCL.
Runtime* made_runtime() noexcept {
    return Runtime::peek() == nullptr ? nullptr : process_runtime(nullptr);
}

int run_state(Result<StateOutcome> (*work)(Runtime*, const char*, uint64_t), const char* path) {
    StateOutcome outcome;
    const int code = run([&]() -> Status {
        if (in_group()) {
            return {Code::kInvalidArgument, "state is saved and loaded outside of groups"};
        }
        Runtime* const runtime = made_runtime();
        const ReentryGuard guard;
        SLIMWIRE_TRY_ASSIGN(outcome, work(runtime, path, kStatePatienceUs));
        return {};
    });
    if (code != SLIMWIRE_OK || outcome.kind == StateOutcome::Kind::kDone) {
        return code;
    }
    return said(outcome.kind == StateOutcome::Kind::kPartial ? SLIMWIRE_PARTIAL : SLIMWIRE_NOTHING,
                outcome.text.c_str());
}

// Runs work(runtime); `nothing`: what to say where it finds nothing to do.
template <class Work>
int run_step(const char* nothing, const Work& work) noexcept {
    bool done = false;
    const int code = run([&]() -> Status {
        if (in_group()) {
            return {Code::kInvalidArgument, "parameters are moved outside of groups"};
        }
        if (Runtime* const runtime = made_runtime(); runtime != nullptr) {
            SLIMWIRE_TRY_ASSIGN(done, work(*runtime));
        }
        return {};
    });
    return code != SLIMWIRE_OK || done ? code : said(SLIMWIRE_NOTHING, nothing);
}

// For the trace.
void told() noexcept {
    if (const Runtime* runtime = Runtime::peek();
        runtime != nullptr && dispatch_state(*runtime).observer != nullptr) {
        dispatch_state(*runtime).observer->told();
    }
}

// "1.2.3" as 10203.
constexpr int version_number(const char* text) {
    int number = 0, part = 0;
    for (;; ++text) {
        if (*text >= '0' && *text <= '9') {
            part = 10 * part + (*text - '0');
            continue;
        }
        number = 100 * number + part;
        part = 0;
        if (*text == 0) {
            return number;
        }
    }
}

}  // namespace

int slimwire_name_tensor(const void* buffer, uint64_t bytes, const char* name) {
    return run([&] { return TensorNames::instance().add(buffer, bytes, name); });
}

int slimwire_forget_tensor(const void* buffer) {
    return run([&]() -> Status {
        if (!TensorNames::instance().forget(buffer)) {
            return {Code::kInvalidArgument, "no named memory begins at that address"};
        }
        return {};
    });
}

int slimwire_register_parameter(
    uint32_t model, uint32_t index, const char* name, const int64_t* sizes, int dimensions) {
    return run([&]() -> Status {
        if (dimensions < 0 || (sizes == nullptr && dimensions > 0)) {
            return {Code::kInvalidArgument, std::to_string(dimensions) + " dimensions" +
                                                (sizes == nullptr ? " without sizes" : "")};
        }
        return ParameterRegistry::instance().add(model, index, name,
                                                 {sizes, static_cast<size_t>(dimensions)});
    });
}

int slimwire_split_parameter(uint32_t model, uint32_t index, int dimension) {
    return run([&] { return ParameterRegistry::instance().split(model, index, dimension); });
}

int slimwire_forget_model(uint32_t model) {
    return run([&]() -> Status {
        if (!ParameterRegistry::instance().forget(model)) {
            return {Code::kInvalidArgument,
                    "model " + std::to_string(model) + " has no parameters"};
        }
        return {};
    });
}

int slimwire_mark_step(uint64_t step) {
    return run([&]() -> Status {
        if (in_group()) {
            return {Code::kInvalidArgument, "a step is marked inside a group"};
        }
        training_state().mark_step(step);
        told();
        if (Runtime* const runtime = made_runtime(); runtime != nullptr) {
            const ReentryGuard guard;
            step_marked(*runtime, step);
        }
        return {};
    });
}

int slimwire_mark_phase(int phase) {
    return run([&]() -> Status {
        if (phase < 0 || phase >= kPhaseCount) {
            return {Code::kInvalidArgument,
                    "phase " + std::to_string(phase) +
                        "; accepted: SLIMWIRE_TRAINING (0), SLIMWIRE_EVALUATION (1), "
                        "SLIMWIRE_OTHER (2)"};
        }
        if (in_group()) {
            return {Code::kInvalidArgument, "a phase is marked inside a group"};
        }
        training_state().mark_phase(static_cast<Phase>(phase));
        told();
        return {};
    });
}

int slimwire_set_learning_rate(double rate) {
    return run([&]() -> Status {
        if (!std::isfinite(rate) || rate < 0) {
            return {Code::kInvalidArgument,
                    "learning rate " + general_text(rate, 6) + "; finite and not negative"};
        }
        training_state().set_learning_rate(rate);
        told();
        return {};
    });
}

int slimwire_set_loss_scale(double scale) {
    return run([&]() -> Status {
        if (!std::isfinite(scale) || scale <= 0) {
            return {Code::kInvalidArgument,
                    "loss scale " + general_text(scale, 6) + "; positive and finite"};
        }
        if (in_group()) {
            return {Code::kInvalidArgument, "a loss scale is set inside a group"};
        }
        if (training_state().set_loss_scale(scale)) {
            told();
        }
        return {};
    });
}

int slimwire_step_ahead(
    const void* gradient, void* parameter, uint64_t count, int type, void* stream) {
    const auto dtype = static_cast<DType>(type);
    if (dtype != DType::kFloat16 && dtype != DType::kFloat32 && dtype != DType::kBfloat16) {
        return said(SLIMWIRE_INVALID,
                    "not a type that moves; accepted: ncclFloat16 (6), ncclFloat32 (7), "
                    "ncclBfloat16 (9)");
    }
    if (gradient == nullptr || parameter == nullptr || count == 0) {
        return said(SLIMWIRE_INVALID, "no gradient, no parameter, or no elements");
    }
    constexpr char kNothing[] =
        "no rule with step_ahead has compressed that gradient yet, or the step is not known, or "
        "there is no room";
    return run_step(kNothing, [&](Runtime& runtime) {
        return move_ahead(runtime, {gradient, parameter, count, dtype},
                          static_cast<cudaStream_t>(stream));
    });
}

int slimwire_step_back(void* parameter, void* stream) {
    return run_step("the parameter is not ahead", [&](Runtime& runtime) {
        return move_back(runtime, parameter, static_cast<cudaStream_t>(stream));
    });
}

int slimwire_save_state(const char* path) {
    return run_state(save_state, path);
}

int slimwire_load_state(const char* path) {
    return run_state(load_state, path);
}

int slimwire_version() {
    return version_number(SLIMWIRE_VERSION);
}

const char* slimwire_last_error() {
    return last_error().c_str();
}
