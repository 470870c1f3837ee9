// What the emulator offers beyond the CUDA Runtime's and NCCL's own functions. Its libcudart.so.13
// exports `slimwire_emulator_api`; the presence of that symbol is what tells slimwire that it runs
// on the emulator. C layout, append-only, sized.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace slimwire {

inline constexpr uint32_t kEmulatorAbiVersion = 1;

struct EmulatorApi {
    size_t size;  // sizeof(EmulatorApi) of the library that fills it

    // Enqueues body(copy) on `stream`; the `bytes` bytes at `args` are copied at once (at most
    // 4096), so a captured launch replays with them. `name` must outlive the process (error texts,
    // reports). Order and errors are those of a kernel launch on that stream.
    cudaError_t (*launch)(cudaStream_t stream,
                          void (*body)(const void*),
                          const void* args,
                          size_t bytes,
                          const char* name);

    // The mapping through which emulator-side code may read and write the memory behind a device
    // pointer (any inner address). Returns `pointer` itself when it is not device memory.
    void* (*device_view)(const void* pointer);

    // Number of the emulated node that a device of this process stands in; -1 for a bad ordinal.
    int (*node_of_device)(int device);

    // The kernels of the module that `code` lies in are loaded on the current device: their first
    // launches there do not wait for the device, as SLIMWIRE_EMU_STRICT makes them do otherwise.
    cudaError_t (*load_kernels)(const void* code);

    // A data call of NCCL, or the end of a group of them, begins (1) or ends (-1) on this thread.
    // In between a CUDA call that may wait for work ends the process under
    // SLIMWIRE_EMU_STRICT=calls, with its stack on stderr.
    void (*data_call)(int change) = nullptr;

    // This thread waits on the host for work otherwise than by a call of CUDA: the same goes for
    // it. `what`: for error texts.
    void (*may_wait)(const char* what) = nullptr;
};

// Signature of the exported symbol "slimwire_emulator_api": null when `version` is not known.
using EmulatorApiFunction = const EmulatorApi* (*)(uint32_t version);
inline constexpr char kEmulatorApiSymbol[] = "slimwire_emulator_api";

// Exported by the emulator's libnccl.so.2 as "slimwire_emulator_counters": totals of this process
// since it started, over all communicators. `payload_bytes_sent` counts the message bytes handed to
// the transport (between nodes and inside one), without the transport's own framing.
struct EmulatorCounters {
    uint64_t payload_bytes_sent;
    uint64_t payload_bytes_received;
    uint64_t inter_node_bytes_sent;
    uint64_t messages_sent;
};
using EmulatorCountersFunction = void (*)(EmulatorCounters* out);
inline constexpr char kEmulatorCountersSymbol[] = "slimwire_emulator_counters";

}  // namespace slimwire
