#include "collectives/feedback/residual_store.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <optional>
#include <utility>

#include "codecs/residual/load_store.h"
#include "collectives/algorithms/algorithm.h"
#include "collectives/call/log.h"
#include "collectives/call/training.h"
#include "collectives/communicator/communicator.h"
#include "collectives/identity/tensor_names.h"
#include "collectives/state/loaded_state.h"

namespace slimwire {
namespace {

// A residual that goes by an address is stale after so many rounds of its kind of calls without it,
// after so many times the longest gap of a tensor, or when what may be a step came more than
// kRepeatsUnused times since; one that was used once also after kOnceUnused uses, two steps of 126
// layers; one with a slot only after about as many steps. Nothing is freed until another is made,
// so that a job whose buffers all came loses none; but what went by addresses while no call of its
// kind had a slot is, now and then.
constexpr uint64_t kLongUnused = 4, kSlotUnused = 1000, kFewUses = 64, kLook = 64;
constexpr uint64_t kRepeatsUnused = 2, kOnceUnused = 256;

Status zero(const BeforeCall& before, void* buffer, uint64_t bytes) {
    return before.enqueue([&](cudaStream_t stream) {
        return clear_on_device(before.api, buffer, bytes, stream, "residual reset");
    });
}

// A bucket whose parameters are known goes by these.
const char* name_of(const char* name, const CheckpointSlot& lasting) noexcept {
    return lasting.plan != nullptr && lasting.plan->parameters != nullptr ? nullptr : name;
}

LastingTensor lasting_tensor(const TensorUse& use, const CheckpointSlot& lasting) {
    const LastingTensor tensor{lasting.comm, use.key.signature, use.path, use.key.ordinal};
    const char* const name = name_of(use.name, lasting);
    return PendingState::instance().key_of(tensor, name, TensorNames::instance().pieces(name) > 1);
}

LastingTensor atom_of(LastingTensor tensor, const CheckpointSlot& lasting) {
    const RankGroup group = lasting.plan != nullptr ? lasting.communicator->group : RankGroup();
    tensor.comm = group.number != 0 ? atoms_key(group) : 0;
    return tensor;
}

// Where a bucket whose parameters are known has these; of any other tensor nothing.
std::optional<ResidualMap> bucket_of(const CheckpointSlot& lasting) {
    return lasting.plan == nullptr || lasting.plan->parameters == nullptr
               ? std::nullopt
               : std::optional(residual_map(*lasting.plan, lasting.communicator->shape,
                                            lasting.communicator->rank));
}
const ResidualMap* pointer_to(const std::optional<ResidualMap>& bucket) {
    return bucket.has_value() ? &*bucket : nullptr;
}

bool waits(const TensorUse& use, const CheckpointSlot& lasting) {
    const PendingState& pending = PendingState::instance();
    if (!pending.loaded()) {
        return false;
    }
    const LastingTensor tensor = lasting_tensor(use, lasting);
    const std::optional<ResidualMap> bucket = bucket_of(lasting);
    return pending.waits(tensor, pointer_to(bucket)) ||
           (lasting.plan != nullptr &&
            pending.atoms_wait(atom_of(tensor, lasting), lasting.communicator->shape.ranks,
                               pointer_to(bucket), lasting.communicator->group));
}

constexpr int64_t kWindow = 1 << 20;  // elements read at once

// Elements of an atom, read ahead; 0 behind its end, where this number of ranks has more padding.
class AtomValues {
  public:
    explicit AtomValues(const PendingState::Atoms::One& of) : of_(of) {}
    // From `at` on, and `ahead` that may be asked for next.
    Result<std::span<const float>> get(int64_t at, int64_t count, int64_t ahead) {
        const auto held = static_cast<int64_t>(values_.size());
        if (at < begin_ || at + count > begin_ + held) {
            const auto end = static_cast<int64_t>(of_.bytes / sizeof(float));
            const int64_t there = std::clamp<int64_t>(end - at, 0, std::max(count, ahead));
            begin_ = at;
            values_.assign(static_cast<size_t>(std::max(count, there)), 0.0f);
            if (there > 0) {
                const auto bytes = std::as_writable_bytes(std::span(values_));
                SLIMWIRE_TRY(of_.read(static_cast<uint64_t>(at) * sizeof(float),
                                      bytes.first(static_cast<size_t>(there) * sizeof(float))));
            }
        }
        return std::span<const float>(values_).subspan(static_cast<size_t>(at - begin_),
                                                       static_cast<size_t>(count));
    }

