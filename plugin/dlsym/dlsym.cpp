// The opt-in libslimwire-dlsym.so, preloaded beside libslimwire.so: its dlsym gives a program that
// looks NCCL's functions up in a library's handle (ctypes, stubs over dlopen) slimwire's ones where
// they stand for the very function found. Every other call reaches the original as if it had been
// made by the caller: the entry jumps there, so that RTLD_NEXT and RTLD_DEFAULT see its address.
// Any thread, any time: the common path takes no lock and no memory and makes no system call.
#include <dlfcn.h>
#include <string.h>

#include <atomic>

extern "C" {

// What the entry does next, in the two registers that such a struct is returned in.
struct SlimwireNext {
    const void* result;  // returned when `target` is null
    const void* target;  // jumped to, with the caller's arguments and return address
};
[[gnu::visibility("hidden"), gnu::used]] SlimwireNext slimwire_choose(void* handle,
                                                                      const char* name,
                                                                      const void* caller);

}  // extern "C"

#if defined(__x86_64__)
asm(R"(
    .text
    .globl dlsym
    .type dlsym, @function
dlsym:
    .cfi_startproc
    endbr64
    pushq %rdi
    .cfi_adjust_cfa_offset 8
    pushq %rsi
    .cfi_adjust_cfa_offset 8
    subq $8, %rsp
    .cfi_adjust_cfa_offset 8
    movq 24(%rsp), %rdx
    call slimwire_choose
    addq $8, %rsp
    .cfi_adjust_cfa_offset -8
    popq %rsi
    .cfi_adjust_cfa_offset -8
    popq %rdi
    .cfi_adjust_cfa_offset -8
    testq %rdx, %rdx
    je 1f
    jmp *%rdx
1:  ret
    .cfi_endproc
    .size dlsym, .-dlsym
)");
#elif defined(__aarch64__)
asm(R"(
    .text
    .globl dlsym
    .type dlsym, %function
dlsym:
    .cfi_startproc
    hint #34
    stp x29, x30, [sp, #-32]!
    .cfi_def_cfa_offset 32
    .cfi_offset x29, -32
    .cfi_offset x30, -24
    stp x0, x1, [sp, #16]
    mov x29, sp
    mov x2, x30
    bl slimwire_choose
    mov x16, x1
    mov x17, x0
    ldp x0, x1, [sp, #16]
    ldp x29, x30, [sp], #32
    .cfi_restore x29
    .cfi_restore x30
    .cfi_def_cfa_offset 0
    cbz x16, 1f
    br x16
1:  mov x0, x17
    ret
    .cfi_endproc
    .size dlsym, .-dlsym
)");
#else
#error "slimwire runs on x86-64 and aarch64"
#endif

namespace {

using Dlsym = void*(void*, const char*);
using Replace = const void*(const char*, const void*);

std::atomic<Dlsym*> g_original{nullptr};
std::atomic<Replace*> g_replace{nullptr};

// The next dlsym behind this library: libc's, or another interposer's. Threads that come at once
// find the same.
Dlsym* original() {
    Dlsym* found = g_original.load(std::memory_order_relaxed);
    if (found == nullptr) {
        for (const char* version : {"GLIBC_2.34", "GLIBC_2.17", "GLIBC_2.2.5"}) {
            found = reinterpret_cast<Dlsym*>(dlvsym(RTLD_NEXT, "dlsym", version));
            if (found != nullptr) {
                break;
            }
        }
        g_original.store(found, std::memory_order_relaxed);
    }
    return found;
}

// libslimwire.so's answer to which of its functions stands for one of NCCL's; null when it is not
// there.
Replace* replace() {
    Replace* found = g_replace.load(std::memory_order_relaxed);
    if (found == nullptr) {
        found = reinterpret_cast<Replace*>(original()(RTLD_DEFAULT, "slimwireReplace_v1"));
        g_replace.store(found, std::memory_order_relaxed);
    }
    return found;
}

bool same_object(const void* one, const void* other) {
    Dl_info first{}, second{};
    return dladdr(one, &first) != 0 && dladdr(other, &second) != 0 &&
           first.dli_fbase == second.dli_fbase;
}

}  // namespace

SlimwireNext slimwire_choose(void* handle, const char* name, const void* caller) {
    Dlsym* const dlsym_of_libc = original();
    const SlimwireNext pass{nullptr, reinterpret_cast<const void*>(dlsym_of_libc)};
    if (dlsym_of_libc == nullptr || handle == RTLD_NEXT || handle == RTLD_DEFAULT ||
        name == nullptr || strncmp(name, "nccl", 4) != 0) {
        return pass;
    }
    Replace* const replace_function = replace();
    // slimwire itself looks for the real functions in this way.
    if (replace_function == nullptr ||
        same_object(caller, reinterpret_cast<const void*>(replace_function))) {
        return pass;
    }
    const void* const found = dlsym_of_libc(handle, name);
    if (found == nullptr) {
        return {nullptr, nullptr};  // dlerror() knows why
    }
    const void* const ours = replace_function(name, found);
    if (ours == nullptr) {
        return pass;
    }
    (void)dlerror();  // of look-ups made on the way; this one succeeded
    return {ours, nullptr};
}
