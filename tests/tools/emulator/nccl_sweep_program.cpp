// Every operation, type and reduction operator of the emulated NCCL against a float64 reference, in
// and out of place, with counts that divide by nothing. An ordinary NCCL program: one process or
// several, each with all its devices; all local ranks are driven by one thread in groups.
// Arguments: "small" (all types and operators), "tiny" (and few elements) or "large" (several
// slices a block, few types), then "graphs" when every call is captured and replayed, or
// "one_graph" when one graph holds all devices.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/nccl_program.h"
#include "tests/tools/emulator/nccl_sweep_values.h"

namespace {

using namespace slimwire::test;

struct LocalRank {
    int rank = 0;
    int device = 0;
    ncclComm_t comm = nullptr;
    cudaStream_t stream = nullptr;
};

// Device memory with poisoned margins on both sides.
class Buffer {
  public:
    Buffer(const LocalRank& local, size_t bytes) : bytes_(bytes), device_(local.device) {
        CHECK_CUDA(cudaSetDevice(device_));
        CHECK_CUDA(cudaMalloc(reinterpret_cast<void**>(&base_), bytes + 2 * kMargin));
        CHECK_CUDA(cudaMemset(base_, kPoison, bytes + 2 * kMargin));
        CHECK_CUDA(cudaDeviceSynchronize());
    }
    ~Buffer() { (void)cudaFree(base_); }
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;
    [[nodiscard]] unsigned char* data() const { return base_ + kMargin; }
    void fill(size_t offset, const Bytes& bytes) const {
        CHECK_CUDA(cudaMemcpy(data() + offset, bytes.data(), bytes.size(), cudaMemcpyDefault));
    }
    [[nodiscard]] Bytes read() const {
        Bytes all(bytes_ + 2 * kMargin);
        CHECK_CUDA(cudaMemcpy(all.data(), base_, all.size(), cudaMemcpyDefault));
        for (size_t i = 0; i < kMargin; ++i) {
            EXPECT_THAT(all[i] == kPoison && all[kMargin + bytes_ + i] == kPoison,
                        "margin of a buffer was written");
        }
        return {all.begin() + kMargin, all.begin() + static_cast<long>(kMargin + bytes_)};
    }

