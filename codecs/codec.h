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

#include "codecs/base/device.h"
#include "codecs/base/dtype.h"
#include "codecs/base/status.h"

namespace slimwire {

// Parameters of a codec as its operations see them: plain data, part of every argument struct.
// Which members a codec reads, and their ranges, is said by its descriptor's grammar.
struct CodecParams {
    uint16_t block = 0;      // elements that share one scale; 0 where a codec has no blocks
    uint8_t bits = 0;        // bits of one code
    uint8_t scale_type = 0;  // ScaleType
    uint8_t rounding = 0;    // Rounding
    uint8_t target = 0;      // DType of a cast's encoded elements
    uint16_t reserved = 0;   // zero
    bool operator==(const CodecParams&) const = default;
};

enum class ScaleType : uint8_t { kBfloat16 = 0, kFloat32 = 1 };
enum class Rounding : uint8_t { kNearest = 0 };  // nearest: ties to even

// --- Argument structs of the device operations. Plain data, at most 4 KiB, the same for the host
// --- body and the kernel. Pointers are device pointers (host bodies resolve them by device_view).

// Encodes `count` elements, cut into chunks of `chunk_elems` (the last may be short); chunk c is an
// independent encoding at output + c * slot_bytes. Bytes of a slot after the encoding of its chunk,
// and slots of chunks that hold no element, are left untouched by the host body and the kernel
// alike.
//   p = scale * (scale_ptr ? *scale_ptr : 1) * input + (residual ? residual : 0), in fp32
//   output = encode(p); residual = p - decode(encode(p)) rounded to fp32
// A block with a non-finite p encodes as poison (decodes non-finite) and keeps its old residual.
struct EncodeArgs {
    const void* input;      // count elements of `dtype`, aligned to the element size
    void* output;           // ceil(count / chunk_elems) slots; 16-byte aligned
    float* residual;        // null, or count fp32, read and rewritten; 4-byte aligned
    const void* scale_ptr;  // null, or one element of `dtype`, read when the operation runs
    float scale;
    int64_t count;
    int64_t chunk_elems;  // > 0; a multiple of the codec's granule() unless one chunk covers all
    int64_t slot_bytes;   // multiple of 16, >= encoded_bytes(chunk_elems)
    CodecParams params;
    DType dtype;
};

// The inverse, with the same chunking: output = (accumulate ? output : 0) + decode, rounded once to
// `dtype` (nearest even).
struct DecodeArgs {
    const void* input;
    void* output;
    int64_t count;
    int64_t chunk_elems;
    int64_t slot_bytes;
    CodecParams params;
    DType dtype;
    bool accumulate;
};

// One chunk of `count` elements from `inputs` ranks, source i at input + i * input_stride:
//   p = scale * (sum over i = 0, 1, ... of decode(source i), in fp32, in that order)
//       + (residual ? residual : 0)
//   output = encode(p); residual as for EncodeArgs
// `dtype` is the element type of the user's buffer; sums stay fp32.
struct DecodeReduceEncodeArgs {
    const void* input;
    void* output;
    float* residual;
    int64_t input_stride;  // bytes, multiple of 16
    int64_t count;
    int32_t inputs;
    float scale;
    CodecParams params;
    DType dtype;
};

static_assert(sizeof(EncodeArgs) <= 4096 && sizeof(DecodeReduceEncodeArgs) <= 4096);

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
    // Bound of |p - decode(encode(p))| as a fraction of the largest |p| of the same block.
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
