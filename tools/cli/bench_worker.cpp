// One rank of `slimwire bench collective`: an ordinary CUDA and NCCL program without any slimwire
// header. In each round it times the native collective (through NCCL's profiling twin
// pncclAllReduce, which nobody intercepts) and the program's own ncclAllReduce, in turn. Rank 0
// checks the result against a float64 reference and writes one JSON line per size.
//
// RANK, WORLD_SIZE, LOCAL_RANK and MASTER_ADDR say where it stands; usage in kUsage.
#include <arpa/inet.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <nccl.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

namespace {

constexpr char kUsage[] =
    "usage: slimwire-bench-worker --op all_reduce --dtype f32|f16|bf16 --bytes N[,N...] --port P\n"
    "       [--rounds N] [--warmup N] [--seed N] [--out FILE]";

[[noreturn]] void stop(const std::string& text) {
    std::fprintf(stderr, "slimwire-bench-worker: %s\n", text.c_str());
    std::exit(1);
}

void check(cudaError_t error, const char* what) {
    if (error != cudaSuccess) {
        stop(std::string(what) + ": " + cudaGetErrorString(error));
    }
}

void check(ncclResult_t result, const char* what) {
    if (result != ncclSuccess) {
        stop(std::string(what) + ": " + ncclGetErrorString(result));
    }
}

// --- Arguments

enum class Type { kF32, kF16, kBf16 };

struct Options {
    Type type = Type::kF32;
    std::vector<size_t> bytes;
    int port = 0;
    int rounds = 5;
    int warmup = 1;
    uint64_t seed = 1;
    std::string out;
};

Options parse(int argc, char** argv) {
    Options options;
    for (int i = 1; i < argc; i += 2) {
        const std::string flag = argv[i];
        if (i + 1 == argc) {
            stop(kUsage);
        }
        const std::string value = argv[i + 1];
        if (flag == "--op" && value == "all_reduce") {
            continue;
        }
        if (flag == "--dtype" && (value == "f32" || value == "f16" || value == "bf16")) {
            options.type = value == "f32" ? Type::kF32 : value == "f16" ? Type::kF16 : Type::kBf16;
        } else if (flag == "--bytes") {
            for (const char* at = value.c_str(); *at != '\0';) {
                char* end = nullptr;
                options.bytes.push_back(std::strtoull(at, &end, 10));
                if (end == at || (*end != '\0' && *end != ',')) {
                    stop(kUsage);
                }
                at = *end == ',' ? end + 1 : end;
            }
        } else if (flag == "--port") {
            options.port = std::atoi(value.c_str());
        } else if (flag == "--rounds") {
            options.rounds = std::max(1, std::atoi(value.c_str()));
        } else if (flag == "--warmup") {
            options.warmup = std::max(1, std::atoi(value.c_str()));
        } else if (flag == "--seed") {
            options.seed = std::strtoull(value.c_str(), nullptr, 10);
        } else if (flag == "--out") {
            options.out = value;
        } else {
            stop(kUsage);
        }
    }
    if (options.bytes.empty() || options.port <= 0) {
        stop(kUsage);
    }
    return options;
}

int integer_variable(const char* name, int otherwise) {
    const char* text = std::getenv(name);
    return text != nullptr && *text != '\0' ? std::atoi(text) : otherwise;
}

// --- Data: normal deviates by position, so that rank 0 knows everybody's without being sent them.

uint64_t mix(uint64_t x) {
    x += 0x9e3779b97f4a7c15ull;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

float gaussian(uint64_t seed, int rank, size_t index) {
    const uint64_t pair = mix(mix(seed * 1000003 + static_cast<uint64_t>(rank)) + index / 2);
    // Box and Muller; the radius is never log(0).
    const float u = (static_cast<float>(pair >> 40) + 0.5f) * 0x1p-24f;
    const float angle = static_cast<float>(pair & 0xffffff) * (6.2831853f * 0x1p-24f);
    const float radius = std::sqrt(-2.0f * std::log(u));
    return radius * (index % 2 == 0 ? std::cos(angle) : std::sin(angle));
}

size_t element_bytes(Type type) {
    return type == Type::kF32 ? 4 : 2;
}

ncclDataType_t nccl_type(Type type) {
    switch (type) {
        case Type::kF32:
            return ncclFloat32;
        case Type::kF16:
            return ncclFloat16;
        case Type::kBf16:
            return ncclBfloat16;
    }
    return ncclFloat32;
}

uint32_t float_bits(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
}

float bits_float(uint32_t bits) {
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

uint16_t to_bf16(float value) {
    const uint32_t bits = float_bits(value);
    return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

// Normal deviates need no infinities; values too small for a half's normal range become subnormal.
uint16_t to_f16(float value) {
    const auto sign = static_cast<uint16_t>(float_bits(value) >> 16 & 0x8000);
    const float magnitude = std::fabs(value);
    if (magnitude < 0x1p-14f) {
        return static_cast<uint16_t>(sign |
                                     static_cast<uint16_t>(std::nearbyint(magnitude * 0x1p24f)));
    }
    const uint32_t bits = float_bits(magnitude) - (112u << 23);
    return static_cast<uint16_t>(sign | ((bits + 0xfff + ((bits >> 13) & 1)) >> 13));
}

float from_f16(uint16_t half) {
    const uint32_t exponent = half >> 10 & 31;
    const float magnitude =
        exponent == 0    ? static_cast<float>(half & 0x3ff) * 0x1p-24f
        : exponent == 31 ? bits_float(0x7f800000u | static_cast<uint32_t>(half & 0x3ff) << 13)
                         : bits_float((static_cast<uint32_t>(half & 0x7fff) << 13) + (112u << 23));
    return (half & 0x8000) != 0 ? -magnitude : magnitude;
}

void store(Type type, void* buffer, size_t index, float value) {
    if (type == Type::kF32) {
        static_cast<float*>(buffer)[index] = value;
    } else {
        static_cast<uint16_t*>(buffer)[index] = type == Type::kF16 ? to_f16(value) : to_bf16(value);
    }
}

float load(Type type, const void* buffer, size_t index) {
    if (type == Type::kF32) {
        return static_cast<const float*>(buffer)[index];
    }
    const uint16_t bits = static_cast<const uint16_t*>(buffer)[index];
    return type == Type::kF16 ? from_f16(bits) : bits_float(static_cast<uint32_t>(bits) << 16);
}

// The value as it stands in a rank's buffer.
float rounded(Type type, float value) {
    uint16_t half;
    switch (type) {
        case Type::kF32:
            return value;
        case Type::kF16:
        case Type::kBf16:
            store(type, &half, 0, value);
            return load(type, &half, 0);
    }
    return value;
}

// --- The unique id, over one TCP connection per rank

struct Greeting {
    char magic[8];
    int32_t rank;
};
constexpr char kMagic[8] = {'s', 'w', 'b', 'e', 'n', 'c', 'h', '1'};

bool transfer(int fd, void* data, size_t size, bool send) {
    auto* at = static_cast<char*>(data);
    while (size > 0) {
        const ssize_t n = send ? ::send(fd, at, size, MSG_NOSIGNAL) : ::recv(fd, at, size, 0);
        if (n <= 0) {
            return false;
        }
        at += n;
        size -= static_cast<size_t>(n);
    }
    return true;
}

void serve_id(int port, int ranks, ncclUniqueId* id) {
    const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const int on = 1;
    ::setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_ANY);
    address.sin_port = htons(static_cast<uint16_t>(port));
    if (::bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 ||
        ::listen(listener, ranks) != 0) {
        stop("port " + std::to_string(port) + ": " + std::strerror(errno) +
             "; choose another --port");
    }
    for (int served = 1; served < ranks;) {
        const int fd = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
        Greeting greeting{};
        const timeval patience{10, 0};
        ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
        // Strangers are let go.
        if (fd >= 0 && transfer(fd, &greeting, sizeof greeting, false) &&
            std::memcmp(greeting.magic, kMagic, sizeof kMagic) == 0 && greeting.rank > 0 &&
            greeting.rank < ranks && transfer(fd, id, sizeof *id, true)) {
            ++served;
        }
        ::close(fd);
    }
    ::close(listener);
}

void fetch_id(const char* host, int port, int rank, ncclUniqueId* id) {
    addrinfo hints{};
    hints.ai_family = AF_INET;
    hints.ai_socktype = SOCK_STREAM;
    addrinfo* found = nullptr;
    if (::getaddrinfo(host, std::to_string(port).c_str(), &hints, &found) != 0) {
        stop(std::string("MASTER_ADDR ") + host + ": unknown host");
    }
    for (int attempt = 0; attempt < 600; ++attempt) {
        const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        Greeting greeting{};
        std::memcpy(greeting.magic, kMagic, sizeof kMagic);
        greeting.rank = rank;
        const bool done = ::connect(fd, found->ai_addr, found->ai_addrlen) == 0 &&
                          transfer(fd, &greeting, sizeof greeting, true) &&
                          transfer(fd, id, sizeof *id, false);
        ::close(fd);
        if (done) {
            ::freeaddrinfo(found);
            return;
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    stop(std::string("rank 0 at ") + host + ":" + std::to_string(port) + " did not answer in 60 s");
}

// --- The emulator's count of what was handed to the transport; absent on real NCCL

struct Counters {
    uint64_t payload_bytes_sent, payload_bytes_received, inter_node_bytes_sent, messages_sent;
};
using CountersFunction = void (*)(Counters*);

// --- The measurement

// What each rank contributes to one line; all members are doubles, so that it travels as bytes.
struct RankResult {
    double wire_bytes = -1, native_wire_bytes = -1;  // of one call; -1: not counted
    double result_hash = 0;                          // 52 bits of it
};

class Worker {
  public:
    explicit Worker(Options options) : options_(std::move(options)) {}
    void run();

  private:
    void measure(size_t bytes, std::FILE* out);
    double timed(decltype(&ncclAllReduce) function, size_t count, double* wire_bytes);
    void barrier();
    std::vector<double> gather(const std::vector<double>& mine);
    double relative_error(const std::vector<char>& result, size_t count) const;

    Options options_;
    int rank_ = 0, ranks_ = 1;
    ncclComm_t comm_ = nullptr;
    cudaStream_t stream_ = nullptr;
    cudaEvent_t begin_ = nullptr, end_ = nullptr;
    void *send_ = nullptr, *recv_ = nullptr, *small_ = nullptr;
    size_t small_bytes_ = 0;
    CountersFunction counters_ = nullptr;
};

void Worker::run() {
    rank_ = integer_variable("RANK", 0);
    ranks_ = integer_variable("WORLD_SIZE", 1);
    int devices = 0;
    check(cudaGetDeviceCount(&devices), "cudaGetDeviceCount");
    check(cudaSetDevice(integer_variable("LOCAL_RANK", 0) % std::max(1, devices)), "cudaSetDevice");
    counters_ =
        reinterpret_cast<CountersFunction>(dlsym(RTLD_DEFAULT, "slimwire_emulator_counters"));

    ncclUniqueId id{};
    const char* host = std::getenv("MASTER_ADDR");
    if (rank_ == 0) {
        check(ncclGetUniqueId(&id), "ncclGetUniqueId");
        serve_id(options_.port, ranks_, &id);
    } else {
        fetch_id(host != nullptr ? host : "127.0.0.1", options_.port, rank_, &id);
    }
    check(ncclCommInitRank(&comm_, ranks_, id, rank_), "ncclCommInitRank");
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    check(cudaEventCreate(&begin_), "cudaEventCreate");
    check(cudaEventCreate(&end_), "cudaEventCreate");
    // Room for the gathered figures of all ranks, behind those of this one.
    small_bytes_ = sizeof(double) * (static_cast<size_t>(options_.rounds) * 2 + 8);
    check(cudaMalloc(&small_, small_bytes_ * (static_cast<size_t>(ranks_) + 1)), "cudaMalloc");

    std::FILE* out = nullptr;
    if (rank_ == 0) {
        out = options_.out.empty() ? stdout : std::fopen(options_.out.c_str(), "w");
        if (out == nullptr) {
            stop(options_.out + ": " + std::strerror(errno));
        }
    }
    for (const size_t bytes : options_.bytes) {
        measure(bytes, out);
    }
    if (out != nullptr && out != stdout) {
        std::fclose(out);
    }
    check(cudaFree(small_), "cudaFree");
    check(cudaEventDestroy(begin_), "cudaEventDestroy");
    check(cudaEventDestroy(end_), "cudaEventDestroy");
    check(cudaStreamDestroy(stream_), "cudaStreamDestroy");
    check(ncclCommDestroy(comm_), "ncclCommDestroy");
}

void Worker::barrier() {
    check(pncclAllReduce(small_, small_, 1, ncclFloat32, ncclSum, comm_, stream_), "barrier");
    check(cudaStreamSynchronize(stream_), "barrier");
}

// Microseconds of one call on this rank, and what it gave to the transport.
double Worker::timed(decltype(&ncclAllReduce) function, size_t count, double* wire_bytes) {
    barrier();
    Counters before{};
    Counters after{};
    if (counters_ != nullptr) {
        counters_(&before);
    }
    check(cudaEventRecord(begin_, stream_), "cudaEventRecord");
    check(function(send_, recv_, count, nccl_type(options_.type), ncclSum, comm_, stream_),
          "ncclAllReduce");
    check(cudaEventRecord(end_, stream_), "cudaEventRecord");
    check(cudaEventSynchronize(end_), "cudaEventSynchronize");
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, begin_, end_), "cudaEventElapsedTime");
    if (counters_ != nullptr) {
        counters_(&after);
        *wire_bytes = static_cast<double>(after.payload_bytes_sent - before.payload_bytes_sent);
    }
    return static_cast<double>(milliseconds) * 1e3;
}

// Everybody's figures, rank after rank.
std::vector<double> Worker::gather(const std::vector<double>& mine) {
    const size_t bytes = mine.size() * sizeof(double);
    if (bytes > small_bytes_) {
        stop("too many figures to gather");
    }
    std::vector<double> all(mine.size() * static_cast<size_t>(ranks_));
    char* gathered = static_cast<char*>(small_) + small_bytes_;
    check(cudaMemcpy(small_, mine.data(), bytes, cudaMemcpyHostToDevice), "cudaMemcpy");
    check(pncclAllGather(small_, gathered, bytes, ncclUint8, comm_, stream_), "gather");
    check(cudaStreamSynchronize(stream_), "gather");
    check(cudaMemcpy(all.data(), gathered, all.size() * sizeof(double), cudaMemcpyDeviceToHost),
          "cudaMemcpy");
    return all;
}

double Worker::relative_error(const std::vector<char>& result, size_t count) const {
    double error = 0;
    double norm = 0;
    for (size_t i = 0; i < count; ++i) {
        double exact = 0;
        for (int rank = 0; rank < ranks_; ++rank) {
            exact += static_cast<double>(rounded(options_.type, gaussian(options_.seed, rank, i)));
        }
        const double off = static_cast<double>(load(options_.type, result.data(), i)) - exact;
        error += off * off;
        norm += exact * exact;
    }
    return norm > 0 ? std::sqrt(error / norm) : 0;
}

void Worker::measure(size_t bytes, std::FILE* out) {
    const size_t count = std::max<size_t>(1, bytes / element_bytes(options_.type));
    const size_t size = count * element_bytes(options_.type);
    check(cudaMalloc(&send_, size), "cudaMalloc");
    check(cudaMalloc(&recv_, size), "cudaMalloc");
    std::vector<char> host(size);
    for (size_t i = 0; i < count; ++i) {
        store(options_.type, host.data(), i, gaussian(options_.seed, rank_, i));
    }
    check(cudaMemcpy(send_, host.data(), size, cudaMemcpyHostToDevice), "cudaMemcpy");

    RankResult mine;
    std::vector<double> figures;
    for (int round = -options_.warmup; round < options_.rounds; ++round) {
        const double native_us = timed(&pncclAllReduce, count, &mine.native_wire_bytes);
        const double time_us = timed(&ncclAllReduce, count, &mine.wire_bytes);
        if (round >= 0) {
            figures.push_back(native_us);
            figures.push_back(time_us);
        }
    }
    check(cudaMemcpy(host.data(), recv_, size, cudaMemcpyDeviceToHost), "cudaMemcpy");
    uint64_t hash = 1;
    for (size_t i = 0; i < size; i += sizeof(uint64_t)) {
        uint64_t word = 0;
        std::memcpy(&word, host.data() + i, std::min(sizeof word, size - i));
        hash = mix(hash ^ word);
    }
    mine.result_hash = static_cast<double>(hash >> 12);
    figures.push_back(mine.native_wire_bytes);
    figures.push_back(mine.wire_bytes);
    figures.push_back(mine.result_hash);
    const std::vector<double> all = gather(figures);
    check(cudaFree(send_), "cudaFree");
    check(cudaFree(recv_), "cudaFree");
    if (rank_ != 0) {
        return;
    }

    const size_t stride = figures.size();
    const auto rounds = static_cast<size_t>(options_.rounds);
    std::string native = "[";
    std::string compressed = "[";
    for (size_t round = 0; round < rounds; ++round) {
        double slowest[2] = {0, 0};
        for (size_t rank = 0; rank < static_cast<size_t>(ranks_); ++rank) {
            for (size_t kind = 0; kind < 2; ++kind) {
                slowest[kind] = std::max(slowest[kind], all[rank * stride + round * 2 + kind]);
            }
        }
        native += (round == 0 ? "" : ",") + std::to_string(slowest[0]);
        compressed += (round == 0 ? "" : ",") + std::to_string(slowest[1]);
    }
    double sent[2] = {0, 0};
    bool identical = true;
    for (size_t rank = 0; rank < static_cast<size_t>(ranks_); ++rank) {
        const double* figures_of_rank = &all[rank * stride + 2 * rounds];
        sent[0] += figures_of_rank[0];
        sent[1] += figures_of_rank[1];
        identical = identical && figures_of_rank[2] == mine.result_hash;
    }
    const bool counted = counters_ != nullptr;
    std::fprintf(out,
                 "{\"bytes\":%zu,\"count\":%zu,\"ranks\":%d,\"calls\":%d,\"counted\":%s,"
                 "\"native_wire_bytes\":%.1f,\"wire_bytes\":%.1f,\"identical\":%s,"
                 "\"rel_error\":%.9g,\"native_us\":%s],\"time_us\":%s]}\n",
                 size, count, ranks_, options_.warmup + options_.rounds, counted ? "true" : "false",
                 sent[0] / ranks_, sent[1] / ranks_, identical ? "true" : "false",
                 relative_error(host, count), native.c_str(), compressed.c_str());
    std::fflush(out);
}

}  // namespace

int main(int argc, char** argv) {
    Worker(parse(argc, argv)).run();
    return 0;
}
