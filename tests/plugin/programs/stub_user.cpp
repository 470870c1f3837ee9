// Linked against the stub NCCL; each argument is one thing to do. Prints what the stub counted.
#include <dlfcn.h>
#include <nccl_later.h>

#include "tests/support/nccl_program.h"

extern "C" {
int stub_calls(const char* name);
int ncclFutureThing(int value);
ncclResult_t ncclCommInitFuture(ncclComm_t* comm);
}

namespace {

ncclComm_t create() {
    ncclUniqueId id;
    ncclComm_t comm = nullptr;
    CHECK_CUDA(cudaSetDevice(0));
    CHECK_NCCL(ncclGetUniqueId(&id));
    CHECK_NCCL(ncclCommInitRank(&comm, 1, id, 0));
    return comm;
}

// The program makes 5 all-reduces and 7 broadcasts; the stub calls itself for each of the former.
void reentry() {
    ncclComm_t comm = create();
    for (int i = 0; i < 5; ++i) {
        CHECK_NCCL(ncclAllReduce(nullptr, nullptr, 100000, ncclFloat32, ncclSum, comm, nullptr));
    }
    CHECK_NCCL(ncclGroupStart());
    for (int i = 0; i < 7; ++i) {
        CHECK_NCCL(ncclBcast(nullptr, 5000, ncclFloat32, 0, comm, nullptr));
    }
    CHECK_NCCL(ncclGroupEnd());
    CHECK_NCCL(ncclCommDestroy(comm));
    std::printf("AllReduce %d Broadcast %d AllGather %d open groups %d\n", stub_calls("AllReduce"),
                stub_calls("Broadcast"), stub_calls("AllGather"), stub_calls("groups"));
}

// Three communicators with one handle: destroyed, aborted, and one that slimwire never heard of.
void reuse() {
    ncclComm_t first = create();
    for (int i = 0; i < 3; ++i) {
        CHECK_NCCL(ncclBroadcast(nullptr, nullptr, 11, ncclFloat32, 0, first, nullptr));
    }
    CHECK_NCCL(ncclCommDestroy(first));
    ncclComm_t second = create();
    EXPECT_THAT(second == first, "the stub gave another handle");
    CHECK_NCCL(ncclBroadcast(nullptr, nullptr, 22, ncclFloat32, 0, second, nullptr));
    CHECK_NCCL(ncclCommAbort(second));
    ncclComm_t unknown = nullptr;
    CHECK_NCCL(ncclCommInitFuture(&unknown));
    EXPECT_THAT(unknown == first, "the stub gave another handle");
    CHECK_NCCL(ncclBroadcast(nullptr, nullptr, 33, ncclFloat32, 0, unknown, nullptr));
    CHECK_NCCL(ncclCommDestroy(unknown));
}

void one_sided() {
    ncclComm_t comm = create();
    for (size_t count : {1000, 3000}) {
        CHECK_NCCL(
            ncclPutSignal(nullptr, count, ncclFloat32, 3, nullptr, 0, 1, 2, 4, comm, nullptr));
    }
    CHECK_NCCL(ncclSignal(3, 1, 2, 4, comm, nullptr));
    ncclWaitSignalDesc_t signals[1] = {{3, 3, 1, 2}};
    CHECK_NCCL(ncclWaitSignal(1, signals, comm, nullptr));
    CHECK_NCCL(ncclCommDestroy(comm));
}

// Functions that slimwire does not have must be the real library's, however they are looked up.
void future() {
    EXPECT_THAT(ncclFutureThing(41) == 42, "the linked function is not the stub's");
    void* handle = dlopen("libnccl.so.2", RTLD_NOW);
    EXPECT_THAT(handle != nullptr, "%s", dlerror());
    const auto future = reinterpret_cast<int (*)(int)>(dlsym(handle, "ncclFutureThing"));
    EXPECT_THAT(future != nullptr && future(1) == 2, "dlsym does not lead to the stub's");
    const auto twin = reinterpret_cast<decltype(&ncclAllReduce)>(dlsym(handle, "pncclAllReduce"));
    EXPECT_THAT(twin != nullptr, "pncclAllReduce is not found");
    EXPECT_THAT(twin(nullptr, nullptr, 0, ncclFloat32, ncclSum, nullptr, nullptr) == ncclInProgress,
                "pncclAllReduce is not the stub's");
    EXPECT_THAT(std::strcmp(ncclGetErrorString(ncclSuccess), "text of the stub") == 0,
                "ncclGetErrorString is not the stub's");
    EXPECT_THAT(std::strcmp(ncclGetLastError(nullptr), "last error of the stub") == 0,
                "ncclGetLastError is not the stub's without an error of slimwire's");
}

}  // namespace

int main(int argc, char** argv) {
    for (int i = 1; i < argc; ++i) {
        const std::string what = argv[i];
        what == "reentry"     ? reentry()
        : what == "reuse"     ? reuse()
        : what == "one_sided" ? one_sided()
                              : future();
    }
    return 0;
}
