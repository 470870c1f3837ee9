// The grammar of codec specifications: what is accepted, how it prints, what its errors say.
#include "codecs/spec.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "codecs/base/isa.h"
#include "tests/codecs/fixture.h"

namespace slimwire::testing {
namespace {

TEST(Spec, PrintsCanonically) {
    const std::pair<const char*, const char*> cases[] = {
        {"int4", "int4"},
        {"int4:", "int4"},
        {"int4:block=64,scale=bf16,rounding=nearest", "int4"},
        {" int4 : scale = fp32 ,\tblock = 128 ", "int4:block=128,scale=fp32"},
        {"int2:block=32", "int2"},
        {"int8:rotate=0,seed=0,rounding=nearest", "int8"},
        {"int8:seed=7,rotate=512,rounding=stochastic",
         "int8:rounding=stochastic,rotate=512,seed=7"},
        {"int8:block=2048", "int8:block=2048"},
        {"bf16:rounding=nearest", "bf16"},
        {"fp16", "fp16"},
        {"fp16:rounding=stochastic", "fp16:rounding=stochastic"},
        {"bounded:error=1e-3,capacity=0.50", "bounded"},
        {"bounded:capacity=2,error=0.25", "bounded:error=0.25,capacity=2"},
        {"powersgd:row=0,rank=4", "powersgd"},
        {"powersgd:seed=9,row=1024,rank=32", "powersgd:rank=32,row=1024,seed=9"},
        {"linear_ae:row=0,width=4", "linear_ae"},
        {"linear_ae:seed=9,row=1024,width=32", "linear_ae:width=32,row=1024,seed=9"},
        {"int4:row=1024,block=128", "int4:block=128,row=1024"},
        {"linear_ae:rate=0.01,row=64", "linear_ae:row=64,rate=0.01"},
        {"mxfp4:rounding=stochastic,scale=ceil", "mxfp4:scale=ceil,rounding=stochastic"},
        {"nvfp4:scale=ceil,rounding=stochastic", "nvfp4:scale=ceil,rounding=stochastic"},
        {"rowtopk:kept=2,row=8", "rowtopk:row=8,kept=2"},
        {"threshold:values=int8,refresh=9,fraction=0.2",
         "threshold:fraction=0.2,refresh=9,values=int8"},
        {"topk:fraction=0.010", "topk"},
        {"threshold:pair=mask,refresh=9", "threshold:refresh=9,pair=mask"},
        {"randomk:pair=mask", "randomk:pair=mask"},
        {"topk:pair=none", "topk"},
        {"sign:scale=l2,block=512", "sign:block=512,scale=l2"},
        {"ternary:block=512,scale=clip,rounding=nearest",
         "ternary:block=512,scale=clip,rounding=nearest"},
        {"natural:bits=4,block=64", "natural:bits=4,block=64"},
        {"qsgd:levels=7,block=512,scale=max,rounding=nearest",
         "qsgd:levels=7,block=512,scale=max,rounding=nearest"},
    };
    for (const auto& [text, canonical] : cases) {
        auto spec = parse_codec(text);
        ASSERT_TRUE(spec.ok()) << text << ": " << spec.status().message();
        EXPECT_EQ(spec.value().to_string(), canonical);
        auto again = parse_codec(canonical);
        ASSERT_TRUE(again.ok());
        EXPECT_EQ(again.value().params, spec.value().params);
    }
}

TEST(Spec, DefaultsAreTheDocumentedOnes) {
    EXPECT_EQ(spec_of("int8").params.block, 64);
    EXPECT_EQ(spec_of("int4").params.block, 64);
    EXPECT_EQ(spec_of("int2").params.block, 32);
    EXPECT_EQ(spec_of("int4").params.scale_type, static_cast<uint8_t>(ScaleType::kBfloat16));
    EXPECT_EQ(spec_of("int4").granule(DType::kFloat32), 64);
    EXPECT_EQ(spec_of("rowtopk").granule(DType::kFloat32), 1024);
    EXPECT_EQ(spec_of("qsgd:levels=31").params.bits, 6);
    EXPECT_TRUE(spec_of("randomk:pair=mask").pairs_masks());
}

TEST(Spec, ErrorsNameTheParameterAndWhatIsAccepted) {
    const std::pair<const char*, std::vector<const char*>> cases[] = {
        {"int5", {"\"int5\"", "known: bf16, fp16, ", "did you mean int"}},
        {"", {"unknown codec \"\"", "known: bf16"}},
        {"gzip", {"unknown codec \"gzip\"", "known: bf16"}},
        {"INT4", {"unknown codec \"INT4\""}},
        {"int4:block=17", {"codec int4", "block=17", "a power of two from 16 to 2048"}},
        {"int4:block=8", {"block=8", "from 16 to 2048"}},
        {"int4:block=4096", {"block=4096"}},
        {"int4:block=65536064", {"block=65536064"}},
        {"int4:block=-64", {"block=-64"}},
        {"int4:block=64x", {"block=64x"}},
        {"int4:block=", {"block= is not accepted"}},
        {"int4:block", {"expected key=value", "\"block\""}},
        {"int4:blok=64", {"unknown parameter \"blok\"", "block = a power of two"}},
        {"int4:block=64,block=64", {"\"block\" is given twice"}},
        {"int4:scale=fp16", {"scale=fp16", "bf16 or fp32"}},
        {"int4:rounding=up", {"rounding=up", "nearest or stochastic"}},
        {"int4:rotate=48", {"rotate=48", "0 or a power of two from 32 to 512"}},
        {"int8:rotate=16", {"codec int8", "rotate=16", "from 32 to 512"}},
        {"int8:rotate=1024", {"rotate=1024", "from 32 to 512"}},
        {"int4:seed=4294967296", {"seed=4294967296", "a whole number below 2^32"}},
        {"int4:block=64,", {"after the last comma"}},
        {"int4:,block=64", {"expected key=value"}},
        {"bf16:block=64",
         {"codec bf16", "unknown parameter \"block\"", "rounding = nearest or stochastic"}},
        {"fp16:rounding=up", {"rounding=up", "nearest or stochastic"}},
        {"bounded:error=0", {"codec bounded", "error=0", "a decimal number from 1e-30 to 1e30"}},
        {"bounded:error=nan", {"error=nan"}},
        {"bounded:capacity=3", {"capacity=3", "a fraction of the raw size from 0.01 to 2"}},
        {"bounded:block=32", {"unknown parameter \"block\""}},
        {"powersgd:rank=33", {"codec powersgd", "rank=33", "a whole number from 1 to 32"}},
        {"powersgd:rank=0", {"rank=0", "from 1 to 32"}},
        {"linear_ae:width=33", {"codec linear_ae", "width=33", "from 1 to 32"}},
        {"int8:row=1", {"row=1", "from 2 to 2147483647"}},
        {"linear_ae:rate=2", {"rate=2", "a decimal number from 0 to 1"}},
        {"linear_ae:rank=4", {"unknown parameter \"rank\"", "width = a whole number"}},
        {"powersgd:row=1", {"row=1", "from 2 to 2147483647"}},
        {"powersgd:row=2147483648", {"row=2147483648"}},
        {"powersgd:block=64", {"unknown parameter \"block\"", "rank = a whole number"}},
        {"powergsd", {"did you mean powersgd?"}},
        {"mxfp4:rounding=stochastic", {"scale=ceil"}},
        {"nvfp4:rounding=stochastic", {"scale=ceil"}},
        {"mxfp4:scale=up", {"floor or ceil"}},
        {"nvfp4:scale=floor", {"nearest or ceil"}},
        {"mxfp4:block=64", {"unknown parameter \"block\""}},
        {"topk:fraction=0", {"fraction=0", "0.000001 to 1"}},
        {"topk:fraction=1.5", {"fraction=1.5"}},
        {"topk:fraction=nan", {"fraction=nan"}},
        {"topk:kept=3", {"unknown parameter \"kept\"", "fraction = a decimal"}},
        {"topk:values=int2", {"values=int2", "native, int8 or int4"}},
        {"topk:pair=both", {"pair=both", "none or mask"}},
        {"topk:pair=mask,values=int8", {"pair=mask", "accepted: values=native, or pair=none"}},
        {"randomk:pair=mask,values=int4", {"pair=mask", "accepted: values=native, or pair=none"}},
        {"threshold:pair=mask", {"pair=mask", "accepted: refresh=1 or more, or pair=none"}},
        {"blocktopk:pair=mask", {"unknown parameter \"pair\""}},
        {"blocktopk:block=16,kept=17", {"kept=17", "from 1 to 16", "block"}},
        {"rowtopk:row=8", {"kept=16", "from 1 to 8", "row"}},
        {"rowtopk:row=16385", {"row=16385", "2 to 16384"}},
        {"threshold:threshold=-1", {"threshold=-1", "0 to 3.4e38"}},
        {"threshold:refresh=-1", {"refresh=-1", "0 to 1000000000"}},
        {"randomk:seed=4294967296", {"seed=4294967296", "below 2^32"}},
        {"sign:block=16", {"32 to 2048"}},
        {"sign:rounding=nearest", {"unknown parameter"}},
        {"sign:scale=max", {"mean or l2"}},
        {"ternary:scale=l2", {"max or clip"}},
        {"natural:bits=6", {"8 or 4"}},
        {"natural:scale=max", {"unknown parameter"}},
        {"qsgd:levels=0", {"from 1 to 127"}},
        {"qsgd:levels=128", {"from 1 to 127"}},
        {"qsgd:scale=mean", {"l2 or max"}},
        {"palette:slot=2", {"slot=2", "from 0.01 to 1.01"}},
        {"palette:slot=-1", {"slot=-1"}},
        {"palette:slot=0.001", {"slot=0.001"}},
        {"palette:slot=", {"slot="}},
    };
    for (const auto& [text, parts] : cases) {
        const auto spec = parse_codec(text);
        ASSERT_FALSE(spec.ok()) << text;
        EXPECT_EQ(spec.status().code(), Code::kInvalidArgument);
        for (const char* part : parts) {
            EXPECT_NE(spec.status().message().find(part), std::string::npos)
                << text << " -> " << spec.status().message() << " lacks " << part;
        }
    }
}

TEST(Spec, BytesFollowFromTheParametersAlone) {
    constexpr int64_t kMany = int64_t{1} << 33;
    const struct {
        const char* spec;
        DType dtype;
        int64_t count, bytes;
    } kRows[] = {
        {"int8", DType::kFloat32, 64, 66},
        {"int4", DType::kFloat32, 65, 2 * (32 + 2)},
        {"int2", DType::kBfloat16, 32, 10},
        {"int4:block=2048,scale=fp32", DType::kFloat16, 1, 1028},
        {"int4", DType::kFloat32, kMany, kMany / 64 * 34},
        {"fp8e4m3", DType::kFloat32, 64, 66},
        {"fp8e5m2", DType::kBfloat16, 65, 2 * 66},
        {"fp8e5m2:block=2048,scale=fp32", DType::kFloat16, 1, 2052},
        {"fp8e4m3", DType::kFloat32, kMany, kMany / 64 * 66},
        {"mxfp4", DType::kBfloat16, 65, 3 * 17},
        {"mxfp4", DType::kFloat32, kMany, kMany / 32 * 17},
        {"nvfp4", DType::kFloat32, 512, 512 / 16 * 9 + 4},
        {"nvfp4", DType::kFloat32, 513, 33 * 9 + 8},
        {"sign", DType::kBfloat16, 1024, 128 + 4},
        {"sign", DType::kFloat32, 1025, 2 * (128 + 4)},
        {"sign:block=32", DType::kFloat32, 64, 2 * 8},
        {"sign", DType::kFloat32, kMany, kMany / 1024 * 132},
        {"ternary", DType::kFloat32, 128, 32 + 4},
        {"natural", DType::kFloat32, 1, 256 + 4},
        {"natural:bits=4", DType::kFloat32, 512, 2 * (128 + 4)},
        {"qsgd", DType::kFloat32, 128, 128 + 4},
        {"qsgd:levels=1", DType::kFloat32, 128, 32 + 4},
        {"qsgd:levels=2", DType::kFloat32, 128, 64 + 4},
        {"qsgd:levels=8", DType::kFloat32, 128, 96 + 4},
        {"qsgd:levels=32", DType::kFloat32, 128, 128 + 4},
        // Header, widths, starts up to a multiple of 16, payload.
        {"bounded", DType::kFloat32, 0, 0},
        {"bounded", DType::kFloat32, 1, 16 + 48 + 128},
        {"bounded:capacity=0.25", DType::kFloat32, 4096, 16 + 144 + 4096},
        {"bounded:capacity=0.25", DType::kBfloat16, 4096, 16 + 144 + 2048},
        {"bounded:capacity=2", DType::kFloat32, 4096, 16 + 144 + 16384},
        {"bounded:capacity=2", DType::kFloat16, 4095, 16 + 144 + 16384},
        {"bounded", DType::kBfloat16, 5 * 1024 + 1, 16 + 224 + 5152},
        // Header, 4 * 2 table, at 32 positions: 4 * 25 of bits and 52 of half bytes; at 192 values.
        {"topk", DType::kBfloat16, 10000, 192 + 200},
        // One block of 128 kept: 128 bytes of positions, two blocks of codes, two scales.
        {"blocktopk:kept=2,values=int8", DType::kBfloat16, 64 * 128, 128 + 128 + 4},
        {"randomk:fraction=0.01", DType::kFloat32, 32 * 1000, 16 + 10 * 32 * 4},
        {"threshold", DType::kFloat32, 0, 0},
    };
    for (const auto& row : kRows) {
        EXPECT_EQ(spec_of(row.spec).encoded_bytes(row.dtype, row.count), row.bytes)
            << row.spec << " " << row.count;
    }
}

TEST(Spec, AFailedParseLeavesTheParametersAlone) {
    const CodecSpec spec = spec_of("int4:block=128");
    CodecParams params = spec.params;
    EXPECT_FALSE(spec.codec->parse("block=32,scale=none", &params).ok());
    EXPECT_EQ(params, spec.params);
}

TEST(Registry, TableFollowsTheListAndGrammarsNameTheirCodec) {
    size_t count = 0;
    const CodecDescriptor* const* table = codec_table(&count);
    ASSERT_GE(count, 5u);
    const std::string refused = parse_codec("gzip").status().message();
    for (size_t i = 0; i < count; ++i) {
        EXPECT_NE(refused.find(table[i]->name), std::string::npos) << refused;
        EXPECT_EQ(std::string(table[i]->grammar).rfind(table[i]->name, 0), 0u);
        auto spec = parse_codec(table[i]->name);
        ASSERT_TRUE(spec.ok());
        EXPECT_EQ(spec.value().codec, table[i]);
        EXPECT_EQ(spec.value().to_string(), table[i]->name);
    }
}

// Nothing that encodes runs of elements meets one.
TEST(Registry, CodecsOfFactorsStandBesideTheTable) {
    size_t runs = 0;
    const CodecDescriptor* const* encoding = codec_table(&runs);
    const std::string refused = parse_codec("gzip").status().message();
    for (const char* name : {"powersgd", "linear_ae"}) {
        const CodecSpec spec = spec_of(name);
        EXPECT_NE(refused.find(name), std::string::npos) << refused;
        EXPECT_EQ(std::string(spec.codec->grammar).rfind(name, 0), 0u);
        EXPECT_TRUE(spec.traits(DType::kFloat32).low_rank);
        EXPECT_EQ(spec.encoded_bytes(DType::kFloat32, 1000), 0);
        EXPECT_NE(encodes_runs(spec).message().find("encodes no run of elements"),
                  std::string::npos);
        EXPECT_EQ(std::find(encoding, encoding + runs, spec.codec), encoding + runs);
    }
    for (size_t i = 0; i < runs; ++i) {
        EXPECT_TRUE(encodes_runs(spec_of(encoding[i]->name)).ok());
    }
}

TEST(Isa, ForcingByNameAndRefusingUnknownNames) {
    for (const Isa isa : all_isas()) {
        ASSERT_TRUE(force_isa(std::string_view(isa_name(isa))).ok());
        EXPECT_EQ(active_isa(), isa);
    }
    const Isa before = active_isa();
    const Status status = force_isa("sse9");
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    EXPECT_NE(status.message().find("scalar, avx2, avx512"), std::string::npos);
    EXPECT_EQ(active_isa(), before);
}

}  // namespace
}  // namespace slimwire::testing
