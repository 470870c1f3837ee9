// Knows no NCCL: finds ncclGetUniqueId among what is mapped (a preload exports it) and calls it.
// Ends with the result; prints ncclGetLastError.
#include <dlfcn.h>

#include <cstdio>

int main() {
    char id[128];
    const auto get_id = reinterpret_cast<int (*)(void*)>(dlsym(RTLD_DEFAULT, "ncclGetUniqueId"));
    const auto last =
        reinterpret_cast<const char* (*)(void*)>(dlsym(RTLD_DEFAULT, "ncclGetLastError"));
    if (get_id == nullptr || last == nullptr) {
        std::fprintf(stderr, "nothing preloaded\n");
        return 100;
    }
    const int first = get_id(id), second = get_id(id);
    std::printf("%s\n", last(nullptr));
    return first == second ? first : 101;
}
