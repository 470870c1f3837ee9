// Every operation, type and reduction operator of the emulated NCCL, in and out of place, with
// counts that divide by nothing, on data whose results are known exactly
// (tools/emulator/checking/data.h). An ordinary NCCL program: one process or several, each with all
// its devices; all local ranks are driven by one thread in groups. Arguments: "small" (all types
// and operators), "tiny" (and few elements) or "large" (several slices a block, few types), then
// "graphs" when every call is captured and replayed, or "one_graph" when one graph holds all
// devices.
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/nccl_program.h"
#include "tools/emulator/checking/data.h"

namespace {

using namespace slimwire;
using namespace slimwire::emulator::checking;

using Bytes = std::vector<unsigned char>;

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
    [[nodiscard]] Bytes read(size_t offset, size_t bytes) const {
        Bytes all(bytes_ + 2 * kMargin);
        CHECK_CUDA(cudaMemcpy(all.data(), base_, all.size(), cudaMemcpyDefault));
        for (size_t i = 0; i < kMargin; ++i) {
            EXPECT_THAT(all[i] == kPoison && all[kMargin + bytes_ + i] == kPoison,
                        "margin of a buffer was written");
        }
        const auto first = all.begin() + static_cast<long>(kMargin + offset);
        return {first, first + static_cast<long>(bytes)};
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
    Reduction reduction;
    bool on_device = false;
};
constexpr Operator kOperators[] = {
    {"sum", ncclSum, Reduction::kSum},
    {"prod", ncclProd, Reduction::kProd},
    {"max", ncclMax, Reduction::kMax},
    {"min", ncclMin, Reduction::kMin},
    {"avg", ncclAvg, Reduction::kAvg},
    {"premul_host", ncclNumOps, Reduction::kPreMulSum},
    {"premul_device", ncclNumOps, Reduction::kPreMulSum, true},
};

int g_world = 1;
size_t g_checked = 0;
std::vector<LocalRank> g_local;

ncclDataType_t nccl_type(DType type) {
    return static_cast<ncclDataType_t>(type);
}

uint64_t bits_at(const Bytes& data, DType type, size_t index) {
    uint64_t bits = 0;
    memcpy(&bits, &data[index * dtype_bytes(type)], dtype_bytes(type));
    return bits;
}

constexpr int kResult = -1;

// Elements [first, first + count) of what `rank` gives, or of the result. Those of a type are found
// once.
Bytes elements(DType type, Reduction reduction, int rank, size_t first, size_t count) {
    static DType last = DType::kInt8;
    static std::map<std::pair<Reduction, int>, Bytes> known;
    if (type != std::exchange(last, type)) {
        known.clear();
    }
    Bytes& all = known[{reduction, rank}];
    const Data data{type, reduction, g_world, 1};
    const size_t bytes = dtype_bytes(type);
    for (size_t i = all.size() / bytes; i < first + count; ++i) {
        const auto index = static_cast<int64_t>(i);
        const uint64_t bits =
            rank == kResult ? result_bits(data, index) : input_bits(data, rank, index);
        all.resize((i + 1) * bytes);
        memcpy(&all[i * bytes], &bits, bytes);
    }
    const auto begin = all.begin() + static_cast<long>(first * bytes);
    return {begin, begin + static_cast<long>(count * bytes)};
}

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
    Operators(const Operator& op, DType type) : op_(op) {
        for (const LocalRank& local : g_local) {
            ncclRedOp_t handle = op.op;
            if (op.op == ncclNumOps) {
                const int value = premultiplier(local.rank);
                uint64_t factor =
                    is_float(type) ? float_bits(type, value) : static_cast<uint64_t>(value);
                void* scalar = &factor;
                if (op.on_device) {
                    scalars_.push_back(std::make_unique<Buffer>(local, sizeof factor));
                    scalar = scalars_.back()->data();
                    CHECK_CUDA(cudaMemcpy(scalar, &factor, sizeof factor, cudaMemcpyDefault));
                }
                CHECK_NCCL(ncclRedOpCreatePreMulSum(
                    &handle, scalar, nccl_type(type),
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

// A call that reduces. `root`: the only rank that receives; -1: all do.
struct Reducing {
    const char* what;
    bool scatters;
    int root;
    std::function<ncclResult_t(
        const LocalRank&, const void* send, void* recv, size_t, ncclDataType_t, ncclRedOp_t)>
        call;
};

void sweep(const Reducing& one, DType type, const Operator& op, size_t count, bool in_place) {
    const Operators ops(op, type);
    const size_t bytes = count * dtype_bytes(type);
    const size_t given = one.scatters ? count * static_cast<size_t>(g_world) : count;
    const Buffers in = make_buffers(given * dtype_bytes(type));
    const Buffers out = make_buffers(bytes);
    const auto first = [&](size_t i) {
        return one.scatters ? static_cast<size_t>(g_local[i].rank) * count : 0;
    };
    const auto place = [&](size_t i) { return in_place ? first(i) * dtype_bytes(type) : 0; };
    for (size_t i = 0; i < g_local.size(); ++i) {
        in[i]->fill(0, elements(type, op.reduction, g_local[i].rank, 0, given));
    }
    on_all([&](LocalRank& local, size_t i) {
        unsigned char* const recv = (in_place ? in : out)[i]->data() + place(i);
        CHECK_NCCL(one.call(local, in[i]->data(), recv, count, nccl_type(type), ops[i]));
    });
    // Where averages round: their factor, one sum and the result.
    const bool rounds = op.reduction == Reduction::kAvg && is_float(type);
    for (size_t i = 0; i < g_local.size(); ++i) {
        if (one.root >= 0 && g_local[i].rank != one.root) {
            continue;
        }
        const Bytes found = (in_place ? in : out)[i]->read(place(i), bytes);
        const Bytes expected = elements(type, op.reduction, kResult, first(i), count);
        for (size_t k = 0; k < count; ++k) {
            const uint64_t a = bits_at(found, type, k), b = bits_at(expected, type, k);
            EXPECT_THAT((a < b ? b - a : a - b) <= (rounds ? 2u : 0u),
                        "%s %s %s element %zu: %.9g, expected %.9g", one.what, dtype_name(type),
                        op.name, k, float_value(type, a), float_value(type, b));
        }
        g_checked += count;
    }
}

const Reducing kAllReduce = {"all_reduce", false, -1,
                             [](const LocalRank& local,
                                const void* send,
                                void* recv,
                                size_t count,
                                ncclDataType_t type,
                                ncclRedOp_t op) {
                                 return ncclAllReduce(send, recv, count, type, op, local.comm,
                                                      local.stream);
                             }};
const Reducing kReduceScatter = {"reduce_scatter", true, -1,
                                 [](const LocalRank& local,
                                    const void* send,
                                    void* recv,
                                    size_t count,
                                    ncclDataType_t type,
                                    ncclRedOp_t op) {
                                     return ncclReduceScatter(send, recv, count, type, op,
                                                              local.comm, local.stream);
                                 }};

void sweep_reductions(DType type, const Operator& op, size_t count) {
    const int root = static_cast<int>(count % static_cast<size_t>(g_world));
    const Reducing reduce = {
        "reduce", false, root,
        [root](const LocalRank& local, const void* send, void* recv, size_t count,
               ncclDataType_t type, ncclRedOp_t op) {
            void* const to = local.rank == root || recv == send ? recv : nullptr;
            return ncclReduce(send, to, count, type, op, root, local.comm, local.stream);
        }};
    for (const bool in_place : {false, true}) {
        for (const Reducing* one : {&kAllReduce, &reduce, &kReduceScatter}) {
            sweep(*one, type, op, count, in_place);
        }
    }
}

// A call that moves blocks of `count` elements: `given` of each rank, `received` by each, or by
// `receiver` alone. In place on `placed` alone, or on all where that is -1.
struct Moving {
    const char* what;
    size_t given, received;
    int placed, receiver;
    std::function<ncclResult_t(const LocalRank&, unsigned char* send, unsigned char* recv)> call;
    // Which block of which rank comes to a place of `rank`.
    std::function<std::pair<int, int>(int rank, int place)> source;
};

void sweep(const Moving& one, DType type, size_t count, bool in_place) {
    const size_t bytes = count * dtype_bytes(type);
    const Buffers in = make_buffers(bytes * one.given), out = make_buffers(bytes * one.received);
    const auto placed = [&](size_t i) {
        return in_place && (one.placed < 0 || one.placed == g_local[i].rank);
    };
    const auto own = [&](size_t i, size_t blocks) {
        return blocks > 1 ? static_cast<size_t>(g_local[i].rank) * bytes : 0;
    };
    for (size_t i = 0; i < g_local.size(); ++i) {
        const bool within_out = placed(i) && one.given == 1;
        (within_out ? out : in)[i]->fill(
            within_out ? own(i, one.received) : 0,
            elements(type, Reduction::kNone, g_local[i].rank, 0, count * one.given));
    }
    on_all([&](LocalRank& local, size_t i) {
        unsigned char *send = in[i]->data(), *recv = out[i]->data();
        if (placed(i) && one.given == 1) {
            send = recv + own(i, one.received);
        } else if (placed(i)) {
            recv = send + own(i, one.given);
        }
        CHECK_NCCL(one.call(local, send, recv));
    });
    for (size_t i = 0; i < g_local.size(); ++i) {
        const int rank = g_local[i].rank;
        const bool within_in = placed(i) && one.given > 1;
        for (size_t k = 0; k < one.received && (one.receiver < 0 || one.receiver == rank); ++k) {
            const auto [from, block] = one.source(rank, static_cast<int>(k));
            EXPECT_THAT(
                (within_in ? in : out)[i]->read(within_in ? own(i, one.given) : k * bytes, bytes) ==
                    elements(type, Reduction::kNone, from, static_cast<size_t>(block) * count,
                             count),
                "%s %s: block %zu of rank %d", one.what, dtype_name(type), k, rank);
            g_checked += count;
        }
    }
}

void sweep_moves(DType type, size_t count, bool in_place) {
    const auto world = static_cast<size_t>(g_world);
    const int root = static_cast<int>(count % world), last = g_world - 1;
    const ncclDataType_t of = nccl_type(type);
    const auto next = [](int rank) { return (rank + 1) % g_world; };
    const auto previous = [](int rank) { return (rank + g_world - 1) % g_world; };
    // To the next rank, two messages of different sizes.
    const auto pass_on = [&](const LocalRank& local, unsigned char* send, unsigned char* recv) {
        const size_t part = count / 3, skip = part * dtype_bytes(type);
        const int to = next(local.rank), from = previous(local.rank);
        CHECK_NCCL(ncclSend(send, part, of, to, local.comm, local.stream));
        CHECK_NCCL(ncclSend(send + skip, count - part, of, to, local.comm, local.stream));
        CHECK_NCCL(ncclRecv(recv, part, of, from, local.comm, local.stream));
        return ncclRecv(recv + skip, count - part, of, from, local.comm, local.stream);
    };
    const Moving moves[] = {
        {"all_gather", 1, world, -1, -1,
         [&](const LocalRank& local, unsigned char* send, unsigned char* recv) {
             return ncclAllGather(send, recv, count, of, local.comm, local.stream);
         },
         [](int, int place) { return std::pair(place, 0); }},
        {"broadcast", 1, 1, last, -1,
         [&](const LocalRank& local, unsigned char* send, unsigned char* recv) {
             return in_place ? ncclBcast(recv, count, of, last, local.comm, local.stream)
                             : ncclBroadcast(send, recv, count, of, last, local.comm, local.stream);
         },
         [&](int, int) { return std::pair(last, 0); }},
        {"gather", 1, world, root, root,
         [&](const LocalRank& local, unsigned char* send, unsigned char* recv) {
             return ncclGather(send, local.rank == root ? recv : nullptr, count, of, root,
                               local.comm, local.stream);
         },
         [](int, int place) { return std::pair(place, 0); }},
        {"scatter", world, 1, root, -1,
         [&](const LocalRank& local, unsigned char* send, unsigned char* recv) {
             return ncclScatter(local.rank == root ? send : nullptr, recv, count, of, root,
                                local.comm, local.stream);
         },
         [&](int rank, int) { return std::pair(root, rank); }},
        {"all_to_all", world, world, -1, -1,
         [&](const LocalRank& local, unsigned char* send, unsigned char* recv) {
             return ncclAlltoAll(send, recv, count, of, local.comm, local.stream);
         },
         [](int rank, int place) { return std::pair(place, rank); }},
        {"send_recv", 1, 1, -1, -1, pass_on,
         [&](int rank, int) { return std::pair(previous(rank), 0); }},
    };
    constexpr size_t kHaveInPlace = 4;
    for (size_t i = 0; i < (in_place ? kHaveInPlace : std::size(moves)); ++i) {
        sweep(moves[i], type, count, in_place);
    }
}

void initialise() {
    int devices = 0;
    CHECK_CUDA(cudaGetDeviceCount(&devices));
    const int process = test::launcher_rank();
    g_world = test::launcher_ranks() * devices;
    const ncclUniqueId id = test::exchange_id(process);
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

}  // namespace

int main(int argc, char** argv) {
    initialise();
    const std::string size = argc > 1 ? argv[1] : "";
    const bool large = size == "large";
    const std::string way = argc > 2 ? argv[2] : "";
    g_way = way == "graphs" ? Way::kGraphs : way == "one_graph" ? Way::kOneGraph : Way::kEager;
    for (int i = 0; i < kDTypeCount; ++i) {
        const auto type = static_cast<DType>(i);
        for (const size_t count : {1, 3, 1021, 9'001}) {
            if (large || (size == "tiny" && count > 3)) {
                continue;
            }
            for (const Operator& op : kOperators) {
                sweep_reductions(type, op, count);
            }
            sweep_moves(type, count, false);
            sweep_moves(type, count, true);
        }
        if (large && type == DType::kBfloat16) {
            sweep_reductions(type, kOperators[0], 100'003);
            sweep_moves(type, 100'003, false);
        } else if (large && type == DType::kFloat32) {
            // More slices a block than the group of a reduce-scatter has.
            sweep(kReduceScatter, type, kOperators[5], 1'200'001, false);
            sweep(kAllReduce, type, kOperators[4], 1'200'001, true);
        }
    }
    for (const LocalRank& local : g_local) {
        CHECK_NCCL(ncclCommDestroy(local.comm));
        CHECK_CUDA(cudaStreamDestroy(local.stream));
    }
    std::printf("checked %zu\n", g_checked);
    return 0;
}
