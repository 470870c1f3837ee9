// The end of decode_reduce: a tile of fp32 sums becomes elements of the user's buffer. Included by
// host/<family>.cpp inside its anonymous namespace, after the lanes.

// output = factor * sum, rounded once.
template <class Element>
SLIMWIRE_LANES void put_scaled(const float* sum, Floats factor, uint8_t* output, int64_t count) {
    const Sink<Element, false> sink{output};
    int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes) {
        sink.sixteen(i, multiply(factor, load_float32(sum + i)));
    }
    if (i < count) {
        const Floats rest = load_some<Float32>(bytes_of(sum + i), count - i);
        sink.some(i, multiply(factor, rest), count - i);
    }
}