  private:
    static constexpr size_t kMargin = 64;
    static constexpr unsigned char kPoison = 0xa5;
    size_t bytes_;
    int device_;
    unsigned char* base_ = nullptr;
};

struct Operator {
    const char* name;
    ncclRedOp_t op;  // a built-in one, or ncclNumOps for a premultiplied sum
    bool on_device = false;
};
constexpr Operator kOperators[] = {
    {"sum", ncclSum},
    {"prod", ncclProd},
    {"max", ncclMax},
    {"min", ncclMin},
    {"avg", ncclAvg},
    {"premul_host", ncclNumOps},
    {"premul_device", ncclNumOps, true},
};
constexpr int kFactor = 2;  // representable in every type, as is what it multiplies

int g_world = 1;
int g_checked = 0;

// An element of all ranks.
struct Reduced {
    double sum = 0, absolute = 0, product = 1;
    double largest = -INFINITY, smallest = INFINITY;
};

// Those of a type are found once.
const Reduced& reduced(const TypeInfo& type, size_t index) {
    static ncclDataType_t known = ncclNumTypes;
    static std::vector<Reduced> all;
    if (known != type.type) {
        known = type.type;
        all.clear();
    }
    while (all.size() <= index) {
        Reduced of;
        for (int rank = 0; rank < g_world; ++rank) {
            const double x = value_of(slimwire::test::input_bits(type, rank, all.size()), type);
            of.sum += x;
            of.absolute += std::fabs(x);
            of.product *= x;
            of.largest = std::fmax(of.largest, x);
            of.smallest = std::fmin(of.smallest, x);
        }
        all.push_back(of);
    }
    return all[index];
}

// Checks one element of a reduction over all ranks.
void check_reduced(
    const TypeInfo& type, const Operator& op, uint64_t bits, size_t index, const char* what) {
    const auto [sum, absolute, product, largest, smallest] = reduced(type, index);
    const double unit = type.exponent_bits == 0 ? 0 : std::ldexp(1.0, -type.mantissa_bits - 1);
    double expected = 0, tolerance = 0;
    switch (op.op) {
        case ncclSum:
            expected = sum, tolerance = unit * g_world * absolute;
            break;
        case ncclProd:
            expected = product, tolerance = unit * 2 * g_world * std::fabs(product);
            break;
        case ncclMax:
            expected = largest;
            break;
        case ncclMin:
            expected = smallest;
            break;
        case ncclAvg:
            expected = sum / g_world;
            tolerance = unit * (g_world + 3) * absolute / g_world;
            if (type.exponent_bits == 0) {
                expected = std::trunc(expected);
            }
            break;
        default:
            expected = kFactor * sum, tolerance = unit * g_world * kFactor * absolute;
            break;
    }
    double found = value_of(bits, type);
    if (type.exponent_bits == 0 && op.op == ncclProd) {
        // Wraps at the width of the type.
        const double modulus = std::ldexp(1.0, type.bytes * 8);
        found = std::fmod(found - expected, modulus) + expected;
    }
    EXPECT_THAT(std::fabs(found - expected) <= tolerance,
                "%s %s %s element %zu: %.9g, expected %.9g +- %.3g", what, type.name, op.name,
                index, found, expected, tolerance);
    ++g_checked;
}

std::vector<LocalRank> g_local;

enum class Way { kEager, kGraphs, kOneGraph };
Way g_way = Way::kEager;

// `later` waits for what is on `earlier`.
void order(const LocalRank& earlier, const LocalRank& later) {
    cudaEvent_t event = nullptr;
    CHECK_CUDA(cudaSetDevice(earlier.device));
    CHECK_CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    CHECK_CUDA(cudaEventRecord(event, earlier.stream));
    CHECK_CUDA(cudaStreamWaitEvent(later.stream, event, 0));
    CHECK_CUDA(cudaEventDestroy(event));
}

// How many of the local streams begin a capture; the others are forked from the first.
size_t captures() {
    return g_way == Way::kEager ? 0 : g_way == Way::kGraphs ? g_local.size() : 1;
}

void replay_captured() {
    for (size_t i = 1; g_way == Way::kOneGraph && i < g_local.size(); ++i) {
        order(g_local[i], g_local[0]);
    }
    for (size_t i = 0; i < captures(); ++i) {
        cudaGraph_t graph = nullptr;
        cudaGraphExec_t exec = nullptr;
        CHECK_CUDA(cudaStreamEndCapture(g_local[i].stream, &graph));
        CHECK_CUDA(cudaGraphInstantiate(&exec, graph, 0));
        CHECK_CUDA(cudaGraphDestroy(graph));
        CHECK_CUDA(cudaGraphLaunch(exec, g_local[i].stream));
        CHECK_CUDA(cudaGraphExecDestroy(exec));
    }
}

void on_all(const std::function<void(LocalRank&, size_t)>& body) {
    for (size_t i = 0; i < captures(); ++i) {
        CHECK_CUDA(cudaStreamBeginCapture(g_local[i].stream, cudaStreamCaptureModeThreadLocal));
    }
    for (size_t i = 1; g_way == Way::kOneGraph && i < g_local.size(); ++i) {
        order(g_local[0], g_local[i]);
    }
    CHECK_NCCL(ncclGroupStart());
    for (size_t i = 0; i < g_local.size(); ++i) {
        body(g_local[i], i);
    }
    CHECK_NCCL(ncclGroupEnd());
    replay_captured();
    for (const LocalRank& local : g_local) {
        CHECK_CUDA(cudaStreamSynchronize(local.stream));
    }
}

// The operator's handle on each local communicator; premultiplied ones are made and destroyed.
class Operators {
  public:
    Operators(const Operator& op, const TypeInfo& type) : op_(op) {
        uint64_t factor = kFactor;
        if (type.exponent_bits != 0) {
            const uint64_t bias = (uint64_t{1} << (type.exponent_bits - 1)) - 1;
            factor = (bias + 1) << type.mantissa_bits;  // 2.0
        }
        for (const LocalRank& local : g_local) {
            ncclRedOp_t handle = op.op;
            if (op.op == ncclNumOps) {
                void* scalar = &factor;
                if (op.on_device) {
                    scalars_.push_back(std::make_unique<Buffer>(local, 8));
                    Bytes bytes(8);
                    memcpy(bytes.data(), &factor, 8);
                    scalars_.back()->fill(0, bytes);
                    scalar = scalars_.back()->data();
                }
                CHECK_NCCL(ncclRedOpCreatePreMulSum(
                    &handle, scalar, type.type,
                    op.on_device ? ncclScalarDevice : ncclScalarHostImmediate, local.comm));
            }
            handles_.push_back(handle);
        }
    }
    ~Operators() {
        for (size_t i = 0; i < g_local.size() && op_.op == ncclNumOps; ++i) {
            CHECK_NCCL(ncclRedOpDestroy(handles_[i], g_local[i].comm));
        }
    }
    ncclRedOp_t operator[](size_t i) const { return handles_[i]; }

