#include "collectives/call/nccl_libraries.h"

#include <dlfcn.h>
#include <link.h>

#include <cstring>

#include "collectives/call/log.h"

namespace slimwire {
namespace {

// A function that slimwire does not export: where the loader finds it is the NCCL that gets all
// that slimwire does not export.
constexpr char kProbe[] = "ncclCommCount";
// Of callers that are remembered.
constexpr size_t kMostCallers = 256;

// The code of a loaded object.
struct Module {
    const void* symbol;  // in it
    uintptr_t begin = 0, end = 0;
    size_t place = 0;  // in the order of loading

    [[nodiscard]] bool has(const void* address) const noexcept {
        return reinterpret_cast<uintptr_t>(address) - begin < end - begin;
    }
};

int find_module(dl_phdr_info* info, size_t, void* data) {
    auto* module = static_cast<Module*>(data);
    const auto address = reinterpret_cast<uintptr_t>(module->symbol);
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
        ++module->place;
        return 0;
    }
    module->begin = begin;
    module->end = end;
    return 1;
}

// Empty for code that is in no object.
Module module_of(const void* symbol) {
    Module module{symbol};
    dl_iterate_phdr(find_module, &module);
    return module;
}

const link_map* map_of(const void* symbol) {
    Dl_info info{};
    void* map = nullptr;
    return symbol != nullptr && dladdr1(symbol, &info, &map, RTLD_DL_LINKMAP) != 0
               ? static_cast<const link_map*>(map)
               : nullptr;
}

// Whether the file says that it is NCCL, by its SONAME; a module with an NCCL linked in does not.
bool named_nccl(const link_map* map) {
    const char* strings = nullptr;
    const ElfW(Dyn)* soname = nullptr;
    for (const ElfW(Dyn)* entry = map != nullptr ? map->l_ld : nullptr;
         entry != nullptr && entry->d_tag != DT_NULL; ++entry) {
        if (entry->d_tag == DT_STRTAB) {
            // The loader adds the base to it, where it may write there.
            const ElfW(Addr) address = entry->d_un.d_ptr;
            strings = reinterpret_cast<const char*>(address < map->l_addr ? address + map->l_addr
                                                                          : address);
        } else if (entry->d_tag == DT_SONAME) {
            soname = entry;
        }
    }
    return strings != nullptr && soname != nullptr &&
           std::strncmp(strings + soname->d_un.d_val, "libnccl", 7) == 0;
}

// Finds the probe through a handle, and closes that. Null for a null handle.
const void* probe_through(void* handle) {
    const void* found = handle != nullptr ? dlsym(handle, kProbe) : nullptr;
    if (handle != nullptr) {
        dlclose(handle);
    }
    return found;
}

// A function of the next in the search order that has it; null where that is slimwire again, the
// drop-in behind a preload.
void* next_function(const char* name) {
    void* const function = dlsym(RTLD_NEXT, name);
    const link_map* const twin = map_of(dlsym(RTLD_NEXT, "slimwire_version"));
    return twin != nullptr && map_of(function) == twin ? nullptr : function;
}

// An interposer behind slimwire, which a library that is opened by its path has not above it.
void warn_of_interposer() {
    const link_map* const next = map_of(dlsym(RTLD_NEXT, kProbe));
    for (const char* name : {
#define SLIMWIRE_NCCL(name, handling) "nccl" #name,
#include "collectives/call/nccl_api.def"
         }) {
        const link_map* const behind = map_of(next_function(name));
        if (behind != nullptr && behind != next) {
            log_once(LogLevel::kWarn, "interposer",
                     std::string(behind->l_name) +
                         " stands behind slimwire and is not called, because SLIMWIRE_NCCL_LIBRARY "
                         "names what is below; put it in front of libslimwire.so in LD_PRELOAD");
            return;
        }
    }
}

// The functions of the library that has the probe; with `with_next` those of an interposer behind
// slimwire, where there is one, stand for its.
RealNccl load(const void* probe, bool with_next) {
    RealNccl nccl;
    const link_map* map = map_of(probe);
    void* handle = dlopen(map->l_name, RTLD_LAZY | RTLD_NOLOAD);  // never closed
    if (handle == nullptr || dlsym(handle, kProbe) != probe) {
        handle =
            const_cast<link_map*>(map);  // glibc's handles are these; here another has its name
    }
    const Module ourselves = module_of(reinterpret_cast<const void*>(&load));
    const auto find = [&](const char* name) {
        void* function = with_next ? next_function(name) : nullptr;
        function = function != nullptr ? function : dlsym(handle, name);
        return ourselves.has(function) ? nullptr : function;
    };
#define SLIMWIRE_NCCL(name, handling) \
    nccl.name = reinterpret_cast<decltype(nccl.name)>(find("nccl" #name));
    SLIMWIRE_NCCL(CommUserRank, query)
    SLIMWIRE_NCCL(CommCuDevice, query)
    SLIMWIRE_NCCL(GetErrorString, query)
    SLIMWIRE_NCCL(GetVersion, query)
#include "collectives/call/nccl_api.def"
    nccl.CommCount = reinterpret_cast<decltype(nccl.CommCount)>(reinterpret_cast<uintptr_t>(probe));
    nccl.path = map->l_name;
    if (nccl.GetVersion != nullptr) {
        (void)nccl.GetVersion(&nccl.version);
    }
    return nccl;
}

}  // namespace

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

const NcclCaller& NcclLibraries::find_caller(const void* address) noexcept {
    const auto at = reinterpret_cast<uintptr_t>(address);
    t_last = {};
    try {
        {
            const std::lock_guard lock(mutex_);
            for (const NcclCaller& known : callers_) {
                if (at - known.begin < known.size) {
                    return t_last = known;
                }
            }
        }
        NcclCaller found;
        Status status;
        do {  // a library that comes meanwhile may change the answer
            found = {};
            found.generation = generation_.load(std::memory_order_acquire);
            status = resolve(address, &found);
        } while (found.generation != generation_.load(std::memory_order_acquire));
        if (!status.ok()) {
            log_once(LogLevel::kError, "no nccl", status.message());
            return t_last;
        }
        const std::lock_guard lock(mutex_);
        if (found.generation == generation_.load(std::memory_order_acquire)) {
            if (callers_.size() >= kMostCallers) {
                callers_.clear();
            }
            callers_.push_back(found);
        }
        return t_last = found;
    } catch (const std::exception& error) {
        log_once(LogLevel::kError, "no nccl",
                 std::string("the NCCL of a caller is not known: ") + error.what());
        return t_last;
    }
}

Status NcclLibraries::resolve(const void* address, NcclCaller* caller) {
    const Module module = module_of(address);
    const link_map* const map = module.end != 0 ? map_of(address) : nullptr;
    caller->begin = module.end != 0 ? module.begin : reinterpret_cast<uintptr_t>(address);
    caller->size = module.end != 0 ? module.end - module.begin : 1;
    const void* const next = dlsym(RTLD_NEXT, kProbe);
    const void* own =
        map != nullptr ? probe_through(dlopen(map->l_name, RTLD_LAZY | RTLD_NOLOAD)) : nullptr;
    // What stands in front of slimwire and has the probe is an interposer, which calls what is
    // next.
    own = own == dlsym(RTLD_DEFAULT, kProbe) ? nullptr : own;
    const bool inside = own != nullptr && module.has(own);
    caller->is_nccl = (inside || (next != nullptr && module.has(next))) && named_nccl(map);
    // The loader bound a module to its own functions if it had them before there were others.
    const bool bound_to_own = inside && next != nullptr && module.place < module_of(next).place;
    const bool takes_own =
        own != nullptr && (next == nullptr || (inside && caller->is_nccl) || bound_to_own);
    const void* const found = takes_own ? own : next;
    if (found == nullptr && named_.empty()) {
        SLIMWIRE_TRY_ASSIGN(caller->nccl, only(&caller->unclear));
        if (caller->unclear) {
            log_once(LogLevel::kWarn, "unclear",
                     "code " +
                         (map != nullptr ? "of " + std::string(map->l_name)
                                         : std::string("of no module")) +
                         " calls NCCL, and of the several in this process nothing says which: it "
                         "gets " +
                         caller->nccl->path + ", and what it makes stays native");
        }
    } else if (!named_.empty() && !caller->is_nccl &&
               (found == nullptr || named_nccl(map_of(found)))) {
        SLIMWIRE_TRY_ASSIGN(caller->nccl, open_named());
    } else {
        caller->nccl = adopt(found, !takes_own || next == nullptr);
    }
    return {};
}

Result<const RealNccl*> NcclLibraries::open_named() {
    void* handle = dlopen(named_.c_str(), RTLD_NOW | RTLD_LOCAL);
    const char* why = handle == nullptr ? dlerror() : nullptr;
    const void* probe = handle != nullptr ? dlsym(handle, kProbe) : nullptr;
    if (probe == nullptr) {
        return Status(Code::kNotFound,
                      "the real NCCL was not found (SLIMWIRE_NCCL_LIBRARY '" + named_ + "': " +
                          (why != nullptr ? why : "it is slimwire itself or exports no NCCL") +
                          "); set SLIMWIRE_NCCL_LIBRARY to the path of libnccl.so.2");
    }
    warn_of_interposer();
    return adopt(probe, false);
}

// For code whose module has none in sight: what is there, mapped or known; with none the loader's
// libnccl.so.2.
Result<const RealNccl*> NcclLibraries::only(bool* unclear) {
    for (const char* name : {"libnccl-real.so", "libnccl.so.2"}) {
        if (const void* probe = probe_through(dlopen(name, RTLD_LAZY | RTLD_NOLOAD))) {
            (void)adopt(probe, true);
            break;
        }
    }
    {
        const std::lock_guard lock(mutex_);
        *unclear = all_.size() > 1;
        if (!all_.empty()) {
            return &all_.front();
        }
    }
    void* handle = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    const char* why = handle == nullptr ? dlerror() : "it is slimwire itself";
    if (const void* probe = handle != nullptr ? dlsym(handle, kProbe) : nullptr) {
        return adopt(probe, true);
    }
    return Status(Code::kNotFound,
                  std::string("the real NCCL was not found (libnccl-real.so and libnccl.so.2 are "
                              "not mapped, and opening libnccl.so.2: ") +
                      (why != nullptr ? why : "failed") +
                      "); set SLIMWIRE_NCCL_LIBRARY to the path of libnccl.so.2");
}

const RealNccl* NcclLibraries::adopt(const void* probe, bool with_next) {
    const auto known = [&]() -> const RealNccl* {
        for (const RealNccl& nccl : all_) {
            if (reinterpret_cast<const void*>(nccl.CommCount) == probe) {
                return &nccl;
            }
        }
        return nullptr;
    };
    {
        const std::lock_guard lock(mutex_);
        if (const RealNccl* nccl = known()) {
            return nccl;
        }
    }
    RealNccl made = load(probe, with_next);
    const std::lock_guard lock(mutex_);
    if (const RealNccl* nccl = known()) {
        return nccl;
    }
    all_.push_back(std::move(made));
    several_.store(all_.size() > 1, std::memory_order_release);
    forget_callers();
    return &all_.back();
}

void NcclLibraries::forget_callers() noexcept {
    callers_.clear();
    generation_.fetch_add(1, std::memory_order_release);
}

void NcclLibraries::forget_unloaded() noexcept {
    unsigned long long unloads = 0;
    dl_iterate_phdr(
        [](dl_phdr_info* info, size_t, void* data) {
            *static_cast<unsigned long long*>(data) = info->dlpi_subs;
            return 1;
        },
        &unloads);
    const std::lock_guard lock(mutex_);
    if (unloads != unloads_) {
        unloads_ = unloads;
        forget_callers();
    }
}

const RealNccl* NcclLibraries::of(ncclComm_t comm, const RealNccl* otherwise) const noexcept {
    const std::lock_guard lock(mutex_);
    const auto found = of_comm_.find(comm);
    return found != of_comm_.end() ? found->second : otherwise;
}

void NcclLibraries::record(ncclComm_t comm, const RealNccl* nccl) {
    if (comm != nullptr) {
        const std::lock_guard lock(mutex_);
        of_comm_[comm] = nccl;
    }
}

void NcclLibraries::forget(ncclComm_t comm) noexcept {
    const std::lock_guard lock(mutex_);
    of_comm_.erase(comm);
}

const RealNccl& NcclLibraries::first() const noexcept {
    static const RealNccl none;
    const std::lock_guard lock(mutex_);
    return all_.empty() ? none : all_.front();
}

}  // namespace slimwire
