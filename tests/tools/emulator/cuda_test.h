// Helpers of the cudart tests: gates that hold a stream, device buffers, fresh processes.
// The tests are ordinary CUDA programs: they include cuda_runtime.h and link libcudart.so.13.
#pragma once

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <thread>
#include <vector>

#include "codecs/base/emulator_abi.h"

extern "C" const slimwire::EmulatorApi* slimwire_emulator_api(uint32_t version);

#define CUDA_OK(call) ASSERT_EQ((call), cudaSuccess)

namespace slimwire::testing {

// The emulator's own functions. The launches of a test are loaded ahead on the current device, for
// it may hold a stream for which a first launch would wait.
inline const EmulatorApi& emulator() {
    const EmulatorApi& api = *slimwire_emulator_api(kEmulatorAbiVersion);
    EXPECT_EQ(api.load_kernels(reinterpret_cast<const void*>(&emulator)), cudaSuccess);
    return api;
}

// Holds the streams it is put on until it is opened. A held stream may outlive the gate's scope.
class Gate {
  public:
    ~Gate() { open(); }
    void hold(cudaStream_t stream) {
        ASSERT_EQ(cudaLaunchHostFunc(stream, wait, new std::shared_ptr<State>(state_)),
                  cudaSuccess);
    }
    // Before another gate holds a stream: host functions run one at a time, in any order.
    void wait_until_it_holds() { state_->holds.wait(0); }
    void open() {
        state_->open.store(1);
        state_->open.notify_all();
    }

  private:
    struct State {
        std::atomic<int> holds{0}, open{0};
    };
    static void wait(void* shared) {
        const std::unique_ptr<std::shared_ptr<State>> state(
            static_cast<std::shared_ptr<State>*>(shared));
        (*state)->holds.store(1);
        (*state)->holds.notify_all();
        (*state)->open.wait(0);
    }
    std::shared_ptr<State> state_ = std::make_shared<State>();
};

inline void sleep_ms(int ms) {
    std::this_thread::sleep_for(std::chrono::milliseconds(ms));
}

// Whether `call` ends only after the work that `held` has before it.
template <class Call>
bool waits_for(cudaStream_t held, const Call& call) {
    Gate gate;
    gate.hold(held);
    std::atomic<bool> opened = false;
    std::thread opener([&] {
        sleep_ms(50);
        opened = true;
        gate.open();
    });
    EXPECT_EQ(call(), cudaSuccess);
    const bool waited = opened;
    opener.join();
    return waited;
}

// Appends `value` to `log` when the stream gets there. One log is used by ordered streams only, or
// is read after a synchronisation.
struct Note {
    std::vector<int>* log;
    int value;
};

inline void note(cudaStream_t stream, std::vector<int>& log, int value) {
    const Note mine{&log, value};
    ASSERT_EQ(emulator().launch(
                  stream,
                  [](const void* args) {
                      const Note* note = static_cast<const Note*>(args);
                      note->log->push_back(note->value);
                  },
                  &mine, sizeof mine, "note"),
              cudaSuccess);
}

inline cudaStream_t make_stream(unsigned int flags = cudaStreamNonBlocking) {
    cudaStream_t stream = nullptr;
    EXPECT_EQ(cudaStreamCreateWithFlags(&stream, flags), cudaSuccess);
    return stream;
}

// A stream, and an event, that are gone with the scope.
class Stream {
  public:
    explicit Stream(unsigned int flags = cudaStreamNonBlocking) : stream_(make_stream(flags)) {}
    ~Stream() { EXPECT_EQ(cudaStreamDestroy(stream_), cudaSuccess); }
    Stream(const Stream&) = delete;
    Stream& operator=(const Stream&) = delete;
    operator cudaStream_t() const { return stream_; }

  private:
    cudaStream_t stream_;
};

class Event {
  public:
    explicit Event(unsigned int flags = cudaEventDefault) {
        EXPECT_EQ(cudaEventCreateWithFlags(&event_, flags), cudaSuccess);
    }
    ~Event() { EXPECT_EQ(cudaEventDestroy(event_), cudaSuccess); }
    Event(const Event&) = delete;
    Event& operator=(const Event&) = delete;
    operator cudaEvent_t() const { return event_; }

  private:
    cudaEvent_t event_ = nullptr;
};

// `later` waits for what `earlier` holds now.
inline void order(cudaStream_t earlier, cudaStream_t later) {
    const Event event(cudaEventDisableTiming);
    ASSERT_EQ(cudaEventRecord(event, earlier), cudaSuccess);
    ASSERT_EQ(cudaStreamWaitEvent(later, event, 0), cudaSuccess);
}

// Runs a body in a fresh process, before any CUDA call was made there; fails when an expectation
// does. What the process writes to stderr must match `stderr_regex`.
template <class Body>
[[noreturn]] void run_and_exit(const Body& body) {
    body();
    std::_Exit(::testing::Test::HasFailure() ? 1 : 0);
}

#define IN_FRESH_PROCESS(stderr_regex, ...)                                                \
    do {                                                                                   \
        GTEST_FLAG_SET(death_test_style, "threadsafe");                                    \
        const auto fresh_body = [&]() __VA_ARGS__;                                         \
        EXPECT_EXIT(run_and_exit(fresh_body), ::testing::ExitedWithCode(0), stderr_regex); \
    } while (false)

}  // namespace slimwire::testing
