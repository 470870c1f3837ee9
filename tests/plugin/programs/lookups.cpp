// Compares dlsym as this file reaches it with libc's own, on every kind of handle, by result and by
// dlerror(); only a real NCCL's handle may give other functions, and then those of libslimwire.so.
//   lookups NCCL OTHER MODULE    OTHER exports NCCL's names and is none; MODULE is this file again
// As a module it has no main: its place in the search order makes RTLD_NEXT another question.
#include <dlfcn.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

extern "C" [[gnu::visibility("default")]] int compare_searches();

namespace {

using Dlsym = void*(void*, const char*);

const char* const kNames[] = {"ncclAllReduce",
                              "ncclCommInitRank",
                              "ncclGetVersion",
                              "ncclCommCount",
                              "ncclNoSuchFunction",
                              "pncclAllReduce",
                              "nccl",
                              "ncc",
                              "n",
                              "",
                              "malloc",
                              "free",
                              "cos",
                              "environ",
                              "dlsym",
                              "dlopen",
                              "pthread_create",
                              "no_such_symbol",
                              "compare_searches",
                              "main",
                              "slimwireReplace_v1"};

Dlsym* libc_dlsym() {
    for (const char* version : {"GLIBC_2.34", "GLIBC_2.17", "GLIBC_2.2.5"}) {
        if (void* found = dlvsym(dlopen("libc.so.6", RTLD_NOW | RTLD_NOLOAD), "dlsym", version)) {
            return reinterpret_cast<Dlsym*>(found);
        }
    }
    return nullptr;
}

struct Answer {
    const void* address;
    std::string error;
    bool operator==(const Answer&) const = default;
};

// Called from this object, never as the last call of a function: the caller's address counts.
[[gnu::noinline]] Answer ask(Dlsym* function, void* handle, const char* name) {
    (void)dlerror();
    void* volatile address = function(handle, name);
    const char* error = dlerror();
    return {address, error != nullptr ? error : ""};
}

std::string object_of(const void* address) {
    Dl_info info{};
    return dladdr(address, &info) != 0 ? info.dli_fname : "nothing";
}

// How many names are answered otherwise than by libc; those by slimwire on `nccl` are not counted.
int differences(void* handle, const char* what, bool nccl, int* replaced) {
    int wrong = 0;
    Dlsym* const plain = libc_dlsym();
    for (const char* name : kNames) {
        const Answer expected = ask(plain, handle, name);
        const Answer got = ask(&dlsym, handle, name);
        if (got == expected || std::strcmp(name, "dlsym") == 0) {
            continue;
        }
        if (nccl && got.error.empty() &&
            object_of(got.address).find("libslimwire.so") != std::string::npos) {
            ++*replaced;
            continue;
        }
        ++wrong;
        std::fprintf(stderr, "%s of %s: %s '%s', by libc %s '%s'\n", name, what,
                     object_of(got.address).c_str(), got.error.c_str(),
                     object_of(expected.address).c_str(), expected.error.c_str());
    }
    return wrong;
}

}  // namespace

// RTLD_NEXT and RTLD_DEFAULT depend on who asks.
int compare_searches() {
    int replaced = 0;
    return differences(RTLD_NEXT, "RTLD_NEXT", false, &replaced) +
           differences(RTLD_DEFAULT, "RTLD_DEFAULT", false, &replaced);
}

#ifndef LOOKUPS_AS_MODULE
int main(int, char** argv) {
    // The very first look-ups, by many threads at once.
    std::atomic<int> wrong{0}, waiting{8}, replaced{0};
    void* const nccl = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    std::vector<std::thread> threads;
    for (int i = 0; i < 8; ++i) {
        threads.emplace_back([&] {
            --waiting;
            while (waiting.load() != 0) {
            }
            for (int round = 0; round < 20; ++round) {
                int own = 0;
                wrong += differences(nccl, "NCCL", true, &own) + compare_searches();
                replaced += own;
            }
        });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    void* const other = dlopen(argv[2], RTLD_NOW | RTLD_LOCAL);
    void* const module = dlopen(argv[3], RTLD_NOW | RTLD_LOCAL);
    const auto compare = module == nullptr
                             ? nullptr
                             : reinterpret_cast<int (*)()>(dlsym(module, "compare_searches"));
    if (nccl == nullptr || other == nullptr || compare == nullptr) {
        std::fprintf(stderr, "%s\n", dlerror());
        return 2;
    }
    int none = 0;
    wrong += compare();
    for (void* handle : {other, module, dlopen(nullptr, RTLD_NOW), dlopen("libm.so.6", RTLD_NOW)}) {
        wrong += differences(handle, "a handle", false, &none);
    }
    std::printf("%d replaced\n", replaced.load());
    return wrong == 0 ? 0 : 1;
}
#endif
