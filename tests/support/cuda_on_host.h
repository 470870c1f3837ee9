// Kernel sources compiled by the host compiler: a small execution model of a GPU, so that the very
// kernels run where there is no GPU, also under sanitizers. The threads of a block are fibers, run
// in a random order from a printed seed and interleaved at warp shuffles and barriers; a lane that
// leaves or takes another path while its warp waits in a shuffle is an error. Blocks run one after
// another. A test includes this header, then the .cu files. Not modelled: memory ordering between
// warps, shared memory banks, hardware timing.
#pragma once

#include <cuda_runtime_api.h>
#include <ucontext.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <random>
#include <stdexcept>
#include <utility>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

#define SLIMWIRE_CUDA_ON_HOST
#define __device__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define threadIdx (::cuda_on_host::Machine::get().thread_index())
#define blockIdx (::cuda_on_host::Machine::get().block_index())
#define blockDim (::cuda_on_host::Machine::get().block_dim())
#define gridDim (::cuda_on_host::Machine::get().grid_dim())

namespace cuda_on_host {

struct Index {
    unsigned x;
};

class Machine {
  public:
    static Machine& get() {
        static Machine machine;
        return machine;
    }

    void seed(uint32_t seed) { random_.seed(seed); }

    Index thread_index() const { return {static_cast<unsigned>(current_)}; }
    Index block_index() const { return {block_}; }
    Index block_dim() const { return {threads_}; }
    Index grid_dim() const { return {blocks_}; }

    // Runs body() as every thread of every block. Throws what a thread threw.
    void run(unsigned blocks, unsigned threads, const std::function<void()>& body) {
        blocks_ = blocks;
        threads_ = threads;
        for (block_ = 0; block_ < blocks; ++block_) {
            run_block(body);
        }
    }

    // The exchange of a full warp: every lane gives a value and gets that of lane ^ lane_mask.
    uint32_t shuffle_xor(uint32_t mask, uint32_t value, int lane_mask) {
        if (mask != 0xFFFFFFFFu) {
            throw std::logic_error("shuffle with a partial mask is not modelled");
        }
        Fiber& fiber = fibers_[static_cast<size_t>(current_)];
        fiber.given = value;
        fiber.lane_mask = lane_mask;
        wait(State::kShuffle);
        return fiber.taken;
    }

    void barrier() { wait(State::kBarrier); }

  private:
    enum class State { kReady, kShuffle, kBarrier, kDone };
    static constexpr size_t kStackBytes = 128 << 10;
    static constexpr int kWarp = 32;

    struct Fiber {
        ucontext_t context{};
        std::unique_ptr<char[]> stack;
        State state = State::kDone;
        uint32_t given = 0;
        uint32_t taken = 0;
        int lane_mask = 0;
    };

    static void enter() {
        Machine& machine = get();
#if defined(__SANITIZE_ADDRESS__)
        __sanitizer_finish_switch_fiber(nullptr, &machine.main_stack_, &machine.main_bytes_);
#endif
        try {
            (*machine.body_)();
        } catch (...) {
            machine.error_ = std::current_exception();
        }
        machine.fibers_[static_cast<size_t>(machine.current_)].state = State::kDone;
        machine.leave(true);
    }

    // From a fiber to the scheduler.
    void leave([[maybe_unused]] bool for_good) {
        Fiber& fiber = fibers_[static_cast<size_t>(current_)];
#if defined(__SANITIZE_ADDRESS__)
        void* fake = nullptr;
        __sanitizer_start_switch_fiber(for_good ? nullptr : &fake, main_stack_, main_bytes_);
#endif
        swapcontext(&fiber.context, &scheduler_);
#if defined(__SANITIZE_ADDRESS__)
        __sanitizer_finish_switch_fiber(fake, &main_stack_, &main_bytes_);
#endif
    }

    void wait(State state) {
        fibers_[static_cast<size_t>(current_)].state = state;
        leave(false);
    }

    void resume(int index) {
        current_ = index;
        Fiber& fiber = fibers_[static_cast<size_t>(index)];
#if defined(__SANITIZE_ADDRESS__)
        void* fake = nullptr;
        __sanitizer_start_switch_fiber(&fake, fiber.stack.get(), kStackBytes);
#endif
        swapcontext(&scheduler_, &fiber.context);
#if defined(__SANITIZE_ADDRESS__)
        __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
#endif
        if (error_) {
            std::rethrow_exception(std::exchange(error_, nullptr));
        }
    }

    // On its own because getcontext counts as a function that returns twice.
    [[gnu::noinline]] static void start(Fiber& fiber) {
        getcontext(&fiber.context);
        fiber.context.uc_stack.ss_sp = fiber.stack.get();
        fiber.context.uc_stack.ss_size = kStackBytes;
        fiber.context.uc_link = nullptr;
        makecontext(&fiber.context, &Machine::enter, 0);
        fiber.state = State::kReady;
    }

