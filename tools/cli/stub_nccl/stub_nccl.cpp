// An NCCL that does nothing and says success at once, for `slimwire bench overhead`: what slimwire
// adds to a call is then all there is to measure. Only what the benchmark and slimwire need to
// create communicators and call a collective; no payload ever moves, so nothing may look at
// results.
#include <nccl.h>

struct ncclComm {
    int ranks;
    int rank;
    int device;
};

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
ncclResult_t ncclCommInitAll(ncclComm_t* comms, int devices, const int* list) {
    for (int i = 0; i < devices; ++i) {
        comms[i] = new ncclComm{devices, i, list != nullptr ? list[i] : i};
    }
    return ncclSuccess;
}
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
    delete comm;
    return ncclSuccess;
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

}  // extern "C"
#pragma GCC visibility pop
