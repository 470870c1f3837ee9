// The part of NVTX 3 that a library which listens to it needs: how it is started, which functions
// it may put in place, what a range's attributes are. From NVTX's own headers (nvToolsExt.h,
// nvtxDetail/nvtxTypes.h, nvtxDetail/nvtxInit.h of CUDA 13.0; the layout is that of every NVTX 3);
// plugin.nvtx_layout compares it with those of the machine where there are some.
//
// NVTX is compiled into each program and library that uses it. At its first call such a module
// opens the file that NVTX_INJECTION64_PATH names, calls InitializeInjectionNvtx2 of it with a
// function that returns the module's tables, and from then on calls what was put into the slots.
// Slots that still hold what was there become null: NVTX then does nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cwchar>

namespace slimwire::nvtx {

using Function = void (*)();

enum Module : int { kCore = 1, kCore2 = 5 };
enum CoreFunction : unsigned {
    kRangePushEx = 8,
    kRangePushA = 9,
    kRangePushW = 10,
    kRangePop = 11
};
enum Core2Function : unsigned {
    kDomainRangePushEx = 4,
    kDomainRangePop = 5,
    kDomainRegisterStringA = 10,
    kDomainRegisterStringW = 11,
    kDomainCreateA = 12,
    kDomainCreateW = 13,
};
inline constexpr unsigned kMostFunctions = 16;

inline constexpr uint32_t kCallbacksTable = 1;
struct CallbacksTable {
    size_t struct_size;
    // 1 where it has the module: `table[id]` is where the function's slot lies, `size` as many.
    int (*module_functions)(int module, Function*** table, unsigned* size);
};
using ExportTable = const void*(uint32_t table);
using Initialize = int(ExportTable* export_table);  // not 0: it listens

enum MessageType : int32_t { kAscii = 1, kUnicode = 2, kRegistered = 3 };

struct EventAttributes {
    uint16_t version;
    uint16_t size;
    uint32_t category;
    int32_t color_type;
    uint32_t color;
    int32_t payload_type;
    int32_t reserved;
    uint64_t payload;
    int32_t message_type;
    const void* message;  // a string, or what registering one returned
};

}  // namespace slimwire::nvtx
