// Knows no library when it starts: opens what it is told and looks the functions up.
//   opened local NCCL           dlopen RTLD_LOCAL, dlsym of the handle, dlclose at the end
//   opened deep NCCL            the same with RTLD_DEEPBIND
//   opened namespace NCCL       dlmopen into a namespace of its own, CUDA beside it
//   opened module FILE          dlopen RTLD_LOCAL of a module that needs NCCL
//   opened global NCCL FILE     dlopen RTLD_GLOBAL, then a module that takes what is there
// NCCL and FILE are names or paths; without arguments: local libnccl.so.2.
#include <dlfcn.h>

#include <cstring>
#include <thread>

#include "tests/plugin/bindings/job.h"

namespace {

template <class Function>
bool find(void* library, const char* name, Function* function) {
    *function = reinterpret_cast<Function>(dlsym(library, name));
    if (*function == nullptr) {
        std::fprintf(stderr, "%s\n", dlerror());
    }
    return *function != nullptr;
}

int run_found(void* nccl, void* cuda) {
    bindings::Functions f{};
    const bool found =
        find(nccl, "ncclCommInitAll", &f.comm_init_all) &&
        find(nccl, "ncclGroupStart", &f.group_start) &&
        find(nccl, "ncclAllReduce", &f.all_reduce) && find(nccl, "ncclGroupEnd", &f.group_end) &&
        find(nccl, "ncclCommDestroy", &f.comm_destroy) &&
        find(cuda, "cudaSetDevice", &f.set_device) && find(cuda, "cudaMalloc", &f.allocate) &&
        find(cuda, "cudaFree", &f.release) && find(cuda, "cudaMemcpy", &f.copy) &&
        find(cuda, "cudaDeviceSynchronize", &f.synchronize);
    return found ? bindings::run_job(f) : 2;
}

int run_module(const char* file) {
    void* module = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    int (*run)() = nullptr;
    if (module == nullptr) {
        std::fprintf(stderr, "%s\n", dlerror());
        return 2;
    }
    return find(module, "run_bound_job", &run) ? run() : 2;
}

}  // namespace

int main(int argc, char** argv) {
    const char* way = argc > 2 ? argv[1] : "local";
    const char* library = argc > 2 ? argv[2] : "libnccl.so.2";
    if (std::strcmp(way, "module") == 0) {
        return run_module(library);
    }
    void *nccl = nullptr, *cuda = nullptr;
    if (std::strcmp(way, "namespace") == 0) {
        // The loader locks with this namespace's libc, and glibc (2.36) takes locks without atomic
        // instructions while that libc has started no thread, whatever NCCL's own libc starts.
        // Without this thread some runs corrupt their heap or hang, with slimwire or without it.
        std::thread([] {}).join();
        Lmid_t space = LM_ID_NEWLM;
        cuda = dlmopen(space, "libcudart.so.13", RTLD_NOW);
        if (cuda != nullptr && dlinfo(cuda, RTLD_DI_LMID, &space) == 0) {
            nccl = dlmopen(space, library, RTLD_NOW);
        }
    } else {
        const int flags = std::strcmp(way, "global") == 0 ? RTLD_GLOBAL
                          : std::strcmp(way, "deep") == 0 ? RTLD_LOCAL | RTLD_DEEPBIND
                                                          : RTLD_LOCAL;
        cuda = dlopen("libcudart.so.13", RTLD_NOW | flags);
        nccl = dlopen(library, RTLD_NOW | flags);
    }
    if (nccl == nullptr || cuda == nullptr) {
        std::fprintf(stderr, "%s\n", dlerror());
        return 2;
    }
    if (argc > 3) {
        return run_module(argv[3]);
    }
    const int result = run_found(nccl, cuda);
    dlclose(nccl);
    return result;
}
