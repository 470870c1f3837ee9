// Barriers and warp collectives of the modelled GPU. Every lane that a mask names must come to the
// same call with the same mask; a lane that reads from one outside the mask is an error.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "tests/support/cuda_on_host/machine.h"

namespace cuda_on_host {

template <class T>
uint64_t to_word(T value) {
    static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= sizeof(uint64_t));
    uint64_t word = 0;
    std::memcpy(&word, &value, sizeof(T));
    return word;
}
template <class T>
T from_word(uint64_t word) {
    T value;
    std::memcpy(&value, &word, sizeof(T));
    return value;
}

[[noreturn, gnu::noinline]] inline void fail_unnamed(unsigned lane, unsigned source) {
    Machine::get().fail(Machine::get().describe_current() + ": lane " + std::to_string(lane) +
                        " reads lane " + std::to_string(source) + ", which the mask does not name");
}
[[noreturn, gnu::noinline]] inline void fail_width(const char* name, int width) {
    Machine::get().fail(std::string(name) + " with a width of " + std::to_string(width));
}

inline uint64_t take_from(const Brought& brought, unsigned lane, unsigned source) {
    if ((brought.mask >> source & 1) == 0) {
        fail_unnamed(lane, source);
    }
    return brought.value[source];
}

// source(lane, argument, last lane of the segment): the lane to read from. `argument` holds the
// lane's own one and, above it, the width of a segment.
template <class T, class Source>
T shuffle(const char* name,
          unsigned mask,
          T value,
          unsigned argument,
          unsigned uniform,
          int width,
          Where where,
          Source) {
    if (width < 1 || width > 32 || !std::has_single_bit(static_cast<unsigned>(width))) {
        fail_width(name, width);
    }
    const Call call{name, mask, uniform << 8 | static_cast<unsigned>(width), where};
    return from_word<T>(Machine::get().collective(
        call, to_word(value), argument << 8 | static_cast<unsigned>(width),
        [](const Brought& brought, unsigned lane) {
            const unsigned segment = brought.argument[lane] & 0xFF;
            const unsigned own = brought.argument[lane] >> 8;
            return take_from(brought, lane, Source{}(lane, own, segment));
        }));
}

// A value that tells in which lanes a predicate holds, computed from all that were brought.
inline unsigned ballot_of(const Brought& brought) {
    unsigned result = 0;
    for (unsigned lane = 0; lane < kWarp; ++lane) {
        result |= (brought.mask >> lane & 1) != 0 && brought.value[lane] != 0 ? 1u << lane : 0;
    }
    return result;
}

}  // namespace cuda_on_host

// --- Barriers

inline void __syncthreads(cuda_on_host::Where where = cuda_on_host::Where::current()) {
    cuda_on_host::Machine::get().barrier(where);
}
inline void __syncwarp(unsigned mask = 0xFFFFFFFFu,
                       cuda_on_host::Where where = cuda_on_host::Where::current()) {
    cuda_on_host::Machine::get().collective(
        {"__syncwarp", mask, 0, where}, 0, 0,
        [](const cuda_on_host::Brought&, unsigned) { return uint64_t{0}; });
}

// --- Shuffles

template <class T>
T __shfl_sync(unsigned mask,
              T value,
              int source,
              int width = 32,
              cuda_on_host::Where where = cuda_on_host::Where::current()) {
    return cuda_on_host::shuffle("__shfl_sync", mask, value, static_cast<unsigned>(source) & 31, 0,
                                 width, where, [](unsigned lane, unsigned from, unsigned segment) {
                                     return (lane & ~(segment - 1)) | (from & (segment - 1));
                                 });
}
template <class T>
T __shfl_up_sync(unsigned mask,
                 T value,
                 unsigned delta,
                 int width = 32,
                 cuda_on_host::Where where = cuda_on_host::Where::current()) {
    return cuda_on_host::shuffle("__shfl_up_sync", mask, value, delta, delta, width, where,
                                 [](unsigned lane, unsigned by, unsigned segment) {
                                     return (lane & (segment - 1)) >= by ? lane - by : lane;
                                 });
}
template <class T>
T __shfl_xor_sync(unsigned mask,
                  T value,
                  int lane_mask,
                  int width = 32,
                  cuda_on_host::Where where = cuda_on_host::Where::current()) {
    const unsigned by = static_cast<unsigned>(lane_mask) & 31;
    return cuda_on_host::shuffle("__shfl_xor_sync", mask, value, by, by, width, where,
                                 [](unsigned lane, unsigned by_, unsigned segment) {
                                     const unsigned from = lane ^ by_;
                                     return from <= (lane | (segment - 1)) ? from : lane;
                                 });
}

// --- Votes

inline unsigned __ballot_sync(unsigned mask,
                              int predicate,
                              cuda_on_host::Where where = cuda_on_host::Where::current()) {
    return static_cast<unsigned>(cuda_on_host::Machine::get().collective(
        {"__ballot_sync", mask, 0, where}, predicate != 0, 0,
        [](const cuda_on_host::Brought& brought, unsigned) {
            return uint64_t{cuda_on_host::ballot_of(brought)};
        }));
}
inline int __any_sync(unsigned mask,
                      int predicate,
                      cuda_on_host::Where where = cuda_on_host::Where::current()) {
    return static_cast<int>(cuda_on_host::Machine::get().collective(
        {"__any_sync", mask, 0, where}, predicate != 0, 0,
        [](const cuda_on_host::Brought& brought, unsigned) {
            return uint64_t{cuda_on_host::ballot_of(brought) != 0};
        }));
}
inline int __all_sync(unsigned mask,
                      int predicate,
                      cuda_on_host::Where where = cuda_on_host::Where::current()) {
    return static_cast<int>(cuda_on_host::Machine::get().collective(
        {"__all_sync", mask, 0, where}, predicate != 0, 0,
        [](const cuda_on_host::Brought& brought, unsigned) {
            return uint64_t{cuda_on_host::ballot_of(brought) == brought.mask};
        }));
}
