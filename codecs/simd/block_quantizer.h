// The operations on one chunk of codecs that make codes of blocks of elements, tile by tile so that
// everything between two memory accesses stays in the first-level cache, around what a Codec does
// with one tile. Included by <family>/host/<family>.cpp inside its anonymous namespace, after the
// lanes, tile.h and put_scaled.h. A Codec has
//   Shape, and Scratch, which is a Tile or derived from it
//   Planes<Byte>::of(encoding, shape, count)   where the planes of an encoding begin
//   encode_tile<kResidual>(tile, source, random, first, count, shape, planes, residual)
//                     elements `first`, ... of a chunk, up to kTileElems of them; indices of
//                     `source` and `residual` start at 0
//   decode_tile(planes, first, count, sink)   the same back into `sink`, whose indices start at 0

template <class Codec>
struct BlockQuantizer {
    using Shape = typename Codec::Shape;
    template <class Byte>
    using Planes = typename Codec::template Planes<Byte>;

    // Calls run(begin, elements) for each tile of a chunk.
    template <class Run>
    SLIMWIRE_LANES void for_each_tile(int64_t count, const Run& run) {
        for (int64_t done = 0; done < count; done += kTileElems) {
            const int64_t left = count - done;
            run(done, left < kTileElems ? left : kTileElems);
        }
    }

    template <class Element, bool kResidual>
    static void encode_as(const EncodeChunk& chunk, const Shape& shape) {
        typename Codec::Scratch tile;
        tile.most = Element::kMaxBits;
        const auto planes = Planes<uint8_t>::of(chunk.output, shape, chunk.count);
        for_each_tile(chunk.count, [&](int64_t done, int64_t count) {
            float* residual = kResidual ? chunk.residual + done : nullptr;
            const Source<Element, kResidual> source{chunk.input + done * Element::kBytes, residual,
                                                    broadcast(chunk.factor)};
            Codec::template encode_tile<kResidual>(tile, source, chunk.random, done, count, shape,
                                                   planes, residual);
        });
    }
    static void encode(const EncodeChunk& chunk, const Shape& shape) {
        visit(chunk.dtype, chunk.residual != nullptr,
              [&]<bool kResidual>(auto element, Flag<kResidual>) {
                  encode_as<decltype(element), kResidual>(chunk, shape);
              });
    }

    template <class Element, bool kAccumulate>
    static void decode_as(const DecodeChunk& chunk, const Shape& shape) {
        const auto planes = Planes<const uint8_t>::of(chunk.input, shape, chunk.count);
        for_each_tile(chunk.count, [&](int64_t done, int64_t count) {
            Codec::decode_tile(planes, done, count,
                               Sink<Element, kAccumulate>{chunk.output + done * Element::kBytes,
                                                          Element::kMaxBits, chunk.sum_limit});
        });
    }
    static void decode(const DecodeChunk& chunk, const Shape& shape) {
        visit(chunk.dtype, chunk.accumulate,
              [&]<bool kAccumulate>(auto element, Flag<kAccumulate>) {
                  decode_as<decltype(element), kAccumulate>(chunk, shape);
              });
    }

    // The sum over the sources of `count` elements from element `done` on.
    static void sum_tile(
        const ReduceChunk& chunk, const Shape& shape, int64_t done, int64_t count, float* sum) {
        const uint32_t most = max_bits(chunk.dtype);
        auto planes = Planes<const uint8_t>::of(chunk.input, shape, chunk.count);
        const Floats scale = broadcast(chunk.input_scale);
        Codec::decode_tile(planes, done, count, SumSink<true>{bytes_of(sum), most, scale});
        for (int32_t i = 1; i < chunk.inputs; ++i) {
            planes =
                Planes<const uint8_t>::of(chunk.input + i * chunk.input_stride, shape, chunk.count);
            Codec::decode_tile(planes, done, count, SumSink<false>{bytes_of(sum), most, scale});
        }
        limit_sums(chunk.sum_limit, sum, count);
    }

    template <bool kResidual>
    static void reduce_as(const ReduceChunk& chunk, const Shape& shape) {
        alignas(64) float sum[kTileElems];
        typename Codec::Scratch tile;
        tile.most = max_bits(chunk.dtype);
        const auto planes = Planes<uint8_t>::of(chunk.output, shape, chunk.count);
        for_each_tile(chunk.count, [&](int64_t done, int64_t count) {
            sum_tile(chunk, shape, done, count, sum);
            float* residual = kResidual ? chunk.residual + done : nullptr;
            Codec::template encode_tile<kResidual>(
                tile,
                Source<Float32, kResidual>{bytes_of(sum), residual, broadcast(chunk.factor),
                                           overflow_bits(chunk.dtype)},
                chunk.random, done, count, shape, planes, residual);
        });
    }
    static void reduce(const ReduceChunk& chunk, const Shape& shape) {
        chunk.residual != nullptr ? reduce_as<true>(chunk, shape) : reduce_as<false>(chunk, shape);
    }

    template <class Element>
    static void sum_as(const ReduceChunk& chunk, const Shape& shape) {
        alignas(64) float sum[kTileElems];
        for_each_tile(chunk.count, [&](int64_t done, int64_t count) {
            sum_tile(chunk, shape, done, count, sum);
            put_scaled<Element>(sum, broadcast(chunk.factor), chunk.output + done * Element::kBytes,
                                count);
        });
    }
    static void sum(const ReduceChunk& chunk, const Shape& shape) {
        visit(chunk.dtype, [&](auto element) { sum_as<decltype(element)>(chunk, shape); });
    }

    static constexpr ChunkKernels<Shape> kKernels = {encode, decode, reduce, sum};
};
