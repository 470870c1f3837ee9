#include "collectives/communicator/agreement/claim_book.h"

#include <algorithm>
#include <iterator>
#include <optional>

#include "collectives/communicator/agreement/type_claims.h"

namespace slimwire {

using namespace agreement_wire;

namespace {

// Everyone's call is compared with the root's alone.
bool of_root(Op op) noexcept {
    return op == Op::kBroadcast || op == Op::kGather || op == Op::kScatter;
}

bool in_range(int32_t rank, int32_t ranks) noexcept {
    return rank >= 0 && rank < ranks;
}

bool well_formed(const ClaimRecord& record) noexcept {
    if (record.magic != kClaimMagic || record.version != kAgreementVersion ||
        record.reserved[0] != 0 || record.reserved[1] != 0 || record.what > Claiming::kSplit ||
        record.ranks < 2 || !in_range(record.rank, record.ranks)) {
        return false;
    }
    if (record.what == Claiming::kGraphs) {
        return static_cast<int>(record.op) < kOpCount &&
               (!is_point_to_point(record.op) || (in_range(record.root_or_peer, record.ranks) &&
                                                  record.root_or_peer != record.rank));
    }
    if (record.what != Claiming::kType) {
        return true;
    }
    if (static_cast<int>(record.op) >= kOpCount || reduces(record.op) ||
        static_cast<int>(record.dtype) >= kDTypeCount || record.compressed > 1 ||
        record.nth >= static_cast<uint32_t>(kDTypeCount) ||
        !in_range(record.root_or_peer, record.ranks)) {
        return false;
    }
    return record.bytes > 0 && record.bytes % dtype_bytes(record.dtype) == 0 &&
           !(is_point_to_point(record.op) && record.root_or_peer == record.rank);
}

MatchRecord answer_to(uint32_t number, Matched matched) noexcept {
    MatchRecord record{};
    record.magic = kClaimMagic;
    record.number = number;
    record.matched = matched;
    return record;
}

}  // namespace

ClaimBook::Kind ClaimBook::kind_of(const ClaimRecord& record) noexcept {
    int32_t first = record.root_or_peer, second = 0;
    Op op = record.op;
    if (is_point_to_point(op)) {
        first = op == Op::kSend ? record.rank : record.root_or_peer;
        second = op == Op::kSend ? record.root_or_peer : record.rank;
        op = Op::kSend;
    }
    return {op, first, second, record.bytes, record.nth};
}

// The rank whose claim alone decides of that of `rank`; -1: those of all.
int32_t ClaimBook::partner_of(const Kind& kind, int32_t rank) noexcept {
    const auto& [op, first, second, bytes, nth] = kind;
    if (is_point_to_point(op)) {
        return rank == first ? second : first;
    }
    return of_root(op) && rank != first ? first : -1;
}

size_t ClaimBook::wanted(const Comm& comm, const Kind& kind) noexcept {
    return is_point_to_point(std::get<0>(kind)) ? 2 : static_cast<size_t>(comm.ranks);
}

// The claim that the others are compared with.
std::map<int32_t, ClaimBook::Said>::const_iterator ClaimBook::reference(
    const Kind& kind, const Entry& entry) noexcept {
    return of_root(std::get<0>(kind)) ? entry.said.find(std::get<1>(kind)) : entry.said.begin();
}

void ClaimBook::compare(const Kind& kind, Entry* entry) noexcept {
    const auto first = reference(kind, *entry);
    if (entry->differs || first == entry->said.end()) {
        return;
    }
    const Said& one = first->second;
    for (const auto& [rank, other] : entry->said) {
        if (one.dtype != other.dtype && (one.compressed || other.compressed)) {
            entry->differs = true;
            entry->ranks[0] = first->first;
            entry->ranks[1] = rank;
            entry->dtypes[0] = one.dtype;
            entry->dtypes[1] = other.dtype;
            return;
        }
    }
}

// What the claim of `rank` is to hear; empty while a claim that decides is missing.
std::optional<Matched> ClaimBook::matched(const Comm& comm,
                                          const Kind& kind,
                                          const Entry& entry,
                                          int32_t rank) {
    const DType own = entry.said.at(rank).dtype;
    const auto is_own = [&](const auto& said) { return said.second.dtype == own; };
    std::optional<Matched> found;
    if (entry.differs) {
        found = Matched::kDiffer;
    } else if (const int32_t partner = partner_of(kind, rank); partner >= 0) {
        const auto other = entry.said.find(partner);
        if (other == entry.said.end() && comm.silent.count(partner) != 0) {
            found = Matched::kUnknown;
        } else if (other != entry.said.end() && is_own(*other)) {
            found = Matched::kAlike;
        }
    } else if (entry.said.size() == static_cast<size_t>(comm.ranks) &&
               std::all_of(entry.said.begin(), entry.said.end(), is_own)) {
        found = Matched::kAlike;
    } else if (std::any_of(comm.silent.begin(), comm.silent.end(),
                           [&](int32_t silent) { return entry.said.count(silent) == 0; })) {
        found = Matched::kUnknown;
    }
    return found;
}

// Answers what can be answered; true: all of it is, and nobody else comes.
bool ClaimBook::settle(const Comm& comm,
                       const Kind& kind,
                       Entry* entry,
                       std::vector<Answer>* answers) {
    compare(kind, entry);
    const bool complete = entry->said.size() == wanted(comm, kind);
    std::optional<std::optional<Matched>> of_all;  // for those that all ranks decide of
    bool all_answered = true;
    for (auto& [rank, said] : entry->said) {
        const bool one_decides = partner_of(kind, rank) >= 0;
        if (!one_decides && !of_all.has_value()) {
            of_all = matched(comm, kind, *entry, rank);
        }
        const std::optional<Matched> what =
            one_decides ? matched(comm, kind, *entry, rank) : *of_all;
        const bool so_far = what == Matched::kAlike && !complete;
        if (what.has_value() && !said.answered && !(so_far && said.so_far) && said.from != 0) {
            MatchRecord record = answer_to(said.number, so_far ? Matched::kSoFar : *what);
            if (what == Matched::kDiffer) {
                std::copy_n(entry->ranks, 2, record.ranks);
                std::copy_n(entry->dtypes, 2, record.dtypes);
            }
            answers->push_back({said.from, record});
        }
        said.so_far |= so_far;
        said.answered |= what.has_value() && !so_far;
        all_answered &= said.answered;
    }
    return complete && all_answered;
}

void ClaimBook::claim(uint64_t from,
                      const ClaimRecord& record,
                      Comm* comm,
                      std::vector<Answer>* answers) {
    const Kind kind = kind_of(record);
    const auto at = comm->entries.try_emplace(kind).first;
    Entry& entry = at->second;
    const bool again = entry.said.count(record.rank) != 0;
    claims_ += again ? 0 : 1;
    Said& said = entry.said[record.rank];
    said = {record.dtype, record.compressed != 0, false, false, record.number, from, 0};
    // Where there are many ranks, one more that is alike changes nothing for the others.
    const auto first = reference(kind, entry);
    if (!again && !entry.differs && comm->silent.empty() &&
        entry.said.size() < wanted(*comm, kind) && first != entry.said.end() &&
        first->first != record.rank && first->second.dtype == record.dtype) {
        if (of_root(record.op)) {
            said.so_far = true;
            answers->push_back({from, answer_to(record.number, Matched::kSoFar)});
        }
        return;
    }
    if (settle(*comm, kind, &entry, answers)) {
        claims_ -= entry.said.size();
        comm->entries.erase(at);
    }
}

std::optional<uint8_t> ClaimBook::differ(const Graphs& one, const Graphs& other) {
    const auto outside = [&](uint32_t call, uint32_t others_first) {
        return call > 0 && (others_first == 0 ? other.calls >= call : others_first > call);
    };
    if (outside(one.captured, other.captured)) {
        return 0;
    }
    // Each told so while it stood still, the one as the other does.
    constexpr uint64_t kTogetherUs = 5 * kStuckUs / 2;
    if (std::max(one.told_us, other.told_us) - std::min(one.told_us, other.told_us) > kTogetherUs) {
        return std::nullopt;
    }
    if (one.calls == other.calls && one.way == TypeClaims::kUnplaced && other.way == 0) {
        return TypeClaims::kPlacesDiffer;
    }
    return outside(one.early, other.early) && one.calls != other.calls && one.early_way != other.way
               ? std::optional(one.early_way)
               : std::nullopt;
}

// Answers with the first two ranks of which one has in a graph what the other makes outside of
// graphs as another.
void ClaimBook::take_graphs(uint64_t from,
                            const ClaimRecord& record,
                            uint64_t now_us,
                            Comm* comm,
                            std::vector<Answer>* answers) {
    const auto [op, first, second, bytes, nth] = kind_of(record);
    const bool message = is_point_to_point(op);
    const std::tuple key(message ? first : -1, message ? second : -1, record.kind);
    MatchRecord answer = answer_to(record.number, Matched::kAlike);
    if (comm->graphs.size() >= kMostClaims && comm->graphs.count(key) == 0) {
        answers->push_back({from, answer});
        return;
    }
    GraphKind& kind = comm->graphs[key];
    const Graphs& own = kind.told[record.rank] = {record.calls,     record.captured, record.early,
                                                  record.early_way, record.way,      now_us};
    for (auto other = kind.told.begin(); other != kind.told.end() && !kind.differs; ++other) {
        for (const bool mine : {true, false}) {
            const std::optional<uint8_t> way =
                mine ? differ(own, other->second) : differ(other->second, own);
            if (way.has_value() && !kind.differs) {
                kind.differs = true;
                kind.way = *way;
                kind.ranks[0] = mine ? record.rank : other->first;
                kind.ranks[1] = mine ? other->first : record.rank;
            }
        }
    }
    if (kind.differs) {
        answer.matched = Matched::kDiffer;
        answer.way = kind.way;
        std::copy_n(kind.ranks, 2, answer.ranks);
    }
    answers->push_back({from, answer});
}

// Whoever is in a part hears once all ranks of the communicator have told.
void ClaimBook::take_split(uint64_t from,
                           const ClaimRecord& record,
                           uint64_t now_us,
                           Comm* comm,
                           std::vector<Answer>* answers) {
    Splitting& split = comm->splits[record.kind];
    split.told_us = now_us;
    claims_ += split.told.count(record.rank) == 0 ? 1 : 0;
    split.told[record.rank] = {record.root_or_peer, static_cast<int64_t>(record.bytes),
                               record.number, from};
    if (split.told.size() < static_cast<size_t>(comm->ranks)) {
        return;
    }
    std::map<int32_t, std::vector<std::pair<int64_t, int32_t>>> parts;  // by color
    for (const auto& [rank, told] : split.told) {
        parts[told.color].emplace_back(told.key, rank);
    }
    for (auto& [color, members] : parts) {
        std::sort(members.begin(), members.end());
        std::vector<int32_t> ranks;
        for (const auto& [key, rank] : members) {
            ranks.push_back(rank);
        }
        const std::vector<int32_t> brief = brief_ranks(ranks);
        for (const int32_t rank : ranks) {
            const Splitting::Told& told = split.told.at(rank);
            MatchRecord answer = answer_to(told.number, Matched::kPart);
            answer.ranks[0] = static_cast<int32_t>(brief.size());
            if (told.number != 0) {
                answers->push_back({told.from, answer, brief});
            }
        }
    }
    claims_ -= split.told.size();
    comm->splits.erase(record.kind);
}

bool ClaimBook::take(uint64_t from,
                     const ClaimRecord& record,
                     uint64_t now_us,
                     std::vector<Answer>* answers) {
    if (!well_formed(record)) {
        return false;
    }
    sweep(now_us);
    const CommId id{record.token, record.comm_key};
    auto found = comms_.find(id);
    if (found == comms_.end()) {
        if (record.what == Claiming::kEnd) {
            return true;
        }
        if (comms_.size() >= kMostComms || claims_ >= kMostClaims) {
            answers->push_back({from, answer_to(record.number, Matched::kUnknown)});
            return true;
        }
        found = comms_.emplace(id, Comm{record.ranks, {}, {}, {}, {}}).first;
    }
    Comm& comm = found->second;
    if (comm.ranks != record.ranks) {
        return false;
    }
    switch (record.what) {
        case Claiming::kType:
            if (claims_ >= kMostClaims) {
                answers->push_back({from, answer_to(record.number, Matched::kUnknown)});
            } else {
                claim(from, record, &comm, answers);
            }
            break;
        case Claiming::kNoMore:
            comm.silent.insert(record.rank);
            for (auto at = comm.entries.begin(); at != comm.entries.end();) {
                const bool done = settle(comm, at->first, &at->second, answers);
                claims_ -= done ? at->second.said.size() : 0;
                at = done ? comm.entries.erase(at) : std::next(at);
            }
            break;
        case Claiming::kEnd:
            comm.silent.erase(record.rank);
            for (auto& [key, kind] : comm.graphs) {
                kind.told.erase(record.rank);
                kind.differs &= kind.ranks[0] != record.rank && kind.ranks[1] != record.rank;
            }
            std::erase_if(comm.graphs, [](const auto& kind) { return kind.second.told.empty(); });
            for (auto& [kind, entry] : comm.entries) {
                if (const auto said = entry.said.find(record.rank); said != entry.said.end()) {
                    said->second.from = 0;
                    said->second.orphaned_us = now_us;
                }
            }
            break;
        case Claiming::kGraphs:
            take_graphs(from, record, now_us, &comm, answers);
            break;
        case Claiming::kSplit:
            take_split(from, record, now_us, &comm, answers);
            break;
    }
    if (comm.empty()) {
        comms_.erase(found);
    }
    return true;
}

void ClaimBook::gone(uint64_t from, uint64_t now_us) {
    for (auto& [id, comm] : comms_) {
        for (auto& [kind, entry] : comm.entries) {
            for (auto& [rank, said] : entry.said) {
                if (said.from == from) {
                    said.from = 0;
                    said.orphaned_us = now_us;
                }
            }
        }
    }
}

void ClaimBook::sweep(uint64_t now_us) {
    if (now_us - swept_us_ < kKeptUs / 10) {
        return;
    }
    swept_us_ = now_us;
    const auto old = [&](const auto& said) {
        return said.second.from == 0 && now_us - said.second.orphaned_us > kKeptUs;
    };
    for (auto& [id, comm] : comms_) {
        std::erase_if(comm.entries, [&](const auto& entry) {
            const auto& said = entry.second.said;
            const bool all = std::all_of(said.begin(), said.end(), old);
            claims_ -= all ? said.size() : 0;
            return all;
        });
        for (auto& [key, kind] : comm.graphs) {
            std::erase_if(kind.told,
                          [&](const auto& one) { return now_us - one.second.told_us > kKeptUs; });
        }
        std::erase_if(comm.graphs, [](const auto& kind) { return kind.second.told.empty(); });
        std::erase_if(comm.splits, [&](const auto& split) {
            const bool late = now_us - split.second.told_us > kKeptUs;
            claims_ -= late ? split.second.told.size() : 0;
            return late;
        });
    }
    std::erase_if(comms_, [](const auto& comm) { return comm.second.empty(); });
}

}  // namespace slimwire
