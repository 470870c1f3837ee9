#include "collectives/state/atoms.h"

#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <iterator>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "collectives/state/saved_steps.h"

namespace slimwire {
namespace {

constexpr AtomKind kKinds[] = {
    {StateKind::kResiduals, "residuals", AtomPattern::kAverage},
    // Factors in front, or estimates.
    {StateKind::kShared, "shared", AtomPattern::kAverage},
    // With the sketch of a window that goes on.
    {StateKind{2}, "controller", AtomPattern::kReplicated, {48, 16, 16 + 2048 * sizeof(float)}},
    {StateKind{3}, "old", AtomPattern::kDerived},
    {StateKind{4}, "average_every", AtomPattern::kReplicated},
    {StateKind{5}, "start_step", AtomPattern::kReplicated},
    {StateKind{6}, "old", AtomPattern::kDerived},
    {StateKind{7}, "previews", AtomPattern::kDerived},
    {StateKind{8}, "gather_pairs", AtomPattern::kDerived},
    {StateKind::kOwed, "owed", AtomPattern::kReplicated},
    {StateKind::kOwedBySums, "owed by sums", AtomPattern::kReplicated},
    {StateKind::kAlike, "alike", AtomPattern::kReplicated},
    {StateKind::kEstimates, "estimates", AtomPattern::kReplicated},
    {StateKind::kEstimateOfSum, "estimate of the sum", AtomPattern::kReplicated},
    {StateKind::kMessages, "messages", AtomPattern::kDerived},
};

std::string rank_text(const StateReader& file) {
    return "rank " + std::to_string(file.index().launcher_rank);
}

// Whether ranks name their files so.
bool is_name_of_rank(std::string_view name) {
    constexpr std::string_view kBegin = "state.";
    return name.starts_with(kBegin) && name.size() > kBegin.size() &&
           name.find_first_not_of("0123456789", kBegin.size()) == name.npos;
}

// Whether it is what a process that was killed left of a file ("state.0.1234.tmp" beside
// "state.0"), or is writing now.
bool is_unfinished(std::string_view name) {
    constexpr std::string_view kEnd = ".tmp";
    if (!name.ends_with(kEnd)) {
        return false;
    }
    name.remove_suffix(kEnd.size());
    const size_t process = name.find_last_not_of("0123456789");
    return process != name.npos && process + 1 < name.size() && name[process] == '.';
}

// Why the folder is none of one moment, and which of the savings in it is to be named instead.
std::string nothing_saved(const std::string& folder, const std::vector<std::string>& passed_over) {
    std::string text = "'" + folder + "' has no saved state";
    std::string newest, names;
    const std::vector<Saving> savings = savings_in(folder);
    for (const Saving& saving : savings) {
        const bool complete = saving.complete(folder);
        newest = newest.empty() && complete ? folder + "/" + saving.name() : newest;
        names += (names.empty() ? "" : ", ") + saving.name() + (complete ? "" : " (incomplete)");
    }
    text += names.empty()
                ? ""
                : " of its own, and " +
                      std::string(savings.size() == 1 ? "a saving" : "savings of several moments") +
                      ": " + names;
    text += passed_over.empty() ? "" : "; " + passed_over.front();
    return text + (newest.empty() ? "; accepted: a file of slimwire_save_state, or a folder with "
                                    "those of all ranks"
                                  : "; accepted: the newest complete one, '" + newest + "'");
}

// Of bytes of a record, from `offset` on, those that ranks have parts of, or of them what adds up.
std::span<std::byte> parts_of(const AtomKey& key,
                              bool adds_up,
                              uint64_t offset,
                              std::span<std::byte> bytes) {
    const AtomKind* const kind = atom_kind(key.kind);
    if (kind == nullptr || key.signature.op != Op::kReduceScatter) {
        return bytes.first(0);
    }
    const auto clamped = [&](uint64_t at) {
        return std::clamp(at, offset, offset + bytes.size()) - offset;
    };
    const AtomKind::Parts& parts = kind->parts;
    const uint64_t begin = clamped(parts.begin + (adds_up ? parts.of_part : 0));
    return bytes.subspan(begin, clamped(parts.begin + parts.bytes) - begin);
}

}  // namespace

const AtomKind* atom_kind(StateKind kind) noexcept {
    const auto* const found = std::find_if(std::begin(kKinds), std::end(kKinds),
                                           [&](const AtomKind& one) { return one.kind == kind; });
    return found == std::end(kKinds) ? nullptr : found;
}

std::string AtomKey::text() const {
    const AtomKind* const of = atom_kind(kind);
    const std::string part = group.groups == 1 ? ""
                                               : " of group " + std::to_string(group.index) +
                                                     " of " + std::to_string(group.groups);
    return std::string(op_name(signature.op)) + " " + dtype_name(signature.dtype) + " " +
           redop_name(signature.redop) + " count " + std::to_string(signature.count) + " " +
           (name.empty() ? "ordinal " + std::to_string(ordinal) : "'" + name + "'") + " " +
           (of != nullptr ? of->name : "kind " + std::to_string(static_cast<int>(kind))) + part;
}

uint64_t Atom::elems() const noexcept {
    const ResidualMap* const map = shares.front().map.get();
    return waited()                                   ? bytes / shares.size() / sizeof(float)
           : map == nullptr || map->contributors == 0 ? 0
                                                      : map->elems;
}

bool Atom::has_sums(uint32_t sums) const noexcept {
    return std::any_of(shares.begin(), shares.end(), [&](const Share& share) {
        return share.map != nullptr &&
               std::any_of(share.map->runs.begin(), share.map->runs.end(),
                           [&](const ResidualMap::Run& run) { return run.sums == sums; });
    });
}

bool Atom::estimates() const noexcept {
    return of_estimates(key.kind) || has_sums(3) || has_sums(4);
}

uint64_t Atom::state_bytes() const noexcept {
    const ResidualMap* const map = shares.front().map.get();
    return map == nullptr ? 0 : map->state_bytes;
}

Result<SavedJob> SavedJob::open(const std::string& path, size_t most_open) {
    SavedJob job;
    struct stat found {};
    if (::stat(path.c_str(), &found) != 0 || !S_ISDIR(found.st_mode)) {
        SLIMWIRE_TRY_ASSIGN(StateReader reader, StateReader::open(path));
        SLIMWIRE_TRY(job.add(std::move(reader)));
        job.find_names();
        return job;
    }
    std::vector<StateReader> readers;
    for (const std::string& name : names_in(path)) {
        if (is_unfinished(name)) {
            continue;
        }
        if (begins_as_state(path + "/" + name)) {
            SLIMWIRE_TRY_ASSIGN(StateReader reader,
                                StateReader::open(path + "/" + name, readers.size() < most_open));
            readers.push_back(std::move(reader));
        } else if (is_name_of_rank(name)) {
            job.passed_over_.push_back("'" + path + "/" + name +
                                       "' is no saved state: it does not begin as one");
        }
    }
    std::vector<size_t> order(readers.size());
    for (size_t i = 0; i < order.size(); ++i) {
        order[i] = i;
    }
    std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
        return std::pair(readers[a].index().launcher_rank, readers[a].path()) <
               std::pair(readers[b].index().launcher_rank, readers[b].path());
    });
    for (const size_t i : order) {
        SLIMWIRE_TRY(job.add(std::move(readers[i])));
    }
    if (job.files_.empty()) {
        return Status(Code::kNotFound, nothing_saved(path, job.passed_over_));
    }
    std::sort(job.passed_over_.begin(), job.passed_over_.end());
    job.find_names();
    return job;
}

