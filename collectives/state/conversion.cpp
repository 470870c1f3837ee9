#include "collectives/state/conversion.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace slimwire {
namespace {

LastingTensor of_kind(const AtomKey& key) {
    return {atoms_key(key.group), key.signature, 0, 0};
}

// What FSDP1 divides a sum of so many ranks by; contributions by the rest
// (_get_gradient_predivide_factor of PyTorch).
double fsdp_divisor(int ranks) {
    int before = 1;
    while (ranks % before == 0 && ranks > before * before) {
        before *= 2;
    }
    return static_cast<double>(ranks) / before;
}

}  // namespace

Status Conversion::leave_out(const AtomKey& key, const std::string& why, const char* accepted) {
    if (!options_.drop) {
        return {Code::kInvalidUsage,
                key.text() + ": " + why + accepted + "; --drop leaves such atoms out"};
    }
    LeftOut& all = left_out_[why];
    all.first = all.atoms++ == 0 ? key.text() : all.first;
    return {};
}

std::vector<std::string> Conversion::left_out() const {
    std::vector<std::string> texts;
    for (const auto& [why, all] : left_out_) {
        const bool one = all.atoms == 1;
        texts.push_back((one ? "" : std::to_string(all.atoms) + " atoms, first ") + all.first +
                        ": " + why);
    }
    return texts;
}

void Conversion::add(
    const LastingTensor& tensor, StateKind kind, uint64_t bytes, double loss_scale, Make make) {
    index_.tensors.push_back({tensor, 0, bytes, kind, loss_scale});
    makes_.push_back(std::move(make));
}

// Elements of a tensor of all ranks' shards up to the last that is owed something: the rest may be
// padding.
Result<uint64_t> Conversion::length_of(const Atom& atom) const {
    const auto ranks = static_cast<uint64_t>(ranks_before(atom.key));
    const uint64_t all = atom.elems(), least = all - std::min(all, shard_multiple(all, ranks)) + 1;
    std::vector<double> owed;
    for (uint64_t end = all; end >= least;) {
        const uint64_t begin = end - std::min(end - least + 1, kAtomWindow);
        owed.resize(end - begin);
        SLIMWIRE_TRY(job_.owed(atom, false, begin, owed));
        for (; end > begin; --end) {
            if (owed[end - begin - 1] != 0) {
                return end;
            }
        }
    }
    return least;
}

LastingTensor Conversion::tensor_of(const AtomKey& key) {
    const bool whole = key.comm == kWholeTensors;
    return {whole ? key.comm : atoms_key(key.group), key.signature, key.path, key.ordinal};
}

const Atom* Conversion::beside(const Atom& atom, StateKind kind) const {
    AtomKey key = atom.key;
    key.kind = kind;
    const auto found =
        std::find_if(job_.atoms().begin(), job_.atoms().end(),
                     [&](const Atom& other) { return other.key.order() == key.order(); });
    return atom.waited() && found != job_.atoms().end() ? &*found : nullptr;
}

// Elements of an atom, and where ranks compare what they know of the sum whether this one has the
// same.
Status Conversion::read_owed(const Atom& from,
                             uint32_t sums,
                             uint64_t at,
                             std::span<double> out) const {
    SLIMWIRE_TRY(job_.owed(from, sums, at, out));
    const auto own = static_cast<size_t>(std::max(options_.own, 0));
    return sums == 3 && options_.heads ? job_.same_estimate(from, own % from.shares.size(), at, out)
                                       : Status();
}

// `read` fills elements from one on.
void Conversion::add_floats(const LastingTensor& tensor,
                            StateKind kind,
                            uint64_t elems,
                            double loss_scale,
                            std::function<Status(uint64_t at, std::span<double> out)> read) {
    add(tensor, kind, elems * sizeof(float), loss_scale,
        [elems, read = std::move(read)](uint64_t offset, std::span<std::byte> out) -> Status {
            const uint64_t at = std::min(offset / sizeof(float), elems);
            std::vector<double> owed(out.size() / sizeof(float));
            SLIMWIRE_TRY(read(at, std::span(owed).first(std::min(owed.size(), elems - at))));
            const std::vector<float> values(owed.begin(), owed.end());
            const auto bytes = std::as_bytes(std::span(values));
            std::copy(bytes.begin(), bytes.end(), out.begin());
            return {};
        });
}

