// The kernels of nccl-tests that the emulator hosts: that their data reduce to what is expected in
// any order, that a missing rank, a shifted buffer or a single wrong bit is counted, and that they
// are found by the names nvcc gives them.
#include <cmath>
#include <cstring>
#include <map>
#include <string>

#include "tests/tools/emulator/cuda_test.h"
#include "tools/emulator/checking/data.h"
#include "tools/emulator/cudart/kernel_registry.h"
#include "tools/emulator/nccl/element.h"

extern "C" void __cudaRegisterFunction(
    void**, const char*, char*, const char*, int, uint3*, uint3*, dim3*, dim3*, int*);

namespace slimwire::testing {
namespace {

using namespace emulator::checking;

constexpr Element kElements[] = {
    Element::kInt8,    Element::kUint8,      Element::kInt32,      Element::kUint32,
    Element::kInt64,   Element::kUint64,     Element::kFloat16,    Element::kBfloat16,
    Element::kFloat32, Element::kFloat8e4m3, Element::kFloat8e5m2, Element::kFloat64,
};
constexpr Reduction kReductions[] = {Reduction::kSum, Reduction::kProd,      Reduction::kMin,
                                     Reduction::kMax, Reduction::kPreMulSum, Reduction::kAvg};

// Independent of data.cpp: the conversions of the emulated NCCL.
template <class Visit>
void visit(Element element, Visit&& body) {
    switch (element) {
        case Element::kInt8:
            return body(emu::Plain<int8_t>{});
        case Element::kUint8:
            return body(emu::Plain<uint8_t>{});
        case Element::kInt32:
            return body(emu::Plain<int32_t>{});
        case Element::kUint32:
            return body(emu::Plain<uint32_t>{});
        case Element::kInt64:
            return body(emu::Plain<int64_t>{});
        case Element::kUint64:
            return body(emu::Plain<uint64_t>{});
        case Element::kFloat16:
            return body(emu::Half{});
        case Element::kBfloat16:
            return body(emu::Bfloat{});
        case Element::kFloat8e4m3:
            return body(emu::Float8E4M3{});
        case Element::kFloat8e5m2:
            return body(emu::Float8E5M2{});
        case Element::kFloat32:
            return body(emu::Plain<float>{});
        case Element::kFloat64:
            return body(emu::Plain<double>{});
    }
}

template <class Storage>
Storage from_bits(uint64_t bits) {
    Storage value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}
template <class Storage>
uint64_t to_bits(Storage value) {
    uint64_t bits = 0;
    std::memcpy(&bits, &value, sizeof value);
    return bits;
}

template <class Compute>
Compute combine(Reduction reduction, Compute a, Compute b) {
    if (reduction == Reduction::kMin) {
        return a < b ? a : b;
    }
    if (reduction == Reduction::kMax) {
        return a < b ? b : a;
    }
    if constexpr (std::is_integral_v<Compute>) {
        const auto x = static_cast<uint64_t>(a);
        const auto y = static_cast<uint64_t>(b);
        return static_cast<Compute>(reduction == Reduction::kProd ? x * y : x + y);
    } else {
        return reduction == Reduction::kProd ? a * b : a + b;
    }
}

// Rounded to the type after every step, ranks in the given order, as a ring would.
template <class Type>
uint64_t reduced(const Data& data, int64_t index, int first_rank, bool backwards) {
    using Compute = typename Type::Compute;
    using Storage = typename Type::Storage;
    constexpr bool kFloat = std::is_floating_point_v<Compute>;
    Compute sum{};
    for (int i = 0; i < data.ranks; ++i) {
        const int step = backwards ? data.ranks - 1 - i : i;
        const int rank = (first_rank + step) % data.ranks;
        Compute value = Type::load(from_bits<Storage>(input_bits(data, rank, index)));
        if (data.reduction == Reduction::kPreMulSum) {
            value = static_cast<Compute>(value * static_cast<Compute>(premultiplier(rank)));
        } else if (kFloat && data.reduction == Reduction::kAvg) {
            value *= Type::load(Type::store(Compute{1} / static_cast<Compute>(data.ranks)));
        }
        value = Type::load(Type::store(value));
        sum = i == 0 ? value : Type::load(Type::store(combine(data.reduction, sum, value)));
    }
    if (!kFloat && data.reduction == Reduction::kAvg) {
        using Wide = std::conditional_t<std::is_signed_v<Compute>, int64_t, uint64_t>;
        sum = static_cast<Compute>(static_cast<Wide>(sum) / static_cast<Wide>(data.ranks));
    }
    return to_bits(Type::store(sum));
}

uint64_t distance(uint64_t a, uint64_t b) {
    return a < b ? b - a : a - b;
}

TEST(CheckingData, reduces_to_the_result_in_any_order) {
    for (const Element element : kElements) {
        for (const Reduction reduction : kReductions) {
            for (const int ranks : {1, 2, 3, 4, 5, 8, 13, 64, 300}) {
                const Data data{element, reduction, ranks, 0x5eed};
                SCOPED_TRACE(::testing::Message() << "element " << int(element) << " reduction "
                                                  << int(reduction) << " ranks " << ranks);
                visit(element, [&](auto type) {
                    using Type = decltype(type);
                    const bool average = reduction == Reduction::kAvg &&
                                         std::is_floating_point_v<typename Type::Compute>;
                    for (int64_t index = 0; index < (ranks < 64 ? 300 : 30); ++index) {
                        const uint64_t expected = result_bits(data, index);
                        for (const bool backwards : {false, true}) {
                            const uint64_t got = reduced<Type>(
                                data, index, static_cast<int>(index % ranks), backwards);
                            ASSERT_LE(distance(got, expected), average ? 2u : 0u)
                                << "index " << index << ": " << std::hex << got << ", expected "
                                << expected;
                        }
                    }
                });
            }
        }
    }
}

TEST(CheckingData, floats_are_finite_and_of_many_values) {
    for (const Element element : kElements) {
        visit(element, [&](auto type) {
            using Type = decltype(type);
            using Storage = typename Type::Storage;
            std::map<uint64_t, int> seen;
            for (int64_t index = 0; index < 2000; ++index) {
                const uint64_t bits = input_bits({element, Reduction::kNone, 1, 7}, 0, index);
                ++seen[bits];
                EXPECT_TRUE(
                    std::isfinite(static_cast<double>(Type::load(from_bits<Storage>(bits)))));
                EXPECT_EQ(bits, result_bits({element, Reduction::kNone, 1, 7}, index));
            }
            // e5m2 has 7 magnitudes an exponent, of which many coincide.
            EXPECT_GT(seen.size(), sizeof(Storage) == 1   ? 40u
                                   : sizeof(Storage) == 2 ? 1200u
                                                          : 1990u)
                << "element " << int(element);
        });
    }
}

// A check that everything passes would be worth nothing: most results must tell a forgotten rank,
// another place and another seed.
TEST(CheckingData, results_tell_mistakes) {
    for (const Element element : kElements) {
        for (const Reduction reduction :
             {Reduction::kSum, Reduction::kPreMulSum, Reduction::kMax}) {
            const Data data{element, reduction, 4, 11};
            const Data fewer{element, reduction, 3, 11};
            const Data other{element, reduction, 4, 12};
            int forgotten = 0;
            int shifted = 0;
            int reseeded = 0;
            for (int64_t index = 0; index < 1000; ++index) {
                const uint64_t expected = result_bits(data, index);
                forgotten += result_bits(fewer, index) != expected ? 1 : 0;
                shifted += result_bits(data, index + 1) != expected ? 1 : 0;
                reseeded += result_bits(other, index) != expected ? 1 : 0;
            }
            SCOPED_TRACE(::testing::Message()
                         << "element " << int(element) << " reduction " << int(reduction));
            EXPECT_GT(forgotten, 150);  // the largest of four is often among three of them
            EXPECT_GT(shifted, 800);
            EXPECT_GT(reseeded, 800);
        }
    }
}

TEST(CheckingData, rounds_to_nearest_even) {
    EXPECT_EQ(float_bits(Element::kFloat16, 1.0), 0x3c00u);
    EXPECT_EQ(float_bits(Element::kFloat16, 0x1.002p0), 0x3c00u);  // a tie, down to even
    EXPECT_EQ(float_bits(Element::kFloat16, 0x1.006p0), 0x3c02u);  // a tie, up to even
    EXPECT_EQ(float_bits(Element::kFloat16, 0x1.ffep0), 0x4000u);  // carries into the exponent
    EXPECT_EQ(float_bits(Element::kFloat16, 0x1p-24), 0x0001u);
    EXPECT_EQ(float_bits(Element::kFloat16, 0x1p-25), 0x0000u);
    EXPECT_EQ(float_bits(Element::kFloat16, -0x1p-14), 0x8400u);
    EXPECT_EQ(float_bits(Element::kBfloat16, -3.0), 0xc040u);
    EXPECT_EQ(float_bits(Element::kFloat8e4m3, 448.0), 0x7eu);
    EXPECT_EQ(float_bits(Element::kFloat8e4m3, 0x1p-9), 0x01u);
    EXPECT_EQ(float_bits(Element::kFloat8e5m2, 57344.0), 0x7bu);
    EXPECT_EQ(float_bits(Element::kFloat32, 1.0), 0x3f800000u);
    EXPECT_EQ(float_bits(Element::kFloat64, -1.0), 0xbff0000000000000u);
}

// Kernels as nvcc registers them; the stubs only have addresses.
struct Stub {
    char address = 0;
};
const void* kernel(const std::string& name) {
    static std::map<std::string, Stub> stubs;
    const auto [at, fresh] = stubs.try_emplace(name);
    if (fresh) {
        char* text = const_cast<char*>(at->first.c_str());
        __cudaRegisterFunction(nullptr, &at->second.address, text, text, -1, nullptr, nullptr,
                               nullptr, nullptr, nullptr);
    }
    return &at->second.address;
}

constexpr char kNamespace[] = "_ZN46_GLOBAL__N__fdcfc1a7_13_verifiable_cu_934c3dfb";
std::string prepare_input(const std::string& type, const std::string& op) {
    return kNamespace + ("13prepareInput2I" + type + "NS_" + op + "EEEvPT_lT0_iiml");
}
std::string prepare_expected(const std::string& type, const std::string& op) {
    return kNamespace + ("16prepareExpected2I" + type + "NS_" + op + "EEEvPT_lT0_iml");
}
std::string verify_inline(const std::string& types, const std::string& op) {
    return kNamespace + ("13verifyInline2I" + types + "NS_" + op + "EEEvPKT_lT1_imljPl");
}

class CheckingKernels : public ::testing::Test {
  protected:
    static constexpr int64_t kCount = 5000;
    void SetUp() override {
        CUDA_OK(cudaMalloc(&a_, kCount * 8));
        CUDA_OK(cudaMalloc(&b_, kCount * 8));
        CUDA_OK(cudaHostAlloc(reinterpret_cast<void**>(&wrong_), sizeof *wrong_, 0));
        stream_ = make_stream();
    }
    void TearDown() override {
        CUDA_OK(cudaStreamDestroy(stream_));
        CUDA_OK(cudaFreeHost(wrong_));
        CUDA_OK(cudaFree(b_));
        CUDA_OK(cudaFree(a_));
    }
    cudaError_t launch(const std::string& name, std::vector<void*> args) {
        return cudaLaunchKernel(kernel(name), dim3(3), dim3(512), args.data(), 0, stream_);
    }
    cudaError_t fill(const std::string& name, void* at, int64_t count, int rank, int64_t first) {
        return launch(name, {&at, &count, &op_, &ranks_, &rank, &seed_, &first});
    }
    cudaError_t expect(const std::string& name, void* at, int64_t count, int64_t first) {
        return launch(name, {&at, &count, &op_, &ranks_, &seed_, &first});
    }
    int64_t wrong(const std::string& name, const void* at, int64_t count, int64_t first) {
        *wrong_ = 0;
        EXPECT_EQ(launch(name, {&at, &count, &op_, &ranks_, &seed_, &first, &tolerance_, &wrong_}),
                  cudaSuccess);
        EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
        return *wrong_;
    }
    int64_t differ(const std::string& unsigned_type, const void* a, const void* b, int64_t count) {
        *wrong_ = 0;
        const std::string name =
            kNamespace + ("14verifyPreparedI" + unsigned_type + "EEvPKT_S3_ljPl");
        EXPECT_EQ(launch(name, {&a, &b, &count, &tolerance_, &wrong_}), cudaSuccess);
        EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
        return *wrong_;
    }
    template <class T>
    std::vector<T> host(const void* from, size_t count) {
        std::vector<T> values(count);
        EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
        EXPECT_EQ(cudaMemcpy(values.data(), from, count * sizeof(T), cudaMemcpyDeviceToHost),
                  cudaSuccess);
        return values;
    }
    char* a_ = nullptr;
    char* b_ = nullptr;
    int64_t* wrong_ = nullptr;
    cudaStream_t stream_ = nullptr;
    int op_ = 0;  // an empty struct, or the ranks of an average
    int ranks_ = 2;
    uint64_t seed_ = 99;
    unsigned tolerance_ = 0;
};

TEST_F(CheckingKernels, sum_of_two_ranks_and_every_wrong_element) {
    const std::string sum = "9ReduceSum";
    CUDA_OK(fill(prepare_input("f", sum), a_, kCount, 0, 0));
    CUDA_OK(fill(prepare_input("f", sum), b_, kCount, 1, 0));
    std::vector<float> values = host<float>(a_, kCount);
    const std::vector<float> second = host<float>(b_, kCount);
    for (size_t i = 0; i < values.size(); ++i) {
        values[i] += second[i];
    }
    CUDA_OK(cudaMemcpy(a_, values.data(), kCount * 4, cudaMemcpyHostToDevice));
    EXPECT_EQ(wrong(verify_inline("fj", sum), a_, kCount, 0), 0);
    CUDA_OK(expect(prepare_expected("f", sum), b_, kCount, 0));
    EXPECT_EQ(differ("j", a_, b_, kCount), 0);
    // A chunk from the middle, as the owner of a scattered result checks it.
    EXPECT_EQ(wrong(verify_inline("fj", sum), a_ + 4 * 1001, kCount - 1001, 1001), 0);
    EXPECT_GT(wrong(verify_inline("fj", sum), a_ + 4 * 1001, kCount - 1001, 1000), 3000);

    uint32_t bits[2];
    for (const size_t at : {size_t{0}, size_t{2048}, size_t{kCount - 1}}) {
        std::memcpy(bits, &values[at], 4);
        bits[0] ^= 2;
        CUDA_OK(cudaMemcpy(a_ + 4 * at, bits, 4, cudaMemcpyHostToDevice));
    }
    EXPECT_EQ(wrong(verify_inline("fj", sum), a_, kCount, 0), 3);
    EXPECT_EQ(differ("j", a_, b_, kCount), 3);
    EXPECT_EQ(differ("j", b_, a_, kCount), 3);
    tolerance_ = 1;
    EXPECT_EQ(differ("j", a_, b_, kCount), 3);
    tolerance_ = 2;
    EXPECT_EQ(differ("j", a_, b_, kCount), 0);
    EXPECT_EQ(wrong(verify_inline("fj", sum), a_, kCount, 0), 0);
}

TEST_F(CheckingKernels, every_type_and_reduction_by_its_name) {
    const struct {
        const char* name;
        const char* unsigned_name;
        Element element;
    } kTypes[] = {
        {"a", "h", Element::kInt8},
        {"h", "h", Element::kUint8},
        {"i", "j", Element::kInt32},
        {"j", "j", Element::kUint32},
        {"l", "m", Element::kInt64},
        {"m", "m", Element::kUint64},
        {"6__half", "t", Element::kFloat16},
        {"13__nv_bfloat16", "t", Element::kBfloat16},
        {"13__nv_fp8_e4m3", "h", Element::kFloat8e4m3},
        {"13__nv_fp8_e5m2", "h", Element::kFloat8e5m2},
        {"f", "j", Element::kFloat32},
        {"d", "m", Element::kFloat64},
    };
    const struct {
        const char* name;
        Reduction reduction;
    } kOps[] = {
        {"9ReduceNil", Reduction::kNone},   {"9ReduceSum", Reduction::kSum},
        {"10ReduceProd", Reduction::kProd}, {"9ReduceMin", Reduction::kMin},
        {"9ReduceMax", Reduction::kMax},    {"15ReducePreMulSum", Reduction::kPreMulSum},
        {"9ReduceAvg", Reduction::kAvg},
    };
    for (const auto& type : kTypes) {
        for (const auto& op : kOps) {
            SCOPED_TRACE(std::string(type.name) + " " + op.name);
            ranks_ = op.reduction == Reduction::kNone ? 1 : 3;
            const Data data{type.element, op.reduction, ranks_, seed_};
            const auto bytes = static_cast<size_t>(element_bytes(type.element));
            CUDA_OK(fill(prepare_input(type.name, op.name), a_, 100, ranks_ - 1, 40));
            CUDA_OK(expect(prepare_expected(type.name, op.name), b_, 100, 40));
            const std::vector<char> input = host<char>(a_, 100 * bytes);
            const std::vector<char> result = host<char>(b_, 100 * bytes);
            for (size_t i = 0; i < 100; ++i) {
                const auto index = static_cast<int64_t>(40 + i);
                const uint64_t in = input_bits(data, ranks_ - 1, index);
                const uint64_t out = result_bits(data, index);
                ASSERT_EQ(std::memcmp(&input[i * bytes], &in, bytes), 0) << i;
                ASSERT_EQ(std::memcmp(&result[i * bytes], &out, bytes), 0) << i;
            }
            const std::string types = std::string(type.name) + type.unsigned_name;
            EXPECT_EQ(wrong(verify_inline(types, op.name), b_, 100, 40), 0);
            EXPECT_GT(wrong(verify_inline(types, op.name), b_, 100, 41), 20);
            EXPECT_EQ(differ(type.unsigned_name, b_, b_, 100), 0);
        }
    }
}

TEST_F(CheckingKernels, nothing_outside_the_count_is_touched) {
    CUDA_OK(cudaMemsetAsync(a_, 0x55, kCount, stream_));
    CUDA_OK(fill(prepare_input("6__half", "9ReduceMax"), a_ + 2, 7, 1, 0));
    CUDA_OK(fill(prepare_input("6__half", "9ReduceMax"), a_ + 30, 0, 1, 0));
    const std::vector<uint16_t> values = host<uint16_t>(a_, 40);
    for (size_t i = 0; i < values.size(); ++i) {
        EXPECT_EQ(values[i] == 0x5555, i < 1 || i > 7) << i;
    }
}

TEST_F(CheckingKernels, captured_and_replayed) {
    CUDA_OK(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
    CUDA_OK(fill(prepare_input("i", "9ReduceMin"), a_, kCount, 1, 0));
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
    CUDA_OK(cudaStreamEndCapture(stream_, &graph));
    CUDA_OK(cudaGraphInstantiate(&executable, graph, 0));
    CUDA_OK(cudaGraphDestroy(graph));
    CUDA_OK(fill(prepare_input("i", "9ReduceMin"), b_, kCount, 1, 0));
    for (int replay = 0; replay < 2; ++replay) {
        CUDA_OK(cudaMemsetAsync(a_, 0, kCount * 4, stream_));
        CUDA_OK(cudaGraphLaunch(executable, stream_));
        EXPECT_EQ(differ("j", a_, b_, kCount), 0);
    }
    CUDA_OK(cudaGraphExecDestroy(executable));
}

TEST_F(CheckingKernels, strangers_are_not_hosted) {
    ::testing::internal::CaptureStderr();
    // Another number of template arguments, another name, another type.
    EXPECT_EQ(fill("_ZN1n13prepareInput2IfEEvPT_", a_, 1, 0, 0), cudaErrorInvalidDeviceFunction);
    EXPECT_EQ(fill("_ZN1n13prepareInput3IfNS_9ReduceSumEEEvPT_lT0_iiml", a_, 1, 0, 0),
              cudaErrorInvalidDeviceFunction);
    EXPECT_EQ(fill(prepare_input("6String", "9ReduceSum"), a_, 1, 0, 0), cudaErrorInvalidValue);
    EXPECT_EQ(fill(prepare_input("f", "9ReduceXor"), a_, 1, 0, 0), cudaErrorInvalidValue);
    (void)::testing::internal::GetCapturedStderr();
    (void)cudaGetLastError();
}

TEST_F(CheckingKernels, a_registered_body_wins) {
    static int runs = 0;
    const std::string name = "_ZN4mine16prepareExpected2IfNS_9ReduceSumEEEvPT_lT0_iml";
    CUDA_OK(slimwire_emulator_register_kernel(
        name.c_str(), [](const char*, void**, slimwire_emulator_kernel_call* out) {
            out->run = [](void*, dim3, dim3, size_t) { ++runs; };
            return 0;
        }));
    CUDA_OK(expect(name, a_, 10, 0));
    CUDA_OK(cudaStreamSynchronize(stream_));
    EXPECT_EQ(runs, 1);
}

}  // namespace
}  // namespace slimwire::testing