// Inside a job a tensor is told by its slot, which is the same on all ranks; to other jobs by its
// name, if all ranks have given it that, and no other.
void SavedJob::find_names() {
    std::set<AtomKey> known;
    for (const Atom& atom : atoms_) {
        known.insert(atom.key);
    }
    for (Atom& atom : atoms_) {
        const ResidualMap* const first = atom.shares.front().map.get();
        const auto alike = [&](const Atom::Share& share) {
            return share.map != nullptr && first != nullptr && share.map->model == first->model &&
                   share.map->names == first->names;
        };
        if (!std::all_of(atom.shares.begin(), atom.shares.end(), alike) || first->model != 0 ||
            first->names.empty()) {
            continue;
        }
        const LastingTensor of = by_name({}, *first);
        AtomKey key = atom.key;
        key.path = of.path;
        key.ordinal = of.ordinal;
        key.name = first->names[0].text;
        if (known.insert(key).second) {
            atom.key = std::move(key);
        }
    }
}

Status SavedJob::add(StateReader reader) {
    const StateIndex& index = reader.index();
    std::map<uint64_t, const StateComm*> comms;
    for (const StateComm& comm : index.comms) {
        comms.emplace(comm.key, &comm);
    }
    for (const StateComm& comm : index.comms) {
        comms.emplace(atoms_key(comm.group), &comm);  // of what still waits
    }
    std::map<LastingTensor, std::shared_ptr<const ResidualMap>> maps;
    for (size_t i = 0; i < index.tensors.size(); ++i) {
        const StateTensor& tensor = index.tensors[i];
        if (tensor.kind != StateKind::kMap) {
            continue;
        }
        const auto of =
            std::find_if(index.tensors.begin(), index.tensors.end(), [&](const StateTensor& other) {
                return record_of(other.kind) == StateKind::kResiduals &&
                       other.tensor.order() == tensor.tensor.order();
            });
        std::vector<std::byte> bytes(tensor.bytes);
        SLIMWIRE_TRY(reader.read(i, 0, bytes));
        Result<ResidualMap> map = residual_map_of(bytes, of == index.tensors.end() ? 0 : of->bytes);
        if (!map.ok()) {
            return {map.status().code(),
                    "state file '" + reader.path() + "' has " + map.status().message()};
        }
        maps.emplace(tensor.tensor, std::make_shared<ResidualMap>(std::move(map).value()));
    }
    std::map<AtomKey, size_t> known;
    for (size_t i = 0; i < atoms_.size(); ++i) {
        known.emplace(atoms_[i].key, i);
    }
    for (size_t i = 0; i < index.tensors.size(); ++i) {
        const StateTensor& tensor = index.tensors[i];
        if (tensor.kind == StateKind::kMap) {
            continue;
        }
        const auto comm = comms.find(tensor.tensor.comm);
        const RankGroup group = comm == comms.end() ? RankGroup() : comm->second->group;
        const auto map = is_progress(tensor.kind) ? maps.end() : maps.find(tensor.tensor);
        const bool waits =
            tensor.tensor.ordinal == kNamed && map != maps.end() && !map->second->names.empty();
        const AtomKey key{group,
                          group.number == 0 ? tensor.tensor.comm : 0,
                          tensor.tensor.signature,
                          tensor.tensor.path,
                          tensor.tensor.ordinal,
                          tensor.kind,
                          waits ? map->second->names[0].text : std::string()};
        const auto [found, made] = known.emplace(key, atoms_.size());
        if (made) {
            atoms_.push_back({key, {}, tensor.loss_scale, 0, key.path, key.ordinal});
        }
        Atom& atom = atoms_[found->second];
        atom.shares.push_back({files_.size(), i, map == maps.end() ? nullptr : map->second});
        atom.bytes += tensor.bytes;
    }
    files_.push_back(std::move(reader));
    return {};
}

