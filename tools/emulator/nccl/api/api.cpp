// Exported functions about the library, groups, operators and memory. Those about communicators are
// in api_communicators.cpp.
#include "tools/emulator/nccl/api/api.h"

#include <array>
#include <cstdlib>
#include <string>
#include <string_view>

#include "tools/emulator/fault_plan.h"
#include "tools/emulator/nccl/execution/group.h"
#include "tools/emulator/nccl/transport/device.h"

namespace slimwire::emu {
namespace {

constexpr unsigned kSimInfoMagic = 0x74685283;

}  // namespace

ncclResult_t injected_fault(const char* function) {
    static emulator::FaultPlan* const plan = [] {
        auto* made = new emulator::FaultPlan;
        const char* text = std::getenv("SLIMWIRE_EMU_FAULT");
        // One that is not understood fails every CUDA call already.
        (void)made->parse(text != nullptr ? text : "");
        return made;
    }();
    const std::string_view name(function);
    const int error =
        plan->empty()
            ? 0
            : plan->on_call(name.starts_with("pnccl") ? name.substr(1) : name, ncclInternalError);
    if (error != 0) {
        set_last_error(std::string(name) + ": failed by SLIMWIRE_EMU_FAULT");
        (void)group_error({Code::kInternalError, "failed by SLIMWIRE_EMU_FAULT"});
        if (name.ends_with("ncclGroupEnd")) {
            (void)group_end();  // as NCCL: the group is over, and nothing of it was launched
        }
    }
    return static_cast<ncclResult_t>(error);
}

Status require(const void* pointer, const char* what, const char* name) {
    if (pointer == nullptr) {
        return {Code::kInvalidArgument, std::string(what) + ": " + name + " is NULL"};
    }
    return {};
}

Status unsupported(const char* function) {
    return {Code::kUnsupported, std::string(function) + " is not emulated"};
}

}  // namespace slimwire::emu

namespace emu = slimwire::emu;
using slimwire::Status;

// --- Library

SLIMWIRE_NCCL_EXPORT(ncclResult_t, ncclGetVersion, (int* version)) {
    return emu::guarded([=]() -> Status {
        SLIMWIRE_TRY(emu::require(version, "ncclGetVersion", "version"));
        *version = NCCL_VERSION_CODE;
        return {};
    });
}

SLIMWIRE_NCCL_EXPORT(const char*, ncclGetErrorString, (ncclResult_t result)) {
    constexpr std::array kTexts = {
        "no error",
        "unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
        "unhandled system error (run with NCCL_DEBUG=INFO for details)",
        "internal error - please report this issue to the NCCL developers",
        "invalid argument (run with NCCL_DEBUG=WARN for details)",
        "invalid usage (run with NCCL_DEBUG=WARN for details)",
        "remote process exited or there was a network error",
        "NCCL operation in progress",
    };
    static_assert(kTexts.size() == ncclNumResults);
    return result < ncclNumResults ? kTexts[result] : "unknown result code";
}

SLIMWIRE_NCCL_EXPORT(const char*, ncclGetLastError, (ncclComm_t)) {
    return emu::last_error();
}

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
SLIMWIRE_NCCL_EXPORT(void, ncclResetDebugInit, ()) {
    emu::reset_verbosity();
}
#pragma GCC diagnostic pop
extern "C" __attribute__((visibility("default"))) void ncclResetDebugInitInternal();
extern "C" void ncclResetDebugInitInternal() {
    emu::reset_verbosity();
}

// --- Groups

SLIMWIRE_NCCL_EXPORT(ncclResult_t, ncclGroupStart, ()) {
    emu::group_start();
    return ncclSuccess;
}

SLIMWIRE_NCCL_EXPORT(ncclResult_t, ncclGroupEnd, ()) {
    return emu::guarded([] { return emu::group_end(); });
}

SLIMWIRE_NCCL_EXPORT(ncclResult_t, ncclGroupSimulateEnd, (ncclSimInfo_t * info)) {
    return emu::guarded([=]() -> Status {
        SLIMWIRE_TRY(emu::require(info, "ncclGroupSimulateEnd", "simInfo"));
        if (info->magic != emu::kSimInfoMagic) {
            return {slimwire::Code::kInvalidArgument,
                    "ncclGroupSimulateEnd: simInfo was not set to NCCL_SIM_INFO_INITIALIZER"};
        }
        return emu::group_simulate_end(&info->estimatedTime);
    });
}

// --- Operators

