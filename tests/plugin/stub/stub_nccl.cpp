// An NCCL of one rank that does what hurts an interposer: it calls its own exported functions from
// inside other ones and from threads of its own, hands out the same handle again and again, and has
// a function of a later version. It counts who reached it; nothing is reduced (one rank: copies).
#include <cuda_runtime.h>
#include <nccl_later.h>
#include <pthread.h>

#include <atomic>
#include <cstring>

struct ncclComm {
    int ranks;
};

namespace {

ncclComm g_comm;  // the one handle
std::atomic<int> g_all_reduces{0}, g_broadcasts{0}, g_all_gathers{0}, g_groups{0};

void* work_of_own_thread(void* comm) {
    auto* handle = static_cast<ncclComm_t>(comm);
    ncclResult_t state = ncclSuccess;
    ncclGroupStart();
    ncclAllGather(nullptr, nullptr, 100000, ncclFloat32, handle, nullptr);
    ncclCommGetAsyncError(handle, &state);
    ncclGroupEnd();
    return nullptr;
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

int stub_calls(const char* name) {
    return std::strcmp(name, "AllReduce") == 0   ? g_all_reduces.load()
           : std::strcmp(name, "Broadcast") == 0 ? g_broadcasts.load()
           : std::strcmp(name, "AllGather") == 0 ? g_all_gathers.load()
                                                 : g_groups.load();
}
int ncclFutureThing(int value) {
    return value + 1;
}
ncclResult_t ncclGetVersion(int* version) {
    *version = 29901;
    return ncclSuccess;
}
const char* ncclGetErrorString(ncclResult_t) {
    return "text of the stub";
}
const char* ncclGetLastError(ncclComm_t) {
    return "last error of the stub";
}
ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
    std::memset(id, 0, sizeof(*id));
    return ncclSuccess;
}
ncclResult_t ncclCommInitRank(ncclComm_t* comm, int ranks, ncclUniqueId, int) {
    g_comm.ranks = ranks;
    *comm = &g_comm;
    return ncclSuccess;
}
// A way to create that slimwire cannot know.
ncclResult_t ncclCommInitFuture(ncclComm_t* comm) {
    return ncclCommInitRank(comm, 1, ncclUniqueId{}, 0);
}
ncclResult_t ncclCommDestroy(ncclComm_t) {
    return ncclSuccess;
}
ncclResult_t ncclCommAbort(ncclComm_t) {
    return ncclSuccess;
}
ncclResult_t ncclCommCount(const ncclComm_t comm, int* count) {
    *count = comm->ranks;
    return ncclSuccess;
}
ncclResult_t ncclCommUserRank(const ncclComm_t, int* rank) {
    *rank = 0;
    return ncclSuccess;
}
ncclResult_t ncclCommCuDevice(const ncclComm_t, int* device) {
    *device = 0;
    return ncclSuccess;
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t, ncclResult_t* error) {
    *error = ncclSuccess;
    return ncclSuccess;
}
ncclResult_t ncclGroupStart() {
    ++g_groups;
    return ncclSuccess;
}
ncclResult_t ncclGroupEnd() {
    --g_groups;
    return ncclSuccess;
}
ncclResult_t ncclSend(const void*, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t) {
    return ncclSuccess;
}
ncclResult_t ncclRecv(void*, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t) {
    return ncclSuccess;
}
ncclResult_t ncclAllGather(const void*, void*, size_t, ncclDataType_t, ncclComm_t, cudaStream_t) {
    ++g_all_gathers;
    return ncclSuccess;
}
ncclResult_t ncclBroadcast(
    const void*, void*, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t) {
    ++g_broadcasts;
    return ncclSuccess;
}
ncclResult_t ncclBcast(void* buffer,
                       size_t count,
                       ncclDataType_t type,
                       int root,
                       ncclComm_t comm,
                       cudaStream_t stream) {
    return ncclBroadcast(buffer, buffer, count, type, root, comm, stream);
}
ncclResult_t ncclAllReduce(
    const void*, void*, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t comm, cudaStream_t stream) {
    ++g_all_reduces;
    ncclGroupStart();
    ncclBcast(nullptr, 100000, ncclFloat32, 0, comm, stream);
    ncclGroupEnd();
    pthread_t thread{};
    if (pthread_create(&thread, nullptr, work_of_own_thread, comm) != 0) {
        return ncclSystemError;
    }
    pthread_join(thread, nullptr);
    return ncclSuccess;
}
// Signals by its own exported function.
ncclResult_t ncclSignal(int, int, int, unsigned int, ncclComm_t, cudaStream_t) {
    return ncclSuccess;
}
ncclResult_t ncclPutSignal(const void*,
                           size_t,
                           ncclDataType_t,
                           int peer,
                           ncclWindow_t,
                           size_t,
                           int signal,
                           int context,
                           unsigned int flags,
                           ncclComm_t comm,
                           cudaStream_t stream) {
    return peer == 3 && signal == 1 && context == 2 && flags == 4 && comm == &g_comm
               ? ncclSignal(peer, signal, context, flags, comm, stream)
               : ncclInvalidArgument;
}
ncclResult_t ncclWaitSignal(int count, ncclWaitSignalDesc_t*, ncclComm_t, cudaStream_t) {
    return count == 1 ? ncclSuccess : ncclInvalidArgument;
}
ncclResult_t pncclAllReduce(
    const void*, void*, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t, cudaStream_t) {
    return ncclInProgress;  // tells the caller that it was here
}

}  // extern "C"
#pragma GCC visibility pop