int SavedJob::ranks() const noexcept {
    const int size = files_.front().index().launcher_size;
    return size > 0 ? size : static_cast<int>(files_.size());
}

uint64_t SavedJob::bytes() const {
    uint64_t bytes = 0;
    for (const StateReader& file : files_) {
        bytes += file.bytes();
    }
    return bytes;
}

uint32_t SavedJob::left_out() const {
    uint32_t most = 0;
    for (const StateReader& file : files_) {
        most = std::max(most, file.index().left_out);
    }
    return most;
}

Status SavedJob::owed(const Atom& atom, uint32_t sums, uint64_t at, std::span<double> out) const {
    std::fill(out.begin(), out.end(), 0.0);
    const auto begin = static_cast<int64_t>(at), end = begin + static_cast<int64_t>(out.size());
    std::vector<float> values;
    if (atom.waited()) {
        const Atom::Share& first = atom.shares.front();
        values.resize(sums != 0 ? 0 : out.size());
        SLIMWIRE_TRY(files_[first.file].read(first.tensor, at * sizeof(float),
                                             std::as_writable_bytes(std::span(values))));
        std::copy(values.begin(), values.end(), out.begin());
        return {};
    }
    // Of what all have alike the first rank's.
    const size_t shares = sums == 3 ? 1 : atom.shares.size();
    for (const Atom::Share& share : std::span(atom.shares).first(shares)) {
        if (share.map == nullptr) {
            return {Code::kInvalidUsage,
                    atom.key.text() + ": " + rank_text(files_[share.file]) +
                        " was saved by an older slimwire, which does not say where residuals lie"};
        }
        const auto read = [&](uint64_t offset, std::span<std::byte> bytes) {
            return files_[share.file].read(share.tensor, offset, bytes);
        };
        const double unit = sums != 0 ? 1 : share.map->unit;
        for (const ResidualMap::Run& run : share.map->runs) {
            const int64_t first = std::max(begin, run.at), last = std::min(end, run.at + run.count);
            const bool wanted = run.sums == sums || (sums == 0 && run.sums == 2);
            if (!wanted || first >= last) {
                continue;
            }
            values.resize(static_cast<size_t>(last - first));
            SLIMWIRE_TRY(read_run(*share.map, read, run, first - run.at, values));
            for (size_t i = 0; i < values.size(); ++i) {
                out[static_cast<size_t>(first - begin) + i] += unit * double{values[i]};
            }
        }
    }
    return {};
}

