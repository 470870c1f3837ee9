#include "tests/e2e/conformance/series.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "tests/e2e/conformance/oracle.h"

namespace conformance {
namespace {

constexpr int kLevels = 3;         // inside a node, of the contributions, of the sums
constexpr size_t kRunsCalls = 48;  // randomk of one half: 2^-48 for each run of 32 elements
constexpr double kLeft = 1e-6;

// Largest part of what it sends that an encoder keeps.
double kept_part(const Codec& codec, ncclDataType_t type) {
    const double rounding = type == ncclFloat32 ? 0 : facts_of(type).roundoff;
    return std::max({codec.error, codec.intra_error, rounding});
}

// How often everything must be sent.
int sweeps(const Codec& codec, ncclDataType_t type) {
    const double kept = kept_part(codec, type);
    return kept == 0 ? 1 : static_cast<int>(std::ceil(std::log(kLeft) / std::log(kept)));
}

size_t flushes_of(const Codec& codec) {
    if (!codec.feedback) {
        return 0;
    }
    const double calls_of_sweep = std::ceil(1 / std::min(codec.share(), codec.intra_fraction));
    const size_t calls = static_cast<size_t>(sweeps(codec, ncclBfloat16) * calls_of_sweep + 1);
    return std::max(kLevels * calls, codec.selection == Selection::kRuns ? kRunsCalls : 0);
}

std::string element(size_t index, double actual, const char* what) {
    char text[160];
    std::snprintf(text, sizeof(text), "element %zu: %.9g %s", index, actual, what);
    return text;
}

}  // namespace

SeriesDrawer::SeriesDrawer(const Rules& rules, int world_ranks)
    : world_ranks_(world_ranks), flushes_(0) {
    for (const Codec& codec : rules.all()) {
        flushes_ = std::max(flushes_, flushes_of(codec));
    }
}

Call SeriesDrawer::draw_tensor(Chance& chance) {
    constexpr ncclDataType_t kTypes[] = {ncclFloat32, ncclFloat32, ncclFloat16, ncclBfloat16};
    constexpr Operator kSums[] = {Operator::kSum, Operator::kAvg, Operator::kPreMulHost,
                                  Operator::kPreMulDevice};
    Call call;
    call.kind = static_cast<Kind>(chance.below(chance.below(2) == 0 ? 3 : kKinds));
    call.type = kTypes[chance.below(4)];
    call.op = kSums[chance.below(4)];
    call.in_place =
        call.kind == Kind::kBcast ||
        (chance.below(2) == 0 && call.kind != Kind::kAllToAll && call.kind != Kind::kSendRecv);
    call.root = chance.below(world_ranks_);
    call.misalignment = chance.below(4);
    const size_t elem = facts_of(call.type).bytes;
    const size_t bytes =
        kSeriesBytesFrom + chance.next() % (kSeriesBytesUntil - kSeriesBytesFrom - 4096);
    const bool blocks = call.parts_input() || call.collects_output();
    call.count = bytes / elem / (blocks ? static_cast<size_t>(world_ranks_) : 1);
    while (!counts_.insert(call.count).second) {
        ++call.count;
    }
    return call;
}

Series SeriesDrawer::draw(Chance& chance) {
    ++drawn_;
    Batch tensors;
    const int count = 1 + chance.below(kSeriesTensors);
    const bool alike = chance.below(2) == 0;  // told apart by their addresses alone
    const auto stream = static_cast<StreamChoice>(chance.below(kStreamChoices));
    const Call one = draw_tensor(chance);
    for (int i = 0; i < count; ++i) {
        Call call = i == 0 || alike ? one : draw_tensor(chance);
        call.stream = stream;
        tensors.calls.push_back(call);
    }
    // One communicator, as two would run side by side. A part of the world makes less of several
    // blocks than rules may ask for.
    const bool blocks =
        std::any_of(tensors.calls.begin(), tensors.calls.end(),
                    [](const Call& call) { return call.parts_input() || call.collects_output(); });
    const bool split = chance.below(4) == 0 && !blocks;
    for (Call& call : tensors.calls) {
        call.communicator = split ? Communicator::kSplit : Communicator::kWorld;
    }
    const auto inputs = static_cast<size_t>(2 + chance.below(4));
    const size_t special = chance.below(3) == 0 ? 1 + chance.next() % (inputs - 1) : 0;
    Series series;
    for (size_t step = 0; step < inputs + flushes_; ++step) {
        Batch batch = tensors;
        batch.grouping = static_cast<Grouping>(chance.below(3));
        for (Call& call : batch.calls) {
            call.data = chance.next();
            call.scalar = chance.next() % Table::kElems;
            call.shape = step >= inputs         ? Shape::kNothing
                         : chance.below(3) == 0 ? Shape::kSparse
                                                : Shape::kSpread;
        }
        if (special > 0 && step == special) {
            Call& call = batch.calls.front();
            call.special = true;
            call.infinity = chance.below(2) == 0;
            call.special_rank = chance.below(world_ranks_);
            call.special_index = chance.next();
        }
        series.steps.push_back(batch);
    }
    return series;
}

std::vector<Ledger::Part> Ledger::parts_of(const Call& call, int ranks, int rank) {
    const size_t mine = static_cast<size_t>(rank) * call.count;
    std::vector<Part> parts;
    switch (call.kind) {
        case Kind::kAllReduce:
        case Kind::kReduce:
            return {{0, 0, -1}};
        case Kind::kReduceScatter:
            return {{0, mine, -1}};
        case Kind::kAllGather:
        case Kind::kAllToAll:
        case Kind::kGather:
            for (int source = 0; source < ranks; ++source) {
                parts.push_back({static_cast<size_t>(source) * call.count,
                                 call.kind == Kind::kAllToAll ? mine : 0, source});
            }
            return parts;
        case Kind::kBroadcast:
        case Kind::kBcast:
            return {{0, 0, call.root % ranks}};
        case Kind::kScatter:
            return {{0, mine, call.root % ranks}};
        case Kind::kSendRecv:
            return {{0, 0, (rank - call.root % ranks + ranks) % ranks}};
    }
    return parts;
}

void Ledger::expect(const Call& call, const Part& part, int ranks) {
    const Table& table = table_of(call.type, call.shape);
    const bool premul = call.op == Operator::kPreMulHost || call.op == Operator::kPreMulDevice;
    const double factor = !call.reduces() ? 1
                          : premul        ? table_of(call.type, Shape::kFactors).values[call.scalar]
                          : call.op == Operator::kAvg ? 1.0 / ranks
                                                      : 1;
    for (int source = 0; source < ranks; ++source) {
        if (part.source >= 0 && source != part.source) {
            continue;
        }
        size_t at = (table_offset(call, source) + part.base) % Table::kElems;
        for (size_t i = 0; i < call.count; ++i) {
            const double value = table.values[at] * factor;
            put_[part.begin + i] += value;
            magnitude_[part.begin + i] += std::fabs(value);
            at = at + 1 == Table::kElems ? 0 : at + 1;
        }
    }
}

std::string Ledger::take(const Call& call, const Part& part, int ranks, const char* output) {
    const size_t elem = facts_of(call.type).bytes;
    const int from = call.special_rank % ranks;
    const size_t special = call.special_index % call.input_elems(ranks);
    const bool reached = call.special && (part.source < 0 || part.source == from) &&
                         special >= part.base && special < part.base + call.count;
    bool finite = true;
    for (size_t i = part.begin; i < part.begin + call.count; ++i) {
        const double value = to_double(call.type, output + i * elem);
        if (std::isfinite(value)) {
            got_[i] += value;
            continue;
        }
        finite = false;
        lost_[i] = 1;
        if (!reached) {
            return element(i, value, "in a call without such inputs");
        }
    }
    if (reached) {
        special_ = true;
        lost_[part.begin + special - part.base] = 1;
    }
    return reached && finite ? "the non-finite input of this call was lost" : "";
}

std::string Ledger::settle(const Call& call, const Codec& codec, int ranks) const {
    if (special_ && (codec.error > 0 || codec.intra_error > 0)) {
        return {};  // others in the blocks of what was not finite were lost with it
    }
    const TypeFacts& signature = facts_of(call.type);
    const double n = ranks, steps = calls_;
    const double largest = *std::max_element(magnitude_.begin(), magnitude_.end());
    const double codes = 2 * steps * (codec.error + codec.intra_error) * largest;
    const double relative = (2 * n + 8) * (signature.roundoff + 0x1p-22) + steps * 0x1p-22;
    const double kept =
        std::pow(kept_part(codec, call.type), sweeps(codec, call.type)) * steps * n * largest;
    const double absolute = relative * codes + 2 * kept + (2 * n + 2) * codec.threshold +
                            8 * n * steps * signature.tiny;
    for (size_t i = 0; i < put_.size(); ++i) {
        const double bound = relative * magnitude_[i] + absolute;
        if (lost_[i] == 0 && !(std::fabs(got_[i] - put_[i]) <= bound)) {
            char text[240];
            std::snprintf(text, sizeof(text),
                          "element %zu: all %d results sum up to %.9g, the inputs to %.9g, which "
                          "may differ by %.3g",
                          i, calls_, got_[i], put_[i], bound);
            return text;
        }
    }
    return {};
}

std::string Ledger::add(const Call& call,
                        const Codec& codec,
                        const Member& member,
                        const char* output,
                        bool first,
                        bool last) {
    const size_t elems = call.output_elems(member.ranks);
    for (std::vector<double>* sums : {&put_, &magnitude_, &got_}) {
        sums->resize(elems);
    }
    lost_.resize(elems);
    ++calls_;
    if (first && !codec.nodes) {
        std::string wrong = Oracle(call, codec, member.ranks, member.rank).check(output);
        if (!wrong.empty()) {
            return "in the first call of a series: " + wrong;
        }
    }
    for (const Part& part : parts_of(call, member.ranks, member.rank)) {
        if (call.shape != Shape::kNothing) {
            expect(call, part, member.ranks);
        }
        std::string wrong = take(call, part, member.ranks, output);
        if (!wrong.empty()) {
            return wrong;
        }
    }
    return last ? settle(call, codec, member.ranks) : "";
}

SeriesJudge::SeriesJudge(const Series& series, const Rules& rules)
    : series_(series), rules_(rules), ledgers_(series.steps.front().calls.size()) {}

Player::Judge SeriesJudge::of_step(size_t step) {
    return [this, step](size_t index, const Member& member, const char* output) {
        const Call& call = series_.steps[step].calls[index];
        std::string wrong = ledgers_[index].add(call, rules_.of(call, member.ranks), member, output,
                                                step == 0, step + 1 == series_.steps.size());
        return wrong.empty() ? wrong
                             : "call " + std::to_string(step + 1) + " of a series of " +
                                   std::to_string(series_.steps.size()) + ": " + wrong;
    };
}

}  // namespace conformance
