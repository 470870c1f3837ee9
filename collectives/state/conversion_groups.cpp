// Communicators of some of the ranks (conversion.h): which tensors they share, and what they go on
// with where there are other such groups.
#include <algorithm>
#include <iterator>
#include <set>
#include <tuple>
#include <utility>

#include "collectives/state/conversion.h"

namespace slimwire {
namespace {

// Weights and counts of messages, but for what copies of a model average, which is found out anew.
bool is_learned(StateKind kind, uint64_t path) noexcept {
    return kind == StateKind::kMessages && path != kAveragedCodes;
}

}  // namespace

void Conversion::find_wholes() {
    for (const Atom& atom : job_.atoms()) {
        const ResidualMap* const map = atom.shares.front().map.get();
        const RankGroup& group = atom.key.group;
        if (group.number == 0 || atom.waited() || map == nullptr || map->names.empty() ||
            atom.elems() == 0 || (map->state_bytes > 0 && map->model != 0) ||
            atom.key.signature.op != Op::kAllReduce) {
            continue;
        }
        const LastingTensor tensor{atoms_key({group.number, 0, group.groups, group.stride}),
                                   atom.key.signature, atom.key.path, atom.key.ordinal};
        const auto add = [&](const LastingTensor& part, size_t name, const Part& of) {
            Whole& whole = wholes_[whole_of(part, 1)];
            whole.name = map->names[name];
            whole.parts.emplace(group.index, of);
        };
        if (map->model == 0 && atom.key.ordinal == kNamed) {
            add(tensor, 0, {&atom, 0, atom.elems()});
        }
        for (size_t i = 0; i < map->parameters.size(); ++i) {
            const ResidualMap::Parameter& one = map->parameters[i];
            add(parameter_of(tensor, *map, i), i,
                {&atom, static_cast<uint64_t>(one.at), static_cast<uint64_t>(one.count)});
        }
    }
    std::erase_if(wholes_, [&](const auto& one) { return !whole(one.first, one.second); });
    for (const auto& [part, whole] : wholes_) {
        for (const auto& [group, of] : whole.parts) {
            in_wholes_.emplace(of.atom, of.first);
        }
        add_whole(part, whole);
    }
}

// Ranks of other groups know by it that they have estimates of the same moment.
void Conversion::add_moment_of_wholes() {
    uint64_t moment = 0;
    bool any = !wholes_.empty();
    for (const Atom& atom : job_.atoms()) {
        any |= atom.key.comm == kWholeTensors;
    }
    for (const StateReader& file : job_.files()) {
        for (const StateComm& comm : file.index().comms) {
            moment = state_checksum(moment, std::as_bytes(std::span(&comm.snapshot_id, 1)));
        }
    }
    if (any) {
        StateComm& all = index_.comms.emplace_back();
        all.key = kWholeTensors;
        all.snapshot_id = moment | 1;
    }
}

// Whether every group has its part, all of one size, and how they lie is known.
bool Conversion::whole(const LastingTensor& part, const Whole& of) const {
    const Part& first = of.parts.begin()->second;
    const uint32_t pieces = of.name.pieces;
    const bool told =
        pieces == ResidualMap::kReplicated || (pieces != 0 && first.elems % pieces == 0);
    return told && first.elems == part.signature.count &&
           of.parts.size() == first.atom->key.group.groups &&
           std::all_of(of.parts.begin(), of.parts.end(), [&](const auto& one) {
               const Atom& atom = *one.second.atom;
               return atom.estimates() == first.atom->estimates() &&
                      (atom.key.group.of_all() ||
                       job_.finding(atom, static_cast<size_t>(ranks_before(atom.key)),
                                    options_.heads)
                           .empty());
           });
}

bool Conversion::in_wholes(const Atom& atom) const {
    const ResidualMap* const map = atom.shares.front().map.get();
    const auto is = [&](uint64_t first) { return in_wholes_.contains({&atom, first}); };
    return map == nullptr || map->parameters.empty()
               ? is(0)
               : std::all_of(map->parameters.begin(), map->parameters.end(),
                             [&](const auto& one) { return is(static_cast<uint64_t>(one.at)); });
}

// Of a tensor that each group has all of, what the optimizers of these would receive on average.
Status Conversion::read_whole(const Whole& of,
                              uint32_t sums,
                              uint64_t at,
                              std::span<double> out) const {
    const uint64_t parts = of.parts.size(), elems = of.parts.begin()->second.elems;
    if (of.name.pieces == ResidualMap::kReplicated) {
        std::fill(out.begin(), out.end(), 0.0);
        std::vector<double> one(out.size());
        for (const auto& [group, part] : of.parts) {
            SLIMWIRE_TRY(read_owed(*part.atom, sums, part.first + at, one));
            for (size_t i = 0; i < out.size(); ++i) {
                out[i] += one[i] / static_cast<double>(parts);
            }
        }
        return {};
    }
    const uint64_t block = elems / of.name.pieces;
    while (!out.empty()) {
        const uint64_t piece = at / block, inside = at % block;
        const size_t count = std::min<uint64_t>(block - inside, out.size());
        const Part& part = std::next(of.parts.begin(), static_cast<long>(piece % parts))->second;
        SLIMWIRE_TRY(read_owed(*part.atom, sums, part.first + piece / parts * block + inside,
                               out.first(count)));
        at += count;
        out = out.subspan(count);
    }
    return {};
}

void Conversion::add_whole(const LastingTensor& part, const Whole& of) {
    const bool replicated = of.name.pieces == ResidualMap::kReplicated;
    const LastingTensor tensor = whole_of(part, replicated ? 1 : of.parts.size());
    const uint64_t elems = tensor.signature.count;
    const Atom& first = *of.parts.begin()->second.atom;
    for (const auto& [kind, sums] :
         {std::pair(first.estimates() ? StateKind::kEstimates : StateKind::kOwed, 0u),
          std::pair(StateKind::kOwedBySums, 1u), std::pair(StateKind::kEstimateOfSum, 3u)}) {
        const bool any = std::any_of(
            of.parts.begin(), of.parts.end(),
            [&, which = sums](const auto& one) { return one.second.atom->has_sums(which); });
        if (sums == 0 || any) {
            add_floats(tensor, kind, elems, first.loss_scale,
                       [this, &of, which = sums](uint64_t at, std::span<double> out) {
                           return read_whole(of, which, at, out);
                       });
        }
    }
    // Groups that stay as they are have what is in front of it, too.
    for (const auto& [group, its] : of.parts) {
        if (its.atom->key.group.of_all() || has(its.atom->key.group)) {
            add_alike(*its.atom, tensor_of(its.atom->key));
        }
    }
    add_name(tensor, of.name, first.loss_scale);
}

bool Conversion::has(const RankGroup& group) const {
    return group.of_some() && options_.own >= 0 && ranks_ != job_.ranks() &&
           group.fits(job_.ranks()) && group.fits(ranks_) && group.has(options_.own, ranks_);
}

Result<bool> Conversion::in_group(const Atom& atom) {
    const RankGroup& group = atom.key.group;
    if (group.of_some() && options_.own >= 0 && ranks_ != job_.ranks() &&
        group.fits(job_.ranks()) && group.fits(ranks_)) {
        if (!has(group)) {
            return false;
        }
        if (job_.finding(atom, static_cast<size_t>(ranks_before(atom.key)), options_.heads)
                .empty()) {
            return true;
        }
        SLIMWIRE_TRY(leave_out(atom.key, "its ranks' parts do not fit each other"));
        return false;
    }
    SLIMWIRE_TRY(leave_out(atom.key,
                           "of a communicator of some of the ranks only, which go to others where "
                           "there are as many such, or it is told how they share the tensor "
                           "(slimwire_split_parameter), or of an older slimwire"));
    return false;
}

// Of groups that there are more of now, or fewer, each of as many ranks: data parallel changed. The
// others lie beside these, or between the ranks of these where each has ranks of all the job.
bool Conversion::follow(const RankGroup& group) const {
    if (!group.of_some() || !group.fits(job_.ranks()) || options_.own < 0 ||
        ranks_ == job_.ranks()) {
        return false;
    }
    const int size = job_.ranks() / static_cast<int>(group.groups), now = ranks_ / size;
    return ranks_ % size == 0 && now > 1 &&
           (group.stride == group.groups || now % static_cast<int>(group.stride) == 0);
}

// What groups of ranks learned to encode by, those that follow have from the one in their place.
void Conversion::take_learned() {
    std::set<std::tuple<uint32_t, uint32_t, uint32_t>> grids;
    for (const Atom& atom : job_.atoms()) {
        const RankGroup& group = atom.key.group;
        if (is_learned(atom.key.kind, atom.key.path) && follow(group)) {
            grids.emplace(group.number, group.groups, group.stride);
        }
    }
    for (const auto& [number, groups, stride] : grids) {
        const uint32_t size = static_cast<uint32_t>(job_.ranks()) / groups,
                       now = static_cast<uint32_t>(ranks_) / size,
                       own = static_cast<uint32_t>(options_.own);
        if (now % stride == 0) {
            const uint32_t beside = own / (stride * size) * stride + own % stride;
            take_learned(
                {number, beside / stride * groups / now * stride + beside % stride, groups, stride},
                {number, beside, now, stride}, own / stride % size);
        }
        if (stride == groups) {
            take_learned({number, own % now % groups, groups, stride},
                         {number, own % now, now, now}, own / now);
        }
    }
}

void Conversion::take_learned(const RankGroup& from, const RankGroup& to, uint32_t place) {
    const uint32_t size = static_cast<uint32_t>(job_.ranks()) / from.groups;
    const uint32_t rank = from.index / from.stride * from.stride * size + from.index % from.stride +
                          place * from.stride;
    for (size_t file = 0; file < job_.files().size(); ++file) {
        const StateIndex& index = job_.files()[file].index();
        const auto comm =
            std::find_if(index.comms.begin(), index.comms.end(),
                         [&](const StateComm& one) { return one.group.order() == from.order(); });
        if (index.launcher_rank != static_cast<int>(rank) || comm == index.comms.end()) {
            continue;
        }
        index_.comms.push_back(*comm);
        index_.comms.back().key = atoms_key(to);
        index_.comms.back().group = to;
        for (size_t i = 0; i < index.tensors.size(); ++i) {
            const StateTensor& one = index.tensors[i];
            if (one.tensor.comm == comm->key && is_learned(one.kind, one.tensor.path)) {
                add_record({file, i, nullptr}, atoms_key(to));
            }
        }
    }
}

// Of collectives all ranks have the same.
Status Conversion::take_messages(const Atom& atom) {
    const AtomKey& key = atom.key;
    if (!is_learned(key.kind, key.path) || follow(key.group)) {
        return {};
    }
    if (key.signature.root_or_peer < 0 && (key.group.of_all() || has(key.group))) {
        const auto own = static_cast<size_t>(std::max(options_.own, 0));
        add_record(atom.shares[own % atom.shares.size()], atoms_key(key.group));
        return {};
    }
    return leave_out(key, "weights and counts of messages go on in groups of as many ranks");
}

}  // namespace slimwire
