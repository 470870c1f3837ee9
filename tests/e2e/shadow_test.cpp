// Mode shadow: the job's bits are those without slimwire, whatever is tried beside it, and what it
// predicts (bytes of every operation, errors of single contributions) is what mode on then does.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "tests/collectives/trace_reader.h"
#include "tests/e2e/observed_job.h"
#include "tests/support/has.h"

namespace slimwire::test {
namespace {

std::string policy_file(const TemporaryFolder& folder, const std::string& rules) {
    const std::string path = folder.file("policy.toml");
    std::ofstream(path) << "version = 1\n" << rules;
    return path;
}

std::string rule_for_all(const std::string& codec, const std::string& more) {
    return "[[rule]]\nname = \"all\"\nmatch = { op = [\"allreduce\", \"reducescatter\", "
           "\"reduce\", \"allgather\", \"broadcast\", \"alltoall\", \"gather\", \"scatter\", "
           "\"send\"] }\ncodec = \"" +
           codec + "\"\n" + more + "\n";
}

// --- The job's bits

struct Tried {
    const char* name;
    const char* codec;
    const char* more;  // of the rule
    friend void PrintTo(const Tried& of, std::ostream* out) { *out << of.name; }
};

class ShadowOfCodec : public testing::TestWithParam<Tried> {};

TEST_P(ShadowOfCodec, leaves_every_bit_and_every_error_as_it_is) {
    const TemporaryFolder folder;
    const Tried& tried = GetParam();
    const std::string path = policy_file(folder, rule_for_all(tried.codec, tried.more));
    EXPECT_EQ(outputs_of(observed_job("shadow", folder.path(), {{"SLIMWIRE_POLICY", path}})),
              native_outputs());
    const ReadTrace trace = read_trace(folder.file("trace.0"));
    EXPECT_EQ(trace.header.at("mode"), "shadow");
    size_t would = 0, rehearsed = 0;
    for (const TracedCall& call : trace.calls) {
        would += call.would_compress ? 1 : 0;
        rehearsed += call.rel_error >= 0 ? 1 : 0;
        EXPECT_FALSE(call.captured && (call.rel_error >= 0 || call.codec_us >= 0));
        EXPECT_FALSE(!call.would_compress && call.rel_error >= 0);
    }
    EXPECT_GT(would, 20u);
    EXPECT_GT(rehearsed, 8u);
}

INSTANTIATE_TEST_SUITE_P(
    Codecs,
    ShadowOfCodec,
    testing::Values(Tried{"int4", "int4", "error_feedback = \"ef14\""},
                    Tried{"ema", "int8:rounding=stochastic", "error_feedback = \"ema\""},
                    Tried{"gather", "int8", "algorithm = \"gather\""},
                    Tried{"topk", "topk:fraction=0.1", "error_feedback = \"ef14\""},
                    Tried{"randomk", "randomk:fraction=0.25", "algorithm = \"summable\""}),
    name_of);

TEST(Shadow, says_what_would_be_saved_at_a_stated_bandwidth) {
    const TemporaryFolder folder;
    std::string errors;
    (void)outputs_of(observed_job("shadow", folder.path(),
                                  {{"SLIMWIRE_CODEC", "int8"},
                                   {"SLIMWIRE_BANDWIDTH", "1gbit"},
                                   {"runtime.summary", "1"}}),
                     &errors);
    EXPECT_HAS(errors, "; at 1 Gbit/s this would save about ");
}

TEST(Shadow, of_estimates_a_plain_encoding_stands_in) {
    const TemporaryFolder folder;
    EXPECT_EQ(
        outputs_of(observed_job(
            "shadow", folder.path(),
            {{"SLIMWIRE_CODEC", "int4"}, {"SLIMWIRE_EF", "ef21"}, {"SLIMWIRE_OPS", "allreduce"}})),
        native_outputs());
    const ReadTrace trace = read_trace(folder.file("trace.0"));
    size_t rehearsed = 0, stand_ins = 0;
    for (const TracedCall& call : trace.calls) {
        rehearsed += call.rel_error >= 0 ? 1 : 0;
        EXPECT_FALSE(call.rel_error >= 0 && call.signature.dtype != DType::kFloat32);
    }
    for (const nlohmann::json& decision : trace.decisions) {
        stand_ins += decision.value("stand_in", false) ? 1 : 0;
    }
    EXPECT_GT(rehearsed, 5u);
    EXPECT_GT(stand_ins, 5u);
}

TEST(Shadow, without_a_codec_says_that_nothing_would_be_compressed) {
    const TemporaryFolder folder;
    const std::string path = policy_file(folder, "[[rule]]\nname = \"none\"\ncodec = \"native\"\n");
    EXPECT_EQ(outputs_of(observed_job("shadow", folder.path(), {{"SLIMWIRE_POLICY", path}})),
              native_outputs());
    for (const nlohmann::json& record : read_reports(folder.file("shadow"))) {
        if (record.at("record") == "comm") {
            EXPECT_NE(record.at("agreement").get<std::string>().find("no rule has a codec"),
                      std::string::npos);
        }
    }
}

TEST(Shadow, stays_within_the_memory_that_it_may_take) {
    const TemporaryFolder folder;
    std::string errors;
    // Room for what mode on needs, none for decoding beside it.
    EXPECT_EQ(outputs_of(observed_job("shadow", folder.path(),
                                      {{"SLIMWIRE_CODEC", "int8"},
                                       {"SLIMWIRE_OPS", "allreduce"},
                                       {"SLIMWIRE_MAX_MEMORY", "24KiB"}}),
                         &errors),
              native_outputs());
    EXPECT_HAS(errors, "count 5003 is not rehearsed");
    const ReadTrace trace = read_trace(folder.file("trace.0"));
    size_t would = 0;
    for (const TracedCall& call : trace.calls) {
        would += call.would_compress && call.signature.count == 5003 &&
                         call.signature.dtype == DType::kFloat32
                     ? 1
                     : 0;
        EXPECT_FALSE(call.signature.count == 5003 && call.signature.dtype == DType::kFloat32 &&
                     call.rel_error >= 0);
    }
    EXPECT_GT(would, 4u);
    for (const nlohmann::json& record : read_reports(folder.file("shadow"))) {
        if (record.at("record") == "comm") {
            EXPECT_LE(record.at("scratch_bytes"), 24 << 10);
        }
    }
}

TEST(Shadow, a_residual_without_room_is_left_out_as_in_mode_on) {
    const TemporaryFolder folder;
    std::string errors;
    EXPECT_EQ(outputs_of(observed_job("shadow", folder.path(),
                                      {{"SLIMWIRE_CODEC", "int8"},
                                       {"SLIMWIRE_EF", "ef14"},
                                       {"SLIMWIRE_OPS", "allreduce"},
                                       {"SLIMWIRE_MAX_MEMORY", "60000"}}),
                         &errors),
              native_outputs());
    EXPECT_HAS(errors, "is rehearsed without its residual");
    EXPECT_GT(read_trace(folder.file("trace.0")).rehearsals.size(), 8u);
}

// A call of the runtime that fails inside slimwire is not the job's failure. The program makes none
// of these calls itself, or its own come first.
TEST(Shadow, a_failing_cuda_call_does_not_reach_the_job) {
    const struct {
        const char* function;
        std::vector<int> calls;
    } kFaults[] = {
        {"launch", {1, 2, 3, 4, 8}},     {"cudaMallocFromPoolAsync", {1, 2, 3, 4, 5}},
        {"cudaMemPoolCreate", {1}},      {"cudaMemPoolSetAttribute", {1}},
        {"cudaHostAlloc", {1, 2}},       {"cudaMemsetAsync", {1, 3}},
        {"cudaEventRecord", {1, 2, 5}},  {"cudaEventCreateWithFlags", {1, 3}},
        {"cudaEventQuery", {1}},         {"cudaEventElapsedTime", {1}},
        {"cudaStreamWaitEvent", {1, 4}}, {"cudaPointerGetAttributes", {3}},
        {"cudaStreamIsCapturing", {2}},  {"cudaPeekAtLastError", {2}},
    };
    std::string not_native;
    for (const auto& [function, calls] : kFaults) {
        for (const int call : calls) {
            const std::string fault = function + (":" + std::to_string(call));
            const TemporaryFolder folder;
            Job job = observed_job("shadow", folder.path(),
                                   {{"SLIMWIRE_CODEC", "int4"},
                                    {"SLIMWIRE_EF", "ef14"},
                                    {"SLIMWIRE_EMU_FAULT", fault}});
            job.limit_s = 60;
            if (fault.starts_with("cudaMemPool")) {
                let_calls_wait(&job, "cudaMalloc takes the place of a pool");
            }
            if (outputs_of(job) != native_outputs()) {
                not_native += fault + " ";
            }
        }
    }
    EXPECT_EQ(not_native, "");
}

// --- What it predicts: bytes

// Wire bytes of mode on by rank and kind of call, and of mode shadow.
std::map<std::string, uint64_t> bytes_of(const std::string& folder,
                                         const char* codec,
                                         const char* algorithm,
                                         const char* bytes) {
    std::map<std::string, uint64_t> sums;
    for (const nlohmann::json& record : read_reports(folder)) {
        if (record.at("record") == "key" && record.at("calls") != 0 &&
            record.value(algorithm, "native") != "native") {
            sums["rank " + record.at("rank").dump() + " " + record.at("op").dump() + " " +
                 record.at("dtype").dump() + " " + record.at("count").dump() + " root " +
                 record.at("root_or_peer").dump() + " " + record.at(codec).dump() + " " +
                 record.at(algorithm).dump() + " calls " + record.at("calls").dump()] +=
                record.at(bytes).get<uint64_t>();
        }
    }
    return sums;
}

struct ShadowSent {
    const char* name;
    int ranks;
    const char* codec;
    const char* more = "";  // of the rule
    Environment environment = {};
    friend void PrintTo(const ShadowSent& of, std::ostream* out) { *out << of.name; }
};

class ShadowOfBytes : public testing::TestWithParam<ShadowSent> {};

TEST_P(ShadowOfBytes, are_those_of_mode_on) {
    const TemporaryFolder folder;
    const ShadowSent& sent = GetParam();
    Environment environment = sent.environment;
    environment["SLIMWIRE_POLICY"] = policy_file(folder, rule_for_all(sent.codec, sent.more));
    std::vector<std::string> command = {SLIMWIRE_TEST_WIRE_BYTES};
    for (const char* op : {"allreduce", "reducescatter", "reduce", "allgather", "broadcast",
                           "alltoall", "gather", "scatter", "sendrecv"}) {
        command.insert(command.end(), {op, "20000", "4099", "777"});
    }
    (void)outputs_of(traced_job(command, sent.ranks, "on", folder.path(), environment));
    (void)outputs_of(traced_job(command, sent.ranks, "shadow", folder.path(), environment));
    const auto of_on = bytes_of(folder.file("on"), "codec", "algorithm", "wire_bytes");
    EXPECT_GE(of_on.size(), 6u);
    EXPECT_EQ(of_on, bytes_of(folder.file("shadow"), "shadow_codec", "shadow_algorithm",
                              "shadow_wire_bytes"));
}

const ShadowSent kSent[] = {
    {"int8", 3, "int8"},
    {"int4_ef14", 2, "int4", "error_feedback = \"ef14\""},
    {"bf16_sliced", 2, "bf16", "", {{"runtime.slice_bytes", "16KiB"}}},
    {"topk", 3, "topk:fraction=0.05"},
    {"gather", 3, "int4", "algorithm = \"gather\""},
    {"factors", 3, "powersgd:rank=2,row=64", "error_feedback = \"ef14\""},
    {"summable", 3, "randomk:fraction=0.1", "algorithm = \"summable\""},
    {"nodes", 4, "int8", "", {{"SLIMWIRE_EMU_NODES", "2x2"}}},
    {"one_node", 3, "int8", "", {{"SLIMWIRE_EMU_NODES", "1x3"}}},
    {"intra",
     4,
     "int4",
     "algorithm = \"hierarchical\"\nintra_codec = \"bf16\"",
     {{"SLIMWIRE_EMU_NODES", "2x2"}}},
    {"start", 2, "int8", "start_step = 1"},
    {"memory", 2, "int8", "error_feedback = \"ef14\"", {{"SLIMWIRE_MAX_MEMORY", "100000"}}},
};
INSTANTIATE_TEST_SUITE_P(Cases, ShadowOfBytes, testing::ValuesIn(kSent), name_of);

// --- What it predicts: errors

std::vector<double> errors_of(const std::string& out) {
    std::vector<double> errors;
    std::istringstream lines(out);
    for (std::string line; std::getline(lines, line);) {
        int step = 0;
        double error = 0;
        if (std::sscanf(line.c_str(), "error %d %lf", &step, &error) == 2) {
            errors.push_back(error);
        }
    }
    return errors;
}

struct Contribution {
    const char* name;
    const char* op;
    const char* type;
    const char* count;
    const char* codec;
    const char* more = "";  // of the rule
    Environment environment = {};
    friend void PrintTo(const Contribution& of, std::ostream* out) { *out << of.name; }
};

class ShadowOfErrors : public testing::TestWithParam<Contribution> {};

TEST_P(ShadowOfErrors, are_those_of_mode_on_call_by_call) {
    const TemporaryFolder folder;
    const Contribution& of = GetParam();
    constexpr int kSteps = 12;
    const bool is_sum = of.op == std::string("allreduce");
    Environment environment = of.environment;
    environment["SLIMWIRE_POLICY"] = policy_file(
        folder,
        rule_for_all(of.codec, of.more + std::string(is_sum ? "\nalgorithm = \"gather\"" : "")));
    const std::vector<std::string> command = {SLIMWIRE_TEST_CONTRIBUTIONS, of.op, of.type,
                                              std::to_string(kSteps), of.count};
    const auto on = run_ranks(traced_job(command, 2, "on", folder.path(), environment));
    const auto shadow = run_ranks(traced_job(command, 2, "shadow", folder.path(), environment));
    EXPECT_EQ(unless_all_exit(on), "");
    EXPECT_EQ(unless_all_exit(shadow), "");
    for (size_t rank = 0; rank < 2; ++rank) {
        const std::vector<double> made = errors_of(on[rank].out);
        const std::vector<double> native = errors_of(shadow[rank].out);
        EXPECT_EQ(native, std::vector<double>(native.size(), 0.0));
        const ReadTrace trace = read_trace(folder.file("trace." + std::to_string(rank)));
        ASSERT_EQ(trace.calls.size(), static_cast<size_t>(kSteps));
        for (size_t step = 0; step < made.size(); ++step) {
            EXPECT_GT(made[step], 1e-5);
            EXPECT_NEAR(trace.calls[step].rel_error / made[step], 1.0, 1e-9)
                << "rank " << rank << " step " << step;
        }
        ASSERT_EQ(made.size(),
                  rank == 0 || of.op == std::string("allgather") ? size_t{kSteps} : 0u);
    }
}

// What DistributedDataParallel tells of its buckets, in every way of making its calls.
TEST(Shadow, hears_which_parameters_calls_carry) {
    for (const char* way : {"plain", "grouped", "non-blocking"}) {
        SCOPED_TRACE(way);
        const TemporaryFolder folder;
        const Environment environment = {
            {"SLIMWIRE_POLICY",
             policy_file(folder,
                         "[[rule]]\nname = \"norms\"\nmatch = { op = \"allreduce\", param = "
                         "\"1d\" }\ncodec = \"native\"\n[[rule]]\nname = \"weights\"\nmatch = { "
                         "op = \"allreduce\", dtype = \"f32\", bytes = \"1KiB..\" }\n"
                         "codec = \"int4\"\nerror_feedback = \"ef14\"\n")}};
        const std::vector<std::string> command = {SLIMWIRE_TEST_PARAMETERS, way};
        const auto waiting = [&](const char* mode) {
            Job job = traced_job(command, 2, mode, folder.path(), environment);
            let_calls_wait(&job, "the values of a broadcast that the next call goes by");
            return job;
        };
        (void)outputs_of(waiting("on"));
        std::string errors;
        const std::string shadow = outputs_of(waiting("shadow"), &errors);
        EXPECT_EQ(shadow, outputs_of(traced_job(command, 2, "off", folder.path(), {})));
        EXPECT_EQ(errors, "");
        const auto of_on = bytes_of(folder.file("on"), "codec", "algorithm", "wire_bytes");
        EXPECT_GE(of_on.size(), 4u);
        EXPECT_EQ(of_on, bytes_of(folder.file("shadow"), "shadow_codec", "shadow_algorithm",
                                  "shadow_wire_bytes"));
        // The error is of what goes through codecs.
        const ReadTrace trace = read_trace(folder.file("trace.0"));
        size_t compared = 0;
        for (const TracedCall& call : trace.calls) {
            if (call.would_compress) {
                ++compared;
                EXPECT_GT(call.rel_error, 0.03);
                EXPECT_LT(call.rel_error, 0.3);
            }
        }
        EXPECT_GE(compared, 4u);
    }
}

constexpr char kEf14[] = "error_feedback = \"ef14\"";
const Environment kSliced = {{"runtime.slice_bytes", "16KiB"}};
const Contribution kContributions[] = {
    {"gather_int8", "allreduce", "fp32", "20000", "int8"},
    {"gather_int4_ef14", "allreduce", "fp32", "20001", "int4", kEf14},
    {"gather_int4_ema", "allreduce", "fp32", "20001", "int4", "error_feedback = \"ema\""},
    {"gather_stochastic", "allreduce", "fp16", "20000", "int8:rounding=stochastic"},
    {"gather_sliced", "allreduce", "fp32", "20001", "int4", kEf14, kSliced},
    {"gather_many_slices", "allreduce", "fp32", "40001", "int8:rounding=stochastic",
     "error_feedback = \"ef14\"\nresidual = \"bf16\"", kSliced},
    {"gather_topk_ef14", "allreduce", "fp32", "20000", "topk:fraction=0.1", kEf14},
    {"allgather_bf16", "allgather", "fp32", "20000", "bf16"},
    {"allgather_int4", "allgather", "bf16", "20000", "int4"},
    {"broadcast_topk", "broadcast", "fp32", "20000", "topk:fraction=0.1"},
    {"broadcast_int4_ef14", "broadcast", "fp32", "20000", "int4", kEf14},
    {"broadcast_fp8", "broadcast", "fp16", "777", "fp8e4m3"},
};
INSTANTIATE_TEST_SUITE_P(Cases, ShadowOfErrors, testing::ValuesIn(kContributions), name_of);

}  // namespace
}  // namespace slimwire::test
