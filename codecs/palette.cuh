// Kernels of the palette codec and their launch. Instantiated by palette.cu for coded elements of
// 1, 2, 4 and 8 bytes.
#pragma once

#include "codecs/cuda/launchers.h"
#include "codecs/cuda/palette_decode.cuh"
#include "codecs/cuda/palette_encode.cuh"

namespace slimwire {
namespace {

// Thread blocks for the operation's blocks: as many as run at once, or may.
template <class Args>
cudaError_t palette_grid(const Args& args, const PaletteWork& work, unsigned* grid) {
    int processors = 0;
    const cudaError_t error = processor_count(&processors);
    if (error != cudaSuccess) {
        return error;
    }
    const int64_t most =
        args.max_blocks > 0 ? args.max_blocks : int64_t{processors} * kBlocksPerProcessor;
    const int64_t units = work.chunks * work.blocks;
    *grid = static_cast<unsigned>(units < most ? units : most);
    return cudaSuccess;
}

template <int kBytes>
cudaError_t launch_encode(const EncodeArgs& args, const PaletteWork& work, cudaStream_t stream) {
    unsigned grid = 0;
    cudaError_t error = palette_grid(args, work, &grid);
    if (error != cudaSuccess) {
        return error;
    }
    error = start_kernel(palette_encode<kBytes>, grid, kThreads, encode_shared_bytes<kBytes>(),
                         stream, args, work);
    if (error != cudaSuccess || args.params.slot <= 0 || work.fills) {
        return error;
    }
    return start_kernel(palette_fill, grid, kThreads, 0, stream, args, work);
}

template <int kBytes>
cudaError_t launch_decode(const DecodeArgs& args, const PaletteWork& work, cudaStream_t stream) {
    unsigned grid = 0;
    const cudaError_t error = palette_grid(args, work, &grid);
    if (error != cudaSuccess) {
        return error;
    }
    return start_kernel(palette_decode<kBytes>, grid, kThreads, decode_shared_bytes<kBytes>(),
                        stream, args, work);
}

}  // namespace
}  // namespace slimwire