  private:
    Operator op_;
    std::vector<ncclRedOp_t> handles_;
    std::vector<std::unique_ptr<Buffer>> scalars_;
};

using Buffers = std::vector<std::unique_ptr<Buffer>>;

Buffers make_buffers(size_t bytes) {
    Buffers buffers;
    for (const LocalRank& local : g_local) {
        buffers.push_back(std::make_unique<Buffer>(local, bytes));
    }
    return buffers;
}

void sweep_all_reduce(const TypeInfo& type, const Operator& op, size_t count, bool in_place) {
    const Operators ops(op, type);
    const size_t bytes = count * static_cast<size_t>(type.bytes);
    const Buffers in = make_buffers(bytes);
    const Buffers out = make_buffers(bytes);
    for (size_t i = 0; i < g_local.size(); ++i) {
        (in_place ? out : in)[i]->fill(0, make_input(type, g_local[i].rank, count));
    }
    on_all([&](LocalRank& local, size_t i) {
        CHECK_NCCL(ncclAllReduce((in_place ? out : in)[i]->data(), out[i]->data(), count, type.type,
                                 ops[i], local.comm, local.stream));
    });
    // Identical on all ranks: the largest and the smallest checksum are one.
    const Buffers sums = make_buffers(16);
    for (size_t i = 0; i < g_local.size(); ++i) {
        const Bytes result = out[i]->read();
        uint64_t checksum = 1;
        for (const unsigned char byte : result) {
            checksum = checksum * 1099511628211u + byte;
        }
        for (size_t k = 0; k < count; ++k) {
            check_reduced(type, op, bits_at(result, type, k), k, "all_reduce");
        }
        Bytes both(16);
        memcpy(&both[0], &checksum, 8);
        checksum = ~checksum;
        memcpy(&both[8], &checksum, 8);
        sums[i]->fill(0, both);
    }
    on_all([&](LocalRank& local, size_t i) {
        CHECK_NCCL(ncclAllReduce(sums[i]->data(), sums[i]->data(), 2, ncclUint64, ncclMax,
                                 local.comm, local.stream));
    });
    const Bytes extremes = sums[0]->read();
    EXPECT_THAT(bits_at(extremes, kTypes[5], 0) == ~bits_at(extremes, kTypes[5], 1),
                "all_reduce %s %s: ranks differ", type.name, op.name);
}

void sweep_reduce(const TypeInfo& type, const Operator& op, size_t count, bool in_place) {
    const Operators ops(op, type);
    const int root = static_cast<int>(count % static_cast<size_t>(g_world));
    const size_t bytes = count * static_cast<size_t>(type.bytes);
    const Buffers in = make_buffers(bytes);
    const Buffers out = make_buffers(bytes);
    for (size_t i = 0; i < g_local.size(); ++i) {
        (in_place ? out : in)[i]->fill(0, make_input(type, g_local[i].rank, count));
    }
    on_all([&](LocalRank& local, size_t i) {
        CHECK_NCCL(ncclReduce((in_place ? out : in)[i]->data(),
                              local.rank == root || in_place ? out[i]->data() : nullptr, count,
                              type.type, ops[i], root, local.comm, local.stream));
    });
    for (size_t i = 0; i < g_local.size(); ++i) {
        if (g_local[i].rank == root) {
            const Bytes result = out[i]->read();
            for (size_t k = 0; k < count; ++k) {
                check_reduced(type, op, bits_at(result, type, k), k, "reduce");
            }
        }
    }
}

void sweep_reduce_scatter(const TypeInfo& type, const Operator& op, size_t count, bool in_place) {
    const Operators ops(op, type);
    const size_t bytes = count * static_cast<size_t>(type.bytes);
    const Buffers in = make_buffers(bytes * static_cast<size_t>(g_world));
    const Buffers out = make_buffers(bytes);
    for (size_t i = 0; i < g_local.size(); ++i) {
        in[i]->fill(0, make_input(type, g_local[i].rank, count * static_cast<size_t>(g_world)));
    }
    on_all([&](LocalRank& local, size_t i) {
        unsigned char* own = in[i]->data() + static_cast<size_t>(local.rank) * bytes;
        CHECK_NCCL(ncclReduceScatter(in[i]->data(), in_place ? own : out[i]->data(), count,
                                     type.type, ops[i], local.comm, local.stream));
    });
    for (size_t i = 0; i < g_local.size(); ++i) {
        const size_t first = static_cast<size_t>(g_local[i].rank) * count;
        const Bytes result = (in_place ? in : out)[i]->read();
        for (size_t k = 0; k < count; ++k) {
            check_reduced(type, op, bits_at(result, type, in_place ? first + k : k), first + k,
                          "reduce_scatter");
        }
    }
}

void expect_input(const TypeInfo& type,
                  const Bytes& data,
                  size_t offset,
                  int rank,
                  size_t first,
                  size_t count,
                  const char* what) {
    const Bytes& given = given_by(type, rank, first + count);
    const auto bytes = static_cast<size_t>(type.bytes);
    EXPECT_THAT((offset + count) * bytes <= data.size() &&
                    std::equal(&given[first * bytes], &given[first * bytes] + count * bytes,
                               &data[offset * bytes]),
                "%s %s: %zu elements of rank %d", what, type.name, count, rank);
    g_checked += static_cast<int>(count);
}

void sweep_rooted_copies(const TypeInfo& type, size_t count, bool in_place) {
    const size_t bytes = count * static_cast<size_t>(type.bytes);
    const auto world = static_cast<size_t>(g_world);
    const int root = static_cast<int>(count % world);
    const size_t own = static_cast<size_t>(root) * bytes;
    const Buffers all = make_buffers(bytes * world);
    const Buffers one = make_buffers(bytes);
    for (size_t i = 0; i < g_local.size(); ++i) {
        one[i]->fill(0, make_input(type, g_local[i].rank, count));
        if (g_local[i].rank == root) {
            all[i]->fill(own, make_input(type, root, count));
        }
    }
    on_all([&](LocalRank& local, size_t i) {
        const bool here = local.rank == root;
        CHECK_NCCL(ncclGather(in_place && here ? all[i]->data() + own : one[i]->data(),
                              here ? all[i]->data() : nullptr, count, type.type, root, local.comm,
                              local.stream));
    });
    for (size_t i = 0; i < g_local.size(); ++i) {
        if (g_local[i].rank == root) {
            const Bytes result = all[i]->read();
            for (size_t from = 0; from < world; ++from) {
                expect_input(type, result, from * count, static_cast<int>(from), 0, count,
                             "gather");
            }
            all[i]->fill(0, make_input(type, root, count * world));
        }
    }
    on_all([&](LocalRank& local, size_t i) {
        const bool here = local.rank == root;
        CHECK_NCCL(ncclScatter(here ? all[i]->data() : nullptr,
                               in_place && here ? all[i]->data() + own : one[i]->data(), count,
                               type.type, root, local.comm, local.stream));
    });
    for (size_t i = 0; i < g_local.size(); ++i) {
        const bool kept = in_place && g_local[i].rank == root;
        expect_input(type, (kept ? all : one)[i]->read(),
                     kept ? static_cast<size_t>(root) * count : 0, root,
                     static_cast<size_t>(g_local[i].rank) * count, count, "scatter");
    }
}

void sweep_copies(const TypeInfo& type, size_t count, bool in_place) {
    const size_t bytes = count * static_cast<size_t>(type.bytes);
    const auto world = static_cast<size_t>(g_world);
    const Buffers in = make_buffers(bytes * world);
    const Buffers out = make_buffers(bytes * world);
    for (size_t i = 0; i < g_local.size(); ++i) {
        in[i]->fill(0, make_input(type, g_local[i].rank, count * world));
        if (in_place) {
            out[i]->fill(static_cast<size_t>(g_local[i].rank) * bytes,
                         make_input(type, g_local[i].rank, count));
        }
    }
    on_all([&](LocalRank& local, size_t i) {
        unsigned char* own = out[i]->data() + static_cast<size_t>(local.rank) * bytes;
        CHECK_NCCL(ncclAllGather(in_place ? own : in[i]->data(), out[i]->data(), count, type.type,
                                 local.comm, local.stream));
    });
    for (size_t i = 0; i < g_local.size(); ++i) {
        const Bytes result = out[i]->read();
        for (int rank = 0; rank < g_world; ++rank) {
            expect_input(type, result, static_cast<size_t>(rank) * count, rank, 0, count,
                         "all_gather");
        }
    }
    const int root = g_world - 1;
    on_all([&](LocalRank& local, size_t i) {
        if (in_place) {
            unsigned char* buffer = (local.rank == root ? in : out)[i]->data();
            CHECK_NCCL(ncclBcast(buffer, count, type.type, root, local.comm, local.stream));
        } else {
            CHECK_NCCL(ncclBroadcast(in[i]->data(), out[i]->data(), count, type.type, root,
                                     local.comm, local.stream));
        }
    });
    for (size_t i = 0; i < g_local.size(); ++i) {
        const bool sent_from_input = in_place && g_local[i].rank == root;
        expect_input(type, (sent_from_input ? in : out)[i]->read(), 0, root, 0, count, "broadcast");
    }
    if (!in_place) {
        on_all([&](LocalRank& local, size_t i) {
            CHECK_NCCL(ncclAlltoAll(in[i]->data(), out[i]->data(), count, type.type, local.comm,
                                    local.stream));
        });
        for (size_t i = 0; i < g_local.size(); ++i) {
            const Bytes result = out[i]->read();
            for (size_t from = 0; from < world; ++from) {
                expect_input(type, result, from * count, static_cast<int>(from),
                             static_cast<size_t>(g_local[i].rank) * count, count, "all_to_all");
            }
        }
    }
    sweep_rooted_copies(type, count, in_place);
    // To the next rank and to oneself, two messages of different sizes each way.
    const size_t part = count / 3;
    on_all([&](LocalRank& local, size_t i) {
        const int next = (local.rank + 1) % g_world;
        const int previous = (local.rank + g_world - 1) % g_world;
        const size_t skip = part * static_cast<size_t>(type.bytes);
        unsigned char* to = out[i]->data();
        const unsigned char* from = in[i]->data();
        CHECK_NCCL(ncclSend(from, part, type.type, next, local.comm, local.stream));
        CHECK_NCCL(ncclSend(from + skip, count - part, type.type, next, local.comm, local.stream));
        CHECK_NCCL(ncclRecv(to, part, type.type, previous, local.comm, local.stream));
        CHECK_NCCL(
            ncclRecv(to + skip, count - part, type.type, previous, local.comm, local.stream));
    });
    for (size_t i = 0; i < g_local.size(); ++i) {
        expect_input(type, out[i]->read(), 0, (g_local[i].rank + g_world - 1) % g_world, 0, count,
                     "send_recv");
    }
}

void initialise() {
    int devices = 0;
    CHECK_CUDA(cudaGetDeviceCount(&devices));
    const int process = slimwire::test::launcher_rank();
    g_world = slimwire::test::launcher_ranks() * devices;
    const ncclUniqueId id = slimwire::test::exchange_id(process);
    g_local.resize(static_cast<size_t>(devices));
    CHECK_NCCL(ncclGroupStart());
    for (int device = 0; device < devices; ++device) {
        LocalRank& local = g_local[static_cast<size_t>(device)];
        local.rank = process * devices + device;
        local.device = device;
        CHECK_CUDA(cudaSetDevice(device));
        CHECK_CUDA(cudaStreamCreateWithFlags(&local.stream, cudaStreamNonBlocking));
        CHECK_NCCL(ncclCommInitRank(&local.comm, g_world, id, local.rank));
    }
    CHECK_NCCL(ncclGroupEnd());
}

void sweep(const TypeInfo& type, const Operator& op, size_t count) {
    for (const bool in_place : {false, true}) {
        sweep_all_reduce(type, op, count, in_place);
        sweep_reduce(type, op, count, in_place);
        sweep_reduce_scatter(type, op, count, in_place);
    }
}

}  // namespace

