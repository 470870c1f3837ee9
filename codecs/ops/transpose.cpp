#include "codecs/ops/transpose.h"

#include <algorithm>

#include "codecs/launch.h"
#include "codecs/simd/chunks.h"

namespace slimwire {
namespace {

constexpr int64_t kTile = 32;  // rows and columns that are taken together

template <class Word>
void transpose(const TransposeArgs& args) {
    auto* const input = device_view_as<const Word>(args.input);
    auto* const output = device_view_as<Word>(args.output);
    for (int64_t row = 0; row < args.column; row += kTile) {
        for (int64_t col = 0; col < args.row; col += kTile) {
            for (int64_t i = row; i < std::min(row + kTile, args.column); ++i) {
                for (int64_t j = col; j < std::min(col + kTile, args.row); ++j) {
                    const int64_t of_rows = i * args.row + j, of_columns = j * args.column + i;
                    const bool there = of_rows < args.count;
                    if (args.to_columns) {
                        output[of_columns] = there ? input[of_rows] : Word{0};
                    } else if (there) {
                        output[of_rows] = input[of_columns];
                    }
                }
            }
        }
    }
}

}  // namespace

void transpose_on_host(const TransposeArgs& args) {
    switch (dtype_bytes(args.dtype)) {
        case 2:
            return transpose<uint16_t>(args);
        case 4:
            return transpose<uint32_t>(args);
        default:
            return transpose<uint64_t>(args);
    }
}

SLIMWIRE_ENQUEUE(transpose, TransposeArgs)

}  // namespace slimwire
