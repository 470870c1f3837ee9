// Knows no NCCL: opens the module given first with RTLD_LOCAL, as an interpreter opens an
// extension, and runs what it exports.
#include <dlfcn.h>

#include <cstdio>

int main(int argc, char** argv) {
    void* module = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    if (module == nullptr) {
        std::fprintf(stderr, "%s\n", dlerror());
        return 2;
    }
    const auto run = reinterpret_cast<int (*)(int, char**)>(dlsym(module, "run_reduce"));
    return run == nullptr ? 2 : run(argc - 1, argv + 1);
}
