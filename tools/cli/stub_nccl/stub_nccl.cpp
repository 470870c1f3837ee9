// An NCCL that does nothing and says success at once, for `slimwire bench overhead`: what slimwire
// adds to a call is then all there is to measure. Only what a program and slimwire need to create
// communicators and call a collective; no payload ever moves, so nothing may look at results.
#include <nccl.h>

#include <new>

struct ncclComm {
    int ranks;
    int rank;
    int device;
};

namespace {

ncclResult_t make(ncclComm_t* out, int ranks, int rank, int device) {
    *out = new (std::nothrow) ncclComm{ranks, rank, device};
    return *out != nullptr ? ncclSuccess : ncclSystemError;
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

ncclResult_t ncclGetVersion(int* version) {
    *version = NCCL_VERSION_CODE;
    return ncclSuccess;
}
const char* ncclGetErrorString(ncclResult_t result) {
    return result == ncclSuccess ? "no error" : "stub error";
}
const char* ncclGetLastError(ncclComm_t) {
    return "";
}
ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
    *id = ncclUniqueId{};
    return ncclSuccess;
}
ncclResult_t ncclCommInitRank(ncclComm_t* comm, int ranks, ncclUniqueId, int rank) {
    return make(comm, ranks, rank, 0);
}
ncclResult_t ncclCommInitRankConfig(
    ncclComm_t* comm, int ranks, ncclUniqueId, int rank, ncclConfig_t*) {
    return make(comm, ranks, rank, 0);
}
ncclResult_t ncclCommInitAll(ncclComm_t* comms, int devices, const int* list) {
    for (int i = 0; i < devices; ++i) {
        const ncclResult_t result = make(&comms[i], devices, i, list != nullptr ? list[i] : i);
        if (result != ncclSuccess) {
            return result;
        }
    }
    return ncclSuccess;
}
ncclResult_t ncclCommSplit(ncclComm_t comm, int, int, ncclComm_t* out, ncclConfig_t*) {
    return make(out, comm->ranks, comm->rank, comm->device);
}
ncclResult_t ncclCommFinalize(ncclComm_t) {
    return ncclSuccess;
}
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
    delete comm;
    return ncclSuccess;
}
ncclResult_t ncclCommAbort(ncclComm_t comm) {
    return ncclCommDestroy(comm);
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t, ncclResult_t* error) {
    *error = ncclSuccess;
    return ncclSuccess;
}
ncclResult_t ncclCommCount(const ncclComm_t comm, int* count) {
    *count = comm->ranks;
    return ncclSuccess;
}
ncclResult_t ncclCommUserRank(const ncclComm_t comm, int* rank) {
    *rank = comm->rank;
    return ncclSuccess;
}
ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int* device) {
    *device = comm->device;
    return ncclSuccess;
}
ncclResult_t ncclGroupStart() {
    return ncclSuccess;
}
ncclResult_t ncclGroupEnd() {
    return ncclSuccess;
}
ncclResult_t ncclAllReduce(
    const void*, void*, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t, cudaStream_t) {
    return ncclSuccess;
}
ncclResult_t ncclAllGather(const void*, void*, size_t, ncclDataType_t, ncclComm_t, cudaStream_t) {
    return ncclSuccess;
}
ncclResult_t ncclSend(const void*, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t) {
    return ncclSuccess;
}
ncclResult_t ncclRecv(void*, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t) {
    return ncclSuccess;
}

}  // extern "C"
#pragma GCC visibility pop
