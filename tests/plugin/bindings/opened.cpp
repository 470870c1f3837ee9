// Knows no library when it starts: opens what it is told and looks the functions up.
//   opened local NCCL           dlopen RTLD_LOCAL, dlsym of the handle, dlclose at the end
//   opened deep NCCL            the same with RTLD_DEEPBIND
//   opened namespace NCCL       dlmopen into a namespace of its own, CUDA beside it
//   opened module FILE          dlopen RTLD_LOCAL of a module that needs NCCL
//   opened later FILE NCCL      the same, and a global dlopen of NCCL before it runs
//   opened modules FILE FILE    two of them: the second's job runs in a group of the first's, or
//                               none does (-); then an id is asked for, by nothing but its name
//   opened global NCCL FILE     dlopen RTLD_GLOBAL, then a module that takes what is there
// NCCL and FILE are names or paths; without arguments: local libnccl.so.2.
#include <dlfcn.h>

#include <cstdlib>
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
        find(nccl, "ncclCommCount", &f.comm_count) &&
        find(nccl, "ncclGroupStart", &f.group_start) &&
        find(nccl, "ncclAllReduce", &f.all_reduce) && find(nccl, "ncclGroupEnd", &f.group_end) &&
        find(nccl, "ncclCommDestroy", &f.comm_destroy) &&
        find(cuda, "cudaSetDevice", &f.set_device) && find(cuda, "cudaMalloc", &f.allocate) &&
        find(cuda, "cudaFree", &f.release) && find(cuda, "cudaMemcpy", &f.copy) &&
        find(cuda, "cudaDeviceSynchronize", &f.synchronize);
    return found ? bindings::run_job(f) : 2;
}

using RunJob = int (*)(int (*inside)());

RunJob open_module(const char* file) {
    void* module = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (module == nullptr) {
        std::fprintf(stderr, "%s\n", dlerror());
        std::exit(2);
    }
    RunJob run = nullptr;
    if (!find(module, "run_bound_job", &run)) {
        std::exit(2);
    }
    return run;
}

int run_modules(const char* first, const char* second) {
    static RunJob other;
    const RunJob run = open_module(first);
    other = std::strcmp(second, "-") != 0 ? open_module(second) : nullptr;
    const int status = run([] { return other != nullptr ? other(nullptr) : 0; });
    const auto get_id =
        reinterpret_cast<decltype(&ncclGetUniqueId)>(dlsym(RTLD_DEFAULT, "ncclGetUniqueId"));
    ncclUniqueId id;
    return status != 0 ? status : get_id != nullptr && get_id(&id) != ncclSuccess ? 19 : 0;
}

}  // namespace

int main(int argc, char** argv) {
    const char* way = argc > 2 ? argv[1] : "local";
    const char* library = argc > 2 ? argv[2] : "libnccl.so.2";
    if (std::strcmp(way, "module") == 0) {
        return open_module(library)(nullptr);
    }
    if (argc > 3 && std::strcmp(way, "modules") == 0) {
        return run_modules(library, argv[3]);
    }
    if (argc > 3 && std::strcmp(way, "later") == 0) {
        const RunJob run = open_module(library);
        return dlopen(argv[3], RTLD_NOW | RTLD_GLOBAL) != nullptr ? run(nullptr) : 2;
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
        return open_module(argv[3])(nullptr);
    }
    const int result = run_found(nccl, cuda);
    dlclose(nccl);
    return result;
}
