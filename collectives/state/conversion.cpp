#include "collectives/state/conversion.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "collectives/plan/plan.h"

namespace slimwire {
namespace {

constexpr uint64_t kWindow = 1 << 20;  // elements

LastingTensor tensor_of(const AtomKey& key) {
    return {atoms_key(key.world), key.signature, key.path, key.ordinal};
}

}  // namespace

Status Conversion::leave_out(const AtomKey& key, const std::string& why) {
    const std::string text = key.text() + ": " + why;
    if (!drop_) {
        return {Code::kInvalidUsage, text + "; --drop leaves such atoms out"};
    }
    left_out_.push_back(text);
    return {};
}

void Conversion::add(
    const LastingTensor& tensor, StateKind kind, uint64_t bytes, double loss_scale, Make make) {
    index_.tensors.push_back({tensor, 0, bytes, kind, loss_scale});
    makes_.push_back(std::move(make));
}

// Elements of a tensor of all ranks' shards up to the last that is owed something: the rest may be
// padding, as much as the ranks needed.
Result<uint64_t> Conversion::length_of(const Atom& atom) const {
    const auto ranks = static_cast<uint64_t>(job_.ranks());
    const uint64_t all = atom.elems(), least = all - std::min(all, ranks) + 1;
    std::vector<double> owed;
    for (uint64_t end = all; end >= least;) {
        const uint64_t begin = end - std::min(end - least + 1, kWindow);
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

void Conversion::add_owed(const Atom& atom, uint64_t elems, const LastingTensor& tensor) {
    const auto put = [&](StateKind kind, bool sums) {
        add(tensor, kind, elems * sizeof(float), atom.loss_scale,
            [this, &atom, elems, sums](uint64_t offset, std::span<std::byte> out) -> Status {
                const uint64_t at = offset / sizeof(float);
                const uint64_t end =
                    std::min({at + out.size() / sizeof(float), elems, atom.elems()});
                std::vector<double> owed(end > at ? end - at : 0);
                SLIMWIRE_TRY(job_.owed(atom, sums, at, owed));
                std::vector<float> values(out.size() / sizeof(float));
                std::transform(owed.begin(), owed.end(), values.begin(),
                               [](double value) { return static_cast<float>(value); });
                const auto bytes = std::as_bytes(std::span(values));
                std::copy(bytes.begin(), bytes.end(), out.begin());
                return {};
            });
    };
    put(StateKind::kOwed, false);
    if (atom.has_sums()) {
        put(StateKind::kOwedBySums, true);
    }
    if (const uint64_t bytes = atom.state_bytes(); bytes > 0) {
        add(tensor, StateKind::kAlike, bytes, atom.loss_scale,
            [this, &atom](uint64_t offset, std::span<std::byte> out) {
                return job_.alike(atom, offset, out);
            });
    }
}

Status Conversion::take(const Atom& atom) {
    const AtomKind* const kind = atom_kind(atom.key.kind);
    if (kind == nullptr) {
        return leave_out(atom.key, "no pattern takes it");
    }
    if (kind->pattern == AtomPattern::kDerived) {
        return {};
    }
    if (atom.key.world == 0) {
        return leave_out(atom.key,
                         "of a communicator of some of the ranks only, or of an older slimwire");
    }
    return kind->pattern == AtomPattern::kReplicated ? take_alike(atom) : take_owed(atom);
}

Status Conversion::take_alike(const Atom& atom) {
    std::vector<LastingTensor> tensors{tensor_of(atom.key)};
    if (const auto moved = moved_.find(tensors[0]); moved != moved_.end()) {
        tensors[0] = moved->second;
    } else if (atom.key.signature.op == Op::kReduceScatter) {
        const std::set<uint64_t>& counts = counts_[hash_of(atom.key.signature)];
        tensors.resize(counts.size(), tensors[0]);
        size_t i = 0;
        for (const uint64_t count : counts) {
            tensors[i++].signature.count = count;
        }
    }
    for (const LastingTensor& tensor : tensors) {
        add(tensor, atom.key.kind, atom.bytes / atom.shares.size(), atom.loss_scale,
            [this, &atom](uint64_t offset, std::span<std::byte> out) {
                return job_.alike(atom, offset, out);
            });
    }
    return {};
}

Status Conversion::take_owed(const Atom& atom) {
    if (atom.shares.front().map == nullptr) {
        return leave_out(atom.key, "of an older slimwire, which does not say where residuals lie");
    }
    uint64_t elems = atom.elems();
    if (elems == 0) {
        return leave_out(atom.key, "kept by ranks or estimates that mean nothing on other ranks");
    }
    const LastingTensor before = tensor_of(atom.key);
    LastingTensor tensor = before;
    if (atom.key.signature.op == Op::kReduceScatter) {
        SLIMWIRE_TRY_ASSIGN(const uint64_t length, length_of(atom));
        const auto ranks = static_cast<uint64_t>(ranks_);
        tensor.signature.count = (length + ranks - 1) / ranks;
        elems = tensor.signature.count * ranks;
        counts_[hash_of(before.signature)].insert(tensor.signature.count);
        // Of calls that were alike those come first that came first.
        tensor.ordinal = static_cast<uint32_t>(
            std::count_if(moved_.begin(), moved_.end(), [&](const auto& other) {
                return other.first.signature == before.signature &&
                       other.first.path == before.path && other.first.comm == before.comm &&
                       other.second.signature == tensor.signature;
            }));
        moved_.emplace(before, tensor);
    }
    const auto [found, fresh] = from_.emplace(tensor, atom.key);
    if (!fresh) {
        SLIMWIRE_TRY(leave_out(atom.key, "on " + std::to_string(ranks_) +
                                             " ranks it cannot be told from " +
                                             found->second.text()));
        for (size_t i = index_.tensors.size(); i-- > 0;) {
            if (index_.tensors[i].tensor.order() == tensor.order()) {
                index_.tensors.erase(index_.tensors.begin() + static_cast<ptrdiff_t>(i));
                makes_.erase(makes_.begin() + static_cast<ptrdiff_t>(i));
            }
        }
        return {};
    }
    add_owed(atom, elems, tensor);
    return {};
}

Status Conversion::plan() {
    if (const std::vector<std::string> findings = job_.findings(); !findings.empty()) {
        return {Code::kInvalidUsage, findings.front()};
    }
    const StateIndex& first = job_.files().front().index();
    if (first.atoms) {
        return {Code::kInvalidUsage, "'" + job_.files().front().path() +
                                         "' is converted already; accepted: what ranks saved"};
    }
    index_.config_hash = first.config_hash;
    index_.launcher_size = ranks_;
    index_.atoms = true;
    index_.step = first.step;
    for (const StateReader& file : job_.files()) {
        for (const StateComm& comm : file.index().comms) {
            if (comm.world == 0) {
                continue;
            }
            const uint64_t key = atoms_key(comm.world);
            auto found = std::find_if(index_.comms.begin(), index_.comms.end(),
                                      [&](const StateComm& one) { return one.key == key; });
            if (found == index_.comms.end()) {
                index_.comms.push_back(comm);
                found = std::prev(index_.comms.end());
                found->key = key;
                found->rank = 0;
                found->ranks = ranks_;
            }
            // No rank draws what one of them drew.
            for (int i = 0; i < 2; ++i) {
                found->drawn[i] = std::max(found->drawn[i], comm.drawn[i]);
            }
        }
    }
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

Result<StateContent> Conversion::content() const {
    StateContent content;
    content.index = index_;
    for (size_t i = 0; i < index_.tensors.size(); ++i) {
        const uint64_t bytes = index_.tensors[i].bytes;
        content.held.push_back(std::make_unique<std::byte[]>(bytes));
        for (uint64_t at = 0; at < bytes; at += kWindow) {
            SLIMWIRE_TRY(makes_[i](
                at, std::span(content.held.back().get() + at, std::min(kWindow, bytes - at))));
        }
    }
    return content;
}

}  // namespace slimwire