void Conversion::add_alike(const Atom& atom, const LastingTensor& tensor) {
    const Atom* const own = beside(atom, StateKind::kAlike);
    const uint64_t bytes = own != nullptr ? own->bytes / own->shares.size() : atom.state_bytes();
    if (bytes > 0) {
        add(tensor, StateKind::kAlike, bytes, atom.loss_scale,
            [this, from = own != nullptr ? own : &atom](uint64_t offset, std::span<std::byte> out) {
                return job_.alike(*from, offset, out);
            });
    }
}

void Conversion::add_owed(const Atom& atom,
                          const LastingTensor& tensor,
                          const ResidualMap::Name& name,
                          uint64_t shape,
                          uint64_t first,
                          uint64_t elems) {
    const size_t before = index_.tensors.size();
    const double unit = unit_of_sums(atom.key);
    const auto put = [&](StateKind kind, const Atom& from, uint32_t sums) {
        add_floats(tensor, kind, elems, atom.loss_scale,
                   [this, &from, first, sums, unit](uint64_t at, std::span<double> out) {
                       const uint64_t begin = std::min(first + at, from.elems());
                       out = out.first(std::min<uint64_t>(out.size(), from.elems() - begin));
                       SLIMWIRE_TRY(read_owed(from, sums, begin, out));
                       std::for_each(out.begin(), out.end(), [&](double& one) { one *= unit; });
                       return Status();
                   });
        index_.tensors.back().shape = shape;
    };
    put(atom.estimates() ? StateKind::kEstimates : StateKind::kOwed, atom, 0);
    for (const auto& [kind, number] :
         {std::pair(StateKind::kOwedBySums, 1u), std::pair(StateKind::kEstimateOfSum, 3u)}) {
        if (const Atom* const own = beside(atom, kind); own != nullptr) {
            put(kind, *own, 0);
        } else if (atom.has_sums(number)) {
            put(kind, atom, number);
        }
    }
    add_alike(atom, tensor);
    add_name(tensor, name, atom.loss_scale);
    for (const Atom::Share& share : atom.shares) {
        const StateTensor& saved = job_.files()[share.file].index().tensors[share.tensor];
        for (StateTensor& one : std::span(index_.tensors).subspan(before)) {
            one.owed_at = std::max(one.owed_at, saved.owed_at);
        }
    }
}

void Conversion::add_name(const LastingTensor& tensor,
                          const ResidualMap::Name& name,
                          double loss_scale) {
    if (name.text.empty()) {
        return;
    }
    ResidualMap map;
    map.names.push_back(name);
    std::vector<std::byte> text = bytes_of(map);
    const uint64_t size = text.size();
    add(tensor, StateKind::kMap, size, loss_scale,
        [text = std::move(text)](uint64_t offset, std::span<std::byte> out) {
            std::copy_n(text.begin() + static_cast<ptrdiff_t>(offset), out.size(), out.begin());
            return Status();
        });
}

// What a rank keeps for itself, as it lies there: whether it still may is known at its first call.
bool Conversion::take_own(const Atom& atom) {
    const bool messages = atom.key.kind == StateKind::kMessages;
    const bool taken =
        options_.own >= 0 && ranks_ == job_.ranks() &&
        (messages || (atom.key.kind == StateKind::kResiduals &&
                      (!atom.key.group.of_all() || is_point_to_point(atom.key.signature.op))));
    for (const Atom::Share& share : atom.shares) {
        const StateReader& file = job_.files()[share.file];
        if (!taken || file.index().launcher_rank != options_.own) {
            continue;
        }
        add_record(share, file.index().tensors[share.tensor].tensor.comm);
    }
    return taken;
}

