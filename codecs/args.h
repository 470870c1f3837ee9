// What a codec operation is told: parameters and argument structs, plain data shared by host
// bodies, kernels and everyone who enqueues. Apart from codec.h so that kernels, which are compiled
// against the CUDA Toolkit's own headers, read nothing else.
#pragma once

#include <cstdint>

#include "codecs/base/dtype.h"
#include "codecs/numeric.h"

// Before the declaration of a kernel's launcher: null in programs that no kernels are linked into
// (codecs_kernels_dep in codecs/meson.build).
#define SLIMWIRE_LAUNCHER __attribute__((weak, visibility("hidden")))

namespace slimwire {

// For declarations of enqueue(), whose callers know them (codecs/base).
struct DeviceApi;
class Status;
// Declares the bodies of an operation that is no codec's: the launcher of its kernels, on `stream`
// of the current device, whose launch error comes back, and the host body.
#define SLIMWIRE_BODIES(name, Args)                                                      \
    SLIMWIRE_LAUNCHER cudaError_t name##_on_cuda(const Args& args, cudaStream_t stream); \
    void name##_on_host(const Args& args);
// The same and enqueue(), as that of a codec operation (defined by SLIMWIRE_ENQUEUE of launch.h).
#define SLIMWIRE_OPERATION(name, Args) \
    SLIMWIRE_BODIES(name, Args)        \
    Status enqueue(const DeviceApi& api, const Args& args, cudaStream_t stream);

// Parameters of a codec as its operations see them: plain data, part of every argument struct.
// Which members a codec reads, and their ranges, is said by its descriptor's grammar; the others
// keep their defaults.
struct CodecParams {
    uint16_t block = 0;      // elements that share one scale; 0 where a codec has no blocks
    uint8_t bits = 0;        // bits of one code
    uint8_t scale_type = 0;  // ScaleType; ScaleRule where scales have 8 bits; or QuantizerScale
    uint8_t rounding = 0;    // Rounding
    uint8_t target = 0;      // DType of the encoded elements (casts)
    uint16_t rotate = 0;     // elements of one Hadamard rotation, a power of two; 0: none
    uint8_t values = 0;      // ValueFormat of the elements that a sparsifier keeps
    uint16_t levels = 0;     // largest code of a quantizer
    uint32_t seed = 0;       // of what all ranks draw alike: rotation signs, chosen elements
    uint32_t kept = 0;       // elements kept of each block or row; rank of a factored matrix
    uint32_t row = 0;        // elements of a row; 0 of a matrix: as the parameter has it
    uint32_t refresh = 0;    // encodings from one exact threshold to the next; 0: it stays
    float fraction = 0;      // part of the elements that a message has room for
    float threshold = 0;     // magnitude from which an element is sent
    float slot = 0;          // fixed slot as a part of the raw bytes; 0: variable size
    bool operator==(const CodecParams&) const = default;
};

enum class ScaleType : uint8_t { kBfloat16 = 0, kFloat32 = 1 };
// Of scales of 8 bits. Standard: as the format's own definition chooses them, so that the largest
// elements of a block may be cut off. Up: the smallest scale that keeps them.
enum class ScaleRule : uint8_t { kStandard = 0, kUp = 1 };
// Of the quantizers: what a block's scale is made from.
enum class QuantizerScale : uint8_t {
    kMean = 0,  // mean magnitude
    kNorm = 1,  // Euclidean norm; of one bit the root mean square
    kMax = 2,   // largest magnitude
    kClip = 3,  // that, but at most 2.5 times the root mean square
};
// Nearest: ties to even. Stochastic: up with the probability of the part that is cut off, in steps
// of 1/256, drawn as RandomKey says.
enum class Rounding : uint8_t { kNearest = 0, kStochastic = 1 };
// Native: the element type of the buffer. Integers: in blocks of 64 with bf16 scales.
enum class ValueFormat : uint8_t { kNative = 0, kInt8 = 1, kInt4 = 2 };

// Names what stochastic rounding draws, so that runs, replays of a graph, host and GPU repeat it.
// FORMAT.md, "Random numbers", says how the members become the key and the counter.
struct RandomKey {
    uint32_t seed = 0;
    uint32_t tensor = 0;                 // which tensor; ordinal or hash
    uint32_t rank = 0;                   // ranks must draw differently for errors to average out
    uint32_t step = 0;                   // added to *step_ptr
    const uint32_t* step_ptr = nullptr;  // null, or a device word read when the operation runs
};

// What an operation reports: bits that are set (never cleared) in *status.
enum OperationStatus : uint32_t {
    kStatusOverflow = 1,  // encode: a fixed slot is too small for the data, its header says so
    kStatusCorrupt = 2,   // decode: bytes that no encoder writes; decoded as FORMAT.md says
};

// --- Argument structs of the device operations. Plain data, at most 4 KiB, the same for the host
// --- body and the kernel. Pointers are device pointers (host bodies resolve them by device_view).
// --- `workspace`: CodecDescriptor::workspace_bytes() of device memory, 16-byte aligned, any
// --- content, not shared by operations in flight; null where that is 0. Host bodies need none.
// --- `status`: null or a device word, see OperationStatus.

// Encodes `count` elements, cut into chunks of `chunk_elems` (the last may be short); chunk c is an
// independent encoding at output + c * slot_bytes. Bytes of a slot after the encoding of its chunk,
// and slots of chunks that hold no element, are left untouched by the host body and the kernel
// alike.
//   p = scale * (scale_ptr ? *scale_ptr : 1) * input + (residual ? residual : 0), in fp32
//   output = encode(p); residual = p - decode(encode(p)) rounded to fp32
// A block with a non-finite p encodes as poison (decodes non-finite) and keeps its old residual.
// A lossless codec takes the input's bits: scale, scale_ptr and residual are not looked at.
struct EncodeArgs {
    const void* input;                // count elements of `dtype`, aligned to the element size
    void* output;                     // ceil(count / chunk_elems) slots; 16-byte aligned
    float* residual = nullptr;        // null, or count fp32, read and rewritten; 4-byte aligned
    const void* scale_ptr = nullptr;  // or one element of `dtype`, read when the operation runs
    float scale = 1.0f;
    int64_t count;
    int64_t chunk_elems;  // > 0; a multiple of the codec's granule() unless one chunk covers all
    int64_t slot_bytes;   // multiple of 16, >= encoded_bytes(chunk_elems)
    CodecParams params;
    DType dtype;
    RandomKey random = {};
    void* workspace = nullptr;
    uint32_t* status = nullptr;
    int32_t max_blocks = 0;  // thread blocks that a kernel may occupy; 0: as many as run at once
    // Codec threshold: null, or fp32 that stand in for the parameter, read when the operation runs:
    // of chunk c threshold_ptr[c * threshold_stride].
    const float* threshold_ptr = nullptr;
    int64_t threshold_stride = 0;
};

// The inverse, with the same chunking: output = (accumulate ? output : 0) + scale * decode, rounded
// to fp32 and then to `dtype` (nearest even). A lossless codec does not accumulate. With a
// `sum_limit` halves are added, kept within half the limit and doubled. Reads no byte outside the
// slots.
struct DecodeArgs {
    const void* input;
    void* output;
    int64_t count;
    int64_t chunk_elems;
    int64_t slot_bytes;
    CodecParams params;
    DType dtype;
    bool accumulate = false;
    float scale = 1.0f;       // another one only for sparsifiers that have no decode_reduce
    SumLimit sum_limit = {};  // of what is accumulated; not of lossless codecs
    void* workspace = nullptr;
    uint32_t* status = nullptr;
    int32_t max_blocks = 0;  // thread blocks that a kernel may occupy; 0: as many as run at once
};

// One chunk of `count` elements from `inputs` ranks, source i at input + i * input_stride:
//   sum = input_scale * decode(source 0)
//   sum = input_scale * decode(source i) + sum, for i = 1, 2, ...: one rounding to fp32 each
//   p = scale * (sum, within sum_limit) + (residual ? residual : 0)
//   output = encode(p); residual as for EncodeArgs
// An average has a power of two as `input_scale`, so that no sum overflows where the average does
// not, and `scale` makes up for it.
// `dtype` is the element type of the user's buffer; sums stay fp32.
struct DecodeReduceEncodeArgs {
    const void* input;
    void* output;
    float* residual = nullptr;
    int64_t input_stride;  // bytes, multiple of 16
    int64_t count;
    int32_t inputs;
    float scale = 1.0f;
    CodecParams params;
    DType dtype;
    float input_scale = 1.0f;
    SumLimit sum_limit = {};
    RandomKey random = {};
    void* workspace = nullptr;
    uint32_t* status = nullptr;
    int32_t max_blocks = 0;  // thread blocks that a kernel may occupy; 0: as many as run at once
};

// Encodings of one chunk of `count` elements from `inputs` ranks, summed into elements:
//   output = scale * (sum, within sum_limit)
// rounded once to `dtype` (nearest even; NaN canonical). The sum is that of
// DecodeReduceEncodeArgs with a residual. Reads no byte outside the encodings.
struct DecodeReduceArgs {
    const void* input;     // source i at input + i * input_stride
    void* output;          // count elements of `dtype`, aligned to the element size; not in `input`
    int64_t input_stride;  // bytes, multiple of 16
    int64_t count;
    int32_t inputs;
    float scale = 1.0f;
    CodecParams params;
    DType dtype;
    float input_scale = 1.0f;
    SumLimit sum_limit = {};
    void* workspace = nullptr;
    uint32_t* status = nullptr;
    int32_t max_blocks = 0;  // thread blocks that a kernel may occupy; 0: as many as run at once
};

static_assert(sizeof(EncodeArgs) <= 4096 && sizeof(DecodeReduceEncodeArgs) <= 4096);

}  // namespace slimwire
