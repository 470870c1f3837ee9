// What backend.py calls of CUDA and NCCL, as a library of its own: loaded by Python it brings
// libnccl.so.2 and libcudart along as PyTorch's own libraries do, so a preload or a drop-in reaches
// it. Tensors live on the host; each (address, size) has one buffer on the device, made at its
// first call, so that a tensor which stays in place has a place on the device, as it would with a
// GPU.
//
// A Group is one communicator with one stream. Calls may come from any thread; they are enqueued in
// the order in which they come, and work_wait() of each returns when its results are on the host.
// Host memory must live and stay unchanged until then. Functions that can fail return null or not 0
// and leave the reason, for the calling thread, in shim_error().
#include <cuda_runtime.h>
#include <nccl.h>

#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>

#include "codecs/base/emulator_abi.h"

extern "C" const slimwire::EmulatorApi* slimwire_emulator_api(uint32_t version);

// One call. `input` and `output` are host memory, null where the operation has none on this rank,
// equal where it works in place; sizes are in bytes. `count` and `type` are NCCL's. `peer` is the
// root, destination or source. `send_counts` and `receive_counts` (elements for each rank, the
// parts one after the other) are of kAllToAll alone.
struct ShimCall {
    int operation;
    const void* input;
    size_t input_bytes;
    void* output;
    size_t output_bytes;
    size_t count;
    int type, reduction, peer;
    const size_t* send_counts;
    const size_t* receive_counts;
};

namespace {

const slimwire::EmulatorApi& emulator() {
    return *slimwire_emulator_api(slimwire::kEmulatorAbiVersion);
}

thread_local std::string last_error;

void check(cudaError_t error, const char* what) {
    if (error != cudaSuccess) {
        throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(error));
    }
}
void check(ncclResult_t result, const char* what) {
    if (result != ncclSuccess) {
        throw std::runtime_error(std::string(what) + ": " + ncclGetErrorString(result) + ": " +
                                 ncclGetLastError(nullptr));
    }
}

enum Operation : int {
    kAllReduce,
    kBroadcast,
    kReduce,
    kAllGather,
    kReduceScatter,
    kAllToAll,
    kSend,
    kReceive,
};

struct Group {
    std::mutex mutex;
    ncclComm_t comm = nullptr;
    cudaStream_t stream = nullptr;
    int size = 0;
    std::map<std::pair<const void*, size_t>, void*> buffers;

    // As a kernel: CUDA's copies of pageable memory may wait for work that waits for a call of this
    // thread.
    void copy(void* to, const void* from, size_t bytes) {
        struct Copy {
            void* to;
            const void* from;
            size_t bytes;
        } const args{to, from, bytes};
        const auto body = [](const void* given) {
            const Copy& copied = *static_cast<const Copy*>(given);
            std::memcpy(emulator().device_view(copied.to), emulator().device_view(copied.from),
                        copied.bytes);
        };
        check(emulator().launch(stream, body, &args, sizeof(args), "shim_copy"), "copy");
    }
    void* on_device(const void* host, size_t bytes) {
        void*& buffer = buffers[{host, bytes}];
        if (buffer == nullptr) {
            // Not cudaMalloc, which may wait for work that waits for a call of this thread.
            check(cudaMallocAsync(&buffer, bytes > 0 ? bytes : 1, stream), "cudaMallocAsync");
        }
        return buffer;
    }
};

struct Work {
    ncclComm_t comm;
    cudaEvent_t done;
};

// With its buffers on the device.
void enqueue(Group* group, const ShimCall& call) {
    const auto type = static_cast<ncclDataType_t>(call.type);
    const auto reduction = static_cast<ncclRedOp_t>(call.reduction);
    void* const in =
        call.input != nullptr ? group->on_device(call.input, call.input_bytes) : nullptr;
    void* const out =
        call.output != nullptr ? group->on_device(call.output, call.output_bytes) : nullptr;
    ncclResult_t result = ncclInvalidArgument;
    switch (static_cast<Operation>(call.operation)) {
        case kAllReduce:
            result =
                ncclAllReduce(in, out, call.count, type, reduction, group->comm, group->stream);
            break;
        case kBroadcast:
            result =
                ncclBroadcast(in, out, call.count, type, call.peer, group->comm, group->stream);
            break;
        case kReduce:
            result = ncclReduce(in, out, call.count, type, reduction, call.peer, group->comm,
                                group->stream);
            break;
        case kAllGather:
            result = ncclAllGather(in, out, call.count, type, group->comm, group->stream);
            break;
        case kReduceScatter:
            result =
                ncclReduceScatter(in, out, call.count, type, reduction, group->comm, group->stream);
            break;
        case kAllToAll: {
            size_t sent_bytes = 0, received_bytes = 0, sent = 0, received = 0;
            for (int peer = 0; peer < group->size; ++peer) {
                sent += call.send_counts[peer];
                received += call.receive_counts[peer];
            }
            const size_t element = sent > 0       ? call.input_bytes / sent
                                   : received > 0 ? call.output_bytes / received
                                                  : 0;
            check(ncclGroupStart(), "ncclGroupStart");
            for (int peer = 0; peer < group->size; ++peer) {
                const size_t to = call.send_counts[peer], from = call.receive_counts[peer];
                if (to > 0) {
                    check(ncclSend(static_cast<const char*>(in) + sent_bytes, to, type, peer,
                                   group->comm, group->stream),
                          "ncclSend");
                }
                if (from > 0) {
                    check(ncclRecv(static_cast<char*>(out) + received_bytes, from, type, peer,
                                   group->comm, group->stream),
                          "ncclRecv");
                }
                sent_bytes += to * element;
                received_bytes += from * element;
            }
            result = ncclGroupEnd();
            break;
        }
        case kSend:
            result = ncclSend(in, call.count, type, call.peer, group->comm, group->stream);
            break;
        case kReceive:
            result = ncclRecv(out, call.count, type, call.peer, group->comm, group->stream);
            break;
    }
    check(result, "the NCCL call");
}

}  // namespace