// As it lies there; of two groups that would be the same one now the first one's.
void Conversion::add_record(const Atom::Share& share, uint64_t comm) {
    const StateReader& file = job_.files()[share.file];
    StateTensor saved = file.index().tensors[share.tensor];
    saved.tensor.comm = comm;
    if (!records_.emplace(saved.tensor, saved.kind).second) {
        return;
    }
    index_.tensors.push_back(saved);
    makes_.push_back([&file, record = share.tensor](uint64_t offset, std::span<std::byte> out) {
        return file.read(record, offset, out);
    });
}

int Conversion::ranks_before(const AtomKey& key) const {
    return job_.ranks() / static_cast<int>(key.group.groups);
}

int Conversion::ranks_now(const AtomKey& key) const {
    return ranks_ / static_cast<int>(key.group.groups);
}

// Of sums of as many ranks as there are now, in those of as many as before, that the optimizer gets
// the same of.
double Conversion::unit_of_sums(const AtomKey& key) const {
    const bool divided = key.signature.redop == RedOp::kSum && key.comm != kWholeTensors;
    switch (divided ? options_.sums : SumUse::kWhole) {
        case SumUse::kWhole:
            break;
        case SumUse::kMean:
            return static_cast<double>(ranks_now(key)) / ranks_before(key);
        case SumUse::kFsdp:
            return fsdp_divisor(ranks_) / fsdp_divisor(job_.ranks());
    }
    return 1;
}

Status Conversion::take(const Atom& atom) {
    const AtomKind* const kind = atom_kind(atom.key.kind);
    if (kind == nullptr) {
        return leave_out(atom.key, "no pattern takes it");
    }
    if (in_wholes(atom) || take_own(atom)) {
        return {};
    }
    if (atom.key.kind == StateKind::kMessages) {
        return take_messages(atom);
    }
    if (kind->pattern == AtomPattern::kDerived) {
        return {};
    }
    if (!atom.key.group.of_all() && atom.key.comm != kWholeTensors) {
        SLIMWIRE_TRY_ASSIGN(const bool taken, in_group(atom));
        if (!taken) {
            return {};
        }
    }
    if (atom.key.kind == StateKind::kOwedBySums || atom.key.kind == StateKind::kAlike ||
        atom.key.kind == StateKind::kEstimateOfSum) {
        return {};  // with what they are beside
    }
    return kind->pattern == AtomPattern::kReplicated && !atom.waited() ? take_alike(atom)
                                                                       : take_owed(atom);
}

Status Conversion::take_alike(const Atom& atom) {
    std::vector<LastingTensor> tensors{tensor_of(atom.key)};
    if (const auto moved = moved_.find(tensors[0]); moved != moved_.end()) {
        tensors[0] = moved->second;
    } else if (atom.key.signature.op == Op::kReduceScatter) {
        const std::set<uint64_t>& counts = counts_[of_kind(atom.key)];
        tensors.resize(counts.size(), tensors[0]);
        size_t i = 0;
        for (const uint64_t count : counts) {
            tensors[i++].signature.count = count;
        }
    }
    for (const LastingTensor& tensor : tensors) {
        add(tensor, atom.key.kind, atom.bytes / atom.shares.size(), atom.loss_scale,
            [this, &atom](uint64_t offset, std::span<std::byte> out) {
                return job_.alike(atom, offset, out, ranks_now(atom.key));
            });
    }
    return {};
}

