// The codecs' kernels on a real GPU: equal to the host bodies to the byte, and their bandwidth
// against a device copy of the same bytes in the same run. Needs nvcc, meson and ninja to build:
//   meson setup build -Dgpu_archs=90 && ninja -C build tests/gpu/codecs/gpu_codecs
//   build/tests/gpu/codecs/gpu_codecs [--values N] [--bytes N] [--seed N]
// --values: elements to compare per codec (default 2^27). --bytes: size of the timed buffer
// (default 256 MiB). Prints JSON lines and "N passed, N failed"; exit status 77 without a device.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>

#include "tests/gpu/codecs/compare.h"

namespace {

using namespace slimwire;
using namespace slimwire::gpu;

struct Options {
    int64_t values = int64_t{1} << 27;
    int64_t bytes = int64_t{256} << 20;
    uint64_t seed = std::random_device{}();
};

std::vector<CodecSpec> specs() {
    std::vector<CodecSpec> result;
    size_t count = 0;
    const CodecDescriptor* const* table = codec_table(&count);
    for (size_t i = 0; i < count; ++i) {
        for (const char* variant :
             {"", ":block=16", ":block=256", ":block=512,scale=fp32", ":block=2048"}) {
            auto spec = parse_codec(table[i]->name + std::string(variant));
            if (spec.ok()) {
                result.push_back(spec.value());
            }
        }
    }
    return result;
}

// Median seconds of one enqueue, of batches timed by events.
template <class Enqueue>
double seconds_of(Enqueue enqueue) {
    cudaStream_t stream = nullptr;
    cudaEvent_t begin = nullptr;
    cudaEvent_t end = nullptr;
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
    check(cudaEventCreateWithFlags(&begin, cudaEventDefault), "event");
    check(cudaEventCreateWithFlags(&end, cudaEventDefault), "event");
    std::vector<double> times;
    constexpr int kBatch = 10;
    for (int round = 0; round < 12; ++round) {
        check(cudaEventRecord(begin, stream), "record");
        for (int i = 0; i < kBatch; ++i) {
            check(enqueue(stream), "enqueue");
        }
        check(cudaEventRecord(end, stream), "record");
        check(cudaStreamSynchronize(stream), "synchronize");
        float milliseconds = 0;
        check(cudaEventElapsedTime(&milliseconds, begin, end), "elapsed");
        if (round >= 2) {
            times.push_back(milliseconds / 1e3 / kBatch);
        }
    }
    check(cudaEventDestroy(begin), "destroy");
    check(cudaEventDestroy(end), "destroy");
    check(cudaStreamDestroy(stream), "destroy");
    std::nth_element(times.begin(), times.begin() + static_cast<long>(times.size() / 2),
                     times.end());
    return times[times.size() / 2];
}

// One line: `moved` bytes are read and written by the operation, as by the copy it is compared
// with.
template <class Enqueue>
void report(const CodecSpec& spec,
            DType dtype,
            const char* op,
            int64_t bytes,
            int64_t moved,
            const DeviceBuffer& scratch,
            Enqueue enqueue) {
    const auto half = static_cast<size_t>(std::min<int64_t>(moved / 2, scratch.size() / 2));
    const double copy = seconds_of([&](cudaStream_t stream) {
        return cudaMemcpyAsync(scratch.data(), scratch.data() + scratch.size() / 2, half,
                               cudaMemcpyDeviceToDevice, stream);
    });
    const double time = seconds_of(enqueue);
    const double baseline = 2.0 * static_cast<double>(half) / copy / 1e9;
    const double rate = static_cast<double>(moved) / time / 1e9;
    std::printf(
        "{\"codec\":\"%s\",\"op\":\"%s\",\"dtype\":\"%s\",\"device\":\"cuda\","
        "\"data\":\"pattern\",\"bytes\":%lld,\"gbps\":%.1f,\"moved_gbps\":%.1f,"
        "\"baseline\":\"device_copy\",\"baseline_gbps\":%.1f,\"fraction\":%.3f}\n",
        spec.to_string().c_str(), op, dtype_name(dtype), static_cast<long long>(bytes),
        static_cast<double>(bytes) / time / 1e9, rate, baseline, rate / baseline);
    std::fflush(stdout);
}

void measure(const CodecSpec& spec, DType dtype, int64_t bytes) {
    const int64_t count = bytes / static_cast<int64_t>(dtype_bytes(dtype));
    const int64_t size = spec.encoded_bytes(dtype, count);
    const int64_t slot = (size + 15) / 16 * 16;
    constexpr int32_t kInputs = 8;
    const DeviceBuffer user(static_cast<size_t>(bytes));
    const DeviceBuffer encoded(static_cast<size_t>(slot * kInputs));
    const DeviceBuffer reduced(static_cast<size_t>(slot));
    const DeviceBuffer residual(static_cast<size_t>(count) * sizeof(float));
    const DeviceBuffer scratch(static_cast<size_t>(bytes) * 4);
    check(cudaMemset(residual.data(), 0, residual.size()), "cudaMemset");
    EncodeArgs encode{.input = user.data(),
                      .output = encoded.data(),
                      .residual = nullptr,
                      .scale_ptr = nullptr,
                      .scale = 1.0f,
                      .count = count,
                      .chunk_elems = count,
                      .slot_bytes = slot,
                      .params = spec.params,
                      .dtype = dtype};
    const auto run_encode = [&](cudaStream_t s) { return spec.codec->cuda.encode(encode, s); };
    report(spec, dtype, "encode", bytes, bytes + size, scratch, run_encode);
    encode.residual = reinterpret_cast<float*>(residual.data());
    report(spec, dtype, "encode_residual", bytes, bytes + size + 8 * count, scratch, run_encode);
    DecodeArgs decode{.input = encoded.data(),
                      .output = user.data(),
                      .count = count,
                      .chunk_elems = count,
                      .slot_bytes = slot,
                      .params = spec.params,
                      .dtype = dtype,
                      .accumulate = false};
    const auto run_decode = [&](cudaStream_t s) { return spec.codec->cuda.decode(decode, s); };
    report(spec, dtype, "decode", bytes, bytes + size, scratch, run_decode);
    decode.accumulate = true;
    report(spec, dtype, "decode_accumulate", bytes, 2 * bytes + size, scratch, run_decode);
    const DecodeReduceEncodeArgs reduce{.input = encoded.data(),
                                        .output = reduced.data(),
                                        .residual = nullptr,
                                        .input_stride = slot,
                                        .count = count,
                                        .inputs = kInputs,
                                        .scale = 1.0f / kInputs,
                                        .params = spec.params,
                                        .dtype = dtype};
    report(spec, dtype, "decode_reduce_encode", bytes, (kInputs + 1) * size, scratch,
           [&](cudaStream_t s) { return spec.codec->cuda.decode_reduce_encode(reduce, s); });
}

}  // namespace

