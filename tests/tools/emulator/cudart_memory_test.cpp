// Memory of the emulated runtime: kinds of pointers, copies between them, the stream-ordered pool,
// strict mode.
#include "tests/tools/emulator/cuda_test.h"

#include <cuda.h>
#include <sys/resource.h>

#include <cstring>
#include <random>

#include "tests/support/has.h"
#include "tests/support/seed.h"

namespace slimwire::testing {
namespace {

cudaPointerAttributes attributes_of(const void* pointer) {
    cudaPointerAttributes attributes;
    EXPECT_EQ(cudaPointerGetAttributes(&attributes, pointer), cudaSuccess);
    return attributes;
}

TEST(Pointers, kinds_are_told_apart_at_any_inner_address) {
    CUDA_OK(cudaSetDevice(1));
    char* device = nullptr;
    CUDA_OK(cudaMalloc(&device, 1000));
    CUDA_OK(cudaSetDevice(0));
    char* pinned = nullptr;
    CUDA_OK(cudaHostAlloc(&pinned, 1000, cudaHostAllocPortable));
    std::vector<char> registered(10000);
    CUDA_OK(cudaHostRegister(registered.data(), registered.size(), cudaHostRegisterDefault));
    std::vector<char> plain(100);

    for (const size_t offset : {size_t{0}, size_t{1}, size_t{999}}) {
        const cudaPointerAttributes attributes = attributes_of(device + offset);
        EXPECT_EQ(attributes.type, cudaMemoryTypeDevice);
        EXPECT_EQ(attributes.device, 1);
        EXPECT_EQ(attributes.devicePointer, device + offset);
        EXPECT_EQ(attributes.hostPointer, nullptr);
    }
    EXPECT_EQ(attributes_of(device + 1000).type, cudaMemoryTypeUnregistered);
    EXPECT_EQ(attributes_of(pinned + 999).type, cudaMemoryTypeHost);
    EXPECT_EQ(attributes_of(pinned + 1000).type, cudaMemoryTypeUnregistered);
    EXPECT_EQ(attributes_of(registered.data() + 9999).type, cudaMemoryTypeHost);
    EXPECT_EQ(attributes_of(plain.data()).type, cudaMemoryTypeUnregistered);
    EXPECT_EQ(attributes_of(plain.data()).device, cudaInvalidDeviceId);

    void* mapped = nullptr;
    CUDA_OK(cudaHostGetDevicePointer(&mapped, pinned + 5, 0));
    EXPECT_EQ(mapped, pinned + 5);
    EXPECT_EQ(cudaHostRegister(registered.data() + 50, 10, 0),
              cudaErrorHostMemoryAlreadyRegistered);
    CUDA_OK(cudaHostUnregister(registered.data()));
    EXPECT_EQ(cudaHostUnregister(registered.data()), cudaErrorHostMemoryNotRegistered);
    EXPECT_EQ(cudaFree(device + 1), cudaErrorInvalidValue);
    CUDA_OK(cudaFree(device));
    EXPECT_EQ(attributes_of(device).type, cudaMemoryTypeUnregistered);
    EXPECT_EQ(cudaFree(device), cudaErrorInvalidValue);
    CUDA_OK(cudaFreeHost(pinned));
    EXPECT_EQ(cudaFreeHost(plain.data()), cudaErrorInvalidValue);
    CUDA_OK(cudaFree(nullptr));
    CUDA_OK(cudaFreeHost(nullptr));
    (void)cudaGetLastError();
}

TEST(Pointers, allocations_do_not_overlap) {
    const uint32_t seed = test_seed();
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    struct Block {
        char* start;
        size_t bytes;
        char mark;
    };
    std::vector<Block> blocks;
    for (int i = 0; i < 400; ++i) {
        if (blocks.size() > 60 && random() % 2 == 0) {
            const size_t victim = random() % blocks.size();
            std::vector<char> host(blocks[victim].bytes);
            CUDA_OK(
                cudaMemcpy(host.data(), blocks[victim].start, host.size(), cudaMemcpyDeviceToHost));
            EXPECT_EQ(host, std::vector<char>(host.size(), blocks[victim].mark));
            CUDA_OK(cudaFree(blocks[victim].start));
            blocks.erase(blocks.begin() + static_cast<ptrdiff_t>(victim));
            continue;
        }
        Block block{nullptr, size_t{1} << (random() % 22), static_cast<char>(i)};
        CUDA_OK(cudaMalloc(&block.start, block.bytes));
        EXPECT_EQ(reinterpret_cast<uintptr_t>(block.start) % 256, 0u);
        CUDA_OK(cudaMemset(block.start, block.mark, block.bytes));
        blocks.push_back(block);
    }
    for (const Block& block : blocks) {
        CUDA_OK(cudaFree(block.start));
    }
}

TEST(Pointers, large_allocation_touches_no_memory) {
    rusage before{};
    getrusage(RUSAGE_SELF, &before);
    void* big = nullptr;
    CUDA_OK(cudaMalloc(&big, size_t{6} << 30));
    size_t free_bytes = 0;
    size_t total_bytes = 0;
    CUDA_OK(cudaMemGetInfo(&free_bytes, &total_bytes));
    EXPECT_LE(free_bytes + (size_t{6} << 30), total_bytes);
    rusage after{};
    getrusage(RUSAGE_SELF, &after);
    EXPECT_LT(after.ru_maxrss - before.ru_maxrss, 64 << 10);  // KiB
    CUDA_OK(cudaFree(big));
    EXPECT_EQ(cudaMalloc(&big, size_t{1} << 45), cudaErrorMemoryAllocation);
    EXPECT_EQ(cudaGetLastError(), cudaErrorMemoryAllocation);
    CUDA_OK(cudaMalloc(&big, 16));  // and the device is still usable
    CUDA_OK(cudaFree(big));
}

TEST(Copies, all_kinds_move_the_bytes) {
    const std::vector<int> source{1, 2, 3, 4};
    const size_t bytes = source.size() * sizeof(int);
    int* first = nullptr;
    int* second = nullptr;
    CUDA_OK(cudaMalloc(&first, bytes));
    CUDA_OK(cudaSetDevice(1));
    CUDA_OK(cudaMalloc(&second, bytes));
    CUDA_OK(cudaSetDevice(0));
    std::vector<int> back(4);
    std::vector<int> copy(4);
    CUDA_OK(cudaMemcpy(first, source.data(), bytes, cudaMemcpyHostToDevice));
    CUDA_OK(cudaMemcpy(second, first, bytes, cudaMemcpyDeviceToDevice));
    CUDA_OK(cudaMemset(first, 0, bytes));
    CUDA_OK(cudaMemcpy(first, second, bytes, cudaMemcpyDeviceToDevice));
    CUDA_OK(cudaMemcpy(back.data(), first, bytes, cudaMemcpyDefault));
    CUDA_OK(cudaMemcpy(copy.data(), back.data(), bytes, cudaMemcpyHostToHost));
    EXPECT_EQ(copy, source);

    EXPECT_EQ(cudaMemcpy(first, source.data(), bytes + 1, cudaMemcpyHostToDevice),
              cudaErrorInvalidValue)
        << "past the end of the allocation";
    EXPECT_EQ(cudaMemcpy(back.data(), source.data(), bytes, cudaMemcpyDeviceToHost),
              cudaErrorInvalidValue);
    EXPECT_EQ(cudaMemcpy(first, source.data(), bytes, static_cast<cudaMemcpyKind>(7)),
              cudaErrorInvalidMemcpyDirection);
    EXPECT_EQ(cudaMemset(back.data(), 0, bytes), cudaErrorInvalidValue);
    CUDA_OK(cudaMemcpy(first, nullptr, 0, cudaMemcpyHostToDevice));
    CUDA_OK(cudaFree(first));
    CUDA_OK(cudaFree(second));
    EXPECT_EQ(cudaMemcpy(back.data(), first, bytes, cudaMemcpyDeviceToHost), cudaErrorInvalidValue)
        << "freed";
    (void)cudaGetLastError();
}

TEST(Copies, pageable_source_is_taken_at_the_call) {
    IN_FRESH_PROCESS("", {
        unsetenv("SLIMWIRE_EMU_STRICT");
        const cudaStream_t stream = make_stream();
        int* device = nullptr;
        CUDA_OK(cudaMalloc(&device, sizeof(int)));
        Gate gate;
        gate.hold(stream);
        int source = 7;
        CUDA_OK(cudaMemcpyAsync(device, &source, sizeof source, cudaMemcpyHostToDevice, stream));
        source = 8;
        gate.open();
        int back = 0;
        CUDA_OK(cudaMemcpyAsync(&back, device, sizeof back, cudaMemcpyDeviceToHost, stream));
        EXPECT_EQ(back, 7) << "a copy to pageable memory is complete at return";
    });
}

TEST(Copies, those_of_pageable_memory_if_strict_and_frees_wait_for_all_work_of_the_device) {
    const Stream stream, other;
    int* device = nullptr;
    CUDA_OK(cudaMalloc(&device, sizeof(int)));
    int host = 7;
    EXPECT_TRUE(waits_for(other, [&] {
        return cudaMemcpyAsync(device, &host, sizeof host, cudaMemcpyDefault, stream);
    }));
    EXPECT_TRUE(waits_for(other, [&] {
        return cudaMemcpyAsync(&host, device, sizeof host, cudaMemcpyDefault, stream);
    }));
    EXPECT_TRUE(waits_for(other, [&] { return cudaFree(device); }));
}

TEST(Copies, pinned_copy_is_asynchronous) {
    const Stream stream;
    int* device = nullptr;
    int* pinned = nullptr;
    CUDA_OK(cudaMalloc(&device, sizeof(int)));
    CUDA_OK(cudaMallocHost(&pinned, sizeof(int)));
    *pinned = 1;
    Gate gate;
    gate.hold(stream);
    CUDA_OK(cudaMemcpyAsync(device, pinned, sizeof(int), cudaMemcpyHostToDevice, stream));
    *pinned = 2;  // the copy has not read it yet
    gate.open();
    CUDA_OK(cudaMemcpyAsync(pinned, device, sizeof(int), cudaMemcpyDeviceToHost, stream));
    CUDA_OK(cudaStreamSynchronize(stream));
    EXPECT_EQ(*pinned, 2);
    CUDA_OK(cudaFreeHost(pinned));
    CUDA_OK(cudaFree(device));
}

TEST(Copies, symbol_copies_say_why_not) {
    static int symbol;
    int value = 0;
    ::testing::internal::CaptureStderr();
    EXPECT_EQ(cudaMemcpyFromSymbol(&value, &symbol, sizeof value), cudaErrorNotSupported);
    EXPECT_HAS(::testing::internal::GetCapturedStderr(), "__device__");
    (void)cudaGetLastError();
}

uint64_t pool_value(cudaMemPoolAttr attribute) {
    cudaMemPool_t pool = nullptr;
    uint64_t value = 0;
    EXPECT_EQ(cudaDeviceGetDefaultMemPool(&pool, 0), cudaSuccess);
    EXPECT_EQ(cudaMemPoolGetAttribute(pool, attribute, &value), cudaSuccess);
    return value;
}

TEST(Pool, freed_block_is_reused_at_once_on_its_stream_only) {
    const Stream stream;
    const Stream other;
    Gate gate;
    gate.hold(stream);
    void* first = nullptr;
    void* again = nullptr;
    void* elsewhere = nullptr;
    CUDA_OK(cudaMallocAsync(&first, 100000, stream));
    CUDA_OK(cudaFreeAsync(first, stream));
    CUDA_OK(cudaMallocAsync(&elsewhere, 100000, other));
    EXPECT_NE(elsewhere, first) << "the freeing stream has not got there";
    CUDA_OK(cudaMallocAsync(&again, 100000, stream));
    EXPECT_EQ(again, first);
    CUDA_OK(cudaFreeAsync(again, stream));
    EXPECT_EQ(cudaFreeAsync(again, stream), cudaErrorInvalidValue) << "freed twice";
    (void)cudaGetLastError();
    gate.open();
    CUDA_OK(cudaStreamSynchronize(stream));
    void* later = nullptr;
    CUDA_OK(cudaMallocAsync(&later, 100000, other));
    EXPECT_EQ(later, first) << "now it may move to the other stream";
    CUDA_OK(cudaFreeAsync(later, other));
    CUDA_OK(cudaFreeAsync(elsewhere, other));
    CUDA_OK(cudaStreamSynchronize(other));  // else a later test finds the blocks in use
}

TEST(Pool, steady_state_reserves_nothing_new) {
    const Stream stream;
    uint64_t reserved = 0;
    for (int round = 0; round < 200; ++round) {
        void* blocks[4];
        for (size_t i = 0; i < 4; ++i) {
            CUDA_OK(cudaMallocAsync(&blocks[i], 1000 + 70000 * i, stream));
            CUDA_OK(cudaMemsetAsync(blocks[i], round, 1000, stream));
        }
        for (void* block : blocks) {
            CUDA_OK(cudaFreeAsync(block, stream));
        }
        if (round == 0) {
            reserved = pool_value(cudaMemPoolAttrReservedMemCurrent);
        }
    }
    EXPECT_EQ(pool_value(cudaMemPoolAttrReservedMemCurrent), reserved);
    EXPECT_EQ(pool_value(cudaMemPoolAttrUsedMemCurrent), 0u);
    EXPECT_GE(pool_value(cudaMemPoolAttrUsedMemHigh), 4 * 1000u + 6 * 70000u);
    CUDA_OK(cudaStreamSynchronize(stream));
    cudaMemPool_t pool = nullptr;
    CUDA_OK(cudaDeviceGetDefaultMemPool(&pool, 0));
    CUDA_OK(cudaMemPoolTrimTo(pool, 0));
    EXPECT_EQ(pool_value(cudaMemPoolAttrReservedMemCurrent), 0u);
}

TEST(Pool, own_pool_lives_until_its_last_block) {
    const Stream stream;
    cudaMemPoolProps props{};
    props.allocType = cudaMemAllocationTypePinned;
    props.location = {cudaMemLocationTypeDevice, 0};
    cudaMemPool_t pool = nullptr;
    CUDA_OK(cudaMemPoolCreate(&pool, &props));
    uint64_t threshold = UINT64_MAX;
    CUDA_OK(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &threshold));
    size_t free_before = 0;
    size_t total = 0;
    CUDA_OK(cudaMemGetInfo(&free_before, &total));
    int* block = nullptr;
    CUDA_OK(cudaMallocFromPoolAsync(&block, 4096, pool, stream));
    CUDA_OK(cudaMemPoolDestroy(pool));
    EXPECT_EQ(cudaMallocFromPoolAsync(&block, 4096, pool, stream), cudaErrorInvalidValue);
    (void)cudaGetLastError();
    CUDA_OK(cudaMemsetAsync(block, 3, 4096, stream));
    CUDA_OK(cudaFreeAsync(block, stream));
    CUDA_OK(cudaStreamSynchronize(stream));
    size_t free_after = 0;
    CUDA_OK(cudaMemGetInfo(&free_after, &total));
    EXPECT_EQ(free_after, free_before);
}

TEST(Pool, plain_and_ordered_frees_mix) {
    void* plain = nullptr;
    void* ordered = nullptr;
    CUDA_OK(cudaMalloc(&plain, 5000));
    CUDA_OK(cudaFreeAsync(plain, cudaStreamPerThread));
    EXPECT_EQ(cudaFree(plain), cudaErrorInvalidValue);
    (void)cudaGetLastError();
    CUDA_OK(cudaMallocAsync(&ordered, 5000, cudaStreamPerThread));
    const uint64_t used = pool_value(cudaMemPoolAttrUsedMemCurrent);
    CUDA_OK(cudaFree(ordered));
    EXPECT_LT(pool_value(cudaMemPoolAttrUsedMemCurrent), used);
}

template <class Function>
Function driver(const char* name, Function /*declared*/) {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
    EXPECT_EQ(cudaGetDriverEntryPointByVersion(name, &found, 12000, 0, &result), cudaSuccess);
    return reinterpret_cast<Function>(found);
}
#define DRIVER(name) driver(#name, static_cast<decltype(&name)>(nullptr))

TEST(Mapped, addresses_outlive_their_memory_and_memory_its_addresses) {
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    const CUmemAccessDesc access = {properties.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    size_t granule = 0, before = 0, total = 0, now = 0;
    ASSERT_EQ(DRIVER(cuMemGetAllocationGranularity)(&granule, &properties,
                                                    CU_MEM_ALLOC_GRANULARITY_MINIMUM),
              CUDA_SUCCESS);
    CUDA_OK(cudaMemGetInfo(&before, &total));
    CUdeviceptr addresses = 0;
    ASSERT_EQ(DRIVER(cuMemAddressReserve)(&addresses, 2 * granule, 0, 0, 0), CUDA_SUCCESS);
    void* const memory = reinterpret_cast<void*>(addresses + granule);
    CUmemGenericAllocationHandle handle = 0;
    EXPECT_EQ(DRIVER(cuMemCreate)(&handle, granule + 1, &properties, 0), CUDA_ERROR_INVALID_VALUE);
    ASSERT_EQ(DRIVER(cuMemCreate)(&handle, granule, &properties, 0), CUDA_SUCCESS);
    CUDA_OK(cudaMemGetInfo(&now, &total));
    EXPECT_EQ(now, before - granule);
    EXPECT_EQ(cudaMemset(memory, 1, granule), cudaErrorInvalidValue) << "nothing is mapped";
    ASSERT_EQ(DRIVER(cuMemMap)(addresses + granule, granule, 0, handle, 0), CUDA_SUCCESS);
    EXPECT_EQ(cudaMemset(memory, 1, granule), cudaErrorInvalidValue) << "without access";
    ASSERT_EQ(DRIVER(cuMemSetAccess)(addresses + granule, granule, &access, 1), CUDA_SUCCESS);
    CUDA_OK(cudaMemset(memory, 42, granule));
    EXPECT_EQ(cudaFree(memory), cudaErrorInvalidValue);
    EXPECT_EQ(DRIVER(cuMemAddressFree)(addresses, 2 * granule), CUDA_ERROR_INVALID_VALUE);
    ASSERT_EQ(DRIVER(cuMemUnmap)(addresses + granule, granule), CUDA_SUCCESS);
    char value = 0;
    EXPECT_EQ(cudaMemcpy(&value, memory, 1, cudaMemcpyDeviceToHost), cudaErrorInvalidValue);
    // Elsewhere it is the same memory.
    ASSERT_EQ(DRIVER(cuMemMap)(addresses, granule, 0, handle, 0), CUDA_SUCCESS);
    ASSERT_EQ(DRIVER(cuMemSetAccess)(addresses, granule, &access, 1), CUDA_SUCCESS);
    CUDA_OK(cudaMemcpy(&value, reinterpret_cast<char*>(addresses) + granule - 1, 1,
                       cudaMemcpyDeviceToHost));
    EXPECT_EQ(value, 42);
    ASSERT_EQ(DRIVER(cuMemRelease)(handle), CUDA_SUCCESS);  // it is there until it is unmapped
    CUDA_OK(cudaMemGetInfo(&now, &total));
    EXPECT_EQ(now, before - granule);
    ASSERT_EQ(DRIVER(cuMemUnmap)(addresses, granule), CUDA_SUCCESS);
    ASSERT_EQ(DRIVER(cuMemAddressFree)(addresses, 2 * granule), CUDA_SUCCESS);
    CUDA_OK(cudaMemGetInfo(&now, &total));
    EXPECT_EQ(now, before);
    (void)cudaGetLastError();
}

struct Fill {
    char* target;
    size_t bytes;
};

void fill_through_view(const void* args) {
    const Fill* fill = static_cast<const Fill*>(args);
    char* view = static_cast<char*>(emulator().device_view(fill->target));
    std::memset(view, 42, fill->bytes);
}

TEST(Strict, host_access_to_device_memory_traps) {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    EXPECT_DEATH(
        {
            setenv("SLIMWIRE_EMU_STRICT", "1", 1);
            volatile char* device = nullptr;
            void* pointer = nullptr;
            if (cudaMalloc(&pointer, 100) != cudaSuccess) {
                std::_Exit(0);  // not the death that is meant
            }
            device = static_cast<volatile char*>(pointer);
            device[3] = 1;
            std::_Exit(0);
        },
        "");
}

TEST(Strict, off_by_default_the_host_may_read) {
    IN_FRESH_PROCESS("", {
        unsetenv("SLIMWIRE_EMU_STRICT");
        Fill fill{nullptr, 100};
        CUDA_OK(cudaMalloc(&fill.target, 100));
        CUDA_OK(emulator().launch(nullptr, fill_through_view, &fill, sizeof fill, "fill"));
        CUDA_OK(cudaDeviceSynchronize());
        EXPECT_EQ(fill.target[99], 42);
    });
}

}  // namespace
}  // namespace slimwire::testing
