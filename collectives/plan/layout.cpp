#include "collectives/plan/layout.h"

#include <algorithm>

#include "codecs/sparse/threshold_control.h"

namespace slimwire {
namespace {

constexpr uint64_t kMaxSlices = 1024;
constexpr int64_t kSlotAlignment = 16;
// A segment is cut into at most so many parts for what a slice holds, so that small ones are not
// cut into kernels of next to nothing.
constexpr uint64_t kPartsPerSlice = 4;

int64_t round_up(int64_t value, int64_t multiple) {
    return (value + multiple - 1) / multiple * multiple;
}

// A run of elements among `total` of a message, cut into parts for slices one after another.
class Parts {
  public:
    Parts(uint64_t before, uint64_t count, uint64_t total, uint64_t slices, int64_t multiple)
        : count_(static_cast<int64_t>(count)) {
        const uint64_t parts =
            std::clamp<uint64_t>(kPartsPerSlice * slices * count / total, 1, slices);
        step_ = round_up(static_cast<int64_t>((count + parts - 1) / parts), multiple);
        first_ = std::min(before * slices / total, slices - parts);
    }
    struct Cut {
        int64_t begin, end;
    };
    // What the slice has of the run.
    [[nodiscard]] Cut of_slice(uint64_t slice) const noexcept {
        if (slice < first_) {
            return {0, 0};
        }
        const int64_t begin = std::min(static_cast<int64_t>(slice - first_) * step_, count_);
        return {begin, std::min(begin + step_, count_)};
    }

  private:
    int64_t count_, step_;
    uint64_t first_;
};

// The elements [cut.begin, cut.end) of all raw segments one after another.
RawPart raw_part(const std::vector<Segment>& segments, const Parts::Cut& cut) {
    RawPart part;
    part.count = cut.end - cut.begin;
    int64_t before = 0;
    for (const Segment& segment : segments) {
        if (!segment.raw()) {
            continue;
        }
        const auto count = static_cast<int64_t>(segment.count);
        const int64_t begin = std::max(cut.begin, before), end = std::min(cut.end, before + count);
        if (begin < end) {
            part.ranges.push_back(
                {segment.offset_elems + static_cast<uint64_t>(begin - before), begin - cut.begin});
        }
        before += count;
    }
    return part;
}

// Numbers the pieces that have residuals by where they lie in the buffer.
void number_pieces(Layout* layout) {
    std::vector<Piece*> fed;
    for (Slice& slice : layout->slices) {
        for (Piece& piece : slice.pieces) {
            if (piece.has_residual) {
                fed.push_back(&piece);
            }
        }
    }
    std::sort(fed.begin(), fed.end(),
              [](const Piece* a, const Piece* b) { return a->offset_elems < b->offset_elems; });
    int64_t order = 0, before = 0;
    for (Piece* piece : fed) {
        piece->order = order++;
        piece->residual_offset = before;
        before += piece->count;
    }
}

// How all segments are cut for the slices.
struct MessageCut {
    DType dtype;
    std::optional<DType> fed_dtype;
    int ranks;
    std::vector<Parts> coded;  // of each segment with a codec
    Parts raw;                 // of all others as if they were one