int main(int argc, char** argv) {
    initialise();
    const std::string size = argc > 1 ? argv[1] : "";
    const bool large = size == "large";
    const std::string way = argc > 2 ? argv[2] : "";
    g_way = way == "graphs" ? Way::kGraphs : way == "one_graph" ? Way::kOneGraph : Way::kEager;
    for (const TypeInfo& type : kTypes) {
        for (const size_t count : {1, 3, 1021, 20'011}) {
            if (large || (size == "tiny" && count > 3)) {
                continue;
            }
            for (const Operator& op : kOperators) {
                sweep(type, op, count);
            }
            sweep_copies(type, count, false);
            sweep_copies(type, count, true);
        }
        if (large && type.type == ncclBfloat16) {
            sweep(type, kOperators[0], 100'003);
            sweep_copies(type, 100'003, false);
        } else if (large && type.type == ncclFloat32) {
            // More slices a block than the group of a reduce-scatter has.
            sweep_reduce_scatter(type, kOperators[5], 1'200'001, false);
            sweep_all_reduce(type, kOperators[4], 1'200'001, true);
        }
    }
    for (const LocalRank& local : g_local) {
        CHECK_NCCL(ncclCommDestroy(local.comm));
        CHECK_CUDA(cudaStreamDestroy(local.stream));
    }
    std::printf("checked %d\n", g_checked);
    return 0;
}
