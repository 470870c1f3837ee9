#include "collectives/plan/plan.h"

#include <algorithm>

namespace slimwire {

namespace {

bool same_chunks(const Chunks& a, const Chunks& b) {
    return a.count == b.count && a.chunk_elems == b.chunk_elems;
}

}  // namespace

std::string why_no_scratch(uint64_t bytes, const PlanShape& shape) {
    return bytes == 0 || !shape.scratch_bytes.has_value() || bytes <= *shape.scratch_bytes
               ? ""
               : std::to_string(bytes) + " bytes of scratch are more than the " +
                     std::to_string(*shape.scratch_bytes) +
                     " that all ranks have (scratch of all communicators takes at most 5 % of a "
                     "device, and half of SLIMWIRE_MAX_MEMORY)";
}

bool residuals_alike(const Plan& a, const Plan& b) {
    if (a.error_feedback != b.error_feedback || a.algorithm != b.algorithm ||
        a.residual.bytes != b.residual.bytes || a.residual.type != b.residual.type ||
        a.uses_error_feedback != b.uses_error_feedback ||
        a.residual.shared_elems != b.residual.shared_elems ||
        a.layout.slices.size() != b.layout.slices.size()) {
        return false;
    }
    for (size_t i = 0; i < a.layout.slices.size(); ++i) {
        const auto& [of_a, of_b] = std::tie(a.layout.slices[i].pieces, b.layout.slices[i].pieces);
        if (!std::equal(of_a.begin(), of_a.end(), of_b.begin(), of_b.end(),
                        [](const Piece& one, const Piece& other) {
                            return same_chunks(one, other) &&
                                   one.offset_elems == other.offset_elems &&
                                   one.has_residual == other.has_residual;
                        })) {
            return false;
        }
    }
    return true;
}

bool exceeds(uint64_t bytes, const Settings& settings) noexcept {
    return settings.max_memory_bytes != 0 && bytes > settings.max_memory_bytes;
}

uint64_t elements_given(const CallSignature& signature, int ranks) noexcept {
    const bool blocks = signature.op == Op::kReduceScatter || signature.op == Op::kAllToAll ||
                        signature.op == Op::kScatter;
    return signature.count * (blocks ? static_cast<uint64_t>(ranks) : 1);
}

uint64_t message_bytes(const CallSignature& signature, int ranks) noexcept {
    const uint64_t bytes = signature.count * dtype_bytes(signature.dtype);
    switch (signature.op) {
        case Op::kReduceScatter:
        case Op::kAllGather:
        case Op::kAllToAll:
        case Op::kGather:
        case Op::kScatter:
            return bytes * static_cast<uint64_t>(ranks);
        case Op::kAllReduce:
        case Op::kReduce:
        case Op::kBroadcast:
        case Op::kSend:
        case Op::kRecv:
            return bytes;
    }
    return bytes;
}

uint64_t native_wire_bytes(const CallSignature& signature, int ranks, int rank) noexcept {
    const uint64_t bytes = signature.count * dtype_bytes(signature.dtype);
    const uint64_t n = static_cast<uint64_t>(ranks);
    if (n <= 1) {
        return 0;
    }
    const bool at_root = rank == signature.root_or_peer;
    switch (signature.op) {
        case Op::kAllReduce:
            return 2 * (n - 1) * bytes / n;
        case Op::kReduceScatter:
        case Op::kAllGather:
        case Op::kAllToAll:
            return (n - 1) * bytes;
        case Op::kScatter:
            return rank == kNeediestRank || at_root ? (n - 1) * bytes : 0;
        case Op::kReduce:
        case Op::kGather:
            return at_root ? 0 : bytes;
        case Op::kBroadcast:  // a chain that begins at the root
            return rank != kNeediestRank && (rank + 1) % ranks == signature.root_or_peer ? 0
                                                                                         : bytes;
        case Op::kSend:
            return bytes;
        case Op::kRecv:
            return 0;
    }
    return bytes;
}

std::string codec_text(const Plan& plan) {
    std::vector<std::string> codecs;  // each once; messages may have thousands of pieces
    const auto add = [&](const std::string& codec) {
        if (std::find(codecs.begin(), codecs.end(), codec) == codecs.end()) {
            codecs.push_back(codec);
        }
    };
    for (const Slice& slice : plan.layout.slices) {
        for (const Piece& piece : slice.pieces) {
            add(piece.codec.to_string());
        }
    }
    if (plan.layout.factored != nullptr) {
        add(plan.layout.factored->codec.to_string());
    }
    if (plan.layout.largest_raw_part() > 0) {
        add("raw");
    }
    std::string text;
    for (const std::string& codec : codecs) {
        text += (text.empty() ? "" : "+") + codec;
    }
    if (plan.layout.intra) {
        text += ", " + plan.layout.intra->to_string() + " inside nodes";
    }
    if (plan.error_feedback != ErrorFeedback::kNone) {
        text += std::string("+") + error_feedback_name(plan.error_feedback);
        if (plan.residual.type != ResidualType::kFloat32) {
            text += std::string(":") + residual_type_name(plan.residual.type);
        }
    }
    return text;
}

CallStats* PlanEntry::stats_of_variant(const Plan& run) const noexcept {
    for (size_t i = 0; i < variant_stats.size(); ++i) {
        if (plan->variants[i].get() == &run) {
            return variant_stats[i];
        }
    }
    return stats;
}

void PlanCache::place(Slot slot) noexcept {
    size_t i = slot.hash >> 7 & (slots_.size() - 1);
    while (slots_[i].hash != 0) {
        i = (i + 1) & (slots_.size() - 1);
    }
    slots_[i] = std::move(slot);
}

PlanEntry* PlanCache::insert(Plan plan, bool passing) {
    if (slots_.size() < 2 * (size_ + 1)) {
        std::vector<Slot> old = std::move(slots_);
        slots_ = std::vector<Slot>(old.empty() ? 64 : old.size() * 2);
        for (Slot& slot : old) {
            if (slot.hash != 0) {
                place(std::move(slot));
            }
        }
    }
    Slot slot{hash_of(plan.signature), std::make_unique<PlanEntry>()};
    PlanEntry* inserted = slot.entry.get();
    inserted->plan = std::make_shared<const Plan>(std::move(plan));
    inserted->passing = passing;
    ++size_;
    passing_ += passing ? 1 : 0;
    place(std::move(slot));
    return inserted;
}

void PlanCache::drop_passing() {
    std::vector<Slot> old = std::move(slots_);
    slots_ = std::vector<Slot>(old.size());
    for (Slot& slot : old) {
        if (slot.hash != 0 && !slot.entry->passing) {
            place(std::move(slot));
        }
    }
    size_ -= passing_;
    passing_ = 0;
}

}  // namespace slimwire
