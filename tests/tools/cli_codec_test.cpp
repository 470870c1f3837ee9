// `slimwire codec` and `slimwire bench codec`, run as a user runs them, and their parts: tensor
// files, data sets, compressors.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "codecs/codec.h"
#include "tests/tools/cli_program.h"
#include "tools/cli/bench_codec.h"
#include "tools/cli/codec_trial.h"
#include "tools/cli/compressors.h"
#include "tools/cli/data_sets.h"
#include "tools/cli/elements.h"
#include "tools/cli/tensor_file.h"

namespace slimwire::cli::test {
namespace {

using Json = nlohmann::json;

std::string npy(int version, const std::string& dictionary, const std::string& data) {
    std::string file("\x93NUMPY", 6);
    file += static_cast<char>(version);
    file += '\0';
    const size_t length_bytes = version == 1 ? 2 : 4;
    for (size_t i = 0; i < length_bytes; ++i) {
        file += static_cast<char>(dictionary.size() >> (8 * i));
    }
    return file + dictionary + data;
}

template <class T>
std::string raw(const std::vector<T>& values) {
    return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

// The error of reading a file of this content.
std::string error_of(const std::string& content,
                     std::optional<DType> dtype = std::nullopt,
                     const std::string& name = "x.npy") {
    const ScratchFolder folder;
    const Result<Tensor> tensor = read_tensor(folder.write(name, content), dtype);
    return tensor.ok() ? "" : tensor.status().message();
}

constexpr char kFour[] = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 2), }";

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
        EXPECT_FALSE(read_tensor(path, DType::kFloat32).ok());
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
    EXPECT_HAS(with("{'descr': '<f4', 'shape': (4,), }"), "is missing");
    EXPECT_HAS(with("{'descr': '<f4', 'fortran_order': 0, 'shape': (4,), }"), "neither True nor");
    EXPECT_HAS(with("{'descr': '<f4', 'fortran_order': False, 'shape': (-4,), }"), "not a tuple");
    EXPECT_HAS(with("{'descr': '<f4', 'fortran_order': False, 'shape': (4"), "not a tuple");
    EXPECT_HAS(with("{'descr': '<f4', 'fortran_order': False, 'shape': (4,), 'more': 1}"),
               "'more'");
    EXPECT_HAS(with("{'descr': '<f4"), "a string without an end");
    EXPECT_HAS(
        with("{'descr': '<f4', 'fortran_order': False, 'shape': (4294967296, 4294967296), }"),
        "more than 2^59");
    EXPECT_HAS(with("{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,), }"),
               "beyond 64 bits");
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
    EXPECT_HAS(fill_data_set("gauss", "", DType::kFloat32, 1, bytes).message(),
               "accepted: gaussian");
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

TEST(Compressors, GiveTheirInputBack) {
    std::vector<std::string> absent;
    const auto compressors = find_compressors(&absent);
    EXPECT_EQ(compressors.size() + absent.size(), 4u);
    if (compressors.empty()) {
        GTEST_SKIP() << absent[0];
    }
    constexpr int64_t kBytes = (3 << 20) + 10;  // four pieces, the last one short
    std::vector<uint8_t> input(kBytes);
    ASSERT_TRUE(fill_data_set("zeros90", "", DType::kBfloat16, kBytes / 2, input.data()).ok());
    for (const auto& compressor : compressors) {
        std::vector<uint8_t> encoded(static_cast<size_t>(compressor->bound(kBytes)));
        std::vector<uint8_t> output(kBytes);
        const int64_t size = compressor->compress(input.data(), kBytes, 2, encoded.data());
        EXPECT_GT(size, 0) << compressor->name();
        EXPECT_LT(size, kBytes / 2) << compressor->name();
        EXPECT_TRUE(compressor->expand(encoded.data(), size, kBytes, 2, output.data()));
        EXPECT_EQ(input, output) << compressor->name();
        EXPECT_FALSE(compressor->expand(encoded.data(), size / 2, kBytes, 2, output.data()));
    }
}

TEST(CodecTrial, ReducedErrorIsThatOfTheMean) {
    const CodecSpec spec = parse_codec("bf16").value();
    std::vector<float> input(1000);
    for (size_t i = 0; i < input.size(); ++i) {
        input[i] = static_cast<float>(i % 64);  // exact in bf16, as are encodings of them
    }
    CodecTrial trial(spec, DType::kFloat32, 1000, reinterpret_cast<uint8_t*>(input.data()), 4);
    trial.encode();
    trial.decode(false);
    EXPECT_EQ(trial.error(), 0);
    EXPECT_TRUE(trial.exact());
    trial.decode_reduce_encode();
    EXPECT_LT(trial.reduced_error(), 0.004);  // quarters of sums below 256, rounded to 8 bits
    trial.decode(false);
    EXPECT_GT(trial.summed_error(), 0.1);  // of the input alone
    trial.decode_reduce();
    EXPECT_EQ(trial.summed_error(), 0);  // the quarters themselves
}

TEST(Codec, ReportsSizeErrorAndSpeed) {
    const ScratchFolder folder;
    std::vector<float> values(6400);
    for (size_t i = 0; i < values.size(); ++i) {
        values[i] = std::sin(static_cast<float>(i));
    }
    const std::string path = folder.write("x.bin", raw(values));
    const Ended ended =
        run_slimwire({"codec", path, "--codec", "int8", "--dtype", "f32", "--json"});
    ASSERT_EQ(ended.exit_code, 0) << ended.err;
    const Json json = Json::parse(ended.out);
    EXPECT_EQ(json["record"], "codec");
    EXPECT_EQ(json["codec"], "int8");
    EXPECT_EQ(json["shape"], Json::array({6400}));
    EXPECT_EQ(json["bytes"], 25600);
    EXPECT_EQ(json["encoded_bytes"], 6600);
    EXPECT_NEAR(json["bits_per_element"].get<double>(), 8.25, 1e-9);
    EXPECT_GT(json["rel_error"].get<double>(), 1e-4);
    EXPECT_LT(json["rel_error"].get<double>(), 0.01);
    EXPECT_LT(json["max_error"].get<double>(), 0.005);
    EXPECT_FALSE(json["exact"].get<bool>());
    for (const char* member : {"encode_gbps", "decode_gbps", "memcpy_gbps"}) {
        EXPECT_GT(json[member].get<double>(), 0) << member;
    }
    const Ended text = run_slimwire({"codec", path, "--codec", "int8", "--dtype", "f32"});
    EXPECT_HAS(text.out, "int8: 6600 bytes, ratio 3.879, 8.250 bits per element");
    EXPECT_HAS(text.out, "relative L2");
}

TEST(Codec, ExactEmptyAndRefusedTensors) {
    const ScratchFolder folder;
    const std::string whole =
        folder.write("x.npy", npy(1, kFour, raw(std::vector<float>{1, 2, 3, 4})));
    EXPECT_HAS(run_slimwire({"codec", whole, "--codec", "bf16"}).out, "every bit came back");
    const std::string empty = folder.write(
        "empty.npy", npy(1, "{'descr': '<f4', 'fortran_order': False, 'shape': (0,), }", ""));
    EXPECT_EQ(run_slimwire({"codec", empty, "--codec", "int4"}).exit_code, 0);
    const std::string integers = folder.write(
        "i.npy", npy(1, "{'descr': '<i4', 'fortran_order': False, 'shape': (1,), }", "abcd"));
    const Ended refused = run_slimwire({"codec", integers, "--codec", "int4"});
    EXPECT_EQ(refused.exit_code, 1);
    EXPECT_HAS(refused.err, "i32 elements, and codec int4 takes ");
    const Ended unknown = run_slimwire({"codec", whole, "--codec", "int5"});
    EXPECT_EQ(unknown.exit_code, 2);
    EXPECT_HAS(unknown.err, "int5");
    EXPECT_EQ(run_slimwire({"codec", whole, "--codec", "int4", "--dtype", "f31"}).exit_code, 2);
    EXPECT_EQ(run_slimwire({"codec", "absent.npy", "--codec", "int4"}).exit_code, 1);
}

TEST(BenchCodec, LinesCarryTheContract) {
    const Ended ended =
        run_slimwire({"bench", "codec", "--codec", "int8", "--codec", "bf16", "--dtype", "f32",
                      "--data", "gaussian", "--bytes", "64KiB", "--rounds", "1", "--json"});
    ASSERT_EQ(ended.exit_code, 0) << ended.err;
    std::map<std::string, int> ops;
    for (const std::string& text : lines_of(ended.out)) {
        const Json line = Json::parse(text);
        EXPECT_EQ(line["v"], 1);
        EXPECT_EQ(line["record"], "bench_codec");
        EXPECT_EQ(line["device"], "host");
        EXPECT_EQ(line["dtype"], "f32");
        EXPECT_EQ(line["data"], "gaussian");
        EXPECT_EQ(line["bytes"], 65536);
        EXPECT_EQ(line["baseline"], "memcpy");
        EXPECT_EQ(line["hash"].get<std::string>().size(), 16u);
        EXPECT_NEAR(line["fraction"].get<double>(),
                    line["gbps"].get<double>() / line["baseline_gbps"].get<double>(),
                    0.05 * line["fraction"].get<double>() + 0.001);  // it has three decimals
        const bool int8 = line["codec"] == "int8";
        EXPECT_NEAR(line["ratio"].get<double>(), int8 ? 3.879 : 2.0, 0.001);
        const std::string op = line["op"];
        ops[op] += 1;
        if (op.starts_with("decode_reduce")) {
            EXPECT_EQ(line["inputs"], 8);
        }
        EXPECT_GT(line["rel_error"].get<double>(), 1e-4);
        EXPECT_LT(line["rel_error"].get<double>(), 0.02);
    }
    EXPECT_EQ(ops, (std::map<std::string, int>{{"encode", 2},
                                               {"encode_residual", 2},
                                               {"decode", 2},
                                               {"decode_accumulate", 2},
                                               {"decode_reduce_encode", 2},
                                               {"decode_reduce", 2}}));
}

// A variant that no longer parses would silently leave the table.
TEST(BenchCodec, ThePromisedVariantsAreMeasured) {
    std::vector<std::string> names;
    for (const CodecSpec& spec : codec_bench_specs()) {
        names.push_back(spec.to_string());
    }
    size_t codecs = 0;
    (void)codec_table(&codecs);
    EXPECT_EQ(names.size(), codecs + 3);
    for (const char* name :
         {"int4", "int4:rounding=stochastic", "int4:rotate=64", "threshold:threshold=2.576"}) {
        EXPECT_EQ(std::count(names.begin(), names.end(), name), 1) << name;
    }
}

TEST(BenchCodec, LosslessOnRandomBitsHasNoError) {
    const Ended ended =
        run_slimwire({"bench", "codec", "--codec", "palette", "--op", "encode", "--data", "random",
                      "--bytes", "64KiB", "--rounds", "1", "--json"});
    ASSERT_EQ(ended.exit_code, 0) << ended.err;
    const Json line = Json::parse(ended.out);
    EXPECT_EQ(line["rel_error"], 0.0);
    EXPECT_NEAR(line["ratio"].get<double>(), 1.0, 0.002);
}

TEST(BenchCodec, RefusesWhatItCannotMeasure) {
    const auto run = [](std::vector<std::string> more) {
        std::vector<std::string> arguments = {"bench", "codec", "--bytes", "1KiB", "--rounds", "1"};
        arguments.insert(arguments.end(), more.begin(), more.end());
        return run_slimwire(arguments);
    };
    EXPECT_HAS(run({"--codec", "int4:blok=3"}).err, "blok");
    EXPECT_HAS(run({"--op", "encode,decoed"}).err, "unknown 'decoed'");
    EXPECT_HAS(run({"--data", "noise"}).err, "unknown 'noise'");
    EXPECT_HAS(run({"--dtype", "f33"}).err, "unknown 'f33'");
    EXPECT_HAS(run({"--dtype", "i64", "--codec", "int4"}).err, "none of the codecs takes it");
    EXPECT_HAS(run({"--isa", "mmx"}).err, "mmx");
    const ScratchFolder folder;
    const Ended absent = run({"--data", "bucket", "--data-folder", folder.path().string()});
    EXPECT_EQ(absent.exit_code, 1);
    EXPECT_HAS(absent.err, "tests/bench/make_data makes it");
}

// Without a device: a clear line and no success. With one, lines of it.
TEST(BenchCodec, SaysWhenThereIsNoDevice) {
    const Ended ended = run_slimwire({"bench", "codec", "--device", "cuda", "--codec", "int8",
                                      "--bytes", "1MiB", "--rounds", "1", "--json"});
    if (ended.exit_code == 0) {
        EXPECT_HAS(ended.out, "\"device\":\"cuda\"");
        return;
    }
    EXPECT_EQ(ended.exit_code, 1);
    EXPECT_HAS(ended.err, "nothing measured: ");
}

}  // namespace
}  // namespace slimwire::cli::test
