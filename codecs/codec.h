// What a codec is. A codec turns a run of floating-point elements into bytes and back. Everything
// outside this room speaks of codecs only through the types below.
//
// Adding one: codecs/README.md. It then has every operation, the contract suite and the benchmark.
// Byte layout of every codec: codecs/FORMAT.md.
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
#include "codecs/launchers.h"

namespace slimwire {

// --- Descriptor

// Null members: the family does not allow the operation (a sparsifier that must see a whole message
// cannot reduce in one pass).
struct HostOps {
    void (*encode)(const EncodeArgs&);
    void (*decode)(const DecodeArgs&);
    void (*decode_reduce_encode)(const DecodeReduceEncodeArgs&);
    void (*decode_reduce)(const DecodeReduceArgs&) = nullptr;
};

// What a plan must know of a codec with its parameters.
struct CodecTraits {
    bool lossless = false;
    bool variable_size = false;  // encoded_bytes() is a bound; the length stands in the encoding
    bool linear = false;         // encodings of the same seed and step add up element by element
    // Encodes no run of elements: an exchange of its own carries matrices as their factors. Has no
    // encoding, so encoded_bytes() is 0 and all operations are null.
    bool low_rank = false;
    // What is encoded depends on the step: which blocks come first, say. So does all that draws, as
    // params.rounding says it.
    bool by_step = false;
    // And must be the same on all ranks, whose encodings have a sum only then.
    bool draws_alike = false;
    // Goes by thresholds that follow the data, which each tensor keeps between encodings
    // (threshold_control.h).
    bool adapts_threshold = false;
    // Loses about half of what it is given or more, and the same again each time: of sums of
    // gradients that is lost for good, unless error feedback gives it back.
    bool needs_feedback = false;
    // Elements that become non-finite together, in chunks aligned to it; 0: some element of the
    // chunk, anywhere.
    int64_t poison_elems = 1;
    // Error that comes on top of block_error_bound() where values end at the codec's smallest step.
    double smallest_error = 0;
    bool pairs_masks = false;  // of messages between stages: pair_mode.h
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
    CodecTraits (*traits)(const CodecParams& params, DType dtype);
    // Bytes of one chunk of `count` elements; 0 for 0. Does not depend on the data: exact, or the
    // largest possible where traits() say variable_size.
    int64_t (*encoded_bytes)(const CodecParams& params, DType dtype, int64_t count);
    // Chunk boundaries fall on multiples of this many elements.
    int64_t (*granule)(const CodecParams& params, DType dtype);
    // Bound of |p - decode(encode(p))| as a fraction of the largest |p| of the same block (of |p|
    // itself for codecs without blocks), up to the codec's largest value; FORMAT.md says what
    // happens beyond.
    double (*block_error_bound)(const CodecParams& params, DType dtype);
    // Device memory that the kernels of one operation over `count` elements in chunks of
    // `chunk_elems` need; null function: none.
    int64_t (*workspace_bytes)(const CodecParams& params,
                               DType dtype,
                               int64_t count,
                               int64_t chunk_elems);
    // Whether `size` bytes in host memory are an encoding of `count` elements; see
    // check_encoding(). Null function: every run of encoded_bytes() bytes is one.
    Result<int64_t> (*check)(
        const CodecParams& params, DType dtype, int64_t count, const uint8_t* bytes, int64_t size);
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
    [[nodiscard]] CodecTraits traits(DType dtype) const { return codec->traits(params, dtype); }
    [[nodiscard]] int64_t workspace_bytes(DType dtype, int64_t count, int64_t chunk_elems) const {
        return codec->workspace_bytes == nullptr
                   ? 0
                   : codec->workspace_bytes(params, dtype, count, chunk_elems);
    }
    [[nodiscard]] bool pairs_masks() const { return traits(DType::kFloat32).pairs_masks; }
    [[nodiscard]] bool reduces() const { return codec->host.decode_reduce_encode != nullptr; }
    // Whether encodings sum up into elements in one operation.
    [[nodiscard]] bool sums() const {
        return codec->host.decode_reduce != nullptr && !pairs_masks();
    }
    bool operator==(const CodecSpec&) const = default;
};

// Parses "name" or "name:key=value,key=value" ("int4:block=64"). Errors name the unknown codec or
// parameter and list what is accepted.
Result<CodecSpec> parse_codec(std::string_view text);

// Looks at one encoding of `count` elements in `size` bytes of host memory, as received from
// elsewhere: the bytes of it that are used, or kInvalidArgument saying what is truncated or corrupt
// and where. Reads nothing outside. An encoding that passes decodes without kStatusCorrupt.
Result<int64_t> check_encoding(
    const CodecSpec& spec, DType dtype, int64_t count, const uint8_t* bytes, int64_t size);

// The registry: a constant table in the order of codecs/meson.build. Beside it specifications may
// name powersgd and linear_ae, which encode no run of elements (CodecTraits::low_rank).
[[nodiscard]] const CodecDescriptor* const* codec_table(size_t* count) noexcept;
// What a tool that encodes runs of elements says of such a codec; ok for all others.
Status encodes_runs(const CodecSpec& spec);

// Makes the kernels known to the CUDA runtime; the first enqueue() on CUDA does it. Call it before
// using CudaOps directly. Thread-safe; nothing on later calls, or in a build without CUDA.
void register_cuda_kernels();
// Loads all kernels onto the current device, once a process; later calls return the same status.
// Else CUDA loads each at its first launch, which may wait for all work of the device, NCCL's too.
// May wait for the device itself: for the creation of communicators. kCudaError where a kernel has
// no code for the device. Thread-safe; ok in a build without CUDA.
Status load_cuda_kernels(const DeviceApi& api);

// Enqueue an operation on `stream`: the host body on the emulator, the kernel on CUDA. The
// arguments are copied before return. kUnsupported when this build has no kernel for the backend or
// the codec lacks the operation.
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
Status enqueue(const DeviceApi& api,
               const CodecSpec& spec,
               const DecodeReduceArgs& args,
               cudaStream_t stream);

}  // namespace slimwire