    void run_block(const std::function<void()>& body) {
        body_ = &body;
        fibers_.resize(threads_);
        for (Fiber& fiber : fibers_) {
            if (!fiber.stack) {
                fiber.stack = std::make_unique<char[]>(kStackBytes);
            }
            start(fiber);
        }
        std::vector<int> ready;
        while (true) {
            ready.clear();
            bool all_done = true;
            for (int i = 0; i < static_cast<int>(threads_); ++i) {
                const State state = fibers_[static_cast<size_t>(i)].state;
                all_done = all_done && state == State::kDone;
                if (state == State::kReady) {
                    ready.push_back(i);
                }
            }
            if (all_done) {
                return;
            }
            if (ready.empty() && !release_barrier()) {
                throw std::logic_error("threads wait for others that left or diverged");
            }
            std::shuffle(ready.begin(), ready.end(), random_);
            for (const int i : ready) {
                resume(i);
                exchange(i / kWarp);
            }
        }
    }

    // Completes the shuffle of a warp once all its lanes are in one.
    void exchange(int warp) {
        Fiber* lanes = &fibers_[static_cast<size_t>(warp * kWarp)];
        for (int i = 0; i < kWarp; ++i) {
            if (lanes[i].state != State::kShuffle) {
                return;
            }
            if (lanes[i].lane_mask != lanes[0].lane_mask) {
                throw std::logic_error("lanes of a warp are in different shuffles");
            }
        }
        for (int i = 0; i < kWarp; ++i) {
            lanes[i].taken = lanes[i ^ lanes[i].lane_mask].given;
            lanes[i].state = State::kReady;
        }
    }

    // Opens the barrier when every thread of the block stands at it.
    bool release_barrier() {
        for (const Fiber& fiber : fibers_) {
            if (fiber.state != State::kBarrier) {
                return false;
            }
        }
        for (Fiber& fiber : fibers_) {
            fiber.state = State::kReady;
        }
        return true;
    }

    std::vector<Fiber> fibers_;
    ucontext_t scheduler_{};
    const std::function<void()>* body_ = nullptr;
    std::exception_ptr error_;
    std::mt19937 random_;
    const void* main_stack_ = nullptr;
    size_t main_bytes_ = 0;
    unsigned blocks_ = 0;
    unsigned threads_ = 0;
    unsigned block_ = 0;
    int current_ = 0;
};

// Few, so that a thread takes several units of work.
inline cudaError_t processor_count(int* count) {
    *count = 1;
    return cudaSuccess;
}

// Takes the place of a kernel launch.
template <class... Parameters>
cudaError_t start_kernel(void (*kernel)(Parameters...),
                         unsigned blocks,
                         unsigned threads,
                         cudaStream_t,
                         const Parameters&... parameters) {
    Machine::get().run(blocks, threads, [&] { kernel(parameters...); });
    return cudaSuccess;
}

}  // namespace cuda_on_host

// --- The intrinsics that kernels use. Arithmetic intrinsics give the device's NaN, 0x7FFFFFFF.

inline float4 make_float4(float x, float y, float z, float w) {
    return {x, y, z, w};
}
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) {
    return {x, y, z, w};
}
inline uint2 make_uint2(unsigned x, unsigned y) {
    return {x, y};
}

inline unsigned __float_as_uint(float x) {
    return std::bit_cast<unsigned>(x);
}
inline float __uint_as_float(unsigned x) {
    return std::bit_cast<float>(x);
}
inline float device_result(float x) {
    return x == x ? x : __uint_as_float(0x7FFFFFFFu);
}
inline float __fadd_rn(float a, float b) {
    return device_result(a + b);
}
inline float __fsub_rn(float a, float b) {
    return device_result(a - b);
}
inline float __fmul_rn(float a, float b) {
    return device_result(a * b);
}
inline float __fdiv_rn(float a, float b) {
    return device_result(a / b);
}
inline float __fmaf_rn(float a, float b, float c) {
    return device_result(std::fma(a, b, c));
}
inline int __clz(int x) {
    return std::countl_zero(static_cast<unsigned>(x));
}
inline unsigned min(unsigned a, unsigned b) {
    return a < b ? a : b;
}
inline unsigned max(unsigned a, unsigned b) {
    return a > b ? a : b;
}
inline unsigned __shfl_xor_sync(unsigned mask, unsigned value, int lane_mask) {
    return cuda_on_host::Machine::get().shuffle_xor(mask, value, lane_mask);
}
inline void __syncthreads() {
    cuda_on_host::Machine::get().barrier();
}
