// What a thread keeps for itself and a program may still need when the thread ends: destructors of
// static and of thread-local objects of the program call NCCL after slimwire's own were destroyed.
#pragma once

#include <utility>

namespace slimwire {

// The thread's one T, made when it is asked for and destroyed with the thread. Whoever asks after
// that gets a new one, which stays. A type of its own for each use.
template <class T>
[[nodiscard]] T& per_thread() {
    static constinit thread_local T* object = nullptr;
    struct ThreadEnd {
        ~ThreadEnd() { delete std::exchange(object, nullptr); }
    };
    if (object == nullptr) {
        object = new T;
        static thread_local const ThreadEnd end;
    }
    return *object;
}

}  // namespace slimwire
