#include "tests/gpu/codecs/compare.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>

#include "codecs/float16.h"

namespace slimwire::gpu {
namespace {

using Bytes = std::vector<uint8_t>;
constexpr uint8_t kPattern = 0xA5;

void put_element(uint8_t* to, DType dtype, float value) {
    if (dtype == DType::kFloat32) {
        std::memcpy(to, &value, sizeof(value));
        return;
    }
    const uint16_t half =
        dtype == DType::kFloat16 ? float_to_float16(value) : float_to_bfloat16(value);
    std::memcpy(to, &half, sizeof(half));
}

Bytes make_input(const Situation& situation, std::mt19937_64& random) {
    const auto element_bytes = static_cast<int64_t>(dtype_bytes(situation.dtype));
    Bytes bytes(static_cast<size_t>((situation.count + situation.misalignment) * element_bytes));
    const double magnitude = std::exp2(static_cast<double>(random() % 40) - 20);
    std::normal_distribution<float> normal(0.0f, static_cast<float>(magnitude));
    // Gaussian numbers are slow to draw, so a table of them is walked from a random start.
    std::vector<float> table(4096);
    for (float& value : table) {
        value = normal(random);
    }
    size_t at = random() % table.size();
    for (int64_t i = 0; i < situation.count; ++i, at = (at + 1) % table.size()) {
        uint8_t* to = bytes.data() + (i + situation.misalignment) * element_bytes;
        put_element(to, situation.dtype, table[at]);
        if (situation.hostile && i % 61 == 0) {
            const uint64_t draw = random();
            if (draw % 8 == 0) {
                const float specials[] = {INFINITY, -INFINITY, NAN,      -NAN,
                                          1e-41f,   3.4e38f,   65519.9f, -0.0f};
                put_element(to, situation.dtype, specials[draw / 8 % 8]);
            } else if (draw % 8 == 1) {
                std::memcpy(to, &draw, static_cast<size_t>(element_bytes));
            }
        }
    }
    return bytes;
}

Bytes from_device(const DeviceBuffer& buffer) {
    Bytes bytes(buffer.size());
    check(cudaMemcpy(bytes.data(), buffer.data(), buffer.size(), cudaMemcpyDeviceToHost), "copy");
    return bytes;
}

void to_device(const DeviceBuffer& buffer, const void* from, size_t bytes) {
    check(cudaMemcpy(buffer.data(), from, bytes, cudaMemcpyHostToDevice), "copy");
}

void expect_equal(const Bytes& host,
                  const Bytes& device,
                  const CodecSpec& spec,
                  const Situation& situation,
                  const char* what,
                  std::vector<std::string>* failures) {
    if (host == device) {
        return;
    }
    const auto differs = std::mismatch(host.begin(), host.end(), device.begin());
    failures->push_back(spec.to_string() + " " + situation.to_string() + ": " + what +
                        " differs at byte " + std::to_string(differs.first - host.begin()) +
                        ": host " + std::to_string(*differs.first) + ", device " +
                        std::to_string(*differs.second));
}

// Enqueues on a stream, directly or through a captured graph, and waits.
void run(bool graph, const std::function<cudaError_t(cudaStream_t)>& enqueue, const char* what) {
    cudaStream_t stream = nullptr;
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
    if (graph) {
        cudaGraph_t captured = nullptr;
        cudaGraphExec_t executable = nullptr;
        check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "begin capture");
        check(enqueue(stream), what);
        check(cudaStreamEndCapture(stream, &captured), "end capture");
        check(cudaGraphInstantiate(&executable, captured, 0), "instantiate");
        check(cudaGraphLaunch(executable, stream), "graph launch");
        check(cudaStreamSynchronize(stream), what);
        check(cudaGraphExecDestroy(executable), "destroy");
        check(cudaGraphDestroy(captured), "destroy");
    } else {
        check(enqueue(stream), what);
        check(cudaStreamSynchronize(stream), what);
    }
    check(cudaStreamDestroy(stream), "destroy");
}

}  // namespace

void check(cudaError_t error, const char* what) {
    if (error != cudaSuccess) {
        std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
        std::exit(1);
    }
}

DeviceBuffer::DeviceBuffer(size_t bytes) : bytes_(std::max<size_t>(bytes, 16)) {
    check(cudaMalloc(reinterpret_cast<void**>(&data_), bytes_), "cudaMalloc");
    check(cudaMemset(data_, kPattern, bytes_), "cudaMemset");
}

DeviceBuffer::~DeviceBuffer() {
    (void)cudaFree(data_);
}

std::string Situation::to_string() const {
    return std::string(dtype_name(dtype)) + " count " + std::to_string(count) + " chunk " +
           std::to_string(chunk_elems) + " misaligned " + std::to_string(misalignment) +
           (residual ? " residual" : "") + (scale_ptr ? " scale_ptr" : "") +
           (hostile ? " hostile" : "") + (graph ? " graph" : "") + " inputs " +
           std::to_string(inputs);
}

Situation random_situation(const CodecSpec& spec, int64_t most_elems, std::mt19937_64& random) {
    constexpr DType kTypes[] = {DType::kFloat32, DType::kFloat16, DType::kBfloat16};
    std::uniform_real_distribution<double> log_count(0.0,
                                                     std::log2(static_cast<double>(most_elems)));
    Situation situation{};
    situation.dtype = kTypes[random() % 3];
    situation.count = static_cast<int64_t>(std::exp2(log_count(random)));
    const int64_t granule = spec.granule(situation.dtype);
    const int64_t pieces = 1 + static_cast<int64_t>(random() % 5);
    situation.chunk_elems =
        pieces == 1 ? situation.count : (situation.count / pieces + granule) / granule * granule;
    situation.misalignment = random() % 2 == 0 ? 0 : static_cast<int64_t>(random() % 8);
    situation.residual = random() % 2 == 0;
    situation.scale_ptr = random() % 4 == 0;
    situation.hostile = random() % 2 == 0;
    situation.graph = random() % 8 == 0;
    situation.inputs = 1 + static_cast<int32_t>(random() % 8);
    return situation;
}