// The count that a tensor of shards seems to have, by what it is owed, and what it can have at
// most.
Status Conversion::lay_out_shards(const Atom& atom, LastingTensor* tensor, uint64_t* shape) {
    LastingTensor before = *tensor;
    before.path = atom.path;
    before.ordinal = atom.ordinal;
    const StateTensor& saved =
        job_.files()[atom.shares.front().file].index().tensors[atom.shares.front().tensor];
    SLIMWIRE_TRY_ASSIGN(const uint64_t length, length_of(atom));
    const auto ranks = static_cast<uint64_t>(ranks_now(atom.key));
    *shape = atom.waited() && saved.shape != 0 ? saved.shape : atom.elems();
    tensor->signature.count = (length + ranks - 1) / ranks;
    LastingTensor moved = before;
    moved.signature = tensor->signature;
    counts_[of_kind(atom.key)].insert(moved.signature.count);
    // Of calls that were alike those come first that came first.
    moved.ordinal =
        static_cast<uint32_t>(std::count_if(moved_.begin(), moved_.end(), [&](const auto& other) {
            return other.first.signature == before.signature && other.first.path == before.path &&
                   other.first.comm == before.comm && other.second.signature == moved.signature;
        }));
    moved_.emplace(before, moved);
    return {};
}

Status Conversion::take_owed(const Atom& atom) {
    if (atom.shares.front().map == nullptr && !atom.waited()) {
        return leave_out(atom.key, "of an older slimwire, which does not say where residuals lie");
    }
    if (atom.elems() == 0) {
        return leave_out(atom.key, is_point_to_point(atom.key.signature.op)
                                       ? "of messages between ranks that are others now"
                                       : "kept by ranks that mean nothing on other ranks");
    }
    LastingTensor tensor = tensor_of(atom.key);
    uint64_t shape = 0;
    const ResidualMap* const map = atom.shares.front().map.get();
    if (!atom.waited() && map->model != 0 && map->state_bytes == 0) {
        return add_parameters(atom, *map);
    }
    if (atom.key.signature.op == Op::kReduceScatter) {
        SLIMWIRE_TRY(lay_out_shards(atom, &tensor, &shape));
        if (ranks_ != job_.ranks() && !options_.flat_shards) {
            return leave_out(atom.key,
                             "where shards of other ranks have its elements is known of flat ones "
                             "only (shards=flat: FSDP1, ZeRO-1 and 2, Megatron; not FSDP2, ZeRO-3)",
                             "; --shards flat takes it");
        }
    }
    LastingTensor any = tensor;
    any.ordinal = 0;
    Kind& kind = kinds_.try_emplace(any, Kind{atom.key}).first->second;
    kind.all.push_back(atom.key);
    if (kind.several || !(kind.from.signature == atom.key.signature)) {
        // Which of the calls that are alike now is whose cannot be told.
        const size_t first = kind.several ? kind.all.size() - 1 : 0;
        for (size_t i = first; i < kind.all.size(); ++i) {
            const AtomKey& other =
                kind.all[i].signature == kind.from.signature ? atom.key : kind.from;
            SLIMWIRE_TRY(leave_out(
                kind.all[i],
                "on " + std::to_string(ranks_) + " ranks it cannot be told from " + other.text()));
        }
        kind.several = true;
        for (size_t i = index_.tensors.size(); i-- > 0;) {
            LastingTensor one = index_.tensors[i].tensor;
            one.ordinal = 0;
            if (one.order() == any.order()) {
                index_.tensors.erase(index_.tensors.begin() + static_cast<ptrdiff_t>(i));
                makes_.erase(makes_.begin() + static_cast<ptrdiff_t>(i));
            }
        }
        return {};
    }
    if (!named_.insert(tensor).second) {
        return leave_out(atom.key, "another tensor or parameter of its name is there, too");
    }
    ResidualMap::Name name;
    if (map != nullptr && map->model == 0 && !map->names.empty() && !atom.key.name.empty()) {
        name = map->names[0];
    }
    add_owed(atom, tensor, name, shape, 0,
             tensor.signature.op == Op::kReduceScatter
                 ? tensor.signature.count * static_cast<uint64_t>(ranks_now(atom.key))
                 : atom.elems());
    return {};
}

