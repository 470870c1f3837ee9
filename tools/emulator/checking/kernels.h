// Host bodies for the kernels by which nccl-tests fills buffers and checks results, found by the
// names nvcc registers them under, so that its programs run here unmodified with their data check
// on. The bodies are ours and the data are of our making (data.h): a program only hands what one of
// these kernels wrote to another, and looks at the number of wrong elements. Kernels, by argument:
//
//   prepareInput2<T, Op>(T* elements, long count, Op, int ranks, int rank, uint64 seed, long first)
//   prepareExpected2<T, Op>(T* elements, long count, Op, int ranks, uint64 seed, long first)
//   verifyPrepared<U>(U* results, U* expected, long count, unsigned tolerance, int64* wrong)
//   verifyInline2<T, U, Op>(T* results, long count, Op, int ranks, uint64 seed, long first,
//                           unsigned tolerance, int64* wrong)
//
// in whatever namespace; `tolerance` is in units of the last place, `wrong` is added to. Used by
// kernels.cpp of cudart/ for names that no library registered.
#pragma once

// First: it declares CUDA's functions as exported.
#include "tools/emulator/cudart/api/exports.h"

#pragma GCC visibility push(default)
#include "tools/emulator/cudart/machine/kernel_registry.h"
#pragma GCC visibility pop

#include <functional>
#include <string_view>

namespace slimwire::emulator::checking {

// As slimwire_emulator_kernel_maker, of one kernel.
using KernelMaker = std::function<int(void** args, slimwire_emulator_kernel_call* out)>;
// The maker of the kernel with this demangled name, which outlives it; null for any other. Any
// thread.
[[nodiscard]] KernelMaker find_checking_kernel(std::string_view demangled_name);

}  // namespace slimwire::emulator::checking
