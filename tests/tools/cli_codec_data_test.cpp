// What `slimwire codec` and `slimwire bench codec` read and make: tensor files, data sets,
// elements.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "codecs/codec.h"
#include "tests/tools/cli_program.h"
#include "tests/tools/npy_file.h"
#include "tools/cli/bench/data_sets.h"
#include "tools/cli/codec/tensor_file.h"

namespace slimwire::cli::test {
namespace {

// The error of reading a file of this content.
std::string error_of(const std::string& content,
                     std::optional<DType> dtype = std::nullopt,
                     const std::string& name = "x.npy") {
    const ScratchFolder folder;
    const Result<Tensor> tensor = read_tensor(folder.write(name, content), dtype);
    return tensor.ok() ? "" : tensor.status().message();
}

TEST(TensorFile, ReadsEveryVersionAndShape) {
    const ScratchFolder folder;
    const std::vector<float> values = {1, 2, 3, 4};
    for (const int version : {1, 2, 3}) {
        const Result<Tensor> tensor =
            read_tensor(folder.write("x.npy", npy(version, kFour, raw(values))), std::nullopt);
        ASSERT_TRUE(tensor.ok()) << tensor.status().message();
        EXPECT_EQ(tensor.value().dtype, DType::kFloat32);
        EXPECT_EQ(tensor.value().shape, (std::vector<int64_t>{2, 2}));
        EXPECT_EQ(tensor.value().count, 4);
        EXPECT_EQ(std::memcmp(tensor.value().bytes.data(), values.data(), 16), 0);
    }
    const struct {
        const char* dictionary;
        size_t bytes;
        DType dtype;
        int64_t count;
    } cases[] = {
        {"{\"shape\":(3,),\"fortran_order\":True,\"descr\":\"<f2\"}  \n", 6, DType::kFloat16, 3},
        {"{'descr': '|u1', 'fortran_order': False, 'shape': (), }", 1, DType::kUint8, 1},
        {"{'descr': '<f8', 'fortran_order': False, 'shape': (7, 0, 3), }", 0, DType::kFloat64, 0},
        {"{'descr': '<i8', 'fortran_order': False, 'shape': (1, 2), }", 16, DType::kInt64, 2},
    };
    for (const auto& one : cases) {
        const Result<Tensor> tensor =
            read_tensor(folder.write("y.npy", npy(1, one.dictionary, std::string(one.bytes, 'a'))),
                        std::nullopt);
        ASSERT_TRUE(tensor.ok()) << tensor.status().message();
        EXPECT_EQ(tensor.value().dtype, one.dtype);
        EXPECT_EQ(tensor.value().count, one.count);
    }
}

TEST(TensorFile, TypesThatNpyHasNoWordForAreSaidBesideIt) {
    const ScratchFolder folder;
    for (const char* descr : {"|V2", "<u2", "<i2"}) {
        const std::string path = folder.write("x.npy", npy(1,
                                                           std::string("{'descr': '") + descr +
                                                               "', 'fortran_order': False, "
                                                               "'shape': (3,), }",
                                                           "abcdef"));
        const Result<Tensor> tensor = read_tensor(path, DType::kBfloat16);
        ASSERT_TRUE(tensor.ok()) << tensor.status().message();
        EXPECT_EQ(tensor.value().dtype, DType::kBfloat16);
        const Result<Tensor> unsaid = read_tensor(path, std::nullopt);
        ASSERT_FALSE(unsaid.ok());
        EXPECT_HAS(unsaid.status().message(), "say which with --dtype");
        const Result<Tensor> other = read_tensor(path, DType::kFloat32);
        ASSERT_FALSE(other.ok());
        EXPECT_HAS(other.status().message(), std::string("2 bytes ('") + descr + "'), not f32");
    }
    const std::string bytes = folder.write(
        "y.npy", npy(1, "{'descr': '|u1', 'fortran_order': False, 'shape': (6,), }", "abcdef"));
    EXPECT_EQ(read_tensor(bytes, DType::kFloat8e4m3).value().dtype, DType::kFloat8e4m3);
}

TEST(TensorFile, RawFilesNeedATypeAndWholeElements) {
    const ScratchFolder folder;
    const std::string path = folder.write("x.bin", std::string(10, 'a'));
    EXPECT_EQ(read_tensor(path, DType::kFloat16).value().count, 5);
    EXPECT_HAS(error_of("aaaa", std::nullopt, "x.bin"), "must be said with --dtype (i8, u8");
    EXPECT_HAS(error_of("aaaaa", DType::kFloat32, "x.bin"), "5 bytes are no whole number of f32");
    // Files of other kinds, by how they begin or by their names.
    const std::string safetensors("\x10\0\0\0\0\0\0\0{", 9);
    const std::pair<std::string, std::string> kOthers[] = {
        {std::string("PK\3\4", 4), "a zip archive (torch.save, .npz)"},
        {safetensors + std::string(60, 'x'), "a safetensors file"},
        {std::string("\x80\x02\x8a\x0a", 4), "a file of torch.save"},
        {std::string("\x80\x04\x95\x01", 4), "a pickle"},
        {std::string("\x1f\x8b\x08\x00", 4), "a gzip file"},
        {std::string("\x28\xb5\x2f\xfd", 4), "a zstd file"}};
    for (const auto& [begin, what] : kOthers) {
        EXPECT_HAS(error_of(begin, DType::kFloat32, "x.bin"),
                   what + "; accepted: .npy (numpy.save of one tensor) or raw elements");
    }
    for (const char* name : {"x.csv", "x.json", "x.PT", "x.safetensors"}) {
        EXPECT_HAS(error_of("aaaa", DType::kFloat32, name), " file by its name; accepted: ");
    }
    EXPECT_HAS(read_tensor((folder.path() / "absent").string(), DType::kFloat32).status().message(),
               "No such file");
    EXPECT_HAS(read_tensor(folder.path().string(), DType::kFloat32).status().message(), "a folder");
}

TEST(TensorFile, ErrorsSayWhatIsWrong) {
    const std::string four(16, 'a');
    EXPECT_HAS(error_of("PK\x03\x04 no npy at all"), "does not start with its magic");
    EXPECT_HAS(error_of(std::string("\x93NUMPY\x01", 7)), "truncated: 7 bytes");
    EXPECT_HAS(error_of(std::string("\x93NUMPY\x02\x00\x10\x00", 10)), "truncated: 10 bytes");
    EXPECT_HAS(error_of(npy(1, kFour, four).substr(0, 30)), "truncated: a header of ");
    EXPECT_HAS(error_of(npy(1, kFour, std::string(15, 'a'))),
               "truncated: 15 bytes of elements, and its shape asks for 16");
    EXPECT_HAS(error_of(npy(1, kFour, std::string(17, 'a'))), "too long: 17 bytes");
    EXPECT_HAS(error_of(npy(4, kFour, four)), "version 4.0");
    EXPECT_HAS(error_of(npy(1, kFour, four), DType::kBfloat16), "holds f32, not bf16");
    const auto with = [&](const std::string& dictionary) {
        return error_of(npy(1, dictionary, four));
    };
    EXPECT_HAS(with("{'descr': '>f4', 'fortran_order': False, 'shape': (4,), }"), "big-endian");
    EXPECT_HAS(with("{'descr': '<c8', 'fortran_order': False, 'shape': (2,), }"), "type '<c8'");
    EXPECT_HAS(with("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (4,), }"),
               "a structured array");
    EXPECT_HAS(with("{'descr': '<f4', 'shape': (4,), }"), "no dictionary of");
    EXPECT_HAS(with("{'descr': '<f4', 'fortran_order': 0, 'shape': (4,), }"), "neither True nor");
    EXPECT_HAS(with("{'descr': '<f4', 'fortran_order': False, 'shape': (-4,), }"), "not a tuple");
    EXPECT_HAS(with("{'descr': '<f4', 'fortran_order': False, 'shape': (4"), "no dictionary of");
    EXPECT_HAS(with("{'descr': '<f4', 'fortran_order': False, 'shape': (4,), 'more': 1}"),
               "no dictionary of");
    EXPECT_HAS(with("{'descr': '<f4"), "no dictionary of");
    EXPECT_HAS(
        with("{'descr': '<f4', 'fortran_order': False, 'shape': (4294967296, 4294967296), }"),
        "more than 2^59");
    EXPECT_HAS(with("{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,), }"),
               "not a tuple");
}

TEST(Elements, RoundTripEveryPatternOfSmallTypes) {
    for (const DType dtype : {DType::kFloat8e4m3, DType::kFloat8e5m2, DType::kFloat16,
                              DType::kBfloat16, DType::kInt8, DType::kUint8}) {
        const size_t bytes = dtype_bytes(dtype);
        for (uint32_t bits = 0; bits < 1u << (8 * bytes); ++bits) {
            uint8_t from[4];
            uint8_t to[4] = {};
            std::memcpy(from, &bits, 4);
            const double x = element(dtype, from, 0);
            if (std::isfinite(x)) {
                put_element(dtype, to, 0, x);
                ASSERT_EQ(std::memcmp(from, to, bytes), 0) << dtype_name(dtype) << " " << bits;
            }
        }
    }
    const uint8_t e4m3[] = {0x38, 0x7E, 0x01, 0xC0};
    EXPECT_EQ(element(DType::kFloat8e4m3, e4m3, 0), 1);
    EXPECT_EQ(element(DType::kFloat8e4m3, e4m3, 1), 448);
    EXPECT_EQ(element(DType::kFloat8e4m3, e4m3, 2), std::ldexp(1, -9));
    EXPECT_EQ(element(DType::kFloat8e4m3, e4m3, 3), -2);
}

// Expected relations come from the descriptions in data_sets.h.
TEST(DataSets, AreWhatTheirNamesSay) {
    constexpr int64_t kCount = 1 << 20;
    std::vector<float> values(kCount);
    auto* const bytes = reinterpret_cast<uint8_t*>(values.data());
    ASSERT_TRUE(fill_data_set("gaussian", "", DType::kFloat32, kCount, bytes).ok());
    double sum = 0, squares = 0, fourth = 0;
    int64_t beyond = 0;
    for (const double x : values) {
        sum += x;
        squares += x * x;
        fourth += x * x * x * x;
        beyond += std::fabs(x) > 3 ? 1 : 0;
    }
    EXPECT_NEAR(sum / kCount, 0, 0.005);
    EXPECT_NEAR(squares / kCount, 1, 0.01);
    EXPECT_NEAR(fourth / kCount, 3, 0.06);
    EXPECT_NEAR(static_cast<double>(beyond) / kCount, 0.0027, 0.0003);
    ASSERT_TRUE(fill_data_set("zeros90", "", DType::kFloat32, kCount, bytes).ok());
    EXPECT_NEAR(static_cast<double>(std::count(values.begin(), values.end(), 0.0f)) / kCount, 0.9,
                0.02);
    ASSERT_TRUE(fill_data_set("synth", "", DType::kFloat32, kCount, bytes).ok());
    for (int64_t layer = 0; layer < 4; ++layer) {
        double power = 0;
        for (int64_t i = layer << 18; i < (layer + 1) << 18; ++i) {
            power += static_cast<double>(values[static_cast<size_t>(i)]) *
                     values[static_cast<size_t>(i)];
        }
        EXPECT_GT(std::sqrt(power / (1 << 18)), 0.5e-6);
        EXPECT_LT(std::sqrt(power / (1 << 18)), 3e-2);
    }
    ASSERT_TRUE(fill_data_set("random", "", DType::kFloat32, kCount, bytes).ok());
    int64_t ones = 0;
    for (int64_t i = 0; i < 4 * kCount; ++i) {
        ones += std::popcount(bytes[i]);
    }
    EXPECT_NEAR(static_cast<double>(ones) / (32.0 * kCount), 0.5, 0.001);
}

// Figures of different machines are compared by these; a change of the generator must be seen.
TEST(DataSets, HaveTheSameBitsEverywhere) {
    const struct {
        const char* name;
        const char* hash;
    } expected[] = {{"gaussian", "59a4bd961ebd0a8b"},
                    {"synth", "2453fc49bfa21597"},
                    {"zeros90", "abbbde7a5913f150"},
                    {"random", "45f3ed3b2c81e797"}};
    for (const auto& one : expected) {
        std::vector<uint8_t> bytes(200'000);
        ASSERT_TRUE(fill_data_set(one.name, "", DType::kBfloat16, 100'000, bytes.data()).ok());
        EXPECT_EQ(data_hash(bytes.data(), 200'000), one.hash) << one.name;
    }
}

TEST(DataSets, FilesRepeatAndTheirAbsenceSaysWhoMakesThem) {
    const ScratchFolder folder;
    std::vector<float> values(10);
    auto* const bytes = reinterpret_cast<uint8_t*>(values.data());
    EXPECT_HAS(fill_data_set("bucket", folder.path(), DType::kFloat32, 10, bytes).message(),
               "tests/bench/make_data makes it");
    (void)folder.write("weights.npy", npy(1, kFour, raw(std::vector<float>{1, 2, 3, 4})));
    ASSERT_TRUE(fill_data_set("weights", folder.path(), DType::kFloat32, 10, bytes).ok());
    EXPECT_EQ(values, (std::vector<float>{1, 2, 3, 4, 1, 2, 3, 4, 1, 2}));
}

}  // namespace
}  // namespace slimwire::cli::test
