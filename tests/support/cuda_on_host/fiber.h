// A stack of its own for every thread of a modelled GPU, and the switch to it and back. Used by
// machine.h only; one operating-system thread. On x86-64 the switch is a dozen instructions, since
// kernels switch millions of times and swapcontext makes two system calls each time.
// AddressSanitizer is told of every switch. A stack that overflows meets a page without access.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <new>
#include <utility>

#if !defined(__x86_64__) || defined(CUDA_ON_HOST_UCONTEXT)
#include <ucontext.h>
#endif
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#define CUDA_ON_HOST_UNCHECKED [[gnu::no_sanitize("address")]]
#else
#define CUDA_ON_HOST_UNCHECKED
#endif

namespace cuda_on_host {

#if defined(__x86_64__) && !defined(CUDA_ON_HOST_UCONTEXT)
// Keeps the caller's registers on its stack and that stack's pointer in *from; goes on at `to`.
[[gnu::naked, gnu::noinline]] inline void switch_stack(void** /*from*/, void* /*to*/) {
    asm("push %rbp\n push %rbx\n push %r12\n push %r13\n push %r14\n push %r15\n"
        "mov %rsp, (%rdi)\n mov %rsi, %rsp\n"
        "pop %r15\n pop %r14\n pop %r13\n pop %r12\n pop %rbx\n pop %rbp\n ret");
}

struct Context {
    void* stack_pointer = nullptr;

    void prepare(char* stack, size_t bytes, void (*entry)()) {
        // What switch_stack pops: six registers and the address to go on at; above it the stack is
        // as after a call.
        auto* top = reinterpret_cast<uintptr_t*>(stack + bytes) - 8;
        for (int i = 0; i < 8; ++i) {
            top[i] = 0;
        }
        top[6] = reinterpret_cast<uintptr_t>(entry);
        stack_pointer = top;
    }
    void switch_to(Context& other) { switch_stack(&stack_pointer, other.stack_pointer); }
};
#else
struct Context {
    ucontext_t context{};

    // On its own because getcontext counts as a function that returns twice.
    [[gnu::noinline]] void prepare(char* stack, size_t bytes, void (*entry)()) {
        getcontext(&context);
        context.uc_stack.ss_sp = stack;
        context.uc_stack.ss_size = bytes;
        context.uc_link = nullptr;
        makecontext(&context, entry, 0);
    }
    void switch_to(Context& other) { swapcontext(&context, &other.context); }
};
#endif

class Fiber {
  public:
    Fiber() {
        void* mapped = mmap(nullptr, kGuardBytes + kStackBytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (mapped == MAP_FAILED) {
            throw std::bad_alloc();
        }
        mapped_ = static_cast<char*>(mapped);
        mprotect(mapped_, kGuardBytes, PROT_NONE);
    }
    ~Fiber() { munmap(mapped_, kGuardBytes + kStackBytes); }
    Fiber(const Fiber&) = delete;
    Fiber& operator=(const Fiber&) = delete;

    // The next resume() calls entry(), which calls begin() first and then finish() after each turn:
    // that returns when the fiber, prepared again, is resumed. A new fiber for each turn would cost
    // AddressSanitizer a stack of its own each time. One left in the middle of a turn begins anew.
    void prepare(void (*entry)()) {
        if (std::exchange(finished_, false)) {
            return;
        }
#if defined(__SANITIZE_ADDRESS__)
        __asan_unpoison_memory_region(stack(), kStackBytes);
#endif
        context_.prepare(stack(), kStackBytes, entry);
    }

    // From the scheduler into the fiber, until it suspends or finishes.
    CUDA_ON_HOST_UNCHECKED void resume() {
#if defined(__SANITIZE_ADDRESS__)
        void* fake = nullptr;
        __sanitizer_start_switch_fiber(&fake, stack(), kStackBytes);
#endif
        scheduler_.switch_to(context_);
#if defined(__SANITIZE_ADDRESS__)
        __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
#endif
    }

    static void begin() {
#if defined(__SANITIZE_ADDRESS__)
        __sanitizer_finish_switch_fiber(nullptr, &main_stack_, &main_bytes_);
#endif
    }
    CUDA_ON_HOST_UNCHECKED void suspend() {
#if defined(__SANITIZE_ADDRESS__)
        void* fake = nullptr;
        __sanitizer_start_switch_fiber(&fake, main_stack_, main_bytes_);
#endif
        context_.switch_to(scheduler_);
#if defined(__SANITIZE_ADDRESS__)
        __sanitizer_finish_switch_fiber(fake, &main_stack_, &main_bytes_);
#endif
    }
    void finish() {
        finished_ = true;
        suspend();
    }

  private:
    // AddressSanitizer keeps eleven times as much for each fiber's locals, and passes through it
    // all.
    static constexpr size_t kStackBytes = 64 << 10;
    static constexpr size_t kGuardBytes = 4096;

    char* stack() {
        return mapped_ + kGuardBytes;
    }

    static inline Context scheduler_;
    static inline const void* main_stack_ = nullptr;
    static inline size_t main_bytes_ = 0;
    Context context_;
    char* mapped_ = nullptr;
    bool finished_ = false;
};

}  // namespace cuda_on_host
