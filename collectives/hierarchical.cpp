#include "collectives/hierarchical.h"

#include "codecs/sum_rows.h"
#include "collectives/plan.h"

namespace slimwire {

Hierarchical::Hierarchical(const ExchangeContext& context)
    : SlicedExchange(context, 4, true),
      map_(context.plan.layout, context.plan.facts, *context.state.shape.nodes) {
    workspace_ = context.scratch + map_.workspace;
    node_ = nodes().node_of(rank());
    local_ = nodes().local_of(rank());
    local_ranks_ = nodes().size_of(node_);
}

template <class Body>
Status Hierarchical::for_owned(const Body& body) const {
    for (int owned = 0, column = local_; column < nodes().most(); ++owned, column += local_ranks_) {
        SLIMWIRE_TRY(body(owned, column));
    }
    return {};
}

char* Hierarchical::slot(uint64_t area, int slice, int owned, int node) const noexcept {
    return context_.scratch + ScratchMap::part(area, kSlotParts, map_.slot_part, slice) +
           static_cast<size_t>(owned * nodes().nodes() + node) * slot_bytes(slice);
}

char* Hierarchical::gathered(int slice, int column, int node) const noexcept {
    return context_.scratch + ScratchMap::part(map_.gather, kGatherParts, map_.gather_part, slice) +
           static_cast<size_t>(column * nodes().nodes() + node) * slot_bytes(slice);
}

size_t Hierarchical::row_stride(int slice) const noexcept {
    return row_bytes(context_.plan.layout, context_.plan.facts.dtype, slice_at(slice),
                     nodes().nodes());
}

char* Hierarchical::staged_row(int slice, int column) const noexcept {
    return context_.scratch + ScratchMap::part(map_.staging, kSlotParts, map_.staging_part, slice) +
           static_cast<size_t>(column) * row_stride(slice);
}

char* Hierarchical::row(int slice, int owned, int local) const noexcept {
    return context_.scratch + ScratchMap::part(map_.rows, kSlotParts, map_.row_part, slice) +
           static_cast<size_t>(owned * local_ranks_ + local) * row_stride(slice);
}

float* Hierarchical::residual_of(int slice, size_t piece, int owned) const noexcept {
    if (context_.residual == nullptr) {
        return nullptr;
    }
    const int64_t of_column = nodes().nodes() + 1;
    const int64_t columns = nodes().owned_by(rank());
    float* residual =
        context_.residual + (context_.plan.layout.intra ? context_.plan.facts.count : 0);
    for (int before = 0; before <= slice; ++before) {
        const std::vector<Piece>& pieces = slice_at(before).pieces;
        const size_t end = before == slice ? piece : pieces.size();
        for (size_t i = 0; i < end; ++i) {
            residual += columns * of_column * pieces[i].chunk_elems;
        }
    }
    return residual + owned * of_column * slice_at(slice).pieces[piece].chunk_elems;
}

const char* Hierarchical::column_of(const Piece& piece, int column) const noexcept {
    return static_cast<const char*>(context_.call.send) +
           (static_cast<int64_t>(piece.offset_elems) +
            piece.chunk_begin(column * nodes().nodes())) *
               element_bytes();
}

// Before anything is stored in the call's type: a sum may not fit where the average does.
float Hierarchical::factor() const noexcept {
    return context_.plan.facts.redop == RedOp::kAvg ? 1.0f / static_cast<float>(ranks()) : 1.0f;
}

// With a codec inside the node: every column is one chunk of the own contribution.
Status Hierarchical::encode(int slice) {
    const Layout& layout = context_.plan.layout;
    if (!layout.intra) {
        return {};
    }
    size_t offset = 0;
    for (const Piece& piece : slice_at(slice).pieces) {
        const Piece whole = intra_piece(layout, piece, nodes().nodes());
        for (int column = 0; column < nodes().most(); ++column) {
            const int64_t count = column_count(piece, column, nodes().nodes());
            if (count == 0) {
                continue;
            }
            float* residual = context_.residual == nullptr
                                  ? nullptr
                                  : context_.residual + piece.offset_elems +
                                        piece.chunk_begin(column * nodes().nodes());
            SLIMWIRE_TRY(encode_run(
                whole, random_of(slice, piece, static_cast<uint32_t>(2 * column)),
                column_of(piece, column), residual, staged_row(slice, column) + offset,
                {count, whole.chunk_elems, static_cast<int64_t>(row_stride(slice))}, factor()));
        }
        offset += row_bytes(layout, context_.plan.facts.dtype, piece, nodes().nodes());
    }
    return {};
}

Status Hierarchical::place_own(int slice) {
    const Layout& layout = context_.plan.layout;
    const auto copy = [&](char* to, const char* from, size_t bytes) {
        return cuda_status(
            context_.api,
            context_.api.memcpy_async(to, from, bytes, cudaMemcpyDeviceToDevice, wire()),
            "own columns");
    };
    return for_owned([&](int owned, int column) -> Status {
        char* to = row(slice, owned, local_);
        if (layout.intra) {
            return copy(to, staged_row(slice, column), row_stride(slice));
        }
        for (const Piece& piece : slice_at(slice).pieces) {
            const int64_t count = column_count(piece, column, nodes().nodes());
            if (count > 0) {
                SLIMWIRE_TRY(copy(to, column_of(piece, column),
                                  static_cast<size_t>(count * element_bytes())));
            }
            to += row_bytes(layout, context_.plan.facts.dtype, piece, nodes().nodes());
        }
        return {};
    });
}

Status Hierarchical::gather_rows(int slice) {
    const Layout& layout = context_.plan.layout;
    // A column goes piece by piece as it lies in the program's buffer, or as one encoded row.
    const auto move = [&](int column, char* row, const auto& step) -> Status {
        if (layout.intra) {
            return step(row, row, row_stride(slice));
        }
        for (const Piece& piece : slice_at(slice).pieces) {
            const int64_t count = column_count(piece, column, nodes().nodes());
            if (count > 0) {
                SLIMWIRE_TRY(step(column_of(piece, column), row,
                                  static_cast<size_t>(count * element_bytes())));
            }
            row += row_bytes(layout, context_.plan.facts.dtype, piece, nodes().nodes());
        }
        return {};
    };
    for (int column = 0; column < nodes().most(); ++column) {
        const int owner = nodes().owner(node_, column);
        if (owner != rank()) {
            SLIMWIRE_TRY(
                move(column, staged_row(slice, column), [&](const char* from, char*, size_t bytes) {
                    return send_bytes(from, bytes, owner);
                }));
        }
    }
    return for_owned([&](int owned, int column) -> Status {
        for (int local = 0; local < local_ranks_; ++local) {
            if (local != local_) {
                const int source = nodes().ranks_of(node_)[static_cast<size_t>(local)];
                SLIMWIRE_TRY(move(column, row(slice, owned, local),
                                  [&](const char*, char* to, size_t bytes) {
                                      return receive_bytes(to, bytes, source);
                                  }));
            }
        }
        return {};
    });
}

// Adds the rows of a column into `sum`, in rank order.
Status Hierarchical::sum_rows(const Piece& piece, const char* rows, int64_t stride, int64_t count) {
    const Layout& layout = context_.plan.layout;
    char* sum = context_.scratch + map_.sum;
    if (!layout.intra) {
        SumRowsArgs args{};
        args.input = rows;
        args.output = sum;
        args.row_bytes = stride;
        args.count = count;
        args.rows = local_ranks_;
        args.scale = factor();
        args.input_dtype = args.output_dtype = context_.plan.facts.dtype;
        return enqueue(context_.api, args, context_.work);
    }
    const Piece whole = intra_piece(layout, piece, nodes().nodes());
    for (int local = 0; local < local_ranks_; ++local) {
        SLIMWIRE_TRY(decode_run(whole, rows + local * stride, sum,
                                {count, whole.chunk_elems, stride}, local > 0));
    }
    return {};
}

Status Hierarchical::encode_node_sum(int slice) {
    return for_owned([&](int owned, int column) -> Status {
        size_t offset = 0;
        const std::vector<Piece>& pieces = slice_at(slice).pieces;
        for (size_t i = 0; i < pieces.size(); ++i) {
            const Piece& piece = pieces[i];
            const int64_t count = column_count(piece, column, nodes().nodes());
            if (count > 0) {
                SLIMWIRE_TRY(sum_rows(piece, row(slice, owned, 0) + offset,
                                      static_cast<int64_t>(row_stride(slice)), count));
                EncodeArgs args{};
                args.input = context_.scratch + map_.sum;
                args.output = slot(map_.send, slice, owned, 0) + piece.slot_offset;
                args.residual = residual_of(slice, i, owned);
                args.scale = 1.0f;
                args.count = count;
                args.chunk_elems = piece.chunk_elems;
                args.slot_bytes = slice_at(slice).slot_bytes;
                args.params = piece.codec.params;
                args.dtype = context_.plan.facts.dtype;
                args.random = random_of(slice, piece, static_cast<uint32_t>(2 * column + 1));
                args.workspace = workspace_;
                SLIMWIRE_TRY(enqueue(context_.api, piece.codec, args, context_.work));
            }
            offset +=
                row_bytes(context_.plan.layout, context_.plan.facts.dtype, piece, nodes().nodes());
        }
        return cuda_status(
            context_.api,
            context_.api.memcpy_async(slot(map_.receive, slice, owned, node_),
                                      slot(map_.send, slice, owned, node_), slot_bytes(slice),
                                      cudaMemcpyDeviceToDevice, context_.work),
            "own slot");
    });
}

Status Hierarchical::exchange_sums(int slice) {
    return for_owned([&](int owned, int column) -> Status {
        for (int node = 0; node < nodes().nodes(); ++node) {
            if (node != node_) {
                const int peer = nodes().owner(node, column);
                SLIMWIRE_TRY(
                    send_bytes(slot(map_.send, slice, owned, node), slot_bytes(slice), peer));
                SLIMWIRE_TRY(
                    receive_bytes(slot(map_.receive, slice, owned, node), slot_bytes(slice), peer));
            }
        }
        return {};
    });
}

Status Hierarchical::reduce_nodes(int slice) {
    return for_owned([&](int owned, int column) -> Status {
        const std::vector<Piece>& pieces = slice_at(slice).pieces;
        for (size_t i = 0; i < pieces.size(); ++i) {
            const Piece& piece = pieces[i];
            float* residual = residual_of(slice, i, owned);
            DecodeReduceEncodeArgs args{};
            args.input = slot(map_.receive, slice, owned, 0) + piece.slot_offset;
            args.output = gathered(slice, column, node_) + piece.slot_offset;
            args.residual =
                residual == nullptr ? nullptr : residual + column_elems(piece, nodes().nodes());
            args.input_stride = slice_at(slice).slot_bytes;
            args.count = piece.chunk_count(column * nodes().nodes() + node_);
            args.inputs = nodes().nodes();
            args.scale = 1.0f;
            args.params = piece.codec.params;
            args.dtype = context_.plan.facts.dtype;
            args.random = random_of(slice, piece, static_cast<uint32_t>(2 * column + 1));
            args.workspace = workspace_;
            if (args.count > 0) {
                SLIMWIRE_TRY(piece.codec.reduces()
                                 ? enqueue(context_.api, piece.codec, args, context_.work)
                                 : reduce_decoded(piece, args, context_.scratch + map_.sum));
            }
        }
        return {};
    });
}

Status Hierarchical::exchange_results(int slice) {
    return for_owned([&](int, int column) -> Status {
        for (int node = 0; node < nodes().nodes(); ++node) {
            if (node != node_) {
                const int peer = nodes().owner(node, column);
                SLIMWIRE_TRY(send_bytes(gathered(slice, column, node_), slot_bytes(slice), peer));
                SLIMWIRE_TRY(receive_bytes(gathered(slice, column, node), slot_bytes(slice), peer));
            }
        }
        return {};
    });
}

Status Hierarchical::hand_out(int slice) {
    const size_t bytes = slot_bytes(slice) * static_cast<size_t>(nodes().nodes());
    for (int column = 0; column < nodes().most(); ++column) {
        const int owner = nodes().owner(node_, column);
        char* slots = gathered(slice, column, 0);
        if (owner != rank()) {
            SLIMWIRE_TRY(receive_bytes(slots, bytes, owner));
            continue;
        }
        for (const int peer : nodes().ranks_of(node_)) {
            if (peer != rank()) {
                SLIMWIRE_TRY(send_bytes(slots, bytes, peer));
            }
        }
    }
    return {};
}

Status Hierarchical::between(int hop, int slice) {
    if (hop == 1) {
        return encode_node_sum(slice);
    }
    return hop == 2 ? reduce_nodes(slice) : Status();
}

Status Hierarchical::send(int hop, int slice) {
    switch (hop) {
        case 0:
            return gather_rows(slice);
        case 1:
            return exchange_sums(slice);
        case 2:
            return exchange_results(slice);
        default:
            return hand_out(slice);
    }
}

Status Hierarchical::decode(int slice) {
    for (const Piece& piece : slice_at(slice).pieces) {
        SLIMWIRE_TRY(decode_run(piece, gathered(slice, 0, 0) + piece.slot_offset,
                                static_cast<char*>(context_.call.recv) +
                                    static_cast<int64_t>(piece.offset_elems) * element_bytes(),
                                {piece.count, piece.chunk_elems, slice_at(slice).slot_bytes},
                                false));
    }
    return {};
}

}  // namespace slimwire
