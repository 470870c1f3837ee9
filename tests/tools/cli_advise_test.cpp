// `slimwire advise`: its figures against the model's formulas, the policy it writes, errors.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/tools/cli_program.h"

namespace slimwire::cli::test {
namespace {

using Json = nlohmann::json;

Ended advise(const std::vector<std::string>& arguments) {
    return run_slimwire(with({"advise"}, arguments));
}

Json advised(const std::vector<std::string>& arguments) {
    return record_of(with({"advise"}, arguments));
}

// Arguments that cannot be.
void expect_error(const std::vector<std::string>& arguments, const std::string& why) {
    expect_says(2, with({"advise"}, arguments), {why});
}

// 24 layers of 1024 and 1 MB of embedding, on 16 H100s of 2 nodes.
const std::vector<std::string> kJob = {
    "--layers", "24",   "--hidden", "1024", "--vocabulary", "1024", "--micro-batches", "1",
    "--dp",     "16",   "--gpu",    "h100", "--between",    "10",   "--within",        "400",
    "--codec",  "int8", "--codec",  "int4", "--overlap",    "0"};

TEST(Advise, WhatLosesUnderAdamIsProposedForSgdAlone) {
    const auto codecs = [](const std::vector<std::string>& more) {
        std::string names;
        const Json json = advised(with({kJob.begin(), kJob.begin() + 14}, more));
        for (const Json& candidate : json["candidates"]) {
            names += candidate["codec"].get<std::string>() + " ";
        }
        return names;
    };
    EXPECT_EQ(codecs({}), codecs({"--optimizer", "adam"}));
    EXPECT_HAS_NOT(codecs({}), "int2");
    EXPECT_HAS(codecs({"--optimizer", "sgd"}), "int2");
    for (const char* loses : {"int2:block=512", "topk:fraction=0.01", "sign"}) {
        EXPECT_HAS(advise({"--codec", loses}).err, "not under Adam");
        EXPECT_EQ(advise({"--codec", loses, "--optimizer", "sgd"}).err, "");
    }
    for (const char* keeps : {"int8", "int4", "nvfp4"}) {
        EXPECT_EQ(advise({"--codec", keeps}).err, "") << keeps;
    }
}

TEST(Advise, StepsAreThoseOfTheFormulas) {
    const Json json = advised(kJob);
    const double parameters = 12.0 * 24 * 1024 * 1024 + 1024.0 * 1024;
    EXPECT_DOUBLE_EQ(json["parameters"], parameters);
    // 24 layers' operations at 40 % of 989 TFLOP/s.
    const double operations = 96.0 * 8 * 1024 * 1024 * 1024 + 16.0 * 8 * 1024 * 1024 * 1024;
    EXPECT_NEAR(json["native"]["compute_s"], 24 * operations / (0.4 * 989e12), 1e-9);
    // Within nodes 2 x 7/8, between two nodes an eighth; 14 steps of 3 us and 2 of 12 us.
    const double bytes = 2 * parameters;
    EXPECT_NEAR(json["native"]["gradient_s"],
                bytes * 1.75 / 400e9 + 14 * 3e-6 + bytes / 8 / 1.25e9 + 24e-6, 1e-9);
    ASSERT_EQ(json["candidates"].size(), 2u);
    const double int8 = json["candidates"][0]["step"]["gradient_s"];
    const double int4 = json["candidates"][1]["step"]["gradient_s"];
    EXPECT_LT(int4, int8);
    EXPECT_LT(int8, json["native"]["gradient_s"]);
    EXPECT_GT(int8, bytes / 8 / 1.25e9 / 2) << "no faster than its bytes";
    // More GPUs and faster networks: all 12 sizes, all 10 rates; the gain falls as networks get
    // faster.
    EXPECT_EQ(json["by_gpus"].size(), 12u);
    EXPECT_EQ(json["by_gpus"].back()["x"], 16384);
    ASSERT_EQ(json["by_bandwidth"].size(), 10u);
    double before = 100;
    for (const Json& point : json["by_bandwidth"]) {
        const double gain = point["native_s"].get<double>() / point["with_s"][1].get<double>();
        EXPECT_LE(gain, before * 1.0001);
        before = gain;
    }
    EXPECT_EQ(json["advised"], 1);
    // The job's own point is in both tables' columns.
    EXPECT_NEAR(json["by_gpus"][1]["native_s"], json["native"]["total_s"], 1e-12);
}

TEST(Advise, WritesAPolicyThatSlimwireTakes) {
    const ScratchFolder folder;
    const std::string policy = folder.file("advised.toml");
    // In the unit of --between and of the tables, which is eight times as many.
    expect_prints(with(with({"advise"}, kJob), {"--policy", policy}),
                  {"advice    int4 on the gradients: step ", "gradients int8 ",
                   " Gbit/s for each GPU and from ", " Gbit/s\ngradients int4 "});
    expect_prints({"policy", "check", policy},
                  {"op allreduce, reducescatter; dtype bf16", "scope inter_node",
                   "codec int4, error_feedback ef14"});
}

TEST(Advise, AWrittenPolicyOfTheUsersStays) {
    const ScratchFolder folder;
    const std::string text = "version = 1\n# tuned for weeks\n";
    const std::string policy = folder.write("mine.toml", text);
    const std::vector<std::string> job = with(kJob, {"--policy", policy});
    expect_says(2, with({"advise"}, job),
                {"mine.toml was not written by advise", "accepted: a new file"});
    EXPECT_EQ(read_file(policy), text);
    // Its own, and a file that is empty, it writes anew; nothing stays beside.
    for (const char* before : {"", "# Written by slimwire advise for another job\n"}) {
        folder.write("mine.toml", before);
        succeed(with({"advise"}, job));
        EXPECT_HAS(read_file(policy), "codec = \"int4\"");
    }
    EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1);
}

TEST(Advise, NothingToGainIsNative) {
    const ScratchFolder folder;
    const std::vector<std::string> job = {"--layers", "24", "--hidden", "1024", "--dp", "8"};
    const Ended ended =
        succeed(with(with({"advise"}, job), {"--policy", folder.file("advised.toml")}));
    EXPECT_HAS(ended.out, "advice    stay native: no codec on the gradients saves 5 % of the step");
    EXPECT_HAS(ended.err, "no policy written: native is advised");
    EXPECT_EQ(advised(job)["advised"], -1);
}

TEST(Advise, BandwidthsOfARecordedMachine) {
    const Json json =
        advised({"--dp", "16", "--xml", std::string(TOPOLOGY_DATA) + "/nvswitch_8gpu_8nic.xml"});
    EXPECT_DOUBLE_EQ(json["within_gb_s"], 370.8);
    EXPECT_DOUBLE_EQ(json["between_gbit_s"], 384);
    EXPECT_EQ(json["gpus_per_node"], 8);
    // Two GPUs share a NIC behind 12 GB/s.
    const Json shared =
        advised({"--dp", "16", "--xml", std::string(TOPOLOGY_DATA) + "/switches_2gpu_1nic.xml",
                 "--within", "10"});
    EXPECT_DOUBLE_EQ(shared["between_gbit_s"], 48);
    EXPECT_DOUBLE_EQ(shared["within_gb_s"], 10);
    // Without the wires of NICs, and without a NIC.
    const ScratchFolder folder;
    const std::string no_nic = folder.write(
        "no_nic.xml",
        "<system version=\"1\"><cpu numaid=\"0\"><pci busid=\"01:00.0\" class=\"0x030200\"/></cpu>"
        "</system>");
    EXPECT_HAS(advise({"--within", "10", "--xml", no_nic}).err,
               ", taken for 400 Gbit/s; --between");
    const std::string no_wire = std::string(TOPOLOGY_DATA) + "/switches_2gpu_1nic.xml";
    EXPECT_HAS(
        advise({"--within", "10", "--xml", no_wire}).err,
        "does not tell what the network brings, taken for what PCIe does; --between says it");
    EXPECT_EQ(advise({"--within", "10", "--between", "100", "--xml", no_wire}).err, "");
}

TEST(Advise, StagesAndTensorGroupsAreCandidates) {
    const Json json = advised({"--tp", "4", "--pp", "2", "--dp", "2", "--codec", "int8"});
    ASSERT_EQ(json["candidates"].size(), 3u);
    EXPECT_EQ(json["candidates"][1]["traffic"], "stages");
    EXPECT_EQ(json["candidates"][2]["traffic"], "tensor sums");
    EXPECT_LT(json["candidates"][1]["step"]["boundary_s"], json["native"]["boundary_s"]);
    EXPECT_EQ(json["by_gpus"].size(), 12u) << "8 GPUs hold one replica";
}

// The speed of a rank's part of a layer, and a calibration instead of data sheets.
TEST(Advise, MeasuredLayersLinkAndCodecs) {
    const ScratchFolder folder;
    // Four ranks share a layer: each takes 1 ps for an operation of the whole, and 3 ms to launch.
    std::string layers;
    for (const double hidden : {64, 128, 256}) {
        const double operations = 96 * 2 * 32 * hidden * hidden + 16 * 2 * 32 * 32 * hidden;
        layers += Json{{"batch", 2},
                       {"sequence", 32},
                       {"hidden", hidden},
                       {"seconds", 3e-3 + 1e-12 * operations}}
                      .dump() +
                  "\n";
    }
    const std::string times = folder.write("layers.jsonl", layers);
    const auto calibration_of = [&](const char* dtype) {
        return folder.write(
            "calibration.jsonl",
            calibration_line(dtype, 4,
                             {calibrated_way("native", "native", 60, 1.5, 1 << 24),
                              calibrated_way("int8", "two_shot", 90, 0.4, 1 << 24)}));
    };
    const std::vector<std::string> job = {
        "--tp", "4", "--layer-times", times, "--calibration", calibration_of("bf16")};
    const Json json = advised(job);
    EXPECT_NEAR(json["gpu_flops"].get<double>(), 1e12 / 4, 1e3);
    EXPECT_NEAR(json["layer_s"].get<double>(), 3e-3, 1e-9);
    EXPECT_LT(json["layers_fit"]["worst_error"].get<double>(), 1e-6);
    EXPECT_GT(json["native"]["compute_s"].get<double>(), 24 * 8 * 3e-3);
    EXPECT_EQ(json["calibrated"], true);
    EXPECT_NEAR(json["within_gb_s"].get<double>(), 1, 0.01);
    EXPECT_EQ(json["gpus_per_node"], 4);
    EXPECT_EQ(json["codecs"], Json::array({"int8"}));
    ASSERT_EQ(json["candidates"].size(), 1u);
    EXPECT_GT(json["candidates"][0]["speedup"].get<double>(), 1);

    const std::string wrong = folder.write("wrong.jsonl", layers + "{\"batch\":0}\n");
    expect_error({"--layer-times", wrong},
                 "wrong.jsonl:4: accepted: batch, sequence, hidden and seconds");
    expect_error(with(job, {"--codec", "int4"}), "has no all-reduces by int4");
    expect_error({"--calibration", calibration_of("f32")}, "has no all-reduces of bf16");
    expect_error({"--calibration", times, "--trace", "x"}, "--trace");
}

TEST(Advise, WhatCannotBeIsOneLine) {
    using Words = std::vector<std::string>;
    const std::pair<Words, const char*> kWrong[] = {
        {{"--gpu", "abacus"},
         "--gpu abacus; accepted: v100 a100 h100 h200 b200 l40s a10g mi300x\n"},
        {{"--gradients", "i8"}, "--gradients: 'i8': accepted: f32, bf16\n"},
        {{"--codec", "int5"}, "int5"},
        {{"--codec", "lowrank:rank=4"}, "lowrank"},
        {{"--xml", "/nowhere.xml"}, "/nowhere.xml cannot be read"},
        {{"--dp", "0"}, "--dp"},
        {{"--tp", "1048576", "--dp", "1048576"},
         "--tp 1048576 x --pp 1 x --dp 1048576; accepted: at most 1048576 GPUs\n"},
        {{"--utilization", "5"}, "'5': accepted: a number from 0.001 to 1"},
        {{"--overlap", "nan"}, "--overlap: 'nan': accepted: a number from 0 to 1"}};
    for (const auto& [arguments, why] : kWrong) {
        expect_error(arguments, why);
    }
    EXPECT_HAS(advise({"--gradients", "FP32"}).out, "gradients f32");
    // Neither those that a policy would not take, nor one that leaves all-reduces native.
    for (const std::string codec : {"topk:pair=mask", "palette:slot=0.5", "int8:row=64"}) {
        expect_error({"--codec", codec, "--optimizer", "sgd"},
                     "--codec " + codec + ": gradients do not go by it: ");
    }
    for (const std::string value : {"-1", "0", "nan", "inf", "many"}) {
        for (const std::string name : {"--layers", "--hidden", "--between"}) {
            expect_error({name, value},
                         name + ": '" + value + "': accepted: a finite number above 0\n");
        }
    }
}

// Four ranks whose sums of 4 MB took 53.7 ms, as a link of 1 Gbit/s makes them; small ones and a
// broadcast beside.
std::string trace_of(int rank) {
    std::string text =
        record_line("trace",
                    {{"part", 1}, {"mode", "record"}, {"host", "h"}, {"pid", 100 + rank}}) +
        record_line("trace_comm", {{"comm", "c"}, {"rank", rank}, {"ranks", 4}});
    int number = 0;
    const auto call = [&](const std::string& op, const char* redop, int count, double device_us) {
        ++number;
        text += record_line("call", {{"call", number},
                                     {"comm", "c"},
                                     {"op", op},
                                     {"dtype", "f32"},
                                     {"redop", redop},
                                     {"count", count},
                                     {"bytes", 4 * count},
                                     {"tensor", op + std::to_string(count)},
                                     {"host_us", 5},
                                     {"at_us", 100000 * number}}) +
                record_line("time", {{"call", number}, {"device_us", device_us}});
    };
    for (int step = 0; step < 5; ++step) {
        call("allreduce", "sum", 1 << 20, 50331.6 + 6 * 12);
        call("allreduce", "sum", 16, 80);
    }
    call("broadcast", "none", 1 << 20, 40000);
    return text;
}

// With every `from` become `to`.
std::string replaced(std::string text, const std::string& from, const std::string& to) {
    for (size_t at = text.find(from); at != text.npos; at = text.find(from, at + to.size())) {
        text.replace(at, from.size(), to);
    }
    return text;
}

TEST(Advise, ARecordedJob) {
    const ScratchFolder folder;
    std::vector<std::string> arguments = {
        "--gpu",   "h100", "--codec",  "int8",
        "--codec", "int4", "--policy", folder.path() / "advised.toml",
        "--trace"};
    for (int rank = 0; rank < 4; ++rank) {
        arguments.push_back(
            folder.write("trace." + std::to_string(rank) + ".jsonl", trace_of(rank)));
    }
    const Json json = advised(arguments);
    expect_members(json, {{"record", "advise_trace"}, {"advised", 1}, {"min_bytes", 4 << 20}});
    ASSERT_EQ(json["kinds"].size(), 3u);
    const Json& large = json["kinds"][0];
    expect_members(large, {{"bytes", 4 << 20}, {"calls", 20}, {"ranks", 4}});
    // 2 x 3/4 of 4 MiB in 50.3 ms, beside six steps of 12 us.
    EXPECT_NEAR(large["gb_s"].get<double>(), 0.125, 0.0002);
    EXPECT_NEAR(large["with_s"][1].get<double>(), 4.25 / 32 * 50.3e-3, 5e-4);
    // Two exchanges have fewer steps than a ring, so on an H100 at any bandwidth.
    EXPECT_TRUE(large["break_even_gb_s"].is_null()) << large;
    EXPECT_EQ(json["kinds"][1]["op"], "broadcast");
    EXPECT_TRUE(json["kinds"][1]["with_s"].empty());
    EXPECT_NEAR(json["native_s"].get<double>(), 20 * (50403.6e-6 + 80e-6), 1e-6);
    EXPECT_NEAR(json["recorded_s"].get<double>(), 4 * 1.0, 1e-9);
    expect_prints({"policy", "check", folder.file("advised.toml")},
                  {"op allreduce; dtype f32", "min_bytes 4 MiB"});
    expect_says(1, {"advise", "--trace", folder.write("wrong.jsonl", "{\"v\":1}\n")},
                {"wrong.jsonl:1: begins with a record \"\""});
}

// Shadow calls that took five times what an H100 takes on paper: so would compressed ones.
TEST(Advise, ARecordedJobWhoseCodecWasTimed) {
    const ScratchFolder folder;
    const auto advised_of = [&](double codec_us) {
        std::string text = trace_of(0) + record_line("decision", {{"comm", "c"},
                                                                  {"tensor", "allreduce1048576"},
                                                                  {"codec", "int8"},
                                                                  {"algorithm", "two_shot"},
                                                                  {"rule", "r"},
                                                                  {"reason", ""},
                                                                  {"wire_bytes", 1},
                                                                  {"native_wire_bytes", 4}});
        if (codec_us > 0) {
            text += record_line("codec_time", {{"call", 1}, {"device_us", codec_us}});
        }
        return advised(
            {"--codec", "int8", "--codec", "int4", "--trace", folder.write("trace.jsonl", text)});
    };
    const Json paper = advised_of(0), slow = advised_of(10000);
    EXPECT_EQ(paper["kinds"][0]["codec_slowdown"], 1);
    EXPECT_GT(slow["kinds"][0]["codec_slowdown"].get<double>(), 10);
    // Encoded 1 + 1/4 and decoded 2 times, 5 ms each, some of it behind the wire.
    EXPECT_GT(slow["kinds"][0]["with_s"][0].get<double>(), 0.01);
    EXPECT_GT(slow["kinds"][0]["with_s"][0].get<double>(),
              paper["kinds"][0]["with_s"][0].get<double>());
    EXPECT_GT(slow["kinds"][0]["with_s"][1].get<double>(),
              paper["kinds"][0]["with_s"][1].get<double>());
}

// A reduce-scatter is half of an all-reduce of the same message: shadow calls encode all of it.
TEST(Advise, ARecordedJobWhoseShardsWereTimed) {
    const ScratchFolder folder;
    const auto kind_of = [&](const char* op, int count, double device_us, int first_us) {
        std::string text = record_line("trace", {{"part", 1}, {"host", "h"}, {"pid", 1}}) +
                           record_line("trace_comm", {{"comm", "c"}, {"ranks", 4}});
        for (const int call : {1, 2}) {  // of two tensors
            const Json of{{"comm", "c"},    {"tensor", std::to_string(call)},
                          {"call", call},   {"op", op},
                          {"dtype", "f32"}, {"redop", "sum"},
                          {"count", count}, {"bytes", 4 * count},
                          {"host_us", 5},   {"codec", "int8"},
                          {"rule", "r"},    {"algorithm", "two_shot"},
                          {"reason", ""},   {"native_wire_bytes", 4}};
            const double codec_us = call == 1 ? first_us : 2000 - first_us;
            text += record_line("call", of) + record_line("decision", of) +
                    record_line("time", {{"call", call}, {"device_us", device_us}}) +
                    record_line("codec_time", {{"call", call}, {"device_us", codec_us}});
        }
        return advised(
            {"--codec", "int8", "--trace", folder.write("trace.jsonl", text)})["kinds"][0];
    };
    const Json whole = kind_of("allreduce", 4 << 20, 60000 + 6 * 12, 1500);
    const Json shards = kind_of("reducescatter", 1 << 20, 30000 + 3 * 12, 1500);
    EXPECT_EQ(shards["bytes"], whole["bytes"]);
    EXPECT_NEAR(shards["gb_s"].get<double>(), whole["gb_s"].get<double>(), 1e-9);
    EXPECT_NEAR(shards["codec_slowdown"].get<double>(), whole["codec_slowdown"].get<double>(),
                1e-9);
    EXPECT_NEAR(shards["with_s"][0].get<double>(), whole["with_s"][0].get<double>() / 2, 1e-9);
    // By the mean, whichever tensor comes last.
    const Json other = kind_of("allreduce", 4 << 20, 60000 + 6 * 12, 500);
    EXPECT_NEAR(other["codec_slowdown"].get<double>(), whole["codec_slowdown"].get<double>(), 1e-9);
}

// The same tensor of two jobs on other numbers of ranks, in either order, and all in one file.
TEST(Advise, TwoRecordedJobs) {
    const ScratchFolder folder;
    std::string two = trace_of(0), four = trace_of(1);
    two = replaced(two, R"("ranks":4)", R"("ranks":2)");
    two = replaced(two, R"("comm":"c")", R"("comm":"d")");
    const std::string a = folder.write("two", two), b = folder.write("four", four);
    for (const auto& [first, second] : {std::pair(a, b), std::pair(b, a)}) {
        const Json json = advised({"--codec", "int8", "--trace", first, second});
        ASSERT_EQ(json["kinds"].size(), 6u);
        for (const int i : {0, 1}) {
            EXPECT_EQ(json["kinds"][i]["count"], 1 << 20);
            EXPECT_EQ(json["kinds"][i]["calls"], 5);
        }
        EXPECT_NE(json["kinds"][0]["ranks"], json["kinds"][1]["ranks"]);
    }
    const Json json = advised({"--codec", "int8", "--trace", folder.write("cat", two + four)});
    EXPECT_EQ(json["kinds"].size(), 6u);
    EXPECT_NEAR(json["recorded_s"].get<double>(), 2 * 1.0, 1e-9);
}

// Nothing to gain: a link that is faster than the codec, and sums that nobody recorded.
TEST(Advise, ARecordedJobThatStaysNative) {
    const ScratchFolder folder;
    const std::string text = replaced(trace_of(0), "\"sum\"", "\"max\"");
    expect_members(advised({"--trace", folder.write("trace.jsonl", text)}),
                   {{"advised", -1}, {"native_s", 0}});
}

}  // namespace
}  // namespace slimwire::cli::test
