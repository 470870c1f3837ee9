// NVTX as it is compiled into a program, in the little that the tests need: tables whose slots
// first lead to the start, which opens the library that NVTX_INJECTION64_PATH names, and then to
// what that put there (nvtxDetail/nvtxInit.h of NVTX 3). For machines without NVTX's headers, and
// for tests that want several such modules in one program.
#pragma once

#include <dlfcn.h>

#include <array>
#include <cstdlib>

#include "plugin/nvtx/protocol.h"

namespace slimwire::test {

// One instance a number: the tables are found by a function without arguments.
template <int kNumber = 0>
class NvtxModule {
  public:
    static int push(const char* message) {
        return call<int(const char*)>(core_, nvtx::kRangePushA, -2, message);
    }
    static int push(const wchar_t* message) {
        return call<int(const wchar_t*)>(core_, nvtx::kRangePushW, -2, message);
    }
    static int push(const nvtx::EventAttributes& event) {
        return call<int(const nvtx::EventAttributes*)>(core_, nvtx::kRangePushEx, -2, &event);
    }
    static int pop() { return call<int()>(core_, nvtx::kRangePop, -2); }
    static int push(const void* domain, const nvtx::EventAttributes& event) {
        return call<int(const void*, const nvtx::EventAttributes*)>(
            core2_, nvtx::kDomainRangePushEx, -2, domain, &event);
    }
    static int pop(const void* domain) {
        return call<int(const void*)>(core2_, nvtx::kDomainRangePop, -2, domain);
    }
    static const void* domain(const char* name) {
        return call<const void*(const char*)>(core2_, nvtx::kDomainCreateA, none(), name);
    }
    static const void* domain(const wchar_t* name) {
        return call<const void*(const wchar_t*)>(core2_, nvtx::kDomainCreateW, none(), name);
    }
    static const void* registered(const void* domain, const char* text) {
        return call<const void*(const void*, const char*)>(core2_, nvtx::kDomainRegisterStringA,
                                                           none(), domain, text);
    }
    static const void* registered(const void* domain, const wchar_t* text) {
        return call<const void*(const void*, const wchar_t*)>(core2_, nvtx::kDomainRegisterStringW,
                                                              none(), domain, text);
    }
    static nvtx::EventAttributes event(nvtx::MessageType type, const void* message) {
        nvtx::EventAttributes event{};
        event.version = 3;
        event.size = sizeof event;
        event.message_type = type;
        event.message = message;
        return event;
    }
    static void mark(const char* message) {
        start();
        if (core_[2] != nullptr) {
            reinterpret_cast<void (*)(const char*)>(core_[2])(message);
        }
    }

  private:
    using Functions = std::array<nvtx::Function, nvtx::kMostFunctions>;
    static const void* none() { return nullptr; }
    static void untouched() {}

    template <class F, class Result, class... Arguments>
    static Result call(Functions& functions,
                       unsigned id,
                       Result otherwise,
                       Arguments... arguments) {
        start();
        return functions[id] == nullptr ? otherwise
                                        : reinterpret_cast<F*>(functions[id])(arguments...);
    }
    static int module_functions(int module, nvtx::Function*** table, unsigned* size) {
        static std::array<nvtx::Function*, nvtx::kMostFunctions> tables[2];
        if (module != nvtx::kCore && module != nvtx::kCore2) {
            return 0;
        }
        Functions& functions = module == nvtx::kCore ? core_ : core2_;
        auto& pointers = tables[module == nvtx::kCore ? 0 : 1];
        for (unsigned id = 1; id < nvtx::kMostFunctions; ++id) {
            pointers[id] = &functions[id];
        }
        *table = pointers.data();
        *size = nvtx::kMostFunctions;
        return 1;
    }
    static const void* export_table(uint32_t table) {
        static const nvtx::CallbacksTable callbacks{sizeof callbacks, module_functions};
        return table == nvtx::kCallbacksTable ? &callbacks : nullptr;
    }
    static void start() {
        if (started_) {
            return;
        }
        started_ = true;
        core_.fill(untouched);
        core2_.fill(untouched);
        const char* const path = std::getenv("NVTX_INJECTION64_PATH");
        void* const library = path != nullptr ? dlopen(path, RTLD_LAZY) : nullptr;
        auto* const initialize =
            library != nullptr
                ? reinterpret_cast<nvtx::Initialize*>(dlsym(library, "InitializeInjectionNvtx2"))
                : nullptr;
        const bool listens = initialize != nullptr && initialize(export_table) != 0;
        for (Functions* functions : {&core_, &core2_}) {
            for (nvtx::Function& function : *functions) {
                function = listens && function != untouched ? function : nullptr;
            }
        }
    }

    inline static bool started_ = false;
    inline static Functions core_{}, core2_{};
};

}  // namespace slimwire::test