SLIMWIRE_NCCL_EXPORT(ncclResult_t,
                     ncclRedOpCreatePreMulSum,
                     (ncclRedOp_t * op,
                      void* scalar,
                      ncclDataType_t datatype,
                      ncclScalarResidence_t residence,
                      ncclComm_t comm)) {
    return emu::guarded([=]() -> Status {
        constexpr char kName[] = "ncclRedOpCreatePreMulSum";
        SLIMWIRE_TRY_ASSIGN(const auto found, emu::find_communicator(comm, kName));
        SLIMWIRE_TRY(emu::require(op, kName, "op"));
        SLIMWIRE_TRY(emu::require(scalar, kName, "scalar"));
        if (datatype < 0 || datatype >= ncclNumTypes) {
            return {slimwire::Code::kInvalidArgument,
                    std::string(kName) + ": invalid type " + std::to_string(datatype)};
        }
        if (residence != ncclScalarDevice && residence != ncclScalarHostImmediate) {
            return {slimwire::Code::kInvalidArgument,
                    std::string(kName) + ": invalid residence " + std::to_string(residence)};
        }
        // A scalar in host-visible memory may lie in memory of the emulated device.
        const bool on_device = residence == ncclScalarDevice;
        const void* source = on_device ? scalar : emu::emulator_api().device_view(scalar);
        SLIMWIRE_TRY_ASSIGN(
            *op, found->make_operator(source, static_cast<slimwire::DType>(datatype), on_device));
        return {};
    });
}

SLIMWIRE_NCCL_EXPORT(ncclResult_t, ncclRedOpDestroy, (ncclRedOp_t op, ncclComm_t comm)) {
    return emu::guarded([=]() -> Status {
        SLIMWIRE_TRY_ASSIGN(const auto found, emu::find_communicator(comm, "ncclRedOpDestroy"));
        return found->destroy_operator(op);
    });
}

// --- Memory

SLIMWIRE_NCCL_EXPORT(ncclResult_t, ncclMemAlloc, (void** pointer, size_t bytes)) {
    return emu::guarded([=]() -> Status {
        SLIMWIRE_TRY(emu::require(pointer, "ncclMemAlloc", "ptr"));
        return emu::cuda_check(cudaMalloc(pointer, bytes), "ncclMemAlloc");
    });
}

SLIMWIRE_NCCL_EXPORT(ncclResult_t, ncclMemFree, (void* pointer)) {
    return emu::guarded([=] { return emu::cuda_check(cudaFree(pointer), "ncclMemFree"); });
}

// Registration has nothing to do: all memory is one hop away. What a program can see is checked.
SLIMWIRE_NCCL_EXPORT(ncclResult_t,
                     ncclCommRegister,
                     (const ncclComm_t comm, void* buffer, size_t size, void** handle)) {
    return emu::guarded([=]() -> Status {
        SLIMWIRE_TRY_ASSIGN(const auto found, emu::find_communicator(comm, "ncclCommRegister"));
        SLIMWIRE_TRY(emu::require(handle, "ncclCommRegister", "handle"));
        SLIMWIRE_TRY_ASSIGN(*handle, found->register_memory(buffer, size));
        return {};
    });
}

SLIMWIRE_NCCL_EXPORT(ncclResult_t, ncclCommDeregister, (const ncclComm_t comm, void* handle)) {
    return emu::guarded([=]() -> Status {
        SLIMWIRE_TRY_ASSIGN(const auto found, emu::find_communicator(comm, "ncclCommDeregister"));
        return found->deregister_memory(handle);
    });
}

SLIMWIRE_NCCL_EXPORT(ncclResult_t,
                     ncclCommWindowRegister,
                     (ncclComm_t comm, void* buffer, size_t size, ncclWindow_t* win, int flags)) {
    return emu::guarded([=]() -> Status {
        constexpr char kName[] = "ncclCommWindowRegister";
        SLIMWIRE_TRY_ASSIGN(const auto found, emu::find_communicator(comm, kName));
        SLIMWIRE_TRY(emu::require(win, kName, "win"));
        if ((flags & ~NCCL_WIN_COLL_SYMMETRIC) != 0) {
            return {slimwire::Code::kInvalidArgument,
                    std::string(kName) + ": unknown flags " + std::to_string(flags)};
        }
        SLIMWIRE_TRY_ASSIGN(void* const handle, found->register_memory(buffer, size));
        *win = static_cast<ncclWindow_t>(handle);
        return {};
    });
}

SLIMWIRE_NCCL_EXPORT(ncclResult_t, ncclCommWindowDeregister, (ncclComm_t comm, ncclWindow_t win)) {
    return emu::guarded([=]() -> Status {
        SLIMWIRE_TRY_ASSIGN(const auto found,
                            emu::find_communicator(comm, "ncclCommWindowDeregister"));
        return found->deregister_memory(win);
    });
}

// --- The emulator's counters

extern "C" __attribute__((visibility("default"))) void slimwire_emulator_counters(
    slimwire::EmulatorCounters* out);
extern "C" void slimwire_emulator_counters(slimwire::EmulatorCounters* out) {
    emu::read_counters(out);
}
