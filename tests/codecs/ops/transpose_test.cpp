// Columns of rows and back: the host body against the words of transpose.h, and the kernel on
// the execution model of tests/support/cuda_on_host.h.
#include "tests/support/cuda_on_host.h"

#include "codecs/ops/transpose.h"
#include "tests/codecs/fixture.h"

#include "codecs/ops/transpose.cu"

namespace slimwire::testing {
namespace {

TEST(Transpose, ColumnsAreOneAfterTheOther) {
    std::mt19937 random{test_seed()};
    const struct {
        int64_t count, row, column;
    } kShapes[] = {{35, 7, 5}, {37, 7, 16}, {2000, 40, 64}, {5, 9, 1}, {4097, 33, 128}};
    for (const DType dtype : kFloatTypes) {
        for (const auto& shape : kShapes) {
            SCOPED_TRACE(std::string(dtype_name(dtype)) + " " + std::to_string(shape.count));
            const auto bytes = static_cast<size_t>(dtype_bytes(dtype));
            const auto size = static_cast<int64_t>(bytes);
            const Guarded rows = random_input(dtype, shape.count, 1.0, random);
            const std::vector<uint8_t> given = rows.copy(shape.count * size);
            std::vector<uint8_t> expected(static_cast<size_t>(shape.row * shape.column) * bytes);
            for (int64_t at = 0; at < shape.count; ++at) {
                const int64_t to = at % shape.row * shape.column + at / shape.row;
                std::memcpy(expected.data() + to * size, given.data() + at * size, bytes);
            }
            for (const bool device : {false, true}) {
                Guarded columns(shape.row * shape.column * size, 0), back(shape.count * size, 0);
                TransposeArgs args{rows.data(),  columns.data(), shape.count, shape.row,
                                   shape.column, dtype,          true,        1};
                const auto run = [&] {
                    if (!device) {
                        transpose_on_host(args);
                    } else {
                        ASSERT_EQ(transpose_on_cuda(args, nullptr), cudaSuccess);
                    }
                };
                run();
                EXPECT_TRUE(columns.copy(columns.size()) == expected) << device;
                args.input = columns.data();
                args.output = back.data();
                args.to_columns = false;
                run();
                EXPECT_TRUE(back.copy(back.size()) == given) << device;
                EXPECT_TRUE(columns.margins_intact() && back.margins_intact());
            }
        }
    }
}

}  // namespace
}  // namespace slimwire::testing
