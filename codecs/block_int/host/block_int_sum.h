// decode_reduce of the block integers on the host: sources are summed tile by tile as for
// decode_reduce_encode, and a rotation is undone once. Included by block_int.cpp inside its
// anonymous namespace.

template <int kBits, class Element>
void sum_block_int_as(const ReduceChunk& chunk, const BlockIntShape& shape) {
    const BlockIntLayout layout = block_int_layout(shape, chunk.count);
    alignas(64) float values[kTileElems];
    Signs signs;
    if (shape.rotate != 0) {
        draw_signs(signs, shape.rotate, shape.seed);
    }
    for (int64_t done = 0; done < chunk.count; done += kTileElems) {
        const int64_t left = chunk.count - done;
        const int64_t padded =
            layout.padded - done < kTileElems ? layout.padded - done : kTileElems;
        if (shape.rotate != 0) {
            BlockInt<kBits>::sum_elements_of(chunk, shape, layout, done, padded, signs, values);
        } else {
            BlockInt<kBits>::sum_tile(chunk, shape, layout, done, padded, values);
        }
        limit_sums(chunk.sum_limit, values, padded);
        put_scaled<Element>(values, broadcast(chunk.factor), chunk.output + done * Element::kBytes,
                            left < kTileElems ? left : kTileElems);
    }
}

template <int kBits>
void sum_block_int(const ReduceChunk& chunk, const BlockIntShape& shape) {
    visit(chunk.dtype,
          [&](auto element) { sum_block_int_as<kBits, decltype(element)>(chunk, shape); });
}

template <int kBits>
constexpr ChunkKernels<BlockIntShape> block_int_kernels() {
    ChunkKernels<BlockIntShape> kernels = BlockInt<kBits>::kKernels;
    kernels.sum = sum_block_int<kBits>;
    return kernels;
}
