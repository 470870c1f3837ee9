// What a codec is. A codec turns a run of floating-point elements into bytes and back. Everything
// outside this room speaks of codecs only through the types below.
//
// Adding one: codecs/<name>.cpp (wire layout, size, host bodies, descriptor), codecs/<name>.cu
// (kernels of the same operations), one word in codecs/meson.build. It then has every operation,
// the contract suite and the benchmark. Byte layout of every codec: codecs/FORMAT.md.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "codecs/args.h"
#include "codecs/base/device.h"
#include "codecs/base/dtype.h"
#include "codecs/base/status.h"

namespace slimwire {

// --- Descriptor

struct HostOps {
    void (*encode)(const EncodeArgs&);
    void (*decode)(const DecodeArgs&);
    void (*decode_reduce_encode)(const DecodeReduceEncodeArgs&);
};

// Launchers of the kernels; null members in a build without CUDA. They enqueue one launch on
// `stream` of the current device and return the launch error; no allocation, no synchronisation.
struct CudaOps {
    cudaError_t (*encode)(const EncodeArgs&, cudaStream_t stream);
    cudaError_t (*decode)(const DecodeArgs&, cudaStream_t stream);
    cudaError_t (*decode_reduce_encode)(const DecodeReduceEncodeArgs&, cudaStream_t stream);
};

struct CodecDescriptor {
    const char* name;     // the word before ':' in a specification
    const char* grammar;  // one line for --help: parameters, ranges, defaults
    // Fills `params` with defaults, then with "key=value,..." from `text`; an error names the bad
    // parameter and the accepted range.
    Status (*parse)(std::string_view text, CodecParams* params);
    // Canonical specification: name and the parameters that differ from the defaults, fixed order.
    std::string (*print)(const CodecParams& params);
    bool (*accepts)(const CodecParams& params, DType dtype);
    // Exact bytes of one chunk of `count` elements; 0 for 0. Does not depend on the data.
    int64_t (*encoded_bytes)(const CodecParams& params, DType dtype, int64_t count);
    // Chunk boundaries fall on multiples of this many elements.
    int64_t (*granule)(const CodecParams& params, DType dtype);
    // Bound of |p - decode(encode(p))| as a fraction of the largest |p| of the same block (of |p|
    // itself for codecs without blocks), within the codec's range; FORMAT.md says what happens at
    // its ends.
    double (*block_error_bound)(const CodecParams& params, DType dtype);
    HostOps host;
    CudaOps cuda;
};

// A codec with its parameters: what a policy rule names and a plan runs.
struct CodecSpec {
    const CodecDescriptor* codec = nullptr;  // from the registry, lives as long as the library
    CodecParams params;

    [[nodiscard]] std::string to_string() const { return codec->print(params); }
    [[nodiscard]] bool accepts(DType dtype) const { return codec->accepts(params, dtype); }
    [[nodiscard]] int64_t encoded_bytes(DType dtype, int64_t count) const {
        return codec->encoded_bytes(params, dtype, count);
    }
    [[nodiscard]] int64_t granule(DType dtype) const { return codec->granule(params, dtype); }
};

// Parses "name" or "name:key=value,key=value" ("int4:block=64"). Errors name the unknown codec or
// parameter and list what is accepted.
Result<CodecSpec> parse_codec(std::string_view text);

// The registry: a constant table in the order of codecs/meson.build.
[[nodiscard]] const CodecDescriptor* const* codec_table(size_t* count) noexcept;

// Makes the kernels known to the CUDA runtime; the first enqueue() on CUDA does it. Call it before
// using CudaOps directly. Thread-safe; nothing on later calls, or in a build without CUDA.
void register_cuda_kernels();

// Enqueue an operation on `stream`: the host body on the emulator, the kernel on CUDA. The
// arguments are copied before return. kUnsupported when this build has no kernel for the backend.
Status enqueue(const DeviceApi& api,
               const CodecSpec& spec,
               const EncodeArgs& args,
               cudaStream_t stream);
Status enqueue(const DeviceApi& api,
               const CodecSpec& spec,
               const DecodeArgs& args,
               cudaStream_t stream);
Status enqueue(const DeviceApi& api,
               const CodecSpec& spec,
               const DecodeReduceEncodeArgs& args,
               cudaStream_t stream);

}  // namespace slimwire
