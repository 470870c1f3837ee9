// Spellings of operations, types and the rest, of sizes, rates and durations, of the roles that
// names of communicators say; and the suggestions that error messages make.
#include "collectives/policy/names.h"

#include <gtest/gtest.h>
#include <limits>

#include "codecs/spec.h"
#include "collectives/policy/config.h"
#include "collectives/policy/role.h"

namespace slimwire {
namespace {

TEST(Names, every_printed_name_is_read_back) {
    const auto expect = []<class E>(int count, const char* (*name)(E), auto parse) {
        for (int i = 0; i < count; ++i) {
            EXPECT_EQ(parse(name(static_cast<E>(i))), static_cast<E>(i));
        }
    };
    expect(kOpCount, op_name, parse_op);
    expect(kDTypeCount, dtype_name, parse_dtype);
    expect(kRedOpCount, redop_name, parse_redop);
    expect(kScopeCount, scope_name, parse_scope);
    expect(kAlgorithmCount, algorithm_name, parse_algorithm);
    expect(kErrorFeedbackCount, error_feedback_name, parse_error_feedback);
    expect(kResidualTypeCount, residual_type_name, parse_residual_type);
    expect(kRoleCount, role_name, role_of);
}

TEST(Names, other_spellings) {
    for (const char* text : {"allreduce", "all_reduce", "AllReduce", "all-reduce", "ALLREDUCE"}) {
        EXPECT_EQ(parse_op(text), Op::kAllReduce) << text;
    }
    EXPECT_EQ(parse_op("reduce_scatter"), Op::kReduceScatter);
    EXPECT_EQ(parse_op("all_to_all"), Op::kAllToAll);
    EXPECT_EQ(parse_op("bcast"), Op::kBroadcast);
    for (const char* text : {"fp32", "float32", "float", "f32"}) {
        EXPECT_EQ(parse_dtype(text), DType::kFloat32) << text;
    }
    for (const char* text : {"half", "fp16", "float16"}) {
        EXPECT_EQ(parse_dtype(text), DType::kFloat16) << text;
    }
    EXPECT_EQ(parse_dtype("bfloat16"), DType::kBfloat16);
    EXPECT_EQ(parse_redop("pre_mul_sum"), RedOp::kPreMulSum);
}

TEST(Names, unknown_names_are_not_guessed) {
    EXPECT_EQ(parse_op("allreduc"), std::nullopt);
    EXPECT_EQ(parse_op(""), std::nullopt);
    EXPECT_EQ(parse_dtype("fp8"), std::nullopt);
    EXPECT_EQ(parse_redop("mean"), std::nullopt);
}

TEST(Names, nearest_takes_slips_and_leaves_the_rest) {
    const auto ops = op_names();
    EXPECT_EQ(nearest_word("alreduce", ops), "allreduce");
    EXPECT_EQ(nearest_word("brodcast", ops), "broadcast");
    EXPECT_EQ(nearest_word("ALLREDUCE", ops), "allreduce");
    EXPECT_EQ(nearest_word("sned", ops), "send");
    EXPECT_EQ(nearest_word("quantise", ops), "");
    EXPECT_EQ(nearest_word("", ops), "");
    EXPECT_EQ(suggestion("codek", {"codec", "match"}), " (did you mean 'codec'?)");
    EXPECT_EQ(suggestion("zzzzz", {"codec", "match"}), "");
    EXPECT_EQ(join({"a", "b", "c"}), "a, b, c");
}

void expect_error(const Status& status, const std::string& text, const std::string& piece) {
    ASSERT_FALSE(status.ok()) << text;
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    EXPECT_NE(status.message().find("'" + text + "'"), std::string::npos) << status.message();
    EXPECT_NE(status.message().find(piece), std::string::npos) << status.message();
    EXPECT_NE(status.message().find("accepted: "), std::string::npos) << status.message();
}

TEST(Units, sizes) {
    const std::pair<const char*, uint64_t> kCases[] = {
        {"0", 0},
        {"1000000", 1000000},
        {"17B", 17},
        {"64KiB", 65536},
        {"64kib", 65536},
        {"64 KIB", 65536},
        {" 1MiB ", 1048576},
        {"1.5MiB", 1572864},
        {"0.5KiB", 512},
        {"2GiB", 2147483648ull},
        {"3TiB", 3ull << 40},
        {"18446744073709551615", std::numeric_limits<uint64_t>::max()},
    };
    for (const auto& [text, bytes] : kCases) {
        const auto parsed = parse_bytes(text);
        ASSERT_TRUE(parsed.ok()) << text << ": " << parsed.status().message();
        EXPECT_EQ(parsed.value(), bytes) << text;
    }
}

TEST(Units, bad_sizes_name_the_text_and_what_is_accepted) {
    const std::pair<const char*, const char*> kCases[] = {
        {"", "not a number"},           {"-1", "not a number"},
        {"1e6", "unknown unit 'e6'"},   {"64k", "unknown unit 'k'"},
        {"64KB", "unknown unit 'kb'"},  {"64Kbit", "unknown unit 'kbit'"},
        {"1.", "not a number"},         {".5MiB", "not a number"},
        {"1.5", "not a whole number"},  {"0.3KiB", "not a whole number of bytes"},
        {"1 2", "unknown unit '2'"},    {"18446744073709551616", "not a number"},
        {"16777216TiB", "too large"},   {"0x10", "unknown unit 'x10'"},
        {"1.2.3", "unknown unit '.3'"}, {"0.0000000000000000000000001TiB", "not a number"},
    };
    for (const auto& [text, piece] : kCases) {
        expect_error(parse_bytes(text).status(), text, piece);
    }
}

TEST(Units, rates_are_decimal_bits) {
    const std::pair<const char*, double> kCases[] = {
        {"10gbit", 10e9},  {"100 mbit", 100e6}, {"2.5Gbit/s", 2.5e9},
        {"9600bit", 9600}, {"64kbit", 64e3},    {"1.6tbit", 1.6e12},
    };
    for (const auto& [text, rate] : kCases) {
        const auto parsed = parse_bits_per_second(text);
        ASSERT_TRUE(parsed.ok()) << text << ": " << parsed.status().message();
        EXPECT_DOUBLE_EQ(parsed.value(), rate) << text;
    }
    for (const char* text : {"10Gb", "10GB", "10gibit", "10Gbps", "10MiB"}) {
        expect_error(parse_bits_per_second(text).status(), text, "unknown unit");
    }
    expect_error(parse_bits_per_second("10").status(), "10", "no unit");
    expect_error(parse_bits_per_second("0gbit").status(), "0gbit", "zero");
    expect_error(parse_bits_per_second("fast").status(), "fast", "not a number");
}

TEST(Units, durations) {
    const std::pair<const char*, uint64_t> kCases[] = {
        {"50us", 50}, {"10ms", 10000}, {"2s", 2000000}, {"1.5ms", 1500}, {"0s", 0}};
    for (const auto& [text, microseconds] : kCases) {
        const auto parsed = parse_duration_us(text);
        ASSERT_TRUE(parsed.ok()) << text << ": " << parsed.status().message();
        EXPECT_EQ(parsed.value(), microseconds) << text;
    }
    expect_error(parse_duration_us("10").status(), "10", "no unit");
    expect_error(parse_duration_us("500ns").status(), "500ns", "unknown unit 'ns'");
    expect_error(parse_duration_us("0.5us").status(), "0.5us", "not a whole number");
    expect_error(parse_duration_us("99999999999999999s").status(), "99999999999999999s",
                 "too large");
}

TEST(Role, ByTheWordsOfTheName) {
    const struct {
        const char* name;
        std::optional<Role> role;
    } kCases[] = {
        {"dp", Role::kData},
        {"mesh_dp", Role::kData},
        {"mesh_dp_shard", Role::kData},
        {"DATA_PARALLEL_GROUP", Role::kData},
        {"data_parallel_rank3", Role::kData},
        {"fsdp:0", Role::kData},
        {"TENSOR_MODEL_PARALLEL_GROUP", Role::kTensor},
        {"mesh_tp", Role::kTensor},
        {"PIPELINE_MODEL_PARALLEL_GROUP", Role::kPipeline},
        {"pp2", Role::kPipeline},
        {"EXPERT_MODEL_PARALLEL_GROUP", Role::kExpert},
        {"ep", Role::kExpert},
        {"CONTEXT_PARALLEL_GROUP", Role::kContext},
        // Of experts, and yet data and tensor parallel.
        {"EXPERT_DATA_PARALLEL_GROUP", Role::kData},
        {"EXPERT_TENSOR_PARALLEL_GROUP", Role::kTensor},
        {"DATA_PARALLEL_GROUP_WITH_CP", Role::kData},
        // Of two kinds, or of none.
        {"TENSOR_AND_DATA_PARALLEL_GROUP", std::nullopt},
        {"default_pg", std::nullopt},
        {"adapter", std::nullopt},  // no word of its own
        {"", std::nullopt},
        {"__", std::nullopt},
        {"\xff\xfe dp", Role::kData},
    };
    for (const auto& one : kCases) {
        EXPECT_EQ(role_of(one.name), one.role) << one.name;
    }
}

}  // namespace
}  // namespace slimwire
