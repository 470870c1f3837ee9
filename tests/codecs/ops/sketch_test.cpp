// Sketches of sums: their norm against float64, kernels on the execution model of
// tests/support/cuda_on_host.h against the host body.
#include "tests/support/cuda_on_host.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "codecs/ops/sketch.h"
#include "tests/codecs/fixture.h"

#include "codecs/ops/sketch.cu"

namespace slimwire::testing {
namespace {

struct Sketched {
    SketchState state = {};
    std::vector<char> workspace;

    SketchArgs args(const void* input, DType dtype, int64_t count) {
        // Of the workspace nothing but what is promised, and 77s behind.
        workspace.assign(static_cast<size_t>(sketch_workspace_bytes(count)) + 64, 77);
        return {.input = input,
                .state = &state,
                .workspace = workspace.data(),
                .count = count,
                .first_row = 0,
                .dtype = dtype};
    }
    bool margin_intact() const {
        return std::all_of(workspace.end() - 64, workspace.end(), [](char c) { return c == 77; });
    }
};

double norm(const SketchState& state) {
    return std::sqrt(sketch_energy(state));
}
double norm(const std::vector<float>& values) {
    double squares = 0;
    for (const float x : values) {
        squares += static_cast<double>(x) * static_cast<double>(x);
    }
    return std::sqrt(squares);
}

double relative_error(const std::vector<float>& values) {
    Sketched sketched;
    sketch_on_host(
        sketched.args(values.data(), DType::kFloat32, static_cast<int64_t>(values.size())));
    return std::abs(norm(sketched.state) / norm(values) - 1);
}

std::vector<float> normals(size_t count, std::mt19937& random) {
    std::normal_distribution<float> normal;
    std::vector<float> values(count);
    std::generate(values.begin(), values.end(), [&] { return normal(random); });
    return values;
}

TEST(Sketch, KernelsGiveTheBitsOfTheHostBody) {
    std::mt19937 random(test_seed());
    for (const DType dtype : kFloatTypes) {
        for (const int64_t count : {0, 1, 7, 8, 2047, 2048, 2049, 8192, 8193, 100003}) {
            for (const int64_t shift : {0, 1}) {  // of the input, in elements
                SCOPED_TRACE(std::string(dtype_name(dtype)) + " " + std::to_string(count));
                std::vector<Sketched> on_host(all_isas().size());
                Sketched on_cuda;
                for (int call = 0; call < 3; ++call) {
                    const auto bytes = static_cast<int64_t>(dtype_bytes(dtype));
                    Guarded input = random_input(dtype, count, 1.0, random, shift * bytes);
                    if (call == 1 && count > 0) {
                        // A NaN: nothing of this buffer is added.
                        std::memset(input.data() + count / 2 * bytes, 0xFF,
                                    static_cast<size_t>(bytes));
                    }
                    ASSERT_EQ(sketch_on_cuda(on_cuda.args(input.data(), dtype, count), nullptr),
                              cudaSuccess);
                    ASSERT_TRUE(on_cuda.margin_intact());
                    for (size_t i = 0; i < all_isas().size(); ++i) {
                        ASSERT_TRUE(force_isa(all_isas()[i]).ok());
                        sketch_on_host(on_host[i].args(input.data(), dtype, count));
                        ASSERT_EQ(
                            std::memcmp(&on_host[i].state, &on_cuda.state, sizeof(SketchState)), 0)
                            << isa_name(all_isas()[i]) << ", call " << call;
                    }
                }
                EXPECT_EQ(on_cuda.state.buffers, count > 0 ? 2u : 3u);
                EXPECT_EQ(on_cuda.state.skipped, count > 0 ? 1u : 0u);
            }
        }
    }
}

TEST(Sketch, NormIsThatOfTheSumOfTheBuffers) {
    std::mt19937 random(test_seed());
    std::normal_distribution<float> normal;
    const size_t count = 50021;
    Sketched sketched;
    std::vector<float> sum(count), buffer(count), constant(count);
    for (float& x : constant) {
        x = 0.3f * normal(random);
    }
    // Noise of which the sum's norm grows as the root of the calls, under what grows as the calls.
    for (int call = 0; call < 40; ++call) {
        for (size_t i = 0; i < count; ++i) {
            buffer[i] = constant[i] + normal(random);
            sum[i] += buffer[i];
        }
        sketch_on_host(sketched.args(buffer.data(), DType::kFloat32, static_cast<int64_t>(count)));
    }
    // Four standard deviations of 1.6 %.
    EXPECT_NEAR(norm(sketched.state) / norm(sum), 1.0, 0.064);
    EXPECT_EQ(sketched.state.buffers, 40u);
}

// What ranks make of a reduce-scatter: each sketches its part, and the cells are added.
TEST(Sketch, PartsMakeTheWhole) {
    std::mt19937 random(test_seed());
    for (const Isa isa : all_isas()) {
        ASSERT_TRUE(force_isa(isa).ok());
        const int64_t rows = 11, parts = 3;
        const std::vector<float> whole =
            normals(static_cast<size_t>(rows * parts * kSketchCells), random);
        Sketched once;
        sketch_on_host(once.args(whole.data(), DType::kFloat32, rows * parts * kSketchCells));
        std::vector<double> cells(kSketchCells);
        double alike = 0;  // the parts' own rows, numbered alike
        for (int64_t part = 0; part < parts; ++part) {
            const float* const own = whole.data() + part * rows * kSketchCells;
            Sketched of_part, on_cuda;
            SketchArgs args = of_part.args(own, DType::kFloat32, rows * kSketchCells);
            args.first_row = part * rows;
            sketch_on_host(args);
            args = on_cuda.args(own, DType::kFloat32, rows * kSketchCells);
            args.first_row = part * rows;
            ASSERT_EQ(sketch_on_cuda(args, nullptr), cudaSuccess);
            ASSERT_EQ(std::memcmp(&of_part.state, &on_cuda.state, sizeof(SketchState)), 0);
            for (size_t i = 0; i < cells.size(); ++i) {
                cells[i] += static_cast<double>(of_part.state.cells[i]);
            }
            alike += sketch_energy(of_part.state);
        }
        for (size_t i = 0; i < cells.size(); ++i) {
            ASSERT_NEAR(cells[i], once.state.cells[i], 1e-3) << isa_name(isa) << ' ' << i;
        }
        EXPECT_NEAR(alike / sketch_energy(once.state), 1, 0.2);
    }
}

TEST(Sketch, NoStrideAndNoSparsityMisleadsIt) {
    std::mt19937 random(test_seed());
    std::normal_distribution<float> normal;
    double squares = 0;
    int tried = 0;
    // All the energy in elements so far apart: a column of a matrix. Without its turns and swaps
    // the sketch would add them all in one cell.
    for (const size_t stride : {size_t{1}, size_t{8}, size_t{256}, size_t{2048}, size_t{4096}}) {
        std::vector<float> values(stride * 700 + 5);
        for (size_t i = stride - 1; i < values.size(); i += stride) {
            values[i] = 1;  // all of one sign: signs that were equal would add them up
        }
        const double error = relative_error(values);
        EXPECT_LT(error, 0.064) << stride;
        squares += error * error;
        ++tried;
    }
    for (const size_t kept : {size_t{3}, size_t{100}, size_t{5000}}) {
        std::vector<float> values(400000);
        for (size_t i = 0; i < kept; ++i) {
            values[random() % values.size()] = 10 * normal(random);
        }
        const double error = relative_error(values);
        EXPECT_LT(error, 0.064) << kept;
        squares += error * error;
        ++tried;
    }
    EXPECT_LT(std::sqrt(squares / tried), 0.03);
}

TEST(Sketch, AnythingNotFiniteKeepsABufferOut) {
    std::vector<float> values(10000, 0.5f);
    Sketched sketched;
    sketch_on_host(sketched.args(values.data(), DType::kFloat32, 10000));
    const SketchState before = sketched.state;
    for (const float bad :
         {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
          std::numeric_limits<float>::quiet_NaN()}) {
        for (const size_t at : {size_t{0}, size_t{5000}, size_t{9999}}) {
            std::vector<float> with = values;
            with[at] = bad;
            sketch_on_host(sketched.args(with.data(), DType::kFloat32, 10000));
        }
    }
    EXPECT_EQ(std::memcmp(before.cells, sketched.state.cells, sizeof before.cells), 0);
    EXPECT_EQ(sketched.state.skipped, 9u);
    EXPECT_EQ(sketched.state.buffers, 1u);
}

}  // namespace
}  // namespace slimwire::testing
