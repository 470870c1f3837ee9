// Errors of the emulated runtime: the last error of a thread, sticky errors, reset, settings, fork,
// exit.
#include "tests/tools/emulator/cuda_test.h"

#include <sys/wait.h>
#include <unistd.h>

#include <set>
#include <string>

namespace slimwire::testing {
namespace {

TEST(Errors, last_error_belongs_to_the_thread) {
    EXPECT_EQ(cudaSetDevice(1000), cudaErrorInvalidDevice);
    std::thread([] { EXPECT_EQ(cudaGetLastError(), cudaSuccess); }).join();
    EXPECT_EQ(cudaPeekAtLastError(), cudaErrorInvalidDevice);
    int device = 0;
    CUDA_OK(cudaGetDevice(&device));
    EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidDevice) << "a success does not clear it";
    EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

TEST(Errors, every_code_has_a_name_and_a_text) {
    std::set<std::string> names;
    int known = 0;
    for (int code = 0; code <= 10000; ++code) {
        const std::string name = cudaGetErrorName(static_cast<cudaError_t>(code));
        ASSERT_NE(cudaGetErrorString(static_cast<cudaError_t>(code)), nullptr);
        if (name != "unrecognized error code") {
            ++known;
            EXPECT_TRUE(names.insert(name).second) << name;
            EXPECT_NE(std::string(cudaGetErrorString(static_cast<cudaError_t>(code))), "");
        }
    }
    EXPECT_EQ(known, 68);  // as many as cuda_errors.h lists
    EXPECT_STREQ(cudaGetErrorName(cudaErrorInvalidResourceHandle),
                 "cudaErrorInvalidResourceHandle");
    EXPECT_STREQ(cudaGetErrorString(cudaErrorMemoryAllocation), "out of memory");
}

TEST(Errors, failing_body_poisons_the_device_until_reset) {
    IN_FRESH_PROCESS("device 1: broken_kernel failed with cudaErrorIllegalAddress", {
        CUDA_OK(cudaSetDevice(1));
        const cudaStream_t stream = make_stream();
        cudaEvent_t event = nullptr;
        CUDA_OK(cudaEventCreate(&event));
        void* pointer = nullptr;
        CUDA_OK(cudaMalloc(&pointer, 100));
        std::vector<int> log;
        Gate gate;
        gate.hold(stream);
        CUDA_OK(emulator().launch(
            stream, [](const void*) { throw cudaErrorIllegalAddress; }, nullptr, 0,
            "broken_kernel"));
        note(stream, log, 1);  // skipped
        gate.open();
        CUDA_OK(cudaSetDevice(0));
        EXPECT_EQ(cudaStreamSynchronize(stream), cudaErrorIllegalAddress);
        CUDA_OK(cudaMalloc(&pointer, 100));  // the other device works
        CUDA_OK(cudaSetDevice(1));
        EXPECT_EQ(cudaMalloc(&pointer, 100), cudaErrorIllegalAddress);
        EXPECT_EQ(cudaEventRecord(event, stream), cudaErrorIllegalAddress);
        EXPECT_EQ(cudaDeviceSynchronize(), cudaErrorIllegalAddress);
        EXPECT_EQ(cudaGetLastError(), cudaErrorIllegalAddress);
        EXPECT_EQ(cudaGetLastError(), cudaErrorIllegalAddress) << "sticky";
        EXPECT_TRUE(log.empty());
        CUDA_OK(cudaDeviceReset());
        EXPECT_EQ(cudaGetLastError(), cudaSuccess);
        EXPECT_EQ(cudaStreamQuery(stream), cudaErrorInvalidResourceHandle)
            << "reset destroys streams";
        CUDA_OK(cudaMalloc(&pointer, 100));
    });
}

TEST(Errors, events_complete_on_a_poisoned_device) {
    IN_FRESH_PROCESS("a host function failed with cudaErrorLaunchFailure: no such luck", {
        const cudaStream_t stream = make_stream();
        cudaEvent_t event = nullptr;
        CUDA_OK(cudaEventCreate(&event));
        Gate gate;
        gate.hold(stream);
        CUDA_OK(cudaLaunchHostFunc(
            stream, [](void*) { throw std::runtime_error("no such luck"); }, nullptr));
        CUDA_OK(cudaEventRecord(event, stream));
        gate.open();
        EXPECT_EQ(cudaEventSynchronize(event), cudaErrorLaunchFailure);
    });
}

TEST(Reset, frees_memory_and_keeps_the_other_device) {
    IN_FRESH_PROCESS("", {
        void* first = nullptr;
        void* second = nullptr;
        void* pooled = nullptr;
        CUDA_OK(cudaMalloc(&first, 1 << 20));
        CUDA_OK(cudaMallocAsync(&pooled, 1 << 20, nullptr));
        CUDA_OK(cudaSetDevice(1));
        CUDA_OK(cudaMalloc(&second, 1 << 20));
        CUDA_OK(cudaSetDevice(0));
        CUDA_OK(cudaDeviceReset());
        size_t free_bytes = 0;
        size_t total_bytes = 0;
        CUDA_OK(cudaMemGetInfo(&free_bytes, &total_bytes));
        EXPECT_EQ(free_bytes, total_bytes);
        EXPECT_EQ(cudaFree(first), cudaErrorInvalidValue);
        CUDA_OK(cudaFree(second));
        CUDA_OK(cudaMallocAsync(&pooled, 1 << 20, nullptr));
        CUDA_OK(cudaFreeAsync(pooled, nullptr));
    });
}

TEST(Settings, a_wrong_one_is_said_once_and_fails_every_call) {
    const struct {
        std::string variable;
        std::vector<const char*> texts;
        const char* said;
    } wrong[] = {
        {"SLIMWIRE_EMU_DEVICES", {"two"}, "is not a number of devices"},
        {"SLIMWIRE_EMU_STRICT", {"2"}, "is none of 0, 1, calls"},
        {"SLIMWIRE_EMU_NODES", {"4"}, "is not NxM"},
        {"SLIMWIRE_EMU_MEMORY",
         {"1", "65535", "1MB", "-1MiB", "10KiB", "200GiB", "nan MiB"},
         "is not a size"},
        {"SLIMWIRE_EMU_CHECK_ERROR",
         {"1.5", "-0.1", "exact", "0.1x"},
         "is not a number from 0 to 1"},
        {"SLIMWIRE_EMU_FAULT",
         {"cudaMalloc", "cudaMalloc:0", "malloc:1", "cudaMalloc:1=", "cudaMalloc:1=x",
          "cudaMalloc:1=5m", "cudaMalloc:-1"},
         "is not a list like"},
    };
    for (const auto& [variable, texts, said] : wrong) {
        for (const char* text : texts) {
            const std::string line =
                "^slimwire emulator: " + variable + "=[^\n]* " + said + "[^\n]*\n$";
            const char* const name = variable.c_str();
            IN_FRESH_PROCESS(line, {
                setenv(name, text, 1);
                int count = 0;
                void* pointer = nullptr;
                EXPECT_EQ(cudaGetDeviceCount(&count), cudaErrorInitializationError) << text;
                EXPECT_EQ(cudaMalloc(&pointer, 1), cudaErrorInitializationError);
                EXPECT_EQ(cudaStreamSynchronize(nullptr), cudaErrorInitializationError);
            });
        }
    }
    IN_FRESH_PROCESS("", {
        setenv("SLIMWIRE_EMU_DEVICES", "0", 1);
        int count = 0;
        EXPECT_EQ(cudaGetDeviceCount(&count), cudaErrorNoDevice);
    });
}

TEST(Fork, child_of_an_unused_process_may_use_cuda) {
    IN_FRESH_PROCESS("", {
        const pid_t child = fork();
        if (child == 0) {
            void* pointer = nullptr;
            const bool good = cudaMalloc(&pointer, 10) == cudaSuccess &&
                              cudaMemset(pointer, 0, 10) == cudaSuccess &&
                              cudaDeviceSynchronize() == cudaSuccess;
            _exit(good ? 7 : 1);
        }
        int status = 0;
        waitpid(child, &status, 0);
        EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 7);
        CUDA_OK(cudaDeviceSynchronize());
    });
}

TEST(Fork, child_of_a_using_process_gets_an_error_not_a_hang) {
    IN_FRESH_PROCESS("", {
        CUDA_OK(cudaMemset(nullptr, 0, 0));
        std::vector<int> log;
        note(nullptr, log, 1);
        const pid_t child = fork();
        if (child == 0) {
            alarm(20);
            void* pointer = nullptr;
            const bool good = cudaStreamSynchronize(nullptr) == cudaErrorInitializationError &&
                              cudaMalloc(&pointer, 10) == cudaErrorInitializationError &&
                              cudaGetLastError() == cudaErrorInitializationError;
            _exit(good ? 7 : 1);
        }
        int status = 0;
        waitpid(child, &status, 0);
        EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 7);
        CUDA_OK(cudaStreamSynchronize(nullptr));
    });
}

TEST(Exit, with_running_workers_is_clean) {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    EXPECT_EXIT(
        {
            static std::atomic<bool> running{false};
            for (int i = 0; i < 4; ++i) {
                (void)cudaLaunchHostFunc(
                    make_stream(),
                    [](void*) {
                        running = true;
                        for (;;) {
                            sleep_ms(1);
                            int count = 0;
                            (void)cudaGetDeviceCount(&count);
                        }
                    },
                    nullptr);
            }
            (void)cudaLaunchHostFunc(
                cudaStreamPerThread, [](void*) {}, nullptr);
            while (!running) {
                sleep_ms(1);
            }
            std::exit(5);  // runs static destructors beside the workers
        },
        ::testing::ExitedWithCode(5), "");
}

}  // namespace
}  // namespace slimwire::testing
