#include "tests/e2e/conformance/sparse_oracle.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "tests/e2e/conformance/oracle.h"

namespace conformance {
namespace {

constexpr size_t kRun = 32;
constexpr size_t kSegment = 256;

size_t round_up(size_t value, size_t multiple) {
    return (value + multiple - 1) / multiple * multiple;
}

std::string element(size_t index, double actual, const char* what, double expected, double slack) {
    char text[200];
    std::snprintf(text, sizeof(text), "element %zu: %.9g %s %.9g (slack %.3g)", index, actual, what,
                  expected, slack);
    return text;
}

}  // namespace

SparseOracle::SparseOracle(const Call& call, const Codec& codec, int ranks, int rank)
    : call_(call),
      codec_(codec),
      signature_(facts_of(call.type)),
      table_(table_of(call.type, call.shape)),
      ranks_(ranks),
      rank_(rank) {}

// Chunks begin at multiples of the granule; slices are whole chunks of every rank.
std::vector<SparseOracle::Chunk> SparseOracle::chunks(bool two_shot) const {
    const size_t granule = codec_.selection == Selection::kGroups ? codec_.group
                           : codec_.selection == Selection::kRuns ? kRun
                                                                  : kSegment;
    const size_t owners = two_shot ? static_cast<size_t>(ranks_) : 1;
    const size_t parts =
        call_.parts_input() || call_.collects_output() ? static_cast<size_t>(ranks_) : 1;
    const size_t bytes = call_.count * signature_.bytes;
    const size_t of_slice =
        codec_.slice_bytes == 0 ? 0 : std::max<size_t>(1, codec_.slice_bytes / parts);
    const size_t slices =
        of_slice == 0 ? 1 : std::clamp<size_t>((bytes + of_slice / 2) / of_slice, 1, 1024);
    const size_t step = round_up((call_.count + slices - 1) / slices, granule * owners);
    std::vector<Chunk> all;
    for (size_t begin = 0; begin < call_.count; begin += step) {
        const size_t end = std::min(begin + step, call_.count);
        const size_t elems = round_up((end - begin + owners - 1) / owners, granule);
        for (size_t owner = 0; owner < owners && begin + owner * elems < end; ++owner) {
            all.push_back({begin + owner * elems, std::min(begin + (owner + 1) * elems, end),
                           static_cast<int>(owner)});
        }
    }
    return all;
}

size_t SparseOracle::capacity(size_t count) const {
    const auto n = static_cast<double>(count);
    return std::min(count, std::max<size_t>(1, static_cast<size_t>(codec_.fraction * n + 0.5)));
}

std::vector<float> SparseOracle::values_of(int source,
                                           size_t base,
                                           const Chunk& chunk,
                                           float factor) const {
    std::vector<float> values(chunk.end - chunk.begin);
    size_t at = (table_offset(call_, source) + base + chunk.begin) % Table::kElems;
    for (float& value : values) {
        value = static_cast<float>(table_.values[at]) * factor;
        at = at + 1 == Table::kElems ? 0 : at + 1;
    }
    return values;
}

// The `kept` largest magnitudes, of equal ones those that come first.
void SparseOracle::choose_largest(const float* values,
                                  size_t count,
                                  size_t kept,
                                  char* chosen) const {
    kept = std::min(kept, count);
    std::vector<float> magnitudes(count);
    std::transform(values, values + count, magnitudes.begin(),
                   [](float value) { return std::fabs(value); });
    std::nth_element(magnitudes.begin(), magnitudes.begin() + static_cast<ptrdiff_t>(kept) - 1,
                     magnitudes.end(), std::greater<>());
    const float cut = magnitudes[kept - 1];
    size_t left = kept;
    for (size_t i = 0; i < count; ++i) {
        chosen[i] = std::fabs(values[i]) > cut ? 1 : 0;
        left -= static_cast<size_t>(chosen[i]);
    }
    for (size_t i = 0; i < count && left > 0; ++i) {
        if (std::fabs(values[i]) == cut) {
            chosen[i] = 1;
            --left;
        }
    }
}

std::vector<char> SparseOracle::chosen(const std::vector<float>& values) const {
    std::vector<char> chosen(values.size());
    switch (codec_.selection) {
        case Selection::kLargest:
            choose_largest(values.data(), values.size(), capacity(values.size()), chosen.data());
            break;
        case Selection::kThreshold: {
            size_t left = capacity(values.size());
            for (size_t i = 0; i < values.size() && left > 0; ++i) {
                chosen[i] = static_cast<double>(std::fabs(values[i])) >= codec_.threshold ? 1 : 0;
                left -= static_cast<size_t>(chosen[i]);
            }
            break;
        }
        case Selection::kGroups:
            for (size_t begin = 0; begin < values.size(); begin += codec_.group) {
                choose_largest(values.data() + begin, std::min(codec_.group, values.size() - begin),
                               codec_.kept, chosen.data() + begin);
            }
            break;
        case Selection::kAll:
        case Selection::kRuns:  // all ranks send the same run, which the result shows
            std::fill(chosen.begin(), chosen.end(), 1);
            break;
    }
    return chosen;
}

void SparseOracle::add(
    int source, size_t base, const Chunk& chunk, float factor, Sums* sums) const {
    const std::vector<float> values = values_of(source, base, chunk, factor);
    const std::vector<char> sent = chosen(values);
    sums->sum.resize(values.size());
    sums->magnitude.resize(values.size());
    sums->all.resize(values.size());
    double largest = 0;
    for (size_t i = 0; i < values.size(); ++i) {
        const double value = values[i];
        sums->all[i] += std::fabs(value);
        if (sent[i] != 0) {
            sums->sum[i] += value;
            sums->magnitude[i] += std::fabs(value);
            largest = std::max(largest, std::fabs(value));
        }
    }
    sums->largest += largest;
    if (call_.special && call_.special_rank % ranks_ == source) {
        const size_t at = call_.special_index % call_.input_elems(ranks_);
        sums->special |= at >= base + chunk.begin && at < base + chunk.end;
    }
}

std::string SparseOracle::check_choice(const std::vector<double>& results,
                                       const std::vector<double>& sums,
                                       const std::vector<double>& slack,
                                       size_t begin,
                                       size_t end,
                                       size_t room) const {
    size_t there = 0;
    double least = HUGE_VAL;  // of what is there, as the sums know it
    for (size_t i = begin; i < end; ++i) {
        if (results[i] != 0) {
            ++there;
            least = std::min(least, std::fabs(sums[i]) + slack[i]);
            if (codec_.selection == Selection::kThreshold &&
                std::fabs(sums[i]) + slack[i] < codec_.threshold) {
                return element(i, results[i], "is there below the threshold, the sum being",
                               sums[i], slack[i]);
            }
        }
    }
    if (there > room) {
        return std::to_string(there) + " elements from " + std::to_string(begin) +
               " on, room for " + std::to_string(room);
    }
    const bool full = there == room;
    size_t before = 0;  // elements that may have been sent, as nothing too in the code of values
    for (size_t i = begin; i < end; ++i) {
        const double sum = std::fabs(sums[i]);
        const bool no_room = before >= room;
        if (results[i] != 0 || (sum + slack[i] >= codec_.threshold && sum <= 2 * slack[i])) {
            ++before;
        }
        if (results[i] != 0) {
            continue;
        }
        double most = full ? least : 0;
        if (codec_.selection == Selection::kThreshold) {
            most = no_room ? HUGE_VAL : codec_.threshold;
        }
        // Twice, because an element that was sent may have become zero in the code of values.
        if (sum > most + 2 * slack[i]) {
            return element(i, results[i], "though a sum this large must be sent:", sums[i],
                           slack[i]);
        }
    }
    return {};
}

std::string SparseOracle::check_runs(const std::vector<double>& results,
                                     const std::vector<double>& sums,
                                     const std::vector<double>& slack) const {
    const size_t runs = (results.size() + kRun - 1) / kRun;
    const size_t strata = capacity(runs);
    for (size_t stratum = 0; stratum < strata; ++stratum) {
        const size_t first = stratum * runs / strata, last = (stratum + 1) * runs / strata;
        bool found = false, silent = false;  // a run that is there; one that would not be seen
        for (size_t run = first; run < last; ++run) {
            const size_t begin = run * kRun, end = std::min(begin + kRun, results.size());
            bool there = false, seen = false;
            for (size_t i = begin; i < end; ++i) {
                there |= results[i] != 0;
                seen |= std::fabs(sums[i]) > slack[i];
            }
            silent |= !seen;
            if (!there) {
                continue;
            }
            if (found) {
                return "two runs of a stratum are there, one from element " +
                       std::to_string(begin) + " on";
            }
            found = true;
            for (size_t i = begin; i < end; ++i) {
                if (std::fabs(results[i] - sums[i]) > slack[i]) {
                    return element(i, results[i], "in a run that is there, expected", sums[i],
                                   slack[i]);
                }
            }
        }
        if (!found && !silent) {
            return "no run of the stratum from element " + std::to_string(first * kRun) +
                   " on is there";
        }
    }
    return {};
}

std::string SparseOracle::check_chunk(
    const char* output, const Chunk& chunk, const Sums& sums, bool again, double factor) const {
    const size_t count = chunk.end - chunk.begin;
    const double n = ranks_, e = codec_.error;
    const double rounding = (n + 4) * (signature_.roundoff + 0x1p-22);
    const double code = (again ? 2 + e : 1) * e * sums.largest;
    std::vector<double> results(count), scaled(count), slack(count);
    bool finite = true;
    for (size_t i = 0; i < count; ++i) {
        results[i] = to_double(call_.type, output + i * signature_.bytes);
        finite &= std::isfinite(results[i]);
        scaled[i] = sums.sum[i] * factor;
        slack[i] = (code + rounding * (sums.magnitude[i] + code)) * factor +
                   8 * n * signature_.tiny + 0x1p-120;
    }
    if (sums.special) {
        if (finite) {
            return "the chunk from element " + std::to_string(chunk.begin) +
                   " on lost its non-finite input";
        }
        for (size_t i = 0; i < count; ++i) {
            if (std::isfinite(results[i]) &&
                std::fabs(results[i]) > (1 + rounding) * sums.all[i] * factor + slack[i]) {
                return element(chunk.begin + i, results[i], "is more than all magnitudes",
                               sums.all[i] * factor, slack[i]);
            }
        }
        return {};
    }
    if (codec_.selection == Selection::kRuns) {
        return check_runs(results, scaled, slack);
    }
    for (size_t i = 0; i < count; ++i) {
        const bool nothing = sums.magnitude[i] == 0 || (again && results[i] == 0);
        if (nothing ? results[i] != 0 : !(std::fabs(results[i] - scaled[i]) <= slack[i])) {
            return element(chunk.begin + i, results[i], "is not what was sent:", scaled[i],
                           slack[i]);
        }
    }
    if (!again) {
        return {};
    }
    if (codec_.selection != Selection::kGroups) {
        return check_choice(results, scaled, slack, 0, count, capacity(count));
    }
    for (size_t begin = 0; begin < count; begin += codec_.group) {
        std::string wrong = check_choice(results, scaled, slack, begin,
                                         std::min(begin + codec_.group, count), codec_.kept);
        if (!wrong.empty()) {
            return wrong;
        }
    }
    return {};
}

std::string SparseOracle::check_sum(const char* output, size_t base) const {
    const bool premul = call_.op == Operator::kPreMulHost || call_.op == Operator::kPreMulDevice;
    const bool again = codec_.two_shot && call_.kind != Kind::kReduceScatter;
    const float average = call_.op == Operator::kAvg ? 1.0f / static_cast<float>(ranks_) : 1.0f;
    const float scalar =
        premul ? static_cast<float>(table_of(call_.type, Shape::kFactors).values[call_.scalar])
               : 1.0f;
    for (const Chunk& chunk : chunks(again)) {
        if (again && call_.kind == Kind::kAllReduce && chunk.owner != rank_) {
            continue;  // the others look at theirs, and all results are compared
        }
        Sums sums;
        for (int source = 0; source < ranks_; ++source) {
            add(source, base, chunk, again ? scalar : scalar * average, &sums);
        }
        std::string wrong = check_chunk(output + chunk.begin * signature_.bytes, chunk, sums, again,
                                        again ? static_cast<double>(average) : 1.0);
        if (!wrong.empty()) {
            return "chunk from element " + std::to_string(chunk.begin) + " on: " + wrong;
        }
    }
    return {};
}

std::string SparseOracle::check_copy(const char* output,
                                     int source,
                                     size_t base,
                                     size_t output_begin) const {
    for (const Chunk& chunk : chunks(false)) {
        Sums sums;
        add(source, base, chunk, 1.0f, &sums);
        const std::string wrong = check_chunk(
            output + (output_begin + chunk.begin) * signature_.bytes, chunk, sums, false, 1.0);
        if (!wrong.empty()) {
            return "from rank " + std::to_string(source) + ": " + wrong;
        }
    }
    return {};
}

std::string SparseOracle::check(const char* output) const {
    const auto mine = static_cast<size_t>(rank_);
    const int root = call_.root % ranks_;
    // What a rank sends to itself is exact; the copies that all ranks keep equal are not.
    Codec none;
    const Oracle exact(call_, none, ranks_, rank_);
    switch (call_.kind) {
        case Kind::kAllReduce:
        case Kind::kReduce:
        case Kind::kReduceScatter:
            if (!call_.has_output(ranks_, rank_)) {
                return {};
            }
            return check_sum(output, call_.kind == Kind::kReduceScatter ? mine * call_.count : 0);
        case Kind::kAllGather:
        case Kind::kAllToAll:
        case Kind::kGather:
            for (int source = 0; source < ranks_ && call_.has_output(ranks_, rank_); ++source) {
                const size_t base = call_.kind == Kind::kAllToAll ? mine * call_.count : 0;
                const size_t to = static_cast<size_t>(source) * call_.count;
                const bool own = source == rank_ && call_.kind != Kind::kAllGather;
                std::string wrong = own ? exact.check_copy(output, source, base, to)
                                        : check_copy(output, source, base, to);
                if (!wrong.empty()) {
                    return wrong;
                }
            }
            return {};
        case Kind::kBroadcast:
        case Kind::kBcast:
            return check_copy(output, root, 0, 0);
        case Kind::kScatter:
            return root == rank_ ? exact.check_copy(output, root, mine * call_.count, 0)
                                 : check_copy(output, root, mine * call_.count, 0);
        case Kind::kSendRecv: {
            const int from = (rank_ - root + ranks_) % ranks_;
            return from == rank_ ? exact.check_copy(output, from, 0, 0)
                                 : check_copy(output, from, 0, 0);
        }
    }
    return {};
}

}  // namespace conformance
