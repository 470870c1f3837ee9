#include "collectives/algorithms/hierarchical.h"

#include "collectives/algorithms/algorithm.h"
#include "collectives/algorithms/hierarchical_scatter.h"
#include "collectives/plan/plan.h"

namespace slimwire {

Hierarchical::Hierarchical(const ExchangeContext& context)
    : NodeExchange(context, 4),
      map_(context.plan.layout, context.plan.signature, *context.state.shape.nodes) {
    workspace_ = context.scratch + map_.workspace;
}

bool Hierarchical::rooted() const noexcept {
    return signature().op == Op::kReduce;
}

bool Hierarchical::delivers_to(int node) const noexcept {
    return !rooted() || node == nodes().node_of(signature().root_or_peer);
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
    return row_bytes(layout(), signature().dtype, slice_at(slice), nodes().nodes());
}

char* Hierarchical::staged_row(int slice, int column) const noexcept {
    return context_.scratch + ScratchMap::part(map_.staging, kSlotParts, map_.staging_part, slice) +
           static_cast<size_t>(column) * row_stride(slice);
}

char* Hierarchical::row(int slice, int owned, int local) const noexcept {
    return context_.scratch + ScratchMap::part(map_.rows, kSlotParts, map_.row_part, slice) +
           static_cast<size_t>(owned * local_ranks_ + local) * row_stride(slice);
}

// Of the node's sum of an owned column; that of the own chunk of the sums is the next run.
SlicedExchange::ResidualSpan Hierarchical::residual_of(int slice,
                                                       size_t piece,
                                                       int owned) const noexcept {
    const int64_t of_column = nodes().nodes() + 1;
    const int64_t columns = nodes().owned_by(rank());
    ResidualSpan span{0, 0};
    if (layout().intra) {
        span = {static_cast<int64_t>(layout().fed_elems()),
                static_cast<int64_t>(layout().fed_pieces()) * nodes().most()};
    }
    for (int before = 0; before <= slice; ++before) {
        const std::vector<Piece>& pieces = slice_at(before).pieces;
        const size_t end = before == slice ? piece : pieces.size();
        for (size_t i = 0; i < end; ++i) {
            span.first += pieces[i].has_residual ? columns * of_column * pieces[i].chunk_elems : 0;
            span.index += pieces[i].has_residual ? 2 * columns : 0;
        }
    }
    const Piece& own = slice_at(slice).pieces[piece];
    return {span.first + owned * of_column * own.chunk_elems, span.index + 2 * owned,
            own.has_residual};
}

const char* Hierarchical::column_of(const Piece& piece, int column) const noexcept {
    return static_cast<const char*>(context_.call.send) +
           (static_cast<int64_t>(piece.offset_elems) +
            piece.chunk_begin(column * nodes().nodes())) *
               element_bytes();
}

const char* Hierarchical::source_of(int slice,
                                    const Piece& piece,
                                    int column,
                                    size_t row_offset) const noexcept {
    return stages_rows(layout(), signature()) ? staged_row(slice, column) + row_offset
                                              : column_of(piece, column);
}

size_t Hierarchical::raw_offset(int slice) const noexcept {
    return row_stride(slice) -
           raw_row_bytes(signature().dtype, slice_at(slice).raw, nodes().nodes());
}

Status Hierarchical::encode(int slice) {
    SLIMWIRE_TRY(pack_raw(slice, staged_row(slice, 0) + raw_offset(slice),
                          column_elems(slice_at(slice).raw, nodes().nodes()),
                          static_cast<int64_t>(row_stride(slice))));
    if (!stages_rows(layout(), signature())) {
        return {};
    }
    size_t offset = 0;
    for (const Piece& piece : slice_at(slice).pieces) {
        const Piece whole = row_piece(layout(), piece, column_elems(piece, nodes().nodes()));
        for (int column = 0; column < nodes().most(); ++column) {
            const int64_t count = column_count(piece, column, nodes().nodes());
            if (count == 0) {
                continue;
            }
            // Of the whole message, where it is encoded here.
            const ResidualSpan span{
                piece.residual_offset + piece.chunk_begin(column * nodes().nodes()),
                piece.order * nodes().most() + column, piece.has_residual};
            SLIMWIRE_TRY(
                stage_row(whole, random_of(slice, piece, static_cast<uint32_t>(2 * column)),
                          column_of(piece, column), span, staged_row(slice, column) + offset, count,
                          static_cast<int64_t>(row_stride(slice))));
        }
        offset += row_bytes(layout(), signature().dtype, piece, nodes().nodes());
    }
    return {};
}

// A column goes piece by piece, or as one encoded row: step(from, to, bytes) for each part of it.
template <class Step>
Status Hierarchical::move_row(int slice, int column, char* to, const Step& step) const {
    if (layout().intra) {
        return step(staged_row(slice, column), to, row_stride(slice));
    }
    size_t offset = 0;
    for (const Piece& piece : slice_at(slice).pieces) {
        const int64_t count = column_count(piece, column, nodes().nodes());
        if (count > 0) {
            SLIMWIRE_TRY(step(source_of(slice, piece, column, offset), to + offset,
                              static_cast<size_t>(count * element_bytes())));
        }
        offset += row_bytes(layout(), signature().dtype, piece, nodes().nodes());
    }
    const int64_t raw = column_count(slice_at(slice).raw, column, nodes().nodes());
    return raw == 0 ? Status()
                    : step(staged_row(slice, column) + offset, to + offset,
                           static_cast<size_t>(raw * element_bytes()));
}

Status Hierarchical::place_own(int slice) {
    return for_owned([&](int owned, int column) {
        return move_row(slice, column, row(slice, owned, local_),
                        [&](const char* from, char* to, size_t bytes) {
                            return copy(to, from, bytes, wire());
                        });
    });
}

Status Hierarchical::gather_rows(int slice) {
    for (int column = 0; column < nodes().most(); ++column) {
        const int owner = nodes().owner(node_, column);
        if (owner != rank()) {
            SLIMWIRE_TRY(move_row(slice, column, staged_row(slice, column),
                                  [&](const char* from, char*, size_t bytes) {
                                      return send_bytes(from, bytes, owner);
                                  }));
        }
    }
    return for_owned([&](int owned, int column) -> Status {
        for (int local = 0; local < local_ranks_; ++local) {
            if (local != local_) {
                const int source = nodes().ranks_of(node_)[static_cast<size_t>(local)];
                SLIMWIRE_TRY(move_row(slice, column, row(slice, owned, local),
                                      [&](const char*, char* to, size_t bytes) {
                                          return receive_bytes(to, bytes, source);
                                      }));
            }
        }
        return {};
    });
}

Status Hierarchical::encode_node_sum(int slice) {
    return for_owned([&](int owned, int column) -> Status {
        size_t offset = 0;
        const std::vector<Piece>& pieces = slice_at(slice).pieces;
        for (size_t i = 0; i < pieces.size(); ++i) {
            const Piece& piece = pieces[i];
            const int64_t count = column_count(piece, column, nodes().nodes());
            if (count > 0) {
                SLIMWIRE_TRY(
                    sum_rows(row_piece(layout(), piece, column_elems(piece, nodes().nodes())),
                             row(slice, owned, 0) + offset, static_cast<int64_t>(row_stride(slice)),
                             count, context_.scratch + map_.sum));
                SLIMWIRE_TRY(encode_sum(
                    piece, random_of(slice, piece, static_cast<uint32_t>(2 * column + 1)),
                    context_.scratch + map_.sum, residual_of(slice, i, owned),
                    slot(map_.send, slice, owned, 0) + piece.slot_offset,
                    {count, piece.chunk_elems, slice_at(slice).slot_bytes}));
            }
            offset += row_bytes(layout(), signature().dtype, piece, nodes().nodes());
        }
        const RawPart& raw = slice_at(slice).raw;
        SLIMWIRE_TRY(sum_raw_rows(
            raw, row(slice, owned, 0) + offset, static_cast<int64_t>(row_stride(slice)),
            column_count(raw, column, nodes().nodes()), context_.scratch + map_.sum,
            slot(map_.send, slice, owned, 0) + raw.slot_offset, slice_at(slice).slot_bytes));
        return copy(slot(map_.receive, slice, owned, node_), slot(map_.send, slice, owned, node_),
                    slot_bytes(slice), context_.work);
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
            const ResidualSpan of_sum = residual_of(slice, i, owned);
            const ResidualSpan span{of_sum.first + column_elems(piece, nodes().nodes()),
                                    of_sum.index + 1, of_sum.has_residual};
            DecodeReduceEncodeArgs args{};
            args.input = slot(map_.receive, slice, owned, 0) + piece.slot_offset;
            args.output = gathered(slice, column, node_) + piece.slot_offset;
            args.input_stride = slice_at(slice).slot_bytes;
            args.count = piece.chunk_count(column * nodes().nodes() + node_);
            args.inputs = nodes().nodes();
            const Average average =
                sum_of_means(context_, nodes().nodes(), piece.codec.reduces(), &piece.codec);
            args.scale = average.sum_scale;
            args.input_scale = average.input_scale;
            args.sum_limit = average.sum_limit;
            args.params = piece.codec.params;
            args.dtype = signature().dtype;
            args.random = random_of(slice, piece, static_cast<uint32_t>(2 * column + 1));
            args.workspace = workspace_;
            if (args.count > 0) {
                SLIMWIRE_TRY(with_residual(span, args.count, [&](float* residual) {
                    args.residual = residual;
                    return piece.codec.reduces()
                               ? enqueue(context_.api, piece.codec, args, context_.work)
                               : reduce_decoded(piece, args, span, context_.scratch + map_.sum);
                }));
            }
        }
        const RawPart& raw = slice_at(slice).raw;
        return sum_raw(slot(map_.receive, slice, owned, 0) + raw.slot_offset,
                       slice_at(slice).slot_bytes, nodes().nodes(),
                       raw.chunk_count(column * nodes().nodes() + node_),
                       sum_of_means(context_, nodes().nodes()),
                       gathered(slice, column, node_) + raw.slot_offset);
    });
}

