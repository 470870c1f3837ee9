#include "tests/gpu/codecs/nvcomp.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <numeric>
#include <string>
#include <vector>

#include "tests/gpu/codecs/timing.h"

// Last, as they bring the runtime's C++ overloads, which codecs/base/device.h must not see.
#include <nvcomp/ans.h>
#include <nvcomp/bitcomp.h>
#include <nvcomp/version.h>

#if NVCOMP_VER_MAJOR < 6
#error "nvCOMP 6.0 or newer is needed"
#endif

namespace slimwire::gpu {
namespace {

constexpr size_t kChunkBytes = 64 << 10;  // as nvCOMP's own benchmarks cut data

// One of its codecs: names of its functions, whose types the headers give, and options.
struct Ans {
    static constexpr const char* kName = "nvcomp-ans";
    static constexpr const char* kPrefix = "nvcompBatchedANS";
    using TempSize = decltype(nvcompBatchedANSCompressGetTempSize);
    using MostOutput = decltype(nvcompBatchedANSCompressGetMaxOutputChunkSize);
    using Compress = decltype(nvcompBatchedANSCompressAsync);
    using DecompressTempSize = decltype(nvcompBatchedANSDecompressGetTempSize);
    using Decompress = decltype(nvcompBatchedANSDecompressAsync);
    static nvcompBatchedANSCompressOpts_t options(DType dtype) {
        auto options = nvcompBatchedANSCompressDefaultOpts;
        options.data_type = dtype == DType::kFloat32 ? NVCOMP_TYPE_FLOAT32 : NVCOMP_TYPE_FLOAT16;
        return options;
    }
    static nvcompBatchedANSDecompressOpts_t decompress_options() {
        return nvcompBatchedANSDecompressDefaultOpts;
    }
};

struct Bitcomp {
    static constexpr const char* kName = "nvcomp-bitcomp";
    static constexpr const char* kPrefix = "nvcompBatchedBitcomp";
    using TempSize = decltype(nvcompBatchedBitcompCompressGetTempSize);
    using MostOutput = decltype(nvcompBatchedBitcompCompressGetMaxOutputChunkSize);
    using Compress = decltype(nvcompBatchedBitcompCompressAsync);
    using DecompressTempSize = decltype(nvcompBatchedBitcompDecompressGetTempSize);
    using Decompress = decltype(nvcompBatchedBitcompDecompressAsync);
    static nvcompBatchedBitcompCompressOpts_t options(DType dtype) {
        auto options = nvcompBatchedBitcompCompressDefaultOpts;
        options.data_type = dtype == DType::kFloat32 ? NVCOMP_TYPE_UINT : NVCOMP_TYPE_USHORT;
        return options;
    }
    static nvcompBatchedBitcompDecompressOpts_t decompress_options() {
        return nvcompBatchedBitcompDecompressDefaultOpts;
    }
};

template <class Function>
Function* find(void* library, const char* prefix, const char* name) {
    return reinterpret_cast<Function*>(dlsym(library, (std::string(prefix) + name).c_str()));
}

template <class T>
T* words_of(const DeviceBuffer& buffer) {
    return reinterpret_cast<T*>(buffer.data());
}
template <class T>
void put_all(const DeviceBuffer& buffer, const std::vector<T>& values) {
    const auto* bytes = reinterpret_cast<const uint8_t*>(values.data());
    buffer.fill({bytes, bytes + values.size() * sizeof(T)});
}

template <class Codec>
void measure_codec(void* library, DType dtype, const std::vector<uint8_t>& data) {
    const auto temp_size =
        find<typename Codec::TempSize>(library, Codec::kPrefix, "CompressGetTempSize");
    const auto most_output =
        find<typename Codec::MostOutput>(library, Codec::kPrefix, "CompressGetMaxOutputChunkSize");
    const auto compress = find<typename Codec::Compress>(library, Codec::kPrefix, "CompressAsync");
    const auto back_size =
        find<typename Codec::DecompressTempSize>(library, Codec::kPrefix, "DecompressGetTempSize");
    const auto decompress =
        find<typename Codec::Decompress>(library, Codec::kPrefix, "DecompressAsync");
    if (temp_size == nullptr || most_output == nullptr || compress == nullptr ||
        back_size == nullptr || decompress == nullptr) {
        std::printf("%s: not measured, the library lacks its functions\n", Codec::kName);
        return;
    }
    const auto options = Codec::options(dtype);
    const size_t chunks = (data.size() + kChunkBytes - 1) / kChunkBytes;
    size_t most = 0;
    size_t temp = 0;
    size_t back_temp = 0;
    if (most_output(kChunkBytes, options, &most) != nvcompSuccess ||
        temp_size(chunks, kChunkBytes, options, &temp, data.size(), nullptr) != nvcompSuccess ||
        back_size(chunks, kChunkBytes, Codec::decompress_options(), &back_temp, data.size(),
                  nullptr) != nvcompSuccess) {
        std::printf("%s: not measured, it refuses %s\n", Codec::kName, dtype_name(dtype));
        return;
    }
    most = (most + 255) / 256 * 256;
    const DeviceBuffer input(data.size());
    const DeviceBuffer output(most * chunks);
    const DeviceBuffer restored(data.size());
    const DeviceBuffer work(std::max(temp, back_temp));
    const DeviceBuffer scratch(data.size() * 2);
    const DeviceBuffer inputs(chunks * sizeof(void*));
    const DeviceBuffer outputs(chunks * sizeof(void*));
    const DeviceBuffer restoreds(chunks * sizeof(void*));
    const DeviceBuffer sizes(chunks * sizeof(size_t));
    const DeviceBuffer output_sizes(chunks * sizeof(size_t));
    const DeviceBuffer restored_sizes(chunks * sizeof(size_t));
    const DeviceBuffer statuses(chunks * sizeof(nvcompStatus_t));
    std::vector<const void*> from(chunks);
    std::vector<void*> to(chunks);
    std::vector<void*> back(chunks);
    std::vector<size_t> size(chunks, kChunkBytes);
    for (size_t i = 0; i < chunks; ++i) {
        from[i] = input.data() + i * kChunkBytes;
        to[i] = output.data() + i * most;
        back[i] = restored.data() + i * kChunkBytes;
    }
    size.back() = data.size() - (chunks - 1) * kChunkBytes;
    input.fill(data);
    put_all(inputs, from);
    put_all(outputs, to);
    put_all(restoreds, back);
    put_all(sizes, size);
    const Enqueue encode = [&](cudaStream_t stream) {
        return compress(words_of<const void*>(inputs), words_of<size_t>(sizes), kChunkBytes, chunks,
                        work.data(), temp, words_of<void*>(outputs), words_of<size_t>(output_sizes),
                        options, words_of<nvcompStatus_t>(statuses), stream) == nvcompSuccess
                   ? cudaSuccess
                   : cudaErrorUnknown;
    };
    const Enqueue decode = [&](cudaStream_t stream) {
        return decompress(words_of<const void*>(outputs), words_of<size_t>(output_sizes),
                          words_of<size_t>(sizes), words_of<size_t>(restored_sizes), chunks,
                          work.data(), back_temp, words_of<void*>(restoreds),
                          Codec::decompress_options(), words_of<nvcompStatus_t>(statuses),
                          stream) == nvcompSuccess
                   ? cudaSuccess
                   : cudaErrorUnknown;
    };
    if (encode(nullptr) != cudaSuccess || decode(nullptr) != cudaSuccess) {
        std::printf("%s: not measured, it refuses to run on %s\n", Codec::kName, dtype_name(dtype));
        return;
    }
    check(cudaStreamSynchronize(nullptr), Codec::kName);
    std::vector<size_t> encoded(chunks);
    std::vector<uint8_t> result(data.size());
    check(cudaMemcpy(encoded.data(), output_sizes.data(), chunks * sizeof(size_t),
                     cudaMemcpyDeviceToHost),
          "copy");
    check(cudaMemcpy(result.data(), restored.data(), result.size(), cudaMemcpyDeviceToHost),
          "copy");
    if (result != data) {
        std::printf("%s: not measured, other bytes came back of %s\n", Codec::kName,
                    dtype_name(dtype));
        return;
    }
    const auto bytes = static_cast<int64_t>(data.size());
    const auto length =
        static_cast<int64_t>(std::accumulate(encoded.begin(), encoded.end(), size_t{0}));
    report({Codec::kName, "encode", dtype, bytes, bytes + length, length, 0}, scratch, encode);
    report({Codec::kName, "decode", dtype, bytes, bytes + length, length, 0}, scratch, decode);
}

}  // namespace

void measure_nvcomp(DType dtype, int64_t bytes) {
    void* library = dlopen(SLIMWIRE_NVCOMP_LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
        const char* why = dlerror();
        std::printf("nvcomp: not measured, %s\n", why != nullptr ? why : "it does not load");
        return;
    }
    const std::vector<uint8_t> data =
        gaussian_bytes(dtype, bytes / static_cast<int64_t>(dtype_bytes(dtype)), 1);
    measure_codec<Ans>(library, dtype, data);
    measure_codec<Bitcomp>(library, dtype, data);
}

}  // namespace slimwire::gpu