    [[nodiscard]] DType encoded(const Segment& segment) const noexcept {
        return segment.has_residual && !segment.raw() ? fed_dtype.value_or(dtype) : dtype;
    }
    // Puts the chunks behind what the slice holds.
    void place(int64_t granule, const Slice& slice, Chunks* chunks) const noexcept {
        chunks->chunk_elems = round_up((chunks->count + ranks - 1) / ranks, granule);
        chunks->slot_offset = slice.slot_bytes;
    }
};

// Large segments are cut into a part for every slice, so each holds a share of each codec.
MessageCut cut_message(const std::vector<Segment>& segments,
                       DType dtype,
                       std::optional<DType> fed_dtype,
                       int ranks,
                       uint64_t total,
                       uint64_t slices) {
    uint64_t before = 0, raw = 0;
    MessageCut cut{dtype, fed_dtype, ranks, {}, Parts(0, 0, total, slices, kRawGranule * ranks)};
    for (const Segment& segment : segments) {
        raw += segment.raw() ? segment.count : 0;
        if (!segment.raw()) {
            cut.coded.emplace_back(before, segment.count, total, slices,
                                   segment.codec.granule(cut.encoded(segment)) * ranks);
            before += segment.count;
        }
    }
    cut.raw = Parts(before, raw, total, slices, kRawGranule * ranks);
    return cut;
}

Slice slice_of(const std::vector<Segment>& segments, const MessageCut& message, uint64_t index) {
    Slice slice;
    auto parts = message.coded.begin();
    for (const Segment& segment : segments) {
        if (segment.raw()) {
            continue;
        }
        const Parts::Cut cut = parts++->of_slice(index);
        if (cut.begin == cut.end) {
            continue;
        }
        Piece piece;
        piece.offset_elems = segment.offset_elems + static_cast<uint64_t>(cut.begin);
        piece.count = cut.end - cut.begin;
        piece.codec = segment.codec;
        piece.dtype = message.encoded(segment);
        piece.has_residual = segment.has_residual;
        message.place(segment.codec.granule(piece.dtype), slice, &piece);
        slice.slot_bytes +=
            round_up(segment.codec.encoded_bytes(piece.dtype, piece.chunk_elems), kSlotAlignment);
        slice.pieces.push_back(piece);
    }
    const Parts::Cut cut = message.raw.of_slice(index);
    if (cut.begin < cut.end) {
        slice.raw = raw_part(segments, cut);
        message.place(kRawGranule, slice, &slice.raw);
        slice.slot_bytes +=
            round_up(slice.raw.chunk_elems * static_cast<int64_t>(dtype_bytes(message.dtype)),
                     kSlotAlignment);
    }
    return slice;
}

// Of one piece encoded as a whole or chunk by chunk.
int64_t workspace_of(const Slice& slice) {
    int64_t bytes = 0;
    for (const Piece& piece : slice.pieces) {
        for (const int64_t count : {piece.count, piece.chunk_elems}) {
            bytes =
                std::max(bytes, piece.codec.workspace_bytes(piece.dtype, count, piece.chunk_elems));
        }
    }
    return bytes;
}

}  // namespace

Layout make_layout(const std::vector<Segment>& segments,
                   DType dtype,
                   int ranks,
                   uint64_t slice_bytes,
                   std::optional<DType> fed_dtype) {
    uint64_t total = 0, bytes = 0;
    for (const Segment& segment : segments) {
        const bool fed = segment.has_residual && !segment.raw();
        total += segment.count;
        bytes += segment.count * dtype_bytes(fed ? fed_dtype.value_or(dtype) : dtype);
    }
    Layout layout;
    if (total == 0) {
        return layout;
    }
    const uint64_t slices =
        slice_bytes == 0
            ? 1
            : std::clamp<uint64_t>((bytes + slice_bytes / 2) / slice_bytes, 1, kMaxSlices);
    const MessageCut cut = cut_message(segments, dtype, fed_dtype, ranks, total, slices);
    for (uint64_t index = 0; index < slices; ++index) {
        Slice slice = slice_of(segments, cut, index);
        if (slice.slot_bytes > 0) {
            layout.max_slot_bytes = std::max(layout.max_slot_bytes, slice.slot_bytes);
            layout.total_slot_bytes += slice.slot_bytes;
            layout.workspace_bytes = std::max(layout.workspace_bytes, workspace_of(slice));
            layout.slices.push_back(std::move(slice));
        }
    }
    number_pieces(&layout);
    return layout;
}

void reserve_workspace(int64_t blocks, int64_t chunks, Layout* layout) {
    const auto reserve = [&](int64_t bytes) {
        layout->workspace_bytes = std::max(layout->workspace_bytes, bytes);
    };
    for (const Slice& slice : layout->slices) {
        for (const Piece& piece : slice.pieces) {
            const CodecSpec& codec = piece.codec;
            const int64_t count =
                piece.chunk_elems < piece.count ? piece.count : blocks * piece.count;
            reserve(codec.workspace_bytes(piece.dtype, count, piece.chunk_elems));
            if (codec.traits(piece.dtype).adapts_threshold) {
                layout->threshold_bytes = threshold_state_bytes(chunks);
                reserve(
                    threshold_workspace_bytes(codec.params, piece.dtype, count, piece.chunk_elems));
                reserve(threshold_workspace_bytes(codec.params, piece.dtype, piece.chunk_elems,
                                                  piece.chunk_elems));
            }
        }
    }
    if (layout->threshold_bytes > 0) {
        layout->spare_threshold_offset = round_up(layout->workspace_bytes, kSlotAlignment);
        layout->workspace_bytes = layout->spare_threshold_offset + layout->threshold_bytes;
    }
}

Layout factored_layout(const CodecSpec& codec,
                       int state_rank,
                       const std::vector<MatrixShape>& matrices,
                       uint64_t count) {
    FactoredMessage message;
    message.codec = codec;
    message.state_rank = state_rank;
    message.factors = low_rank_layout(matrices, static_cast<int>(codec.params.kept));
    if (autoencodes(codec)) {
        message.transposed = transposed_layout(matrices, static_cast<int>(codec.params.kept));
    }
    const auto end = static_cast<int64_t>(count);
    int64_t at = 0;
    const auto skip_to = [&](int64_t element) {
        if (at < element) {
            message.raw.ranges.push_back({static_cast<uint64_t>(at), message.raw.count});
            message.raw.count += element - at;
        }
    };
    for (const MatrixShape& matrix : matrices) {
        skip_to(matrix.element);
        at = matrix.element + int64_t{matrix.rows} * matrix.cols;
    }
    skip_to(end);
    message.raw.chunk_elems = round_up(message.raw.count, kRawGranule);
    Layout layout;
    layout.factored = std::make_shared<const FactoredMessage>(std::move(message));
    return layout;
}

namespace {

// Adds up value(piece) of the pieces that have residuals.
template <class Value>
uint64_t of_fed(const Layout& layout, const Value& value) noexcept {
    uint64_t sum = 0;
    for (const Slice& slice : layout.slices) {
        for (const Piece& piece : slice.pieces) {
            sum += piece.has_residual ? value(piece) : 0;
        }
    }
    return sum;
}

}  // namespace

uint64_t Layout::fed_pieces() const noexcept {
    return of_fed(*this, [](const Piece&) { return uint64_t{1}; });
}

uint64_t Layout::fed_elems() const noexcept {
    return of_fed(*this, [](const Piece& piece) { return static_cast<uint64_t>(piece.count); });
}

int64_t Layout::largest_piece() const noexcept {
    int64_t largest = 0;
    for (const Slice& slice : slices) {
        for (const Piece& piece : slice.pieces) {
            largest = std::max(largest, piece.count);
        }
    }
    return largest;
}

int64_t Layout::largest_raw_part() const noexcept {
    int64_t largest = factored != nullptr ? factored->raw.count : 0;
    for (const Slice& slice : slices) {
        largest = std::max(largest, slice.raw.count);
    }
    return largest;
}

}  // namespace slimwire
