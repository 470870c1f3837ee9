// A linear autoencoder whose encoder and decoder a rule gives, on one to four ranks, against the
// product in fp64: results, what is raw, values that are not finite, graphs. One process, emulated
// devices, a policy of the test's own.
#include <unistd.h>

#include <cmath>
#include <fstream>
#include <string>
#include <vector>

#include "tests/plugin/several_devices.h"
#include "tests/support/npy.h"

namespace {

constexpr size_t kRows = 50, kRow = 96, kRaw = 5, kCount = kRows * kRow + kRaw;
constexpr size_t kWidth = 40;

using Values = std::vector<float>;

float drawn(size_t i, size_t seed) {
    return static_cast<float>(std::sin(1.3 * static_cast<double>((i + 1) * (seed + 2)) +
                                       0.7 * static_cast<double>(i * i % 89)));
}

Values drawn_values(size_t count, size_t seed) {
    Values values(count);
    for (size_t i = 0; i < count; ++i) {
        values[i] = drawn(i, seed);
    }
    return values;
}

const Values& encoder() {
    static const Values values = drawn_values(kWidth * kRow, 100);
    return values;
}
const Values& decoder() {
    static const Values values = drawn_values(kRow * kWidth, 200);
    return values;
}

class GivenAutoencoder : public slimwire::test::SeveralDevices<4> {
  protected:
    GivenAutoencoder() : SeveralDevices(kCount * sizeof(float)) {}
    static std::string file(const char* name) {
        return testing::TempDir() + std::to_string(getpid()) + name;
    }
    static void SetUpTestSuite() {
        std::ofstream(file("e.npy")) << slimwire::test::npy_matrix(kWidth, kRow, encoder());
        std::ofstream(file("d.npy")) << slimwire::test::npy_matrix(kRow, kWidth, decoder());
        write_policy(
            ("version = 1\n[[rule]]\nname = \"codes\"\ncodec = \"linear_ae\"\nencoder = \"" +
             file("e.npy") + "\"\ndecoder = \"" + file("d.npy") + "\"\n")
                .c_str());
    }
    static void TearDownTestSuite() {
        std::remove(file("e.npy").c_str());
        std::remove(file("d.npy").c_str());
        SeveralDevices::TearDownTestSuite();
    }
    static std::vector<Values> inputs() {
        std::vector<Values> given;
        for (int rank = 0; rank < ranks(); ++rank) {
            given.push_back(drawn_values(kCount, static_cast<size_t>(rank)));
        }
        return given;
    }
    // What is delivered of the sum times `scale`, times `share`.
    static void expect_decoded(const std::vector<Values>& given,
                               double scale,
                               double share,
                               const Values& got) {
        std::vector<double> sum(kCount);
        for (const Values& of : given) {
            for (size_t i = 0; i < kCount; ++i) {
                sum[i] += scale * of[i];
            }
        }
        for (size_t row = 0; row < kRows; ++row) {
            for (size_t j = 0; j < kRow; ++j) {
                double expected = 0;
                for (size_t k = 0; k < kWidth; ++k) {
                    double code = 0;
                    for (size_t i = 0; i < kRow; ++i) {
                        code += sum[row * kRow + i] * encoder()[k * kRow + i];
                    }
                    expected += share * code * decoder()[j * kWidth + k];
                }
                ASSERT_NEAR(got[row * kRow + j], expected, 2e-3) << row << ' ' << j;
            }
        }
        for (size_t i = kRows * kRow; i < kCount; ++i) {
            ASSERT_NEAR(got[i], share * sum[i], 1e-5) << "a raw element";
        }
    }
};

TEST_P(GivenAutoencoder, DeliversWhatItDecodes) {
    const std::vector<Values> given = inputs();
    expect_decoded(given, 1, 1, reduce(given));
    expect_decoded(given, 1, 1.0 / ranks(), reduce(given, ncclAvg, true));
    expect_decoded(given, 0.5, 1, reduce(given, half_sum()));
}

TEST_P(GivenAutoencoder, ARowThatIsNotFiniteIsNoOther) {
    std::vector<Values> given = inputs();
    given.back()[3 * kRow + 7] = INFINITY;
    const Values got = reduce(given);
    for (size_t i = 0; i < kRows * kRow; ++i) {
        ASSERT_EQ(std::isnan(got[i]), i / kRow == 3) << i;
    }
    expect_decoded(inputs(), 1, 1, reduce(inputs()));
}

TEST_P(GivenAutoencoder, GraphsDecodeToo) {
    const std::vector<Values> given = inputs();
    reduce(given);
    capture_sum(kCount);
    for (int round = 0; round < 2; ++round) {
        expect_decoded(given, 1, 1, replay(kCount));
    }
    drop_graphs();
}

INSTANTIATE_TEST_SUITE_P(Ranks,
                         GivenAutoencoder,
                         testing::Values(2, 3, 4),
                         testing::PrintToStringParamName());

}  // namespace