  private:
    const PendingState::Atoms::One& of_;
    int64_t begin_ = 0;
    std::vector<float> values_;
};

// Up to where runs of the first one's kind go on, but for gaps that are as soon read.
int64_t end_of_runs(std::span<const ResidualMap::Run> runs) {
    constexpr int64_t kGap = 4096;
    int64_t end = runs.front().at + runs.front().count;
    for (const ResidualMap::Run& next : runs.subspan(1)) {
        if (next.sums != runs.front().sums || next.at > end + kGap ||
            end - runs.front().at >= kWindow) {
            break;
        }
        end = std::max(end, next.at + next.count);
    }
    return end;
}

// This rank's part of atoms: of what contributions owe as much as every other contributor has and
// nothing in front of them, of what sums owe the own chunk, or its part of that, too, where nobody
// keeps sums.
Result<PendingState::Loaded> lay_out(const PendingState::Atoms& atoms,
                                     const CheckpointSlot& lasting,
                                     uint64_t bytes) {
    PendingState::Loaded loaded;
    if (atoms.owed.bytes == 0) {
        return loaded;
    }
    const Communicator& communicator = *lasting.communicator;
    const ResidualMap map = residual_map(*lasting.plan, communicator.shape, communicator.rank);
    const uint64_t wanted = map.elems * sizeof(float);
    const bool shards = lasting.plan->signature.op == Op::kReduceScatter;
    const auto fits = [&](const PendingState::Atoms::One& one) {
        return one.bytes == 0 || one.bytes == wanted || (shards && one.bytes < wanted);
    };
    loaded.misfit =
        atoms.estimates != map.estimates()
            ? "EF21 follows estimates, other error feedback owes residuals"
        : map.contributors == 0 || !fits(atoms.owed) || !fits(atoms.by_sums) || !fits(atoms.of_sum)
            ? "they are of another size"
            : nullptr;
    if (loaded.misfit != nullptr) {
        return loaded;
    }
    const std::shared_ptr<std::byte[]> tensor(new std::byte[bytes]());
    const double part = 1 / (map.unit * map.contributors);
    // Rank 0 has the first chunk of every message.
    const ResidualMap first = residual_map(*lasting.plan, communicator.shape, 0);
    const bool keeps_sums = std::any_of(first.runs.begin(), first.runs.end(),
                                        [](const ResidualMap::Run& run) { return run.sums == 1; });
    // Another policy has others, which begin anew on all ranks.
    if (atoms.alike.bytes > 0 && atoms.alike.bytes == map.state_bytes) {
        SLIMWIRE_TRY(atoms.alike.read(0, std::span(tensor.get(), atoms.alike.bytes)));
    }
    AtomValues owed(atoms.owed), by_sums(atoms.by_sums), of_sum(atoms.of_sum);
    std::vector<float> values;
    for (size_t i = 0; i < map.runs.size(); ++i) {
        const ResidualMap::Run& run = map.runs[i];
        const int64_t end = end_of_runs(std::span(map.runs).subspan(i));
        for (int64_t from = 0; from < run.count && run.sums != 2; from += kWindow) {
            const int64_t at = run.at + from, count = std::min(kWindow, run.count - from);
            const int64_t ahead = std::min(kWindow, end - at);
            // The estimate of a sum is what it lacks short of its contributions'.
            const bool followed = run.sums == 3;
            std::span<const float> sums;
            if (run.sums == 1 || (!keeps_sums && followed == atoms.estimates)) {
                SLIMWIRE_TRY_ASSIGN(sums, by_sums.get(at, count, ahead));
            }
            if (run.sums == 1) {
                values.assign(sums.begin(), sums.end());
            } else {
                SLIMWIRE_TRY_ASSIGN(const auto given,
                                    (followed ? of_sum : owed).get(at, count, ahead));
                values.resize(given.size());
                for (size_t k = 0; k < values.size(); ++k) {
                    const double more = sums.empty() ? 0 : sums[k];
                    values[k] = static_cast<float>((followed ? 1 : part) * (given[k] + more));
                }
            }
            write_run(map, tensor.get(), {run.begin + from, count, at, run.sums, 0}, values);
        }
    }
    loaded.held = tensor;
    loaded.loss_scale = atoms.owed.loss_scale;
    return loaded;
}

// The atoms of a tensor that waits; of one that misfits, too, where it is a rank's own.
Result<PendingState::Loaded> load_atoms(const LastingTensor& tensor,
                                        const char* misfit,
                                        const CheckpointSlot& lasting,
                                        uint64_t bytes,
                                        const ResidualMap* bucket) {
    PendingState& pending = PendingState::instance();
    if (lasting.plan == nullptr || lasting.communicator->group.number == 0) {
        return PendingState::Loaded{nullptr, misfit};
    }
    const LastingTensor atom = atom_of(tensor, lasting);
    const RankGroup& group = lasting.communicator->group;
    const int ranks = lasting.communicator->shape.ranks;
    PendingState::Atoms atoms;
    if (misfit == nullptr) {
        if (!lasting.shared) {
            SLIMWIRE_TRY(pending.take_apart(tensor, bucket, group));
        }
        atoms = pending.take_atoms(atom, ranks, bucket, group);
    } else if (!lasting.shared) {
        SLIMWIRE_TRY_ASSIGN(atoms, pending.atoms_instead(atom, ranks, bucket, group));
    }
    SLIMWIRE_TRY_ASSIGN(PendingState::Loaded loaded, lay_out(atoms, lasting, bytes));
    if (atoms.owed.bytes > 0 && atoms.missing > 0) {
        pending.began_at_zero({}, atoms.missing);
    }
    if (loaded.held == nullptr && loaded.misfit == nullptr) {
        loaded.misfit = misfit;
    }
    return loaded;
}

// What was loaded for a tensor, which its buffer gets; of null where nothing was.
Result<PendingState::Loaded> restore(const BeforeCall& before,
                                     void* buffer,
                                     uint64_t bytes,
                                     const TensorUse& use,
                                     const CheckpointSlot& lasting) {
    PendingState& pending = PendingState::instance();
    PendingState::Loaded loaded;
    if (!pending.loaded()) {
        return loaded;
    }
    const LastingTensor tensor = lasting_tensor(use, lasting);
    const std::optional<ResidualMap> bucket = bucket_of(lasting);
    loaded = pending.take(tensor, lasting.shape, bytes, pointer_to(bucket));
    if (loaded.held == nullptr) {
        Result<PendingState::Loaded> by_atoms =
            load_atoms(tensor, loaded.misfit, lasting, bytes, pointer_to(bucket));
        if (!by_atoms.ok()) {
            log_line(LogLevel::kWarn, "loaded state of " +
                                          std::string(op_name(tensor.signature.op)) + " count " +
                                          std::to_string(tensor.signature.count) +
                                          " begins at zero: " + by_atoms.status().message());
        }
        loaded = by_atoms.ok() ? std::move(by_atoms).value() : PendingState::Loaded();
    }
    if (loaded.misfit != nullptr) {
        pending.miss(tensor, bytes, loaded.misfit);
    } else if (loaded.held == nullptr) {
        pending.began_at_zero(tensor);
    }
    loaded.name = tensor.ordinal == kNamed ? tensor.path : 0;
    if (loaded.held != nullptr) {
        SLIMWIRE_TRY(before.enqueue([&](cudaStream_t stream) {
            return before.objects->copies.to_device(before.api, buffer, loaded.held, bytes, stream);
        }));
    }
    return loaded;
}

}  // namespace

// The one that was kept for the call's address: of the same kind of calls, not of another slot of
// the same step, and not mistakable for another's, whose buffer was the same. The end where there
// is none.
ResidualStore::Entries::iterator ResidualStore::entry_at(const TensorUse& use, uint64_t bytes) {
    const TensorKey& key = use.key;
    if (use.address == nullptr) {
        return entries_.end();
    }
    uint32_t all = 0, here = 0;
    auto found = entries_.end();
    for (auto at = entries_.lower_bound({key.comm_key, key.signature});
         at != entries_.end() && at->first.comm_key == key.comm_key &&
         at->first.signature == key.signature;
         ++at) {
        const Entry& entry = at->second;
        const bool fits = entry.last.models == use.models && !entry.renewed &&
                          !entry.lasting.shared && entry.bytes == bytes;
        const bool of_another_slot = at->first.address == nullptr && entry.last.path == use.path;
        all += fits ? 1 : 0;
        if (fits && entry.last.address == use.address) {
            ++here;
            found = of_another_slot ? entries_.end() : at;
        }
    }
    return here == 1 && all >= use.equals ? found : entries_.end();
}

// Of a call that has its slot only now, or whose slot is not known any more, the residual moves to
// its key.
ResidualStore::Entries::iterator ResidualStore::entry_of(const TensorUse& use,
                                                         uint64_t bytes,
                                                         const CheckpointSlot& lasting) {
    const auto own = entries_.find(use.key);
    const bool goes_on = own != entries_.end() && own->second.last.path == use.path &&
                         own->second.last.models == use.models;
    if (lasting.shared || goes_on || (own != entries_.end() && own->second.renewed) ||
        waits(use, lasting)) {
        return own;
    }
    auto other = entry_at(use, bytes);
    if (other != entries_.end()) {
        other->second.last.path = use.path;
    } else if (own == entries_.end() && use.key.address == nullptr) {
        // Nobody's residual, whose memory the slot takes, at zero since it has another path.
        other = entries_.find({use.key.comm_key, use.key.signature, use.address});
        other = other != entries_.end() && other->second.bytes == bytes ? other : entries_.end();
    }
    if (other == entries_.end()) {
        return own;
    }
    if (own != entries_.end()) {
        std::swap(own->second, other->second);
        return own;
    }
    if (use.key.address == nullptr) {
        PendingState::instance().began_at_zero({});
    }
    auto node = entries_.extract(other);
    node.key() = use.key;
    return entries_.insert(std::move(node)).position;
}

bool ResidualStore::Entry::use_at(const void* now, bool single) noexcept {
    constexpr uint32_t kLong = 32;
    const void* const before = std::exchange(last.address, now);
    if (!single || now == before) {
        return false;
    }
    const bool back = std::find(std::begin(earlier), std::end(earlier), now) != std::end(earlier);
    if (std::find(std::begin(earlier), std::end(earlier), before) == std::end(earlier)) {
        std::rotate(std::begin(earlier), std::end(earlier) - 1, std::end(earlier));
        earlier[0] = before;
    }
    returns += back ? 1 : 0;
    return back && returns == kLong;
}

Result<Residual> ResidualStore::get(const BeforeCall& before,
                                    int device,
                                    const TensorUse& use,
                                    uint64_t bytes,
                                    const CheckpointSlot& lasting) {
    std::unique_lock lock(mutex_);
    Uses& uses = uses_[use.key.comm_key];
    ++uses.count;
    uint64_t& round = rounds_[{use.key.comm_key, use.key.signature}];
    if (const auto found = entry_of(use, bytes, lasting); found != entries_.end()) {
        Entry& entry = found->second;
        const bool goes_on = entry.last.path == use.path && !entry.renewed &&
                             (lasting.shared || entry.last.models == use.models);
        PendingState::Loaded loaded;
        if (!goes_on) {
            // One thread at a time uses a communicator, so nobody else uses the entry.
            const bool renewed = entry.renewed;
            lock.unlock();
            if (renewed) {
                SLIMWIRE_TRY_ASSIGN(loaded,
                                    restore(before, entry.buffer, entry.bytes, use, lasting));
            }
            // Of a path that takes another's slot nothing is restored.
            if (loaded.held == nullptr) {
                SLIMWIRE_TRY(zero(before, entry.buffer, entry.bytes));
            }
            lock.lock();
            entry.loss_scale = loaded.held != nullptr ? loaded.loss_scale
                                                      : std::numeric_limits<double>::quiet_NaN();
        }
        const bool in_turn = entry.use_at(use.address, use.single);
        entry.last = use;
        entry.lasting = lasting;
        entry.renewed = false;
        entry.captured |= before.captured;
        const uint64_t gap = uses.count - std::exchange(entry.last_use, uses.count);
        uses.longest_gap = std::max(uses.longest_gap, std::min(gap, std::exchange(entry.gap, gap)));
        const bool begins = entry.round == round;
        round += begins ? 1 : 0;
        entry.round = round;
        const bool look = begins && use.key.address == nullptr &&
                          (std::has_single_bit(round) || round % kLook == 0);
        lock.unlock();
        return Residual{.buffer = entry.buffer,
                        .loss_scale = &entry.loss_scale,
                        .in_turn = in_turn,
                        .freed_others = look && drop_stale(before, device, use, true)};
    }
    lock.unlock();
    (void)drop_stale(before, device, use, false);
    return make(before, device, use, bytes, lasting);
}

bool ResidualStore::drop_stale(const BeforeCall& before,
                               int device,
                               const TensorUse& use,
                               bool leftovers) {
    Retirement left(memory_, before.api, device);
    if (before.objects->chained) {
        left.after(before.objects->chain);  // every call that used them is before it
    }
    const std::lock_guard lock(mutex_);
    const Uses& uses = uses_[use.key.comm_key];
    const auto unused = [&](const TensorKey& key, const Entry& entry) {
        const uint64_t gaps = key.address != nullptr ? kLongUnused : kSlotUnused;
        const uint64_t since = uses.count - entry.last_use;
        return rounds_.at({key.comm_key, key.signature}) - entry.round > gaps ||
               (key.address != nullptr && use.repeats > entry.last.repeats + kRepeatsUnused) ||
               (key.address != nullptr && entry.gap == 0 && since > kOnceUnused) ||
               (uses.longest_gap > 0 && since > kFewUses + gaps * uses.longest_gap);
    };
    const size_t dropped = std::erase_if(entries_, [&](const auto& one) {
        const auto& [key, entry] = one;
        if (leftovers && (key.address == nullptr || !(key.signature == use.key.signature))) {
            return false;
        }
        if (key.comm_key != use.key.comm_key || entry.lasting.shared || entry.captured ||
            entry.device != device || (entry.last.models == use.models && !unused(key, entry))) {
            return false;
        }
        left.add(entry.buffer);
        budget_->give_back(entry.device, entry.bytes);
        return true;
    });
    std::erase_if(rounds_, [&](const auto& kind) {
        const auto at = entries_.lower_bound(kind.first);
        return at == entries_.end() || at->first.comm_key != kind.first.comm_key ||
               !(at->first.signature == kind.first.signature);
    });
    return dropped > 0;
}

// One thread at a time uses a communicator, so nobody else makes this tensor's meanwhile.
Result<Residual> ResidualStore::make(const BeforeCall& before,
                                     int device,
                                     const TensorUse& use,
                                     uint64_t bytes,
                                     const CheckpointSlot& lasting) {
    const DeviceApi& api = before.api;
    if (lasting.shared) {
        budget_->take(device, bytes);  // the communicator's plans have room for it, alike
    } else if (!budget_->reserve(device, bytes)) {
        return Residual{};
    }
    void* buffer = nullptr;
    PendingState::Loaded loaded;
    const uint64_t home = before.objects->home;
    const cudaError_t allocated =
        lasting.shared
            ? memory_->allocate_anyhow(api, device, bytes, &buffer, home,
                                       lasting.plan == nullptr
                                           ? bytes
                                           : lasting.plan->residual.shared_elems * sizeof(float))
            : memory_->allocate(api, device, bytes, &buffer, home, 0);
    if (allocated == cudaErrorMemoryAllocation) {
        tolerate(api, allocated);
        budget_->give_back(device, bytes);
        return Residual{};
    }
    Status status = cuda_status(api, allocated, "residual allocation");
    if (status.ok()) {
        if (use.key.address == nullptr) {
            Result<PendingState::Loaded> restored = restore(before, buffer, bytes, use, lasting);
            status = restored.status();
            loaded = restored.ok() ? std::move(restored).value() : PendingState::Loaded();
        }
        if (status.ok() && loaded.held == nullptr) {
            status = zero(before, buffer, bytes);
        }
        if (!status.ok()) {
            before.retire(memory_, device, buffer);
        }
    }
    if (!status.ok()) {
        budget_->give_back(device, bytes);
        return status;
    }
    const std::lock_guard lock(mutex_);
    Entry& entry = entries_[use.key];
    entry = {.buffer = buffer,
             .bytes = bytes,
             .last = use,
             .device = device,
             .lasting = lasting,
             .captured = before.captured,
             .last_use = uses_[use.key.comm_key].count,
             .round = rounds_[{use.key.comm_key, use.key.signature}]};
    ResidualOrigin origin = ResidualOrigin::kMade;
    if (loaded.held != nullptr) {
        origin = ResidualOrigin::kRestored;
        entry.loss_scale = loaded.loss_scale;
    }
    return Residual{entry.buffer, origin, &entry.loss_scale, false, loaded.name};
}

void* ResidualStore::find(const TensorUse& use) const {
    const std::lock_guard lock(mutex_);
    const auto found = entries_.find(use.key);
    return found == entries_.end() || found->second.last.path != use.path || found->second.renewed
               ? nullptr
               : found->second.buffer;
}

std::vector<ResidualStore::Placed> ResidualStore::placed(uint64_t* by_address) const {
    std::map<LastingTensor, Placed> placed;
    for (const auto& [key, entry] : entries_) {
        if (key.address != nullptr) {
            ++*by_address;
        } else if (entry.lasting.comm != 0 && !entry.renewed) {  // else it is what waits, or zero
            // Of a tensor whose communicator's role became known the later one, which counts now.
            const LastingTensor tensor{entry.lasting.comm, key.signature, entry.last.path,
                                       key.ordinal};
            placed.insert_or_assign(
                tensor, Placed{tensor, entry.bytes, entry.lasting, entry.buffer, entry.device,
                               entry.loss_scale, name_of(entry.last.name, entry.lasting)});
        }
    }
    std::map<LastingTensor, uint32_t> of_name;
    for (const auto& [tensor, found] : placed) {
        of_name[named(tensor, found.name != nullptr ? found.name : "")] += 1;
    }
    std::vector<Placed> all;
    for (auto& [tensor, found] : placed) {
        const char* const name = found.name;
        if (name != nullptr && of_name[named(tensor, name)] > 1) {
            log_once(LogLevel::kWarn, std::string("several tensors named ") + name,
                     std::string("calls of several tensors that are alike carry the name '") +
                         name + "': what they are owed is saved by their places in the step");
        }
        found.name = name == nullptr || of_name[named(tensor, name)] > 1 ? nullptr : name;
        all.push_back(std::move(found));
    }
    return all;
}

void ResidualStore::renew_placed() {
    const std::lock_guard lock(mutex_);
    for (auto& [key, entry] : entries_) {
        entry.renewed |= key.address == nullptr && entry.lasting.comm != 0 && !entry.lasting.shared;
    }
}

void ResidualStore::take(uint64_t comm_key, Retirement* left) {
    const std::lock_guard lock(mutex_);
    std::erase_if(entries_, [&](const auto& entry) {
        if (entry.first.comm_key != comm_key) {
            return false;
        }
        left->add(entry.second.buffer);
        budget_->give_back(entry.second.device, entry.second.bytes);
        return true;
    });
    uses_.erase(comm_key);
    std::erase_if(rounds_, [&](const auto& kind) { return kind.first.comm_key == comm_key; });
}

ResidualStore::Held ResidualStore::held(uint64_t comm_key) const {
    std::lock_guard lock(mutex_);
    Held held;
    for (const auto& [key, entry] : entries_) {
        if (key.comm_key == comm_key) {
            held.bytes += entry.bytes;
            ++held.tensors;
        }
    }
    return held;
}

Status follow_loss_scale(const DeviceApi& api,
                         const Plan& plan,
                         const Residual& residual,
                         cudaStream_t stream) {
    if (!residual.has_other_scale()) {
        return {};
    }
    const double scale = training_state().loss_scale.load(std::memory_order_relaxed);
    const double before = std::exchange(*residual.loss_scale, scale);
    const auto factor = static_cast<float>(scale / before);
    if (!std::isfinite(factor) || factor == 0) {
        return {};
    }
    RescaleResidualArgs args{};
    args.factor = factor;
    args.stored = {static_cast<char*>(residual.buffer) + plan.residual.state_bytes,
                   static_cast<int64_t>(plan.residual.elems), 0, plan.residual.type};
    return enqueue(api, args, stream);
}

}  // namespace slimwire