extern "C" {
#pragma GCC visibility push(default)

const char* shim_error() {
    return last_error.c_str();
}

int shim_unique_id(char* id) {
    try {
        ncclUniqueId made;
        check(ncclGetUniqueId(&made), "ncclGetUniqueId");
        std::memcpy(id, made.internal, sizeof(made.internal));
        return 0;
    } catch (const std::exception& error) {
        last_error = error.what();
        return 1;
    }
}

// Blocks until all ranks have called it.
void* shim_open(const char* id, int rank, int size) {
    try {
        auto group = std::make_unique<Group>();
        ncclUniqueId given;
        std::memcpy(given.internal, id, sizeof(given.internal));
        group->size = size;
        check(emulator().load_kernels(reinterpret_cast<const void*>(&shim_unique_id)), "kernels");
        check(cudaStreamCreateWithFlags(&group->stream, cudaStreamNonBlocking), "cudaStreamCreate");
        check(ncclCommInitRank(&group->comm, size, given, rank), "ncclCommInitRank");
        return group.release();
    } catch (const std::exception& error) {
        last_error = error.what();
        return nullptr;
    }
}

// After all work has been waited for.
int shim_close(void* handle) {
    const std::unique_ptr<Group> group(static_cast<Group*>(handle));
    try {
        check(ncclCommDestroy(group->comm), "ncclCommDestroy");
        for (const auto& entry : group->buffers) {
            check(cudaFree(entry.second), "cudaFree");
        }
        check(cudaStreamDestroy(group->stream), "cudaStreamDestroy");
        return 0;
    } catch (const std::exception& error) {
        last_error = error.what();
        return 1;
    }
}

// `count` calls, those of more than one in one group. Null or the Work of all.
void* shim_calls(void* handle, const ShimCall* calls, int count) {
    auto& group = *static_cast<Group*>(handle);
    const std::lock_guard<std::mutex> lock(group.mutex);
    try {
        for (const ShimCall& call : std::span(calls, static_cast<size_t>(count))) {
            if (call.input != nullptr) {
                group.copy(group.on_device(call.input, call.input_bytes), call.input,
                           call.input_bytes);
            }
        }
        if (count > 1) {
            check(ncclGroupStart(), "ncclGroupStart");
        }
        for (const ShimCall& call : std::span(calls, static_cast<size_t>(count))) {
            enqueue(&group, call);
        }
        if (count > 1) {
            check(ncclGroupEnd(), "ncclGroupEnd");
        }
        for (const ShimCall& call : std::span(calls, static_cast<size_t>(count))) {
            if (call.output != nullptr) {
                group.copy(call.output, group.on_device(call.output, call.output_bytes),
                           call.output_bytes);
            }
        }
        auto work = std::make_unique<Work>(Work{group.comm, nullptr});
        check(cudaEventCreateWithFlags(&work->done, cudaEventDisableTiming), "cudaEventCreate");
        check(cudaEventRecord(work->done, group.stream), "cudaEventRecord");
        return work.release();
    } catch (const std::exception& error) {
        last_error = error.what();
        return nullptr;
    }
}

// Once for each call.
int work_wait(void* handle) {
    const std::unique_ptr<Work> work(static_cast<Work*>(handle));
    try {
        check(cudaEventSynchronize(work->done), "cudaEventSynchronize");
        check(cudaEventDestroy(work->done), "cudaEventDestroy");
        ncclResult_t state = ncclSuccess;
        check(ncclCommGetAsyncError(work->comm, &state), "ncclCommGetAsyncError");
        check(state, "the communicator");
        return 0;
    } catch (const std::exception& error) {
        last_error = error.what();
        return 1;
    }
}

#pragma GCC visibility pop
}  // extern "C"
