// Atomics, fences and loads and stores with a cache policy. Each is a point where other threads of
// the modelled GPU may come in between, so that orders which a GPU could show are tried. A loop
// that waits for another thread must contain one of these or __nanosleep. There are no float
// atomics: the order of a sum would not be fixed.
#pragma once

#include <cstdint>
#include <type_traits>

#include "tests/support/cuda_on_host/machine.h"

namespace cuda_on_host {

[[noreturn, gnu::noinline]] inline void fail_misaligned(size_t bytes) {
    Machine::get().fail("an atomic at an address that is not a multiple of " +
                        std::to_string(bytes));
}

template <class T, class Change>
T atomic(T* address, Change change) {
    static_assert(std::is_integral_v<T> && (sizeof(T) == 4 || sizeof(T) == 8));
    if (reinterpret_cast<uintptr_t>(address) % sizeof(T) != 0) {
        fail_misaligned(sizeof(T));
    }
    Machine::get().step();
    const T old = *address;
    *address = static_cast<T>(change(old));
    return old;
}

template <class T>
using Same = std::type_identity_t<T>;

}  // namespace cuda_on_host

template <class T>
T atomicAdd(T* address, cuda_on_host::Same<T> value) {
    using Unsigned = std::make_unsigned_t<T>;
    return cuda_on_host::atomic(
        address, [=](T old) { return static_cast<Unsigned>(old) + static_cast<Unsigned>(value); });
}
template <class T>
T atomicMax(T* address, cuda_on_host::Same<T> value) {
    return cuda_on_host::atomic(address, [=](T old) { return old > value ? old : value; });
}
template <class T>
T atomicMin(T* address, cuda_on_host::Same<T> value) {
    return cuda_on_host::atomic(address, [=](T old) { return old < value ? old : value; });
}
template <class T>
T atomicOr(T* address, cuda_on_host::Same<T> value) {
    return cuda_on_host::atomic(address, [=](T old) { return old | value; });
}
template <class T>
T atomicCAS(T* address, cuda_on_host::Same<T> compare, cuda_on_host::Same<T> value) {
    return cuda_on_host::atomic(address, [=](T old) { return old == compare ? value : old; });
}

inline void __threadfence() {
    cuda_on_host::Machine::get().step();
}
inline void __threadfence_system() {
    cuda_on_host::Machine::get().step();
}
inline void __nanosleep(unsigned) {
    cuda_on_host::Machine::get().step();
}

template <class T>
T __ldcv(const T* address) {
    cuda_on_host::Machine::get().step();
    return *address;
}
template <class T>
void __stcg(T* address, cuda_on_host::Same<T> value) {
    cuda_on_host::Machine::get().step();
    *address = value;
}