int main(int argc, char** argv) {
    slimwire::register_cuda_kernels();
    Options options;
    for (int i = 1; i + 1 < argc; i += 2) {
        const std::string key = argv[i];
        if (key == "--values") {
            options.values = std::atoll(argv[i + 1]);
        } else if (key == "--bytes") {
            options.bytes = std::atoll(argv[i + 1]);
        } else if (key == "--seed") {
            options.seed = std::strtoull(argv[i + 1], nullptr, 10);
        } else {
            std::fprintf(stderr, "gpu_codecs: unknown option %s\n", key.c_str());
            return 2;
        }
    }
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
        std::printf("skipped: no CUDA device\n");
        return 77;
    }
    std::printf("seed %llu\n", static_cast<unsigned long long>(options.seed));
    std::mt19937_64 random(options.seed);
    int passed = 0;
    int failed = 0;
    for (const CodecSpec& spec : specs()) {
        std::vector<std::string> failures;
        int64_t compared = 0;
        while (compared < options.values && failures.size() < 5) {
            // Small and ragged sizes until a tenth is done, then larger ones too.
            const int64_t most = compared < options.values / 10 ? 100000 : 1 << 25;
            compared += compare(spec, random_situation(spec, most, random), random, &failures);
        }
        for (const std::string& failure : failures) {
            std::printf("FAILED %s\n", failure.c_str());
        }
        std::printf("{\"codec\":\"%s\",\"compared\":%lld,\"failures\":%zu}\n",
                    spec.to_string().c_str(), static_cast<long long>(compared), failures.size());
        std::fflush(stdout);
        (failures.empty() ? passed : failed) += 1;
    }
    size_t count = 0;
    const CodecDescriptor* const* table = codec_table(&count);
    for (size_t i = 0; i < count; ++i) {
        const auto spec = parse_codec(table[i]->name);
        for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBfloat16}) {
            if (spec.ok() && spec.value().accepts(dtype)) {
                measure(spec.value(), dtype, options.bytes);
            }
        }
    }
    std::printf("%d passed, %d failed\n", passed, failed);
    return failed == 0 ? 0 : 1;
}
