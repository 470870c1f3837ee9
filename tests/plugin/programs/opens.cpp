// Opens each argument with dlopen and prints what came: "slimwire" or "nccl", and the file of the
// real NCCL behind it (whose pncclAllReduce is found); or "nothing". "cd:FOLDER" goes there first,
// "asks:NAME" opens it only where it is loaded already.
#include <dlfcn.h>
#include <unistd.h>

#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>

int main(int argc, char** argv) {
    for (int i = 1; i < argc; ++i) {
        if (std::strncmp(argv[i], "cd:", 3) == 0) {
            if (chdir(argv[i] + 3) != 0) {
                return 2;
            }
            continue;
        }
        const bool asks = std::strncmp(argv[i], "asks:", 5) == 0;
        void* library =
            dlopen(argv[i] + (asks ? 5 : 0), RTLD_NOW | RTLD_LOCAL | (asks ? RTLD_NOLOAD : 0));
        if (library == nullptr) {
            std::printf("nothing\n");
            continue;
        }
        // slimwire has no functions of this prefix: found through it, they are the real library's.
        Dl_info real{};
        char path[PATH_MAX] = "";
        if (const void* twin = dlsym(library, "pncclAllReduce");
            twin != nullptr && dladdr(twin, &real) != 0 &&
            realpath(real.dli_fname, path) == nullptr) {
            return 3;
        }
        std::printf("%s %s\n", dlsym(library, "slimwire_version") != nullptr ? "slimwire" : "nccl",
                    path);
    }
    return 0;
}
