#include "tests/gpu/codecs/timing.h"

#include <algorithm>
#include <cstdio>
#include <vector>

namespace slimwire::gpu {

double seconds_of(const Enqueue& enqueue) {
    cudaStream_t stream = nullptr;
    cudaEvent_t begin = nullptr;
    cudaEvent_t end = nullptr;
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
    check(cudaEventCreateWithFlags(&begin, cudaEventDefault), "event");
    check(cudaEventCreateWithFlags(&end, cudaEventDefault), "event");
    const auto batch_of = [&](int size) {
        check(cudaEventRecord(begin, stream), "record");
        for (int i = 0; i < size; ++i) {
            check(enqueue(stream), "enqueue");
        }
        check(cudaEventRecord(end, stream), "record");
        check(cudaStreamSynchronize(stream), "synchronize");
        float milliseconds = 0;
        check(cudaEventElapsedTime(&milliseconds, begin, end), "elapsed");
        return milliseconds / 1e3 / size;
    };
    constexpr double kBatchSeconds = 2e-3;
    constexpr int kRounds = 9;
    (void)batch_of(1);  // the first may load a kernel
    const double one = std::max(batch_of(1), 1e-6);
    const int size = std::clamp(static_cast<int>(kBatchSeconds / one), 1, 10);
    std::vector<double> times;
    for (int round = 0; round < kRounds; ++round) {
        times.push_back(batch_of(size));
    }
    check(cudaEventDestroy(begin), "destroy");
    check(cudaEventDestroy(end), "destroy");
    check(cudaStreamDestroy(stream), "destroy");
    std::nth_element(times.begin(), times.begin() + kRounds / 2, times.end());
    return times[kRounds / 2];
}

void report(const Line& line, const DeviceBuffer& scratch, const Enqueue& enqueue) {
    const auto half = static_cast<size_t>(std::min<int64_t>(line.moved / 2, scratch.size() / 2));
    const double copy = seconds_of([&](cudaStream_t stream) {
        return cudaMemcpyAsync(scratch.data(), scratch.data() + scratch.size() / 2, half,
                               cudaMemcpyDeviceToDevice, stream);
    });
    const double time = seconds_of(enqueue);
    const double baseline = 2.0 * static_cast<double>(half) / copy / 1e9;
    const double rate = static_cast<double>(line.moved) / time / 1e9;
    std::printf(
        "{\"codec\":\"%s\",\"op\":\"%s\",\"dtype\":\"%s\",\"device\":\"cuda\","
        "\"data\":\"gaussian\",\"bytes\":%lld,\"gbps\":%.1f,\"moved_gbps\":%.1f,"
        "\"baseline\":\"device_copy\",\"baseline_gbps\":%.1f,\"fraction\":%.3f,"
        "\"max_blocks\":%d,\"ratio\":%.3f}\n",
        line.codec.c_str(), line.op, dtype_name(line.dtype), static_cast<long long>(line.bytes),
        static_cast<double>(line.bytes) / time / 1e9, rate, baseline, rate / baseline,
        line.max_blocks, static_cast<double>(line.bytes) / static_cast<double>(line.encoded));
    std::fflush(stdout);
}

}  // namespace slimwire::gpu
