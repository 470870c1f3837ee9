// The two ways work gets onto a stream besides copies: slimwire's own launch interface and the
// launch stubs of programs that nvcc compiled (called here as the stubs call them).
#include "tests/tools/emulator/cuda_test.h"

#include <dlfcn.h>
#include <signal.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <thread>
#include <utility>

#include "collectives/call/launcher_names.h"
#include "tests/support/has.h"
#include "tools/emulator/cudart/machine/kernel_registry.h"

extern "C" {
void** __cudaRegisterFatBinary(void*);
void __cudaRegisterFatBinaryEnd(void**);
void __cudaRegisterFunction(
    void**, const char*, char*, const char*, int, uint3*, uint3*, dim3*, dim3*, int*);
unsigned __cudaPushCallConfiguration(dim3, dim3, size_t, CUstream_st*);
cudaError_t __cudaPopCallConfiguration(dim3*, dim3*, size_t*, void*);
cudaError_t __cudaGetKernel(cudaKernel_t*, const void*);
cudaError_t __cudaLaunchKernel(cudaKernel_t, dim3, dim3, void**, size_t, cudaStream_t);
int slimwire_emulator_contexts();
}

namespace slimwire::testing {
namespace {

// A kernel as nvcc's stub sees it: void scale(float* data, int count, float factor).
void scale_stub() {}
void nameless_stub() {}
void idle_stub() {}
constexpr char kScaleName[] =
    "_ZN12_GLOBAL__N_15scaleEPfif";  // (anonymous namespace)::scale(float*, int, float)
constexpr char kNamelessName[] = "_ZN5other7unknownEi";
constexpr char kIdleName[] = "_ZN5other4idleEv";

void register_kernels() {
    static bool once = false;
    if (!std::exchange(once, true)) {
        void** module = __cudaRegisterFatBinary(nullptr);
        const auto add = [&](void (*stub)(), const char* name) {
            __cudaRegisterFunction(module, reinterpret_cast<const char*>(stub),
                                   const_cast<char*>(name), name, -1, nullptr, nullptr, nullptr,
                                   nullptr, nullptr);
        };
        add(scale_stub, kScaleName);
        add(nameless_stub, kNamelessName);
        add(idle_stub, kIdleName);
        __cudaRegisterFatBinaryEnd(module);
        const auto idle = [](const char*, void**, slimwire_emulator_kernel_call* out) {
            out->run = [](void*, dim3, dim3, size_t) {};
            return 0;
        };
        EXPECT_EQ(slimwire_emulator_register_kernel(kIdleName, idle), cudaSuccess);
    }
}

TEST(Launch, api_is_versioned_and_exported_by_name) {
    EXPECT_EQ(slimwire_emulator_api(kEmulatorAbiVersion + 1), nullptr);
    EXPECT_EQ(emulator().size, sizeof(EmulatorApi));
    EXPECT_EQ(dlsym(RTLD_DEFAULT, kEmulatorApiSymbol),
              reinterpret_cast<void*>(&slimwire_emulator_api));
}

struct Large {
    int* out;
    unsigned char bytes[4000];
};

void sum_bytes(const void* args) {
    const Large* large = static_cast<const Large*>(args);
    int sum = 0;
    for (const unsigned char byte : large->bytes) {
        sum += byte;
    }
    *static_cast<int*>(emulator().device_view(large->out)) = sum;
}

// As under CUDA's lazy loading.
TEST(Launch, a_first_launch_waits_for_the_device_unless_it_was_loaded_ahead) {
    IN_FRESH_PROCESS("", {
        const EmulatorApi& api = *slimwire_emulator_api(kEmulatorAbiVersion);
        const cudaStream_t held = make_stream(), other = make_stream();
        void (*const body)(const void*) = [](const void*) {};
        EXPECT_TRUE(waits_for(held, [&] { return api.launch(other, body, nullptr, 0, "lazy"); }));
        Gate gate;  // open only after the launches, which would hang
        gate.hold(held);
        CUDA_OK(api.launch(other, body, nullptr, 0, "lazy"));
        CUDA_OK(api.load_kernels(reinterpret_cast<const void*>(body)));
        CUDA_OK(api.launch(other, body, nullptr, 0, "another"));
        gate.open();
        CUDA_OK(cudaDeviceSynchronize());
    });
}

TEST(Launch, what_may_wait_for_the_device_does_in_strict_mode) {
    alignas(4096) static char host[4096];
    static void* memory = nullptr;
    static cudaStream_t other = nullptr;
    const std::pair<const char*, cudaError_t (*)()> waits[] = {
        {"cudaMalloc", [] { return cudaMalloc(&memory, 64); }},
        {"cudaHostAlloc", [] { return cudaHostAlloc(&memory, 64, 0); }},
        {"cudaHostRegister", [] { return cudaHostRegister(host, sizeof host, 0); }},
        {"a first launch",
         [] {
             register_kernels();
             void* args[] = {nullptr};
             return cudaLaunchKernel(idle_stub, dim3(1), dim3(1), args, 0, other);
         }},
    };
    IN_FRESH_PROCESS("", {
        const cudaStream_t held = make_stream();
        other = make_stream();
        for (const auto& [name, wait] : waits) {
            EXPECT_TRUE(waits_for(held, wait)) << name;
        }
        Gate gate;  // open only after what would hang
        gate.hold(held);
        void* args[] = {nullptr};
        CUDA_OK(cudaLaunchKernel(idle_stub, dim3(1), dim3(1), args, 0, other));
        CUDA_OK(cudaMallocAsync(&memory, 64, other));
        CUDA_OK(cudaFreeAsync(memory, other));
        CUDA_OK(cudaStreamSynchronize(other));
        gate.open();
    });
    IN_FRESH_PROCESS("", {
        unsetenv("SLIMWIRE_EMU_STRICT");
        other = make_stream();
        Gate gate;
        gate.hold(make_stream());
        for (const auto& [name, wait] : waits) {
            EXPECT_EQ(wait(), cudaSuccess) << name;
        }
    });
}

TEST(Devices, contexts_are_counted) {
    IN_FRESH_PROCESS("", {
        int device = -1;
        CUDA_OK(cudaGetDeviceCount(&device));
        CUDA_OK(cudaGetDevice(&device));
        EXPECT_EQ(slimwire_emulator_contexts(), 0);
        CUDA_OK(cudaSetDevice(1));
        EXPECT_EQ(slimwire_emulator_contexts(), 1);
        (void)make_stream();
        EXPECT_EQ(slimwire_emulator_contexts(), 1);
        std::thread([] { (void)make_stream(); }).join();  // of device 0
        EXPECT_EQ(slimwire_emulator_contexts(), 2);
    });
}

// Without the load of the tests' kernels that emulator() makes.
const EmulatorApi& not_loaded() {
    return *slimwire_emulator_api(kEmulatorAbiVersion);
}
// With data_call(1) before.
const std::pair<const char*, void (*)()> kWaits[] = {
    {"cudaMalloc",
     [] {
         void* memory;
         (void)cudaMalloc(&memory, 64);
     }},
    {"cudaHostAlloc",
     [] {
         void* memory;
         (void)cudaHostAlloc(&memory, 64, 0);
     }},
    {"cudaStreamSynchronize",
     [] {
         const cudaStream_t stream = make_stream();
         (void)cudaLaunchHostFunc(
             stream, [](void*) {}, nullptr);
         (void)cudaStreamSynchronize(stream);
     }},
    {"cudaEventSynchronize",
     [] {
         cudaEvent_t event = nullptr;
         (void)cudaEventCreate(&event);
         (void)cudaEventSynchronize(event);
     }},
    {"a copy of pageable memory",
     [] {
         char from[8] = {}, to[8];
         (void)cudaMemcpyAsync(to, from, sizeof to, cudaMemcpyDefault, make_stream());
     }},
    {"what polls may wait", [] { emulator().may_wait("what polls"); }},
    {"lazy may wait",
     [] {
         (void)not_loaded().launch(
             nullptr, [](const void*) {}, "", 0, "lazy");
     }},
};

TEST(DataCalls, what_may_wait_in_one_ends_the_process) {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    for (const auto& [message, wait] : kWaits) {
        const auto in_call = [&] {
            setenv("SLIMWIRE_EMU_STRICT", "calls", 1);
            not_loaded().data_call(1);
            wait();
        };
        EXPECT_EXIT(in_call(), ::testing::KilledBySignal(SIGABRT), message);
        IN_FRESH_PROCESS("", {
            not_loaded().data_call(1);
            wait();
        });
        IN_FRESH_PROCESS("", {
            setenv("SLIMWIRE_EMU_STRICT", "calls", 1);
            not_loaded().data_call(1);
            not_loaded().data_call(-1);
            wait();
        });
    }
}

TEST(DataCalls, what_never_waits_is_let_be) {
    IN_FRESH_PROCESS("", {
        setenv("SLIMWIRE_EMU_STRICT", "calls", 1);
        const cudaStream_t stream = make_stream();
        cudaEvent_t event = nullptr;
        void* memory = nullptr;
        CUDA_OK(cudaEventCreate(&event));
        emulator().data_call(1);
        CUDA_OK(cudaMallocAsync(&memory, 64, stream));
        CUDA_OK(cudaStreamSynchronize(stream));  // of its own allocations alone
        CUDA_OK(cudaEventRecord(event, stream));
        (void)cudaEventQuery(event);
        std::thread([] { CUDA_OK(cudaDeviceSynchronize()); }).join();  // in no data call
    });
}

TEST(Launch, arguments_are_copied_at_the_call) {
    const Stream stream;
    Large large{};
    CUDA_OK(cudaMalloc(&large.out, sizeof(int)));
    int* out = large.out;
    std::memset(large.bytes, 1, sizeof large.bytes);
    Gate gate;
    gate.hold(stream);
    CUDA_OK(emulator().launch(stream, sum_bytes, &large, sizeof large, "sum_bytes"));
    std::memset(&large, 0xff, sizeof large);
    gate.open();
    int sum = 0;
    CUDA_OK(cudaMemcpyAsync(&sum, out, sizeof sum, cudaMemcpyDeviceToHost, stream));
    CUDA_OK(cudaStreamSynchronize(stream));
    EXPECT_EQ(sum, 4000);
    CUDA_OK(cudaFree(out));
}

TEST(Launch, argument_limit_and_bad_arguments) {
    static unsigned char big[4097];
    const auto nothing = [](const void*) {};
    CUDA_OK(emulator().launch(nullptr, nothing, big, 4096, "full"));
    EXPECT_EQ(emulator().launch(nullptr, nothing, big, 4097, "too big"), cudaErrorInvalidValue);
    EXPECT_EQ(emulator().launch(nullptr, nullptr, big, 16, "no body"), cudaErrorInvalidValue);
    CUDA_OK(cudaSetDevice(1));
    const cudaStream_t stream = make_stream();
    CUDA_OK(cudaSetDevice(0));
    EXPECT_EQ(emulator().launch(stream, nothing, big, 16, "other device"),
              cudaErrorInvalidResourceHandle);
    CUDA_OK(cudaStreamDestroy(stream));
    CUDA_OK(cudaDeviceSynchronize());
    (void)cudaGetLastError();
}

TEST(Launch, device_view_is_another_mapping_of_the_same_memory) {
    char* device = nullptr;
    CUDA_OK(cudaMalloc(&device, 100));
    char* view = static_cast<char*>(emulator().device_view(device + 7));
    EXPECT_NE(view, device + 7);
    *view = 12;
    char back = 0;
    CUDA_OK(cudaMemcpy(&back, device + 7, 1, cudaMemcpyDeviceToHost));
    EXPECT_EQ(back, 12);
    EXPECT_EQ(emulator().device_view(&back), &back) << "not device memory";
    EXPECT_EQ(emulator().device_view(nullptr), nullptr);
    CUDA_OK(cudaFree(device));
}

TEST(Nodes, rank_and_node_map_decide_and_processes_of_a_node_may_share_its_devices) {
    const struct {
        std::vector<std::pair<const char*, const char*>> variables;
        int nodes[2];  // of devices 0 and 1
    } cases[] = {
        {{}, {0, 1}},
        {{{"RANK", "3"}}, {6, 7}},
        {{{"RANK", "3"}, {"SLIMWIRE_EMU_NODES", "2x4"}}, {1, 1}},
        {{{"RANK", "5"},
          {"MPI_LOCALRANKID", "1"},
          {"MPI_LOCALNRANKS", "2"},
          {"SLURM_LOCALID", "0"},  // Slurm's count last
          {"SLURM_NTASKS_PER_NODE", "1"},
          {"SLIMWIRE_EMU_NODES", "3x2"}},
         {2, 2}},
        {{{"RANK", "5"},
          {"LOCAL_RANK", "0"},
          {"LOCAL_WORLD_SIZE", "1"},
          {"SLIMWIRE_EMU_DEVICES", "1"},
          {"SLIMWIRE_EMU_NODES", "3x2"}},
         {2, -1}},
    };
    for (const auto& one : cases) {
        IN_FRESH_PROCESS("", {
            for (const auto& [name, value] : one.variables) {
                setenv(name, value, 1);
            }
            EXPECT_EQ(emulator().node_of_device(0), one.nodes[0]);
            EXPECT_EQ(emulator().node_of_device(1), one.nodes[1]);
            EXPECT_EQ(emulator().node_of_device(2), -1);
            EXPECT_EQ(emulator().node_of_device(-1), -1);
        });
    }
}

// Slurm's last: sbatch leaves its own to what mpirun starts in it.
TEST(Nodes, the_rank_is_that_of_any_launcher) {
    for (const char* name : kRankNames) {
        IN_FRESH_PROCESS("", {
            std::for_each(std::begin(kRankNames), std::end(kRankNames), ::unsetenv);
            setenv("SLURM_PROCID", "0", 1);
            setenv(name, "3", 1);
            setenv("SLIMWIRE_EMU_DEVICES", "1", 1);
            EXPECT_EQ(emulator().node_of_device(0), 3) << name;
        });
    }
}

TEST(Devices, properties_and_bus_ids) {
    int count = 0;
    CUDA_OK(cudaGetDeviceCount(&count));
    ASSERT_EQ(count, 2);
    cudaDeviceProp prop;
    CUDA_OK(cudaGetDeviceProperties(&prop, 1));
    EXPECT_STREQ(prop.name, "slimwire emulated device");
    EXPECT_EQ(prop.major, 9);
    EXPECT_EQ(prop.warpSize, 32);
    int value = 0;
    CUDA_OK(cudaDeviceGetAttribute(&value, cudaDevAttrMultiProcessorCount, 0));
    EXPECT_EQ(value, prop.multiProcessorCount);
    EXPECT_EQ(cudaDeviceGetAttribute(&value, static_cast<cudaDeviceAttr>(200), 0),
              cudaErrorInvalidValue);
    char first[32];
    char second[32];
    CUDA_OK(cudaDeviceGetPCIBusId(first, sizeof first, 0));
    CUDA_OK(cudaDeviceGetPCIBusId(second, sizeof second, 1));
    EXPECT_STRNE(first, second);
    int found = -1;
    CUDA_OK(cudaDeviceGetByPCIBusId(&found, second));
    EXPECT_EQ(found, 1);
    EXPECT_EQ(cudaDeviceGetByPCIBusId(&found, "ffff:ff:1f.0"), cudaErrorInvalidDevice);
    CUDA_OK(cudaDeviceCanAccessPeer(&value, 0, 1));
    EXPECT_EQ(value, 1);
    CUDA_OK(cudaDeviceEnablePeerAccess(1, 0));
    EXPECT_EQ(cudaDeviceEnablePeerAccess(1, 0), cudaErrorPeerAccessAlreadyEnabled);
    int version = 0;
    CUDA_OK(cudaRuntimeGetVersion(&version));
    EXPECT_EQ(version, 13000);
    (void)cudaGetLastError();
}

struct Scale {
    float* data;
    int count;
    float factor;
};

int make_scale(const char* name, void** args, slimwire_emulator_kernel_call* out) {
    EXPECT_STREQ(name, kScaleName);
    out->state = new Scale{*static_cast<float**>(args[0]), *static_cast<int*>(args[1]),
                           *static_cast<float*>(args[2])};
    out->run = [](void* state, dim3 grid, dim3 block, size_t) {
        const Scale* scale = static_cast<const Scale*>(state);
        float* data = static_cast<float*>(emulator().device_view(scale->data));
        const unsigned threads = grid.x * block.x;
        for (unsigned i = 0; i < threads && i < static_cast<unsigned>(scale->count); ++i) {
            data[i] *= scale->factor;
        }
    };
    out->destroy = [](void* state) { delete static_cast<Scale*>(state); };
    return 0;
}

TEST(ForeignKernels, registered_body_runs_with_the_arguments_of_the_launch) {
    register_kernels();
    CUDA_OK(slimwire_emulator_register_kernel("*::scale(float*, int, float)", make_scale));
    const std::vector<float> host{1, 2, 3, 4};
    float* data = nullptr;
    CUDA_OK(cudaMalloc(&data, 16));
    CUDA_OK(cudaMemcpy(data, host.data(), 16, cudaMemcpyHostToDevice));
    cudaFuncAttributes attributes;
    CUDA_OK(cudaFuncGetAttributes(&attributes, scale_stub));  // loads it
    const Stream stream;
    Gate gate;
    gate.hold(stream);
    int count = 3;
    float factor = 10;
    {
        // What nvcc makes of scale<<<1, 4, 0, stream>>>(data, count, factor).
        ASSERT_EQ(__cudaPushCallConfiguration(dim3(1), dim3(4), 0, stream), 0u);
        void* args[] = {&data, &count, &factor};
        cudaKernel_t kernel = nullptr;
        CUDA_OK(__cudaGetKernel(&kernel, reinterpret_cast<const void*>(scale_stub)));
        dim3 grid;
        dim3 block;
        size_t shared_bytes = 1;
        cudaStream_t target = nullptr;
        CUDA_OK(__cudaPopCallConfiguration(&grid, &block, &shared_bytes, &target));
        EXPECT_EQ(target, stream);
        CUDA_OK(__cudaLaunchKernel(kernel, grid, block, args, shared_bytes, target));
    }
    factor = 0;
    gate.open();
    CUDA_OK(cudaStreamSynchronize(stream));
    std::vector<float> back(4);
    CUDA_OK(cudaMemcpy(back.data(), data, 16, cudaMemcpyDeviceToHost));
    EXPECT_EQ(back, (std::vector<float>{10, 20, 30, 4}));

    factor = 2;
    void* args[] = {&data, &count, &factor};
    CUDA_OK(cudaLaunchKernel(scale_stub, dim3(1), dim3(4), args));  // by the stub's address
    cudaLaunchConfig_t config{};
    config.gridDim = 1;
    config.blockDim = 4;
    CUDA_OK(cudaLaunchKernelExC(&config, reinterpret_cast<const void*>(scale_stub), args));
    CUDA_OK(cudaMemcpy(back.data(), data, 16, cudaMemcpyDeviceToHost));
    EXPECT_EQ(back, (std::vector<float>{40, 80, 120, 4}));
    EXPECT_EQ(cudaLaunchKernel(scale_stub, dim3(0), dim3(4), args), cudaErrorInvalidConfiguration);
    (void)cudaGetLastError();
    CUDA_OK(cudaFree(data));
}

TEST(ForeignKernels, unregistered_kernel_is_named_once) {
    register_kernels();
    void* args[] = {nullptr};
    ::testing::internal::CaptureStderr();
    EXPECT_EQ(cudaLaunchKernel(nameless_stub, dim3(1), dim3(1), args),
              cudaErrorInvalidDeviceFunction);
    EXPECT_EQ(cudaLaunchKernel(nameless_stub, dim3(1), dim3(1), args),
              cudaErrorInvalidDeviceFunction);
    const std::string text = ::testing::internal::GetCapturedStderr();
    EXPECT_HAS(text, "kernel other::unknown(int) has no host body");
    EXPECT_EQ(text.find('\n'), text.size() - 1) << "one line";
    EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidDeviceFunction);
    int not_a_kernel = 0;
    cudaFuncAttributes attributes;
    EXPECT_EQ(cudaFuncGetAttributes(&attributes, static_cast<const void*>(&not_a_kernel)),
              cudaErrorInvalidDeviceFunction);
    CUDA_OK(cudaFuncGetAttributes(&attributes, nameless_stub));
    (void)cudaGetLastError();
}

}  // namespace
}  // namespace slimwire::testing