Status SavedJob::alike(const Atom& atom,
                       uint64_t offset,
                       std::span<std::byte> out,
                       int ranks) const {
    std::vector<std::byte> other(out.size());
    const std::span<std::byte> own = parts_of(atom.key, false, offset, out);
    const std::span<std::byte> summed = parts_of(atom.key, true, offset, out);
    std::vector<float> sum(summed.size() / sizeof(float)), part(sum.size());
    for (const Atom::Share& share : atom.shares) {
        const bool first = &share == &atom.shares.front();
        const std::span<std::byte> read = first ? out : other;
        SLIMWIRE_TRY(files_[share.file].read(share.tensor, offset, read));
        if (!sum.empty()) {
            std::memcpy(part.data(), read.data() + (summed.data() - out.data()), summed.size());
            std::transform(sum.begin(), sum.end(), part.begin(), sum.begin(), std::plus<>());
        }
        if (first) {
            continue;
        }
        std::copy(own.begin(), own.end(), other.begin() + (own.data() - out.data()));
        if (!std::equal(out.begin(), out.end(), other.begin())) {
            return {Code::kInvalidUsage, atom.key.text() + ": " + rank_text(files_[share.file]) +
                                             " has other bytes than " +
                                             rank_text(files_[atom.shares.front().file])};
        }
    }
    for (size_t i = 0; i < sum.size(); ++i) {
        sum[i] /= static_cast<float>(ranks);
        std::memcpy(summed.data() + i * sizeof(float), &sum[i], sizeof(float));
    }
    return {};
}

// Whether every element has so many of the ranks' runs.
bool SavedJob::covered(const Atom& atom, uint32_t sums, uint64_t times) {
    std::map<int64_t, uint64_t> changes;  // of how many there are; those that end wrap around
    for (const Atom::Share& share : atom.shares) {
        for (const ResidualMap::Run& run : share.map->runs) {
            if (run.sums == sums && run.count > 0) {
                changes[run.at] += 1;
                changes[run.at + run.count] -= 1;
            }
        }
    }
    std::erase_if(changes, [](const auto& one) { return one.second == 0; });
    return changes.size() == 2 && changes.begin()->first == 0 && changes.begin()->second == times &&
           static_cast<uint64_t>(changes.rbegin()->first) == atom.elems();
}

