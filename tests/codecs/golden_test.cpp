// The bytes of every codec, as a hash each, so that no change of the wire format goes unnoticed. A
// hash that differs means that ranks of two builds no longer understand each other. If that is
// wanted, it is a new wire version (collectives/FORMAT.md): say in codecs/FORMAT.md what changed
// and put the row that the failure prints here. A new codec adds the row of its defaults (the test
// fails until it does) and of what its parameters change.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iterator>

#include "tests/codecs/fixture.h"

namespace slimwire::testing {
namespace {

struct Row {
    const char* spec;
    uint64_t hash;
};

constexpr Row kRows[] = {
    {"bf16", 0xAE8635D0DE51CB10},
    {"bf16:rounding=stochastic", 0x794F9A1B3A4C08E1},
    {"fp16", 0x0ED3F1A824B1E68A},
    {"fp16:rounding=stochastic", 0x5AB36602F167AB85},
    {"fp8e4m3", 0xD10E1E5D432E7421},
    {"fp8e4m3:block=128,scale=fp32", 0x92BA919EB67374A5},
    {"fp8e4m3:rounding=stochastic", 0xFA1CDABA8D9C49A9},
    {"fp8e5m2", 0xB293952C4DE7AB00},
    {"fp8e5m2:block=2048,rounding=stochastic", 0xFDC2D225CB8E7147},
    {"mxfp4", 0x940B765280417EC3},
    {"mxfp4:scale=ceil", 0x3000E1DFAD9E7294},
    {"mxfp4:scale=ceil,rounding=stochastic", 0x994F29C98077DC16},
    {"nvfp4", 0xE173C8BD505DF72F},
    {"nvfp4:scale=ceil", 0x84E3F372A7978B4D},
    {"nvfp4:scale=ceil,rounding=stochastic", 0xD99CC7259754D178},
    {"int8", 0xFE5430B64B90D39D},
    {"int8:block=16,scale=fp32", 0x7F38493EFF6DDA6A},
    {"int8:rotate=64,rounding=stochastic", 0x4624D11C3C16F047},
    {"int4", 0xD76B0CCDE0FC01CC},
    {"int4:block=2048", 0x70E70CD03199124C},
    {"int4:rounding=stochastic", 0x6D3FAD9CC8A4FFE6},
    {"int2", 0xB8B74F51077FBA44},
    {"sign", 0x9001D8C35B06F283},
    {"sign:scale=l2,block=32", 0xF9957164A79F5263},
    {"ternary", 0x0E58721145EFA04B},
    {"ternary:scale=clip,rounding=nearest,block=512", 0x68787FDDB1192464},
    {"natural", 0xE7C89EA04619AE91},
    {"natural:bits=4,block=64", 0xC4ECD8600FFEADDA},
    {"natural:rounding=nearest", 0x275C4E1B2AE34F7C},
    {"qsgd", 0xB8B71ACEEF1336BB},
    {"qsgd:levels=7,block=512", 0x7E4DAC149CF2AB48},
    {"qsgd:levels=31,scale=max", 0xAE5AFF48260B6A7C},
    {"qsgd:levels=1,block=16,rounding=nearest", 0xF7AD810D5017096B},
    {"bounded", 0x69FD608E792263AA},
    {"bounded:error=0.00001,capacity=1", 0x5C03D3E75A616F04},
    {"topk", 0xEDD7EB726D87E493},
    {"topk:fraction=0.1,values=int8", 0x50F63A170B9537E5},
    {"threshold", 0xAB760241E23F28FE},
    {"threshold:threshold=0.5,fraction=0.05,values=int4", 0x96C78CE48A51715D},
    {"blocktopk", 0x5A33E7D2AD01C8C0},
    {"blocktopk:block=64,kept=9,values=int8", 0xF798F34B31239C85},
    {"rowtopk", 0x860F6EC3752DA557},
    {"rowtopk:row=77,kept=13,values=int4", 0x4BC39FC4494B1023},
    {"randomk", 0x87F8C60DF53FDAF4},
    {"randomk:fraction=0.3,values=int8,seed=3", 0x4712758F637384F0},
    {"palette", 0x76C592598C6F7DFB},
    {"palette:slot=0.8", 0xDDB47D9674CDC211},
};

constexpr int64_t kCount = 9001;

// Bell-shaped values whose scale changes every 50 elements over 2^-20..2^11, zeros, subnormals, and
// in the last thousand what is not finite. Integers and powers of two only, so the same everywhere.
std::vector<float> values() {
    std::vector<float> result(kCount);
    uint64_t state = 0x5EED;
    const auto draw = [&] {
        state = state * 6364136223846793005u + 1442695040888963407u;
        return static_cast<int>(state >> 48);
    };
    for (int64_t i = 0; i < kCount; ++i) {
        const int sum = draw() + draw() + draw() + draw() - 2 * 65535;
        float value = std::ldexp(static_cast<float>(sum), static_cast<int>(i / 50 * 7 % 32) - 36);
        value = i / 50 % 11 == 5 ? 0.0f : value;
        value = i / 50 % 17 == 8 ? std::ldexp(value, -110) : value;
        value = i > kCount - 1000 && i % 331 == 0 ? INFINITY : value;
        value = i > kCount - 1000 && i % 457 == 0 ? NAN : value;
        result[static_cast<size_t>(i)] = value;
    }
    return result;
}

// FNV-1a of the encodings of the values as fp32, fp16 and bf16, in two chunks, added to a residual.
uint64_t hash_of(const CodecSpec& spec) {
    static const std::vector<float> kValues = values();
    uint64_t hash = 0xCBF29CE484222325u;
    for (const DType dtype : kFloatTypes) {
        Guarded input(kCount * static_cast<int64_t>(dtype_bytes(dtype)));
        for (int64_t i = 0; i < kCount; ++i) {
            reference::set_element(input.data(), dtype, i, kValues[static_cast<size_t>(i)]);
        }
        const int64_t granule = spec.granule(dtype);
        const int64_t chunk = (kCount / 2 + granule - 1) / granule * granule;
        const int64_t slot = (spec.encoded_bytes(dtype, chunk) + 15) / 16 * 16;
        std::vector<uint8_t> output(static_cast<size_t>(2 * slot), 0);
        std::vector<float> residual(kCount, 0x1p-7f);
        spec.codec->host.encode({.input = input.data(),
                                 .output = output.data(),
                                 .residual = residual.data(),
                                 .scale = 0.75f,
                                 .count = kCount,
                                 .chunk_elems = chunk,
                                 .slot_bytes = slot,
                                 .params = spec.params,
                                 .dtype = dtype,
                                 .random = reference::kKey});
        for (const uint8_t byte : output) {
            hash = (hash ^ byte) * 0x100000001B3u;
        }
    }
    return hash;
}

TEST(Golden, EncodingsAreWhatTheyWere) {
    for (const Isa isa : all_isas()) {
        ASSERT_TRUE(force_isa(isa).ok());
        for (const Row& row : kRows) {
            char line[200];
            const uint64_t hash = hash_of(spec_of(row.spec));
            std::snprintf(line, sizeof(line), "{\"%s\", 0x%016llX},", row.spec,
                          static_cast<unsigned long long>(hash));
            EXPECT_EQ(hash, row.hash) << isa_name(isa) << " now: " << line;
        }
    }
}

TEST(Golden, EveryCodecHasARow) {
    size_t count = 0;
    const CodecDescriptor* const* table = codec_table(&count);
    for (size_t i = 0; i < count; ++i) {
        const bool found = std::any_of(std::begin(kRows), std::end(kRows), [&](const Row& row) {
            return std::string(row.spec) == table[i]->name;
        });
        EXPECT_TRUE(found) << "add a row {\"" << table[i]->name << "\", 0}, and see what it is";
    }
}

}  // namespace
}  // namespace slimwire::testing
