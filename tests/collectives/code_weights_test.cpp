// Encoders and decoders from .npy files: what is read, what a policy makes of it, and every file
// that is wrong with the words that say so.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <fstream>

#include "codecs/float16.h"
#include "collectives/npy.h"
#include "collectives/policy.h"
#include "tests/support/npy.h"

namespace slimwire {
namespace {

using test::bytes_of;
using test::npy;

TEST(Npy, EveryTypeAndVersion) {
    const std::vector<double> wanted = {1, -2.5, 0, 4, 5, 1024};
    const std::vector<float> singles(wanted.begin(), wanted.end());
    std::vector<uint16_t> halves;
    for (const float value : singles) {
        halves.push_back(float_to_float16(value));
    }
    for (const auto& [type, bytes] : {std::pair{"<f8", bytes_of(wanted)},
                                      {"<f4", bytes_of(singles)},
                                      {"<f2", bytes_of(halves)}}) {
        for (const char version : {1, 2, 3}) {
            const auto array = parse_npy(npy(type, "(2, 3)", bytes, "False", version));
            ASSERT_TRUE(array.ok()) << type << array.status().message();
            EXPECT_EQ(array.value().shape, (std::vector<uint64_t>{2, 3}));
            EXPECT_EQ(array.value().values, wanted);
        }
    }
    const auto flat = parse_npy(npy("<f4", "(6,)", bytes_of(singles)));
    ASSERT_TRUE(flat.ok());
    EXPECT_EQ(flat.value().shape, std::vector<uint64_t>{6});
    const auto one = parse_npy(npy("<f8", "()", bytes_of(std::vector<double>{7})));
    ASSERT_TRUE(one.ok());
    EXPECT_EQ(one.value().values, std::vector<double>{7});
}

TEST(Npy, WrongFilesSayWhatIsWrong) {
    const std::string whole = npy("<f4", "(2,)", std::string(8, '\0'));
    const std::pair<std::string, const char*> kCases[] = {
        {"", "no .npy file"},
        {"PK\x03\x04", "no .npy file"},
        {whole.substr(0, 7), "cut off in its head"},
        {whole.substr(0, 60), "cut off in its head"},
        {npy(">f4", "(2,)", std::string(8, '\0')), "not little-endian float16"},
        {npy("<i4", "(2,)", std::string(8, '\0')), "not little-endian float16"},
        {npy("<f4", "(2,)", std::string(8, '\0'), "True"), "Fortran's order"},
        {npy("<f4", "2", std::string(8, '\0')), "without a shape"},
        {npy("<f4", "(-2,)", std::string(8, '\0')), "without a shape"},
        {npy("<f4", "(99999999999, 99999999999)", ""), "without a shape"},
        {npy("<f4", "(2,)", std::string(7, '\0')), "7 bytes of elements"},
        {npy("<f4", "(2,)", std::string(12, '\0')), "its shape has 2 of 4 bytes"},
    };
    for (const auto& [bytes, expected] : kCases) {
        const auto array = parse_npy(bytes);
        ASSERT_FALSE(array.ok()) << expected;
        EXPECT_NE(array.status().message().find(expected), std::string::npos)
            << array.status().message();
    }
    for (size_t size = 0; size < whole.size(); ++size) {
        EXPECT_FALSE(parse_npy(whole.substr(0, size)).ok()) << size;
    }
}

class Weights : public testing::Test {
  protected:
    ~Weights() override {
        for (const std::string& path : written_) {
            std::remove(path.c_str());
        }
    }
    std::string write(const std::string& name, const std::string& bytes) {
        written_.push_back(folder_ + name);
        std::ofstream(written_.back(), std::ios::binary) << bytes;
        return name;
    }
    // Of [rows][columns] values that count up from `first`.
    std::string matrix(const std::string& name, int rows, int columns, float first = 0) {
        std::vector<float> values;
        for (int i = 0; i < rows * columns; ++i) {
            values.push_back(first + static_cast<float>(i));
        }
        return write(name, test::npy_matrix(static_cast<size_t>(rows), static_cast<size_t>(columns),
                                            values));
    }
    Result<Policy> policy(const std::string& more) const {
        return parse_policy(
            "version = 1\n[[rule]]\nname = \"codes\"\ncodec = \"linear_ae\"\n" + more,
            folder_ + "p.toml");
    }
    std::string error(const std::string& more) const {
        const auto read = policy(more);
        return read.ok() ? "" : read.status().message();
    }

