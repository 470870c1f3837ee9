// The kernels of nccl-tests that the emulator hosts, launched by the names nvcc gives them: that
// every wrong element is counted, and nothing else touched.
#include <cstring>
#include <map>
#include <string>

#include "tests/tools/emulator/cuda_test.h"
#include "tools/emulator/checking/data.h"
#include "tools/emulator/cudart/machine/kernel_registry.h"

extern "C" void __cudaRegisterFunction(
    void**, const char*, char*, const char*, int, uint3*, uint3*, dim3*, dim3*, int*);

namespace slimwire::testing {
namespace {

using namespace emulator::checking;

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
        DType element;
    } kTypes[] = {
        {"a", "h", DType::kInt8},
        {"h", "h", DType::kUint8},
        {"i", "j", DType::kInt32},
        {"j", "j", DType::kUint32},
        {"l", "m", DType::kInt64},
        {"m", "m", DType::kUint64},
        {"6__half", "t", DType::kFloat16},
        {"13__nv_bfloat16", "t", DType::kBfloat16},
        {"13__nv_fp8_e4m3", "h", DType::kFloat8e4m3},
        {"13__nv_fp8_e5m2", "h", DType::kFloat8e5m2},
        {"f", "j", DType::kFloat32},
        {"d", "m", DType::kFloat64},
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
            const auto bytes = static_cast<size_t>(dtype_bytes(type.element));
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

// The oracle for lossy codecs. A fresh process, because the environment is read at the first call.
TEST(CheckingKernelsBounded, a_rounded_result_passes_and_a_lost_rank_does_not) {
    IN_FRESH_PROCESS("", {
        setenv("SLIMWIRE_EMU_CHECK_ERROR", "0.05", 1);
        struct Fixture : CheckingKernels {
            void TestBody() override {
                SetUp();
                for (const bool is_prepared : {true, false}) {
                    check("f", "j", 1, is_prepared, 0);
                    check("f", "j", 1.03F, is_prepared, 0);
                    check("f", "j", 1.08F, is_prepared, kCount);
                    check("f", "j", 0.5F, is_prepared,
                          kCount);  // as if one of two had sent nothing
                    check("i", "j", 1.03F, is_prepared, kCount);  // integers stay exact
                }
                TearDown();
            }
            // Results are the expected ones times `factor`.
            void check(const char* type,
                       const char* unsigned_type,
                       float factor,
                       bool is_prepared,
                       int64_t count) {
                const std::string sum = "9ReduceSum";
                CUDA_OK(expect(prepare_expected(type, sum), b_, kCount, 0));
                std::vector<float> values = host<float>(b_, kCount);
                for (float& value : values) {
                    value *= factor;
                }
                CUDA_OK(cudaMemcpy(a_, values.data(), kCount * 4, cudaMemcpyHostToDevice));
                const std::string types = std::string(type) + unsigned_type;
                const int64_t got = is_prepared ? differ(unsigned_type, a_, b_, kCount)
                                                : wrong(verify_inline(types, sum), a_, kCount, 0);
                EXPECT_GE(got, count * 9 / 10) << type << " times " << factor;
                EXPECT_LE(got, count) << type << " times " << factor;
            }
        };
        Fixture().TestBody();
    });
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
