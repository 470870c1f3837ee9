// Needs libnccl.so.2, or has a static NCCL in it: calls go through the procedure linkage table, or,
// with BIND_ADDRESSES, through addresses that the loader fills in at once. As a module it has no
// main; modules that need no libnccl find one in the global scope.
#include "tests/plugin/bindings/job.h"

extern "C" [[gnu::visibility("default")]] int run_bound_job(int (*inside)());

int run_bound_job(int (*inside)()) {
    bindings::Functions f{};
#ifdef BIND_ADDRESSES
    f.comm_init_all = &ncclCommInitAll;
    f.comm_count = &ncclCommCount;
    f.group_start = &ncclGroupStart;
    f.all_reduce = &ncclAllReduce;
    f.group_end = &ncclGroupEnd;
    f.comm_destroy = &ncclCommDestroy;
#else
    f.comm_init_all = [](ncclComm_t* comms, int count, const int* devices) {
        return ncclCommInitAll(comms, count, devices);
    };
    f.comm_count = [](ncclComm_t comm, int* count) { return ncclCommCount(comm, count); };
    f.group_start = [] { return ncclGroupStart(); };
    f.all_reduce = [](const void* send, void* recv, size_t count, ncclDataType_t type,
                      ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
        return ncclAllReduce(send, recv, count, type, op, comm, stream);
    };
    f.group_end = [] { return ncclGroupEnd(); };
    f.comm_destroy = [](ncclComm_t comm) { return ncclCommDestroy(comm); };
#endif
    f.set_device = &cudaSetDevice;
    f.allocate = [](void** pointer, size_t bytes) { return cudaMalloc(pointer, bytes); };
    f.release = &cudaFree;
    f.copy = &cudaMemcpy;
    f.synchronize = &cudaDeviceSynchronize;
    return bindings::run_job(f, inside);
}

#ifndef BIND_AS_MODULE
int main() {
    return run_bound_job(nullptr);
}
#endif