// Whether all of its ranks, each once, have records that say the same of what all have in common.
bool SavedJob::same_layout(const Atom& atom) const {
    const Atom::Share& first = atom.shares.front();
    const auto bytes = [&](const Atom::Share& share) {
        return files_[share.file].index().tensors[share.tensor].bytes;
    };
    std::set<size_t> files;
    return std::all_of(atom.shares.begin(), atom.shares.end(), [&](const Atom::Share& share) {
        const ResidualMap *const a = first.map.get(), *const b = share.map.get();
        const bool maps = a == nullptr || b == nullptr
                              ? a == b
                              : a->contributors == b->contributors && a->elems == b->elems &&
                                    a->state_bytes == b->state_bytes && a->unit == b->unit &&
                                    a->model == b->model && a->parameters == b->parameters &&
                                    (a->model == 0 || a->names == b->names);
        return files.insert(share.file).second && maps &&
               (record_of(atom.key.kind) == StateKind::kResiduals || bytes(share) == bytes(first));
    });
}

Status SavedJob::same_estimate(const Atom& atom,
                               size_t other,
                               uint64_t at,
                               std::span<const double> estimate) const {
    const Atom::Share& share = atom.shares[other];
    std::vector<double> values(estimate.size());
    SLIMWIRE_TRY(owed({atom.key, {share}}, 3, at, values));
    return std::equal(values.begin(), values.end(), estimate.begin())
               ? Status()
               : Status(Code::kInvalidUsage, atom.key.text() + ": " +
                                                 rank_text(files_[share.file]) +
                                                 " has another estimate of the sum than " +
                                                 rank_text(files_[atom.shares.front().file]));
}

// Every rank has the same estimates of the sum.
Status SavedJob::find_estimates_alike(const Atom& atom) const {
    std::vector<double> values;
    for (uint64_t at = 0; at < atom.elems(); at += kAtomWindow) {
        values.resize(std::min(kAtomWindow, atom.elems() - at));
        SLIMWIRE_TRY(owed(atom, 3, at, values));
        for (size_t other = 1; other < atom.shares.size(); ++other) {
            SLIMWIRE_TRY(same_estimate(atom, other, at, values));
        }
    }
    return {};
}

// What is small every rank reads in any case.
Status SavedJob::find_alike(const Atom& atom, bool heads) const {
    const bool whole = atom_kind(atom.key.kind)->pattern == AtomPattern::kReplicated;
    const Atom::Share& first = atom.shares.front();
    if (heads && whole && atom.waited()) {
        for (const Atom::Share& share : atom.shares) {
            const auto sums = files_[first.file].sums(first.tensor),
                       others = files_[share.file].sums(share.tensor);
            if (!std::equal(sums.begin(), sums.end(), others.begin(), others.end())) {
                return {Code::kInvalidUsage,
                        atom.key.text() + ": " + rank_text(files_[share.file]) +
                            " has other bytes than " + rank_text(files_[first.file])};
            }
        }
    }
    const uint64_t bytes = heads ? 0 : whole ? atom.bytes / atom.shares.size() : atom.state_bytes();
    std::vector<std::byte> piece;
    for (uint64_t at = 0; at < bytes; at += kAtomWindow) {
        piece.resize(std::min(kAtomWindow, bytes - at));
        SLIMWIRE_TRY(alike(atom, at, piece));
    }
    return heads || !atom.has_sums(3) ? Status() : find_estimates_alike(atom);
}