    const std::string folder_ = testing::TempDir() + std::to_string(getpid()) + "_";
    std::vector<std::string> written_;
};

TEST_F(Weights, SayWidthAndRow) {
    // Beside the policy: its folder is what stands before the file's name.
    const std::string folder = testing::TempDir();
    const std::string prefix = folder_.substr(folder.size());
    matrix("e.npy", 2, 8);
    matrix("d.npy", 8, 2, 100);
    const auto both =
        policy("encoder = \"" + prefix + "e.npy\"\ndecoder = \"" + folder_ + "d.npy\"");
    ASSERT_TRUE(both.ok()) << both.status().message();
    const Action& action = both.value().rules[0].action;
    EXPECT_EQ(action.codec->to_string(), "linear_ae:width=2,row=8");
    ASSERT_NE(action.weights, nullptr);
    EXPECT_EQ(action.tensor, TensorBy::kAddress) << "tensors keep nothing";
    for (int k = 0; k < 2; ++k) {
        for (int j = 0; j < 8; ++j) {
            EXPECT_EQ(action.weights->encoder()[k * 8 + j], static_cast<float>(k * 8 + j));
            EXPECT_EQ(action.weights->decoder()[k * 8 + j], static_cast<float>(100 + j * 2 + k));
        }
    }
    const auto tied = policy("encoder = \"" + prefix + "e.npy\"");
    ASSERT_TRUE(tied.ok()) << tied.status().message();
    const CodeWeights& weights = *tied.value().rules[0].action.weights;
    EXPECT_TRUE(std::equal(weights.encoder(), weights.decoder(), weights.decoder()));
    // Ranks with other weights have another policy.
    EXPECT_NE(both.value().canonical(), tied.value().canonical());
    matrix("e.npy", 2, 8, 1);
    const auto other = policy("encoder = \"" + prefix + "e.npy\"");
    ASSERT_TRUE(other.ok());
    EXPECT_NE(other.value().canonical(), tied.value().canonical());
}

TEST_F(Weights, WrongOnesSayWhatIsAccepted) {
    const auto asks = [&](const char* encoder, const char* decoder = nullptr) {
        return "encoder = \"" + folder_ + encoder + "\"" +
               (decoder == nullptr ? "" : "\ndecoder = \"" + folder_ + decoder + "\"");
    };
    matrix("e.npy", 2, 8);
    matrix("d.npy", 2, 8);
    matrix("wide.npy", 1025, 2);
    write("flat.npy", npy("<f4", "(2,)", std::string(8, '\0')));
    write("text.npy", "text");
    write("nan.npy", npy("<f8", "(1, 1)", bytes_of(std::vector<double>{NAN})));
    EXPECT_NE(error(asks("e.npy", "d.npy"))
                  .find("d.npy: shape [2, 8] beside an encoder of [2, 8]; "
                        "accepted: [row, width]"),
              std::string::npos);
    EXPECT_NE(error(asks("wide.npy")).find("codes of 1025 numbers; accepted: at most 1024"),
              std::string::npos);
    EXPECT_NE(error(asks("flat.npy")).find("flat.npy: shape [2]; accepted: [width, row]"),
              std::string::npos);
    EXPECT_NE(error(asks("text.npy")).find("text.npy: no .npy file"), std::string::npos);
    EXPECT_NE(error(asks("nan.npy")).find("not finite"), std::string::npos);
    EXPECT_NE(error(asks("e.npy") + "\nef = \"ef14\"")
                  .find("error feedback with an encoder that is given"),
              std::string::npos);
}

}  // namespace
}  // namespace slimwire