// A bucket of other parameters finds them, too.
Status Conversion::add_parameters(const Atom& atom, const ResidualMap& bucket) {
    for (size_t i = 0; i < bucket.parameters.size(); ++i) {
        const ResidualMap::Parameter& one = bucket.parameters[i];
        const LastingTensor tensor = parameter_of(tensor_of(atom.key), bucket, i);
        if (in_wholes_.contains({&atom, static_cast<uint64_t>(one.at)})) {
            continue;
        }
        if (!named_.insert(tensor).second) {
            SLIMWIRE_TRY(leave_out(atom.key, "another bucket has parameters of it, too"));
            continue;
        }
        add_owed(atom, tensor, bucket.names.empty() ? ResidualMap::Name() : bucket.names[i], 0,
                 static_cast<uint64_t>(one.at), static_cast<uint64_t>(one.count));
    }
    return {};
}

Status Conversion::plan() {
    if (const std::vector<std::string> findings = job_.findings(options_.heads);
        !findings.empty()) {
        return {Code::kInvalidUsage, findings.front()};
    }
    const StateIndex& first = job_.files().front().index();
    index_.config_hash = first.config_hash;
    index_.launcher_size = ranks_;
    index_.atoms = true;
    index_.step = first.step;
    index_.left_out = job_.left_out();
    for (const StateReader& file : job_.files()) {
        const bool own = ranks_ == job_.ranks() && file.index().launcher_rank == options_.own;
        for (const StateComm& comm : file.index().comms) {
            if (!comm.group.of_all() && !has(comm.group)) {
                index_.comms.insert(index_.comms.end(), own ? 1 : 0, comm);
                continue;
            }
            const uint64_t key = atoms_key(comm.group);
            auto found = std::find_if(index_.comms.begin(), index_.comms.end(),
                                      [&](const StateComm& one) { return one.key == key; });
            if (found == index_.comms.end()) {
                index_.comms.push_back(comm);
                found = std::prev(index_.comms.end());
                found->key = key;
                found->rank = 0;
                found->ranks = ranks_ / static_cast<int>(comm.group.groups);
            }
            // No rank draws what one of them drew.
            for (int i = 0; i < 2; ++i) {
                found->drawn[i] = std::max(found->drawn[i], comm.drawn[i]);
            }
        }
    }
    find_wholes();
    add_moment_of_wholes();
    take_learned();
    // Residuals first, which say the counts of reduce-scatters.
    for (const bool residuals : {true, false}) {
        for (const Atom& atom : job_.atoms()) {
            if ((record_of(atom.key.kind) == StateKind::kResiduals) == residuals) {
                SLIMWIRE_TRY(take(atom));
            }
        }
    }
    return {};
}

Result<StateContent> converted_state(const std::string& path,
                                     int ranks,
                                     ConversionOptions options,
                                     std::vector<std::string>* left_out,
                                     size_t most_open) {
    struct Source {
        const SavedJob job;
        Conversion conversion;
        Source(SavedJob of, int to, const ConversionOptions& how)
            : job(std::move(of)), conversion(job, to, how) {}
    };
    options.drop = options.heads = true;
    SLIMWIRE_TRY_ASSIGN(SavedJob job, SavedJob::open(path, most_open));
    const auto source = std::make_shared<Source>(std::move(job), ranks, options);
    SLIMWIRE_TRY(source->conversion.plan());
    *left_out = source->conversion.left_out();
    StateContent content;
    content.index = source->conversion.index();
    content.read = [source](size_t record, uint64_t offset, std::span<std::byte> out) {
        return source->conversion.read(record, offset, out);
    };
    for (size_t i = 0; i < content.index.tensors.size(); ++i) {
        const StateTensor& tensor = content.index.tensors[i];
        content.held.emplace_back();
        if (tensor.kind == StateKind::kOwed || tensor.kind == StateKind::kOwedBySums ||
            of_estimates(tensor.kind)) {
            continue;
        }
        content.held.back() = std::make_unique<std::byte[]>(tensor.bytes);
        const std::span all(content.held.back().get(), tensor.bytes);
        SLIMWIRE_TRY(source->conversion.read(i, 0, all));
    }
    return content;
}

}  // namespace slimwire
