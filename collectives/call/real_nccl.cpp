#include "collectives/call/real_nccl.h"

#include <dlfcn.h>
#include <link.h>

namespace slimwire {
namespace {

// Range of the executable segments of the object that holds `symbol`.
struct TextRange {
    const void* symbol;
    uintptr_t begin = 0, end = 0;
};

int find_text(dl_phdr_info* info, size_t, void* data) {
    auto* range = static_cast<TextRange*>(data);
    const auto address = reinterpret_cast<uintptr_t>(range->symbol);
    uintptr_t begin = UINTPTR_MAX, end = 0;
    bool inside = false;
    for (int i = 0; i < info->dlpi_phnum; ++i) {
        const auto& segment = info->dlpi_phdr[i];
        if (segment.p_type != PT_LOAD || (segment.p_flags & PF_X) == 0) {
            continue;
        }
        const uintptr_t low = info->dlpi_addr + segment.p_vaddr;
        const uintptr_t high = low + segment.p_memsz;
        begin = low < begin ? low : begin;
        end = high > end ? high : end;
        inside |= address >= low && address < high;
    }
    if (!inside) {
        return 0;
    }
    range->begin = begin;
    range->end = end;
    return 1;
}

// Whether `handle` leads to an NCCL that is not ourselves.
bool usable(void* handle, const void* own_symbol) {
    const void* found = handle != nullptr ? dlsym(handle, "ncclAllReduce") : nullptr;
    return found != nullptr && found != own_symbol;
}

// The library that the user named. The loader may know slimwire itself by that name, when the audit
// helper put the drop-in in that file's place; another spelling of the path then leads to the file.
void* open_named(const std::string& path, const void* own_symbol) {
    void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    const size_t slash = path.rfind('/');
    if (handle == nullptr || slash == std::string::npos || usable(handle, own_symbol) ||
        dlsym(handle, "ncclAllReduce") == nullptr) {
        return handle;
    }
    return dlopen((path.substr(0, slash) + "/." + path.substr(slash)).c_str(),
                  RTLD_NOW | RTLD_LOCAL);
}

// What is mapped already, also through a local dlopen; null when no NCCL is.
void* open_mapped(const void* own_symbol) {
    for (const char* name : {"libnccl-real.so", "libnccl.so.2"}) {
        void* handle = dlopen(name, RTLD_NOW | RTLD_NOLOAD);
        if (usable(handle, own_symbol)) {
            return handle;
        }
    }
    if (usable(RTLD_NEXT, own_symbol)) {
        Dl_info info{};
        if (dladdr(dlsym(RTLD_NEXT, "ncclAllReduce"), &info) != 0 && info.dli_fname != nullptr) {
            void* handle = dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD);
            if (usable(handle, own_symbol)) {
                return handle;
            }
        }
    }
    return nullptr;
}

void* open_real(const std::string& path, const void* own_symbol, std::string* tried) {
    if (!path.empty()) {
        void* handle = open_named(path, own_symbol);
        if (usable(handle, own_symbol)) {
            return handle;
        }
        const char* why = handle == nullptr ? dlerror() : nullptr;
        *tried = "SLIMWIRE_NCCL_LIBRARY '" + path + "': " +
                 (handle == nullptr ? std::string(why != nullptr ? why : "cannot be opened")
                                    : "it is slimwire itself or exports no ncclAllReduce");
        return nullptr;
    }
    if (void* mapped = open_mapped(own_symbol); mapped != nullptr) {
        return mapped;
    }
    void* handle = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (usable(handle, own_symbol)) {
        return handle;
    }
    const char* why = handle == nullptr ? dlerror() : "it is slimwire itself";
    *tried =
        std::string("libnccl-real.so and libnccl.so.2 are not mapped, and opening libnccl.so.2: ") +
        (why != nullptr ? why : "failed");
    return nullptr;
}

}  // namespace

Result<RealNccl> find_real_nccl(const std::string& path, const void* own_symbol) {
    std::string tried;
    void* handle = open_real(path, own_symbol, &tried);
    if (handle == nullptr) {
        return Status(Code::kNotFound,
                      "the real NCCL was not found (" + tried +
                          "); set SLIMWIRE_NCCL_LIBRARY to the path of libnccl.so.2");
    }
    RealNccl nccl;
#define SLIMWIRE_NCCL(name, handling) \
    nccl.name = reinterpret_cast<decltype(nccl.name)>(dlsym(handle, "nccl" #name));
    SLIMWIRE_NCCL(CommCount, query)
    SLIMWIRE_NCCL(CommUserRank, query)
    SLIMWIRE_NCCL(CommCuDevice, query)
    SLIMWIRE_NCCL(GetErrorString, query)
    SLIMWIRE_NCCL(GetVersion, query)
#include "collectives/call/nccl_api.def"
    for (const void* required :
         {reinterpret_cast<const void*>(nccl.GroupStart),
          reinterpret_cast<const void*>(nccl.GroupEnd), reinterpret_cast<const void*>(nccl.Send),
          reinterpret_cast<const void*>(nccl.Recv),
          reinterpret_cast<const void*>(nccl.CommInitRank),
          reinterpret_cast<const void*>(nccl.CommDestroy),
          reinterpret_cast<const void*>(nccl.CommUserRank)}) {
        if (required == nullptr) {
            return Status(
                Code::kNotFound,
                "the libnccl found lacks send/recv or basic functions; NCCL 2.8 or later is "
                "needed");
        }
    }
    TextRange range{reinterpret_cast<const void*>(nccl.AllReduce)};
    dl_iterate_phdr(find_text, &range);
    nccl.text_begin = range.begin;
    nccl.text_end = range.end;
    Dl_info info{};
    if (dladdr(reinterpret_cast<const void*>(nccl.AllReduce), &info) != 0 &&
        info.dli_fname != nullptr) {
        nccl.path = info.dli_fname;
    }
    if (nccl.GetVersion != nullptr) {
        (void)nccl.GetVersion(&nccl.version);
    }
    return nccl;
}

Status nccl_status(const RealNccl& nccl, ncclResult_t result, const char* what) {
    if (result == ncclSuccess || result == ncclInProgress) {
        return {};
    }
    std::string text =
        std::string(what) + ": nccl error " + std::to_string(static_cast<int>(result));
    if (nccl.GetErrorString != nullptr) {
        text += std::string(" (") + nccl.GetErrorString(result) + ")";
    }
    Code code = Code::kNcclError;
    switch (static_cast<int>(result)) {
        case ncclUnhandledCudaError:
            code = Code::kCudaError;
            break;
        case ncclSystemError:
            code = Code::kSystemError;
            break;
        case ncclInvalidArgument:
            code = Code::kInvalidArgument;
            break;
        case ncclInvalidUsage:
            code = Code::kInvalidUsage;
            break;
        case ncclRemoteError:
            code = Code::kRemoteError;
            break;
        default:
            break;
    }
    return {code, std::move(text)};
}

}  // namespace slimwire