Status Hierarchical::exchange_results(int slice) {
    return for_owned([&](int, int column) -> Status {
        for (int node = 0; node < nodes().nodes(); ++node) {
            if (node == node_) {
                continue;
            }
            const int peer = nodes().owner(node, column);
            if (delivers_to(node)) {
                SLIMWIRE_TRY(send_bytes(gathered(slice, column, node_), slot_bytes(slice), peer));
            }
            if (delivers_to(node_)) {
                SLIMWIRE_TRY(receive_bytes(gathered(slice, column, node), slot_bytes(slice), peer));
            }
        }
        return {};
    });
}

Status Hierarchical::hand_out(int slice) {
    if (!delivers_to(node_)) {
        return {};
    }
    const size_t bytes = slot_bytes(slice) * static_cast<size_t>(nodes().nodes());
    for (int column = 0; column < nodes().most(); ++column) {
        const int owner = nodes().owner(node_, column);
        char* slots = gathered(slice, column, 0);
        for (const int peer : nodes().ranks_of(node_)) {
            if (peer == owner || (rooted() && peer != signature().root_or_peer)) {
                continue;
            }
            if (owner == rank()) {
                SLIMWIRE_TRY(send_bytes(slots, bytes, peer));
            } else if (peer == rank()) {
                SLIMWIRE_TRY(receive_bytes(slots, bytes, owner));
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
    if (rooted() && rank() != signature().root_or_peer) {
        return {};
    }
    for (const Piece& piece : slice_at(slice).pieces) {
        SLIMWIRE_TRY(decode_run(piece, gathered(slice, 0, 0) + piece.slot_offset, result(piece),
                                run_of(slice, piece), false));
    }
    const RawPart& raw = slice_at(slice).raw;
    return unpack_raw(slice, gathered(slice, 0, 0) + raw.slot_offset, raw.chunk_elems,
                      slice_at(slice).slot_bytes);
}

// The descriptor, whose reduce-scatter is that of hierarchical_scatter.h.
namespace {

bool scatters(const CallSignature& signature) noexcept {
    return signature.op == Op::kReduceScatter;
}

std::string refuse(const AlgorithmRequest& request) {
    if (request.shape.nodes == nullptr || request.shape.nodes->nodes() == 1) {
        return "all ranks are on one node, and hierarchical compresses between nodes";
    }
    const std::optional<CodecSpec>& intra = request.action.intra_codec;
    const DType dtype = request.signature.dtype;
    if (!intra) {
        return {};
    }
    if (!intra->accepts(dtype)) {
        return intra->to_string() + " does not take " + dtype_name(dtype);
    }
    return intra->traits(dtype).low_rank ? intra->to_string() + " goes by low_rank alone" : "";
}

Layout layout_of(const AlgorithmRequest& request, uint64_t slice_bytes) {
    const std::optional<CodecSpec>& intra = request.action.intra_codec;
    const DType dtype = request.signature.dtype;
    return scatters(request.signature)
               ? hierarchical_scatter_layout(segments_of(request), dtype, intra,
                                             block_slice_bytes(request, slice_bytes))
               : hierarchical_layout(segments_of(request), dtype, *request.shape.nodes, intra,
                                     slice_bytes);
}

ExchangeSizes sizes_of(const PlannedCall& call) {
    return scatters(call.signature) ? hierarchical_scatter_sizes(call) : hierarchical_sizes(call);
}

uint64_t wire_bytes(const PlannedCall& call, int rank) {
    return scatters(call.signature) ? hierarchical_scatter_wire_bytes(call, rank)
                                    : hierarchical_wire_bytes(call, rank);
}

// Of the whole message, encoded inside the node, which is in front.
int64_t inner_elems(const Plan& plan) {
    return plan.layout.intra ? static_cast<int64_t>(plan.layout.fed_elems()) : 0;
}
int64_t inner_pieces(const Plan& plan, const NodeTable& nodes) {
    return plan.layout.intra ? static_cast<int64_t>(plan.layout.fed_pieces()) * nodes.most() : 0;
}

// As Hierarchical::encode().
void inner_runs(const Plan& plan, const PlanShape& shape, int, const UseResidualRun& use) {
    const NodeTable& nodes = *shape.nodes;
    if (scatters(plan.signature)) {
        for (int block = 0; block < shape.ranks; ++block) {
            block_run(plan, block, block, use);
        }
        return;
    }
    for (const Slice& slice : plan.layout.slices) {
        for (const Piece& piece : slice.pieces) {
            for (int column = 0; piece.has_residual && column < nodes.most(); ++column) {
                const int64_t at =
                    piece.residual_offset + piece.chunk_begin(column * nodes.nodes());
                use({at, piece.order * nodes.most() + column,
                     column_count(piece, column, nodes.nodes()), at});
            }
        }
    }
}

// As Hierarchical::residual_of(): of the columns, or of the own chunks of the sums behind them.
void owner_runs(
    const Plan& plan, const NodeTable& nodes, int rank, bool of_sums, const UseResidualRun& use) {
    const int count = nodes.nodes(), node = nodes.node_of(rank), step = nodes.size_of(node);
    int64_t first = inner_elems(plan), index = inner_pieces(plan, nodes);
    for (const Slice& slice : plan.layout.slices) {
        for (const Piece& piece : slice.pieces) {
            if (!piece.has_residual) {
                continue;
            }
            for (int column = nodes.local_of(rank); column < nodes.most(); column += step) {
                const int64_t behind = column_elems(piece, count);
                const int chunk = column * count + (of_sums ? node : 0);
                const int64_t elems =
                    of_sums ? piece.chunk_count(chunk) : column_count(piece, column, count);
                if (elems > 0) {
                    use({first + (of_sums ? behind : 0), index + (of_sums ? 1 : 0), elems,
                         piece.residual_offset + piece.chunk_begin(chunk)});
                }
                first += behind + piece.chunk_elems;
                index += 2;
            }
        }
    }
}

void sum_runs(const Plan& plan, const PlanShape& shape, int rank, const UseResidualRun& use) {
    if (!scatters(plan.signature)) {
        owner_runs(plan, *shape.nodes, rank, true, use);
    }
}

void residual_runs(const Plan& plan, const PlanShape& shape, int rank, const UseResidualRun& use) {
    // The first node's ranks own all that there is.
    const std::vector<int> own{rank};
    for (const int owner : rank == kEveryRank ? shape.nodes->ranks_of(0) : own) {
        if (scatters(plan.signature)) {
            hierarchical_scatter_runs(plan, shape, owner, use);
        } else {
            owner_runs(plan, *shape.nodes, owner, false, use);
        }
    }
}

std::vector<std::string> steps_of(const Plan& plan, const PlanShape& shape) {
    std::vector<std::string> steps = {"reduce inside the node by NCCL",
                                      "encode the node's sum, a part a rank"};
    const std::string nodes = std::to_string(shape.nodes->nodes()) + " nodes";
    if (scatters(plan.signature)) {
        steps.insert(steps.end(), {"send each rank its part, get one of each of " + nodes,
                                   "add them as they are decoded"});
        return steps;
    }
    steps.push_back("exchange parts between " + nodes + ", add, encode");
    if (plan.signature.op == Op::kReduce) {
        steps.insert(steps.end(), {"send that to the root", "decode on the root"});
    } else {
        steps.insert(steps.end(), {"decode", "gather inside the node by NCCL"});
    }
    return steps;
}

Exchange* make(const ExchangeContext& context, ExchangeRoom* room) {
    return scatters(context.plan.signature) ? room->emplace<HierarchicalScatter>(context)
                                            : room->emplace<Hierarchical>(context);
}

}  // namespace

extern constinit const AlgorithmDescriptor kHierarchicalAlgorithm{
    .segment_ops = bit_of(Op::kAllReduce) | bit_of(Op::kReduce),
    .refuse = refuse,
    .layout = layout_of,
    .sizes = sizes_of,
    .wire_bytes = wire_bytes,
    .residual_runs = residual_runs,
    .steps = steps_of,
    .make = make,
    .sum_runs = sum_runs,
    .inner_runs = inner_runs,
};

}  // namespace slimwire
