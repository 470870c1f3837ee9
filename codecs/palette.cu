// Kernels of codec palette, by the bytes of a coded element. See palette.cuh.
#include "codecs/palette.cuh"

namespace slimwire {
cudaError_t PaletteCuda::encode(const EncodeArgs& args, cudaStream_t stream) {
    if (args.count <= 0) {
        return cudaSuccess;
    }
    const PaletteWork work = palette_work(args);
    switch (work.coded_bytes) {
        case 1:
            return launch_encode<1>(args, work, stream);
        case 2:
            return launch_encode<2>(args, work, stream);
        case 4:
            return launch_encode<4>(args, work, stream);
        default:
            return launch_encode<8>(args, work, stream);
    }
}

cudaError_t PaletteCuda::decode(const DecodeArgs& args, cudaStream_t stream) {
    if (args.count <= 0) {
        return cudaSuccess;
    }
    const PaletteWork work = palette_work(args);
    switch (work.coded_bytes) {
        case 1:
            return launch_decode<1>(args, work, stream);
        case 2:
            return launch_decode<2>(args, work, stream);
        case 4:
            return launch_decode<4>(args, work, stream);
        default:
            return launch_decode<8>(args, work, stream);
    }
}

}  // namespace slimwire
