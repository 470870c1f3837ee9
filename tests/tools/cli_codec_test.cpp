// `slimwire codec` and `slimwire bench codec`, run as a user runs them. What they read:
// cli_codec_data_test.cpp.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "codecs/codec.h"
#include "tests/tools/cli_program.h"
#include "tests/tools/npy_file.h"
#include "tools/cli/bench/bench_codec.h"
#include "tools/cli/codec/codec_trial.h"
#include "tools/cli/codec/tensor_file.h"

namespace slimwire::cli::test {
namespace {

using Json = nlohmann::json;

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
    const std::vector<std::string> words = {"codec", path, "--codec", "int8", "--dtype", "f32"};
    const Json json = record_of(words);
    expect_members(json, {{"record", "codec"},
                          {"codec", "int8"},
                          {"shape", {6400}},
                          {"bytes", 25600},
                          {"encoded_bytes", 6600},
                          {"bits_per_element", 8.25},
                          {"exact", false}});
    EXPECT_GT(json["rel_error"].get<double>(), 1e-4);
    EXPECT_LT(json["rel_error"].get<double>(), 0.01);
    EXPECT_LT(json["max_error"].get<double>(), 0.005);
    for (const char* member : {"encode_gbps", "decode_gbps", "memcpy_gbps"}) {
        EXPECT_GT(json[member].get<double>(), 0) << member;
    }
    expect_prints(words, {"int8: 6600 bytes, ratio 3.879, 8.250 bits per element", "relative L2"});
}

TEST(Codec, ExactEmptyAndRefusedTensors) {
    const ScratchFolder folder;
    const std::string whole =
        folder.write("x.npy", npy(1, kFour, raw(std::vector<float>{1, 2, 3, 4})));
    expect_prints({"codec", whole, "--codec", "bf16"}, {"every bit came back"});
    const std::string empty = folder.write(
        "empty.npy", npy(1, "{'descr': '<f4', 'fortran_order': False, 'shape': (0,), }", ""));
    succeed({"codec", empty, "--codec", "int4"});
    const std::string integers = folder.write(
        "i.npy", npy(1, "{'descr': '<i4', 'fortran_order': False, 'shape': (1,), }", "abcd"));
    expect_says(1, {"codec", integers, "--codec", "int4"}, {"i32 elements, and codec int4 takes "});
    expect_says(2, {"codec", whole, "--codec", "int5"}, {"int5"});
    expect_says(2, {"codec", whole, "--codec", "int4", "--dtype", "f31"}, {"f31"});
    expect_says(1, {"codec", "absent.npy", "--codec", "int4"}, {"absent.npy"});
}

TEST(Codec, CountsWhatIsNotFinite) {
    const ScratchFolder folder;
    std::vector<float> values(6400, 0.75f);
    values[0] = 0.5f;
    values[7] = NAN;
    values[6399] = -INFINITY;
    const std::string path = folder.write("x.raw", raw(values));
    const std::vector<std::string> command = {"codec", path, "--codec", "int8", "--dtype", "f32"};
    const Json json = record_of(command);
    EXPECT_EQ(json["nonfinite"], 2);
    EXPECT_LT(json["rel_error"].get<double>(), 0.01);
    EXPECT_LT(json["max_error"].get<double>(), 0.01);
    expect_prints(command, {"relative L2",
                            fmt::format("not in the error: 2 of 6400 elements are NaN or infinite, "
                                        "{} became so",
                                        json["spoiled"].get<int>())});
}

TEST(BenchCodec, LinesCarryTheContract) {
    std::map<std::string, int> ops;
    for (const Json& line :
         records_of({"bench", "codec", "--codec", "int8", "--codec", "bf16", "--dtype", "f32",
                     "--data", "gaussian", "--bytes", "64KiB", "--rounds", "1"})) {
        expect_members(line, {{"v", 1},
                              {"record", "bench_codec"},
                              {"device", "host"},
                              {"dtype", "f32"},
                              {"data", "gaussian"},
                              {"bytes", 65536},
                              {"baseline", "memcpy"}});
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

TEST(BenchCodec, TheTableHasEveryCodecOnEveryDataSet) {
    const std::vector<std::string> words = {
        "bench",   "codec", "--table", "--data", "gaussian,zeros90",
        "--dtype", "f32",   "--bytes", "256KiB"};
    std::map<std::pair<std::string, std::string>, Json> cells;
    for (const Json& line : records_of(words)) {
        EXPECT_EQ(line["record"], "bench_codec_table");
        EXPECT_NEAR(line["bits"].get<double>() * line["ratio"].get<double>(), 32, 0.1);
        cells[{line["codec"], line["data"]}] = line;
    }
    EXPECT_EQ(cells.size(), codec_bench_specs().size() * 2);
    const auto number = [&](const char* codec, const char* data, const char* key) {
        return cells[{codec, data}][key].get<double>();
    };
    EXPECT_NEAR(number("int8", "gaussian", "bits"), 8.25, 0.001);
    EXPECT_NEAR(number("int8", "gaussian", "rel_error"), 0.0059, 0.0003);
    EXPECT_NEAR(number("int4", "gaussian", "rel_error"), 0.107, 0.005);
    EXPECT_EQ(number("palette", "zeros90", "rel_error"), 0);
    EXPECT_GT(number("palette", "zeros90", "ratio"), 1.5);

    const std::vector<std::string> lines = lines_of(succeed(with(words, {"--codec", "int8"})).out);
    ASSERT_EQ(lines.size(), 2u);
    EXPECT_HAS(lines[0], "gaussian");
    EXPECT_TRUE(lines[1].starts_with("int8 ")) << lines[1];
    EXPECT_HAS(lines[1], "3.879  0.0059");
}

// A variant that no longer parses would silently leave the table.
TEST(BenchCodec, ThePromisedVariantsAreMeasured) {
    std::vector<std::string> names;
    for (const CodecSpec& spec : codec_bench_specs()) {
        names.push_back(spec.to_string());
    }
    size_t codecs = 0;
    (void)codec_table(&codecs);
    EXPECT_EQ(names.size(), codecs + 4);
    for (const char* name :
         {"int4", "int4:rounding=stochastic", "int4:rotate=64", "threshold:threshold=2.576"}) {
        EXPECT_EQ(std::count(names.begin(), names.end(), name), 1) << name;
    }
}

TEST(BenchCodec, LosslessOnRandomBitsHasNoError) {
    const Json line = record_of({"bench", "codec", "--codec", "palette", "--op", "encode", "--data",
                                 "random", "--bytes", "64KiB", "--rounds", "1"});
    EXPECT_EQ(line["rel_error"], 0.0);
    EXPECT_NEAR(line["ratio"].get<double>(), 1.0, 0.002);
}

TEST(BenchCodec, RefusesWhatItCannotMeasure) {
    const std::vector<std::string> words = {"bench", "codec", "--bytes", "1KiB", "--rounds", "1"};
    const ScratchFolder folder;
    const std::pair<std::vector<std::string>, const char*> kWrong[] = {
        {{"--codec", "int4:blok=3"}, "blok"},
        {{"--op", "encode,decoed"}, "unknown 'decoed'"},
        {{"--data", "noise"}, "unknown 'noise'"},
        {{"--dtype", "f33"}, "unknown 'f33'"},
        {{"--dtype", "i64", "--codec", "int4"}, "none of the codecs takes it"},
        {{"--isa", "mmx"}, "mmx"},
        {{"--table", "--device", "cuda"}, "goes without --device cuda"}};
    for (const auto& [more, why] : kWrong) {
        expect_says(2, with(words, more), {why});
    }
    expect_says(1, with(words, {"--data", "bucket", "--data-folder", folder.path()}),
                {"tests/bench/make_data makes it"});
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