int64_t compare(const CodecSpec& spec,
                const Situation& situation,
                std::mt19937_64& random,
                std::vector<std::string>* failures) {
    const auto element_bytes = static_cast<int64_t>(dtype_bytes(situation.dtype));
    const int64_t count = situation.count;
    const int64_t offset = situation.misalignment * element_bytes;
    const int64_t chunks = (count + situation.chunk_elems - 1) / situation.chunk_elems;
    const int64_t slot =
        (spec.encoded_bytes(situation.dtype, situation.chunk_elems) + 15) / 16 * 16 + 16;
    const size_t residual_bytes = static_cast<size_t>(count) * sizeof(float);

    const Bytes input = make_input(situation, random);
    std::vector<float> residual(static_cast<size_t>(count), 0.125f);
    Bytes factor(16);
    put_element(factor.data(), situation.dtype, 0.75f);
    const DeviceBuffer device_input(input.size());
    const DeviceBuffer device_output(static_cast<size_t>(chunks * slot));
    const DeviceBuffer device_residual(residual_bytes);
    const DeviceBuffer device_factor(factor.size());
    to_device(device_input, input.data(), input.size());
    to_device(device_residual, residual.data(), residual_bytes);
    to_device(device_factor, factor.data(), factor.size());

    Bytes output(device_output.size(), kPattern);
    EncodeArgs encode{.input = input.data() + offset,
                      .output = output.data(),
                      .residual = situation.residual ? residual.data() : nullptr,
                      .scale_ptr = situation.scale_ptr ? factor.data() : nullptr,
                      .scale = 1.5f,
                      .count = count,
                      .chunk_elems = situation.chunk_elems,
                      .slot_bytes = slot,
                      .params = spec.params,
                      .dtype = situation.dtype};
    spec.codec->host.encode(encode);
    encode.input = device_input.data() + offset;
    encode.output = device_output.data();
    encode.residual =
        situation.residual ? reinterpret_cast<float*>(device_residual.data()) : nullptr;
    encode.scale_ptr = situation.scale_ptr ? device_factor.data() : nullptr;
    run(
        situation.graph,
        [&](cudaStream_t stream) { return spec.codec->cuda.encode(encode, stream); }, "encode");
    expect_equal(output, from_device(device_output), spec, situation, "encoding", failures);
    Bytes host_residual(device_residual.size(), kPattern);
    std::memcpy(host_residual.data(), residual.data(), residual_bytes);
    expect_equal(host_residual, from_device(device_residual), spec, situation, "residual",
                 failures);

    for (const bool accumulate : {false, true}) {
        Bytes decoded = input;
        DecodeArgs decode{.input = output.data(),
                          .output = decoded.data() + offset,
                          .count = count,
                          .chunk_elems = situation.chunk_elems,
                          .slot_bytes = slot,
                          .params = spec.params,
                          .dtype = situation.dtype,
                          .accumulate = accumulate};
        spec.codec->host.decode(decode);
        to_device(device_input, input.data(), input.size());
        to_device(device_output, output.data(), output.size());
        decode.input = device_output.data();
        decode.output = device_input.data() + offset;
        run(
            situation.graph,
            [&](cudaStream_t stream) { return spec.codec->cuda.decode(decode, stream); }, "decode");
        decoded.resize(device_input.size(), kPattern);
        expect_equal(decoded, from_device(device_input), spec, situation,
                     accumulate ? "accumulated output" : "decoded output", failures);
    }

    // The sources are what was encoded, then copies of it, of which one has random bytes.
    const int64_t elems = std::min(count, situation.chunk_elems);
    Bytes sources;
    for (int32_t i = 0; i < situation.inputs; ++i) {
        sources.insert(sources.end(), output.begin(), output.begin() + slot);
    }
    if (situation.hostile) {
        for (int64_t i = 0; i < slot; i += 7) {
            sources[static_cast<size_t>(i)] = static_cast<uint8_t>(random());
        }
    }
    const DeviceBuffer device_sources(sources.size());
    const DeviceBuffer device_reduced(static_cast<size_t>(slot));
    to_device(device_sources, sources.data(), sources.size());
    Bytes reduced(device_reduced.size(), kPattern);
    DecodeReduceEncodeArgs reduce{.input = sources.data(),
                                  .output = reduced.data(),
                                  .residual = situation.residual ? residual.data() : nullptr,
                                  .input_stride = slot,
                                  .count = elems,
                                  .inputs = situation.inputs,
                                  .scale = 1.0f / static_cast<float>(situation.inputs),
                                  .params = spec.params,
                                  .dtype = situation.dtype};
    to_device(device_residual, residual.data(), residual_bytes);
    spec.codec->host.decode_reduce_encode(reduce);
    reduce.input = device_sources.data();
    reduce.output = device_reduced.data();
    reduce.residual = encode.residual;
    run(
        situation.graph,
        [&](cudaStream_t stream) { return spec.codec->cuda.decode_reduce_encode(reduce, stream); },
        "decode_reduce_encode");
    expect_equal(reduced, from_device(device_reduced), spec, situation, "reduced encoding",
                 failures);
    std::memcpy(host_residual.data(), residual.data(), residual_bytes);
    expect_equal(host_residual, from_device(device_residual), spec, situation, "reduced residual",
                 failures);
    return 3 * count + elems * situation.inputs;
}

}  // namespace slimwire::gpu
