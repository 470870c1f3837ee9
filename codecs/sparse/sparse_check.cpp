// Looks at a received sparse encoding before anybody decodes it: counts, tables and positions, in
// plain loops over the bytes that FORMAT.md, "Sparse", describes.
#include "codecs/sparse/sparse_check.h"

#include <cstring>
#include <string>

namespace slimwire {
namespace {

uint32_t word_at(const uint8_t* bytes, int64_t at) {
    uint32_t word = 0;
    std::memcpy(&word, bytes + at, sizeof(word));
    return word;
}

Status corrupt(const std::string& what) {
    return {Code::kInvalidArgument, "corrupt: " + what};
}
Status corrupt_unit(const char* unit, int64_t number, const std::string& what) {
    return corrupt(std::string(unit) + " " + std::to_string(number) + ": " + what);
}

// Positions of `width` bytes, `count` of them from number `first` on: ascending and below `limit`.
bool ascend(const uint8_t* indices, int64_t width, int64_t first, int64_t count, int64_t limit) {
    int64_t before = -1;
    for (int64_t i = first; i < first + count; ++i) {
        int64_t at = indices[i * width];
        if (width == 2) {
            at |= indices[i * 2 + 1] << 8;
        }
        if (at <= before || at >= limit) {
            return false;
        }
        before = at;
    }
    return true;
}

// Exactly `kept` ones, all of them below `limit`.
bool has_ones(const uint8_t* bits, int64_t limit, int64_t kept) {
    int64_t last = -1;
    int64_t count = 0;
    for (int64_t i = 0; i < (limit + 7) / 8 * 8; ++i) {
        if ((bits[i / 8] >> (i % 8) & 1) != 0) {
            last = i;
            ++count;
        }
    }
    return count == kept && last < limit;
}

// What the unit `elems` long holds in its part of the indices; the empty text when all is well.
std::string check_span(const SparsePlan& plan,
                       const uint8_t* bytes,
                       int64_t unit,
                       int64_t start,
                       int64_t kept,
                       int64_t elems) {
    const uint8_t* indices = bytes + plan.indices;
    switch (plan.form) {
        case IndexForm::kBitmap:
            return has_ones(indices + unit * (kSparseSpan / 8), elems, kept)
                       ? ""
                       : "the bitmap has another number of ones than the table says";
        case IndexForm::kLocal8: {
            const uint8_t* entry = bytes + kSparseHeader + kLocal8Entry * unit;
            int64_t at = start;
            for (int64_t s = 0; s < kSparseSpan / kSparseSegment; ++s) {
                const int64_t some =
                    entry[8 + s] + ((word_at(entry, 4) >> s & 1) != 0 ? kSparseSegment : 0);
                if (at + some > start + kept) {
                    return "the counts exceed what the table says";
                }
                if (!ascend(indices, 1, at, some, elems - s * kSparseSegment)) {
                    return "positions do not ascend or leave the chunk";
                }
                at += some;
            }
            return at == start + kept ? "" : "the counts fall short of what the table says";
        }
        case IndexForm::kLocal16:
            return ascend(indices, 2, start, kept, elems)
                       ? ""
                       : "positions do not ascend or leave the chunk";
        case IndexForm::kEliasFano: {
            const uint8_t* bits = indices + 4 * (start / 32 + kEliasWords * unit);
            const uint8_t* lows = bytes + plan.lows + (start + 1) / 2 + unit;
            const int64_t words = (elems + kEliasElems - 1) / kEliasElems + (kept + 31) / 32;
            int64_t before = -1;
            int64_t number = 0;
            for (int64_t bit = 0; bit < 32 * words; ++bit) {
                if ((bits[bit / 8] >> (bit % 8) & 1) == 0) {
                    continue;
                }
                if (number == kept) {
                    return "there are more ones than the table says";
                }
                const int64_t at =
                    16 * (bit - number) + (lows[number / 2] >> (number % 2 * 4) & 15);
                if (at <= before || at >= elems) {
                    return "positions do not ascend or leave the chunk";
                }
                before = at;
                ++number;
            }
            return number == kept ? "" : "there are fewer ones than the table says";
        }
        case IndexForm::kNone:
            break;
    }
    return "";
}

Status check_chosen(const SparsePlan& plan, const uint8_t* bytes) {
    const int64_t kept = word_at(bytes, 0);
    const uint32_t word = word_at(bytes, 12);
    if (kept > plan.capacity || (plan.kind == SparseKind::kTopK && kept != plan.capacity)) {
        return corrupt(std::to_string(kept) + " values, room for " + std::to_string(plan.capacity));
    }
    if ((word & ~kFlagNonFinite) != static_cast<uint32_t>(plan.form)) {
        return corrupt("header word 3 is " + std::to_string(word));
    }
    const bool wide = plan.form == IndexForm::kLocal16;
    const int64_t unit_elems = wide ? kSparseWide : kSparseSpan;
    const int64_t entry = plan.form == IndexForm::kLocal8 ? kLocal8Entry : 4;
    int64_t expected = 0;
    for (int64_t begin = 0, unit = 0; begin < plan.count; begin += unit_elems, ++unit) {
        const int64_t start = word_at(bytes, kSparseHeader + entry * unit);
        const bool last = begin + unit_elems >= plan.count;
        const int64_t next = last ? kept : word_at(bytes, kSparseHeader + entry * (unit + 1));
        if (start < expected || next < start || next > kept || (unit == 0 && start != 0)) {
            return corrupt_unit("table entry", unit, "the starts do not ascend to the count");
        }
        expected = start;
        const int64_t elems = last ? plan.count - begin : unit_elems;
        const std::string wrong = check_span(plan, bytes, unit, start, next - start, elems);
        if (!wrong.empty()) {
            return corrupt_unit("table entry", unit, wrong);
        }
    }
    return {};
}

Status check_groups(const SparsePlan& plan, const uint8_t* bytes) {
    const uint8_t* indices = bytes + plan.indices;
    const int64_t kept = plan.kept;
    for (int64_t g = 0; g < plan.groups; ++g) {
        const bool good = plan.form == IndexForm::kBitmap
                              ? has_ones(indices + g * ((plan.group + 7) / 8), plan.group, kept)
                              : ascend(indices, plan.form == IndexForm::kLocal8 ? 1 : 2, g * kept,
                                       kept, plan.group);
        if (!good) {
            return corrupt_unit("group", g,
                                plan.form == IndexForm::kBitmap
                                    ? "the bitmap has another number of ones than are kept"
                                    : "positions do not ascend or leave the group");
        }
    }
    return {};
}

}  // namespace

Result<int64_t> sparse_check(const SparsePlan& plan, const uint8_t* bytes, int64_t size) {
    if (size < plan.bytes) {
        return Status(Code::kInvalidArgument, "truncated: " + std::to_string(size) + " of " +
                                                  std::to_string(plan.bytes) + " bytes");
    }
    switch (plan.kind) {
        case SparseKind::kTopK:
        case SparseKind::kThreshold:
            SLIMWIRE_TRY(check_chosen(plan, bytes));
            break;
        case SparseKind::kGroups:
            SLIMWIRE_TRY(check_groups(plan, bytes));
            break;
        case SparseKind::kRuns:
            if (word_at(bytes, 12) != 0) {
                return corrupt("header word 3 is " + std::to_string(word_at(bytes, 12)));
            }
            break;
    }
    return plan.bytes;
}

}  // namespace slimwire
