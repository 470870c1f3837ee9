// Messages of rows whose blocks go along columns (int8, int4, int2 with row=): as `direct`, but
// each block of the call is encoded from its columns, one after the other and each filled up with
// zeros to whole blocks of the codec. One slice; nothing is kept.
#pragma once

#include <string>

#include "collectives/algorithms/algorithm.h"
#include "collectives/algorithms/direct.h"

namespace slimwire {

// Whether the codec goes so; why the call cannot, else empty; and its layout, whose workspace holds
// the columns of one block.
[[nodiscard]] bool goes_by_columns(const CodecSpec& codec) noexcept;
[[nodiscard]] std::string refuse_columns(const AlgorithmRequest& request);
[[nodiscard]] Layout column_layout(const AlgorithmRequest& request);
// Of a layout of such a codec.
[[nodiscard]] bool has_columns(const Layout& layout) noexcept;

class ColumnBlocks final : public Direct {
  public:
    using Direct::Direct;

  private:
    Status encode_blocks(int slice, int first, int last, int base) override;
    Status decode_blocks(int slice, int first, int last, int base) override;
    Status decode_sum(int slice) override;
    // Between rows of the call's elements and the columns in the workspace.
    Status transpose(const void* rows, void* to_rows);
};

}  // namespace slimwire