// Every rank has its share, and every element as many contributors as the map says.
std::string SavedJob::finding(const Atom& atom, size_t ranks, bool heads) const {
    const auto moment = [&](const Atom::Share& share) {
        const std::vector<StateComm>& comms = files_[share.file].index().comms;
        const auto of = std::find_if(comms.begin(), comms.end(), [&](const StateComm& comm) {
            return comm.group.order() == atom.key.group.order();
        });
        return of == comms.end() ? 0 : of->snapshot_id;
    };
    const bool together = std::all_of(
        atom.shares.begin(), atom.shares.end(),
        [&](const Atom::Share& share) { return moment(share) == moment(atom.shares.front()); });
    if (!same_layout(atom) || !together) {
        return atom.key.text() + ": its ranks' parts do not fit each other";
    }
    const bool parts = atom.elems() > 0 && !atom.waited();
    const bool whole = parts ? covered(atom, 0, atom.shares.front().map->contributors) &&
                                   (!atom.has_sums() || covered(atom, 1, 1)) &&
                                   (!atom.has_sums(3) || covered(atom, 3, atom.shares.size()))
                             : atom.shares.size() == ranks;
    return whole ? find_alike(atom, heads).message() : atom.key.text() + ": a rank lacks its part";
}

void SavedJob::find_whole(bool heads, std::vector<std::string>* findings) const {
    for (const Atom& atom : atoms_) {
        const AtomKind* const kind = atom_kind(atom.key.kind);
        if (kind == nullptr) {
            findings->push_back(atom.key.text() + ": no pattern takes it");
            continue;
        }
        const bool all = atom.key.group.of_all() || atom.key.comm == kWholeTensors;
        if (!all || kind->pattern == AtomPattern::kDerived ||
            is_point_to_point(atom.key.signature.op)) {
            continue;  // a rank's own
        }
        if (std::string why = finding(atom, files_.size(), heads); !why.empty()) {
            findings->push_back(std::move(why));
        }
    }
}

std::vector<std::string> SavedJob::strays() const {
    std::vector<std::string> findings = passed_over_;
    const StateIndex& first = files_.front().index();
    std::set<int> ranks;
    for (const StateReader& file : files_) {
        const StateIndex& index = file.index();
        if (index.config_hash != first.config_hash || index.launcher_size != first.launcher_size) {
            findings.push_back("'" + file.path() + "' is of another job than '" +
                               files_.front().path() + "': its policy or its ranks are others");
        } else if (index.step != first.step) {
            findings.push_back("'" + file.path() + "' is of step " + std::to_string(index.step) +
                               ", '" + files_.front().path() + "' of step " +
                               std::to_string(first.step));
        }
        if (index.atoms != first.atoms) {
            findings.push_back("'" + file.path() + "' is laid out otherwise than '" +
                               files_.front().path() + "'");
        }
        if (index.launcher_rank >= 0 && !ranks.insert(index.launcher_rank).second) {
            findings.push_back("'" + file.path() + "' is of " + rank_text(file) +
                               ", as another file is");
        }
        for (const StateComm& comm : index.comms) {
            const auto other =
                std::find_if(first.comms.begin(), first.comms.end(), [&](const StateComm& one) {
                    return one.group.order() == comm.group.order() && comm.group.of_all();
                });
            if (other != first.comms.end() && other->snapshot_id != comm.snapshot_id) {
                findings.push_back("'" + file.path() + "' was saved at another moment than '" +
                                   files_.front().path() + "'");
            }
        }
    }
    if (first.atoms && files_.size() != static_cast<size_t>(first.launcher_size)) {
        findings.push_back("there are " + std::to_string(files_.size()) + " files for " +
                           std::to_string(first.launcher_size) + " ranks");
    }
    for (int rank = 0; first.launcher_rank >= 0 && rank < first.launcher_size; ++rank) {
        if (!ranks.contains(rank)) {
            findings.push_back("there is no file of rank " + std::to_string(rank) + " of " +
                               std::to_string(first.launcher_size));
            break;  // a number that is damaged may be any
        }
    }
    return findings;
}

std::vector<std::string> SavedJob::findings(bool heads) const {
    std::vector<std::string> findings = strays();
    for (const StateReader& file : files_) {
        heads = heads && file.checks_reads();  // of older ones nothing is known before
    }
    for (const StateReader& file : heads ? std::span<const StateReader>() : std::span(files_)) {
        if (Status status = file.check(); !status.ok()) {
            findings.push_back(status.message());
        }
    }
    if (findings.empty()) {
        find_whole(heads, &findings);
    }
    return findings;
}

}  // namespace slimwire
