// What was loaded (slimwire_load_state) and waits: residuals for the first call of their tensor,
// which may be long after, when the communicator and the plan are there; progress for the
// communicator. One a process, made without a runtime, so that a program may load before its first
// NCCL call. Thread-safe; host memory.
//
// What no call took is of the step of the state while no other tensor begins at zero, as those of
// other buckets do. Then it is saved with the step it was owed at, and not loaded at another one.
#pragma once

#include <atomic>
#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "collectives/state/replicated_progress.h"
#include "collectives/state/residual_map.h"
#include "collectives/state/state_file.h"

namespace slimwire {

struct Communicator;

class PendingState {
  public:
    static PendingState& instance();

    // What waits from now on, without what was owed at another step than the state's; what waited
    // before is forgotten.
    void replace(StateContent content);
    // Whether anything was ever loaded, and is not held back. Wait-free.
    [[nodiscard]] bool loaded() const noexcept {
        return loaded_.load(std::memory_order_acquire) && !held_back_.load();
    }
    // Until it is known to be of this job's weights tensors find nothing.
    void hold_back(bool held) noexcept { held_back_ = held; }

    // Where the tensor's state waits: by its name where the state has that, else by its slot, where
    // tensors without names are. `name`: the program's, null: none. `several`: of other memory,
    // too, so that nothing is the tensor's.
    [[nodiscard]] LastingTensor key_of(const LastingTensor& tensor, const char* name, bool several);

    // Tensors begin at zero, as nothing waits for them. `tensor`: one of them, by key_of().
    void began_at_zero(const LastingTensor& tensor, uint64_t tensors = 1);
    // A tensor's loaded residuals cannot be used.
    void miss(const LastingTensor& tensor, uint64_t bytes, const std::string& why);
    // A step begins, or the job ends: warns of what was missed, of all tensors of a few steps
    // together, and once of what no call took in these, though tensors began at zero.
    void tell_missed(bool ends);

    // The residuals of a tensor, which wait no more; null where there are none, or where they
    // cannot be used: `misfit` says why.
    struct Loaded {
        std::shared_ptr<const std::byte[]> held;
        const char* misfit = nullptr;
        double loss_scale = 0;  // as StateTensor's
        uint64_t name = 0;      // Residual's
    };
    // `bucket`, here and below: what parameters the tensor has; null where that is not known.
    Loaded take(const LastingTensor& tensor,
                uint64_t shape,
                uint64_t bytes,
                const ResidualMap* bucket = nullptr);
    // Whether residuals wait of the tensor, or of buckets that had some of its parameters.
    [[nodiscard]] bool waits(const LastingTensor& tensor, const ResidualMap* bucket) const;
    // Progress of the communicator's tensors, which waits no more.
    [[nodiscard]] ProgressRecords take_progress(uint64_t comm);
    // The communicator as it was saved; zeros where nothing was loaded for it.
    [[nodiscard]] StateComm comm(uint64_t key) const;
    // The same, or of atoms of all ranks.
    [[nodiscard]] StateComm comm_of(const Communicator& communicator) const;

    // The atoms of a tensor of `ranks` ranks, which wait no more. `tensor`: under atoms_key().
    // Shards of another number of ranks have other counts, which padding makes one of several, and
    // other ordinals: the first takes the first of those that may be its own.
    struct Atoms {
        struct One {
            uint64_t bytes = 0;  // 0: there is none
            double loss_scale = 0;
            ReadTensor read = {};
            size_t pieces = 0;  // of parameters
        };
        One owed, by_sums, alike;
        One of_sum;  // with EF21, whose estimates are in the place of what is owed
        bool estimates = false;
        uint64_t missing = 0;  // parameters of the bucket that have none, where others have
    };
    // `group`: StateComm's, which has a part of tensors that groups share.
    [[nodiscard]] Atoms take_atoms(const LastingTensor& tensor,
                                   int ranks,
                                   const ResidualMap* bucket = nullptr,
                                   const RankGroup& group = {});
    [[nodiscard]] bool atoms_wait(const LastingTensor& tensor,
                                  int ranks,
                                  const ResidualMap* bucket,
                                  const RankGroup& group) const;
    // Other buckets that have parameters of this one, and what other groups have of the tensor or
    // its parameters, of as many ranks, become atoms of theirs. The first one reads the files of
    // all ranks.
    Status take_apart(const LastingTensor& tensor,
                      const ResidualMap* bucket,
                      const RankGroup& group);
    // The atoms of a tensor whose own residuals, of as many ranks, are laid out otherwise. The
    // first one reads the files of all ranks.
    [[nodiscard]] Result<Atoms> atoms_instead(const LastingTensor& tensor,
                                              int ranks,
                                              const ResidualMap* bucket,
                                              const RankGroup& group);
    // Of which moment it is what was taken for a tensor of the communicator.
    [[nodiscard]] uint64_t moment_of(const Communicator& communicator) const;
    // What still waits, for another save: calls use(tensor, bytes, read), bytes null where they are
    // to be read.
    template <class Use>
    void with_rest(const Use& use) const {
        const std::lock_guard lock(mutex_);
        const uint64_t now = begun_ > 0 ? step_ + 1 : 0;
        for (const auto& [of, waiting] : waiting_) {
            const uint64_t owed_at = waiting.owed_at != 0 ? waiting.owed_at : now;
            use(StateTensor{of.first, waiting.shape, waiting.bytes, waiting.kind,
                            waiting.loss_scale, is_progress(waiting.kind) ? 0 : owed_at},
                waiting.held.get(), waiting.read);
        }
    }
    // Communicators of the loaded state, as it has them.
    [[nodiscard]] std::vector<StateComm> comms() const;

  private:
    struct Waiting {
        uint64_t shape = 0, bytes = 0;
        StateKind kind = StateKind::kResiduals;
        double loss_scale = 0;
        uint64_t owed_at = 0;  // StateTensor's
        std::shared_ptr<const std::byte[]> held;
        ReadTensor read;  // where held is null
    };
    struct Missed {
        uint64_t tensors = 0, bytes = 0;
        LastingTensor first = {};

        void add(const LastingTensor& tensor, uint64_t more) noexcept;
    };
    using AllMissed = std::map<std::string, Missed>;                            // by the reason
    using AllWaiting = std::map<std::pair<LastingTensor, StateKind>, Waiting>;  // by record_of()
    [[nodiscard]] static AllWaiting waiting_of(StateContent content, AllMissed* missed);
    [[nodiscard]] static AllWaiting::const_iterator find_atom(const AllWaiting& waiting,
                                                              const LastingTensor& tensor,
                                                              int ranks);
    [[nodiscard]] Atoms take_from(AllWaiting* waiting,
                                  const LastingTensor& tensor,
                                  int ranks,
                                  const ResidualMap* bucket,
                                  const RankGroup& group);
    // Which part of a whole tensor.
    struct Part {
        uint64_t index = 0, parts = 1, pieces = 1;
    };
    [[nodiscard]] AllWaiting::const_iterator find_whole(const AllWaiting& waiting,
                                                        const LastingTensor& tensor,
                                                        const RankGroup& group,
                                                        StateKind kind,
                                                        Part* part) const;
    [[nodiscard]] Atoms::One take_part(AllWaiting* waiting,
                                       const LastingTensor& tensor,
                                       const RankGroup& group,
                                       StateKind kind) const;
    [[nodiscard]] std::set<LastingTensor> shared_by_others(const LastingTensor& tensor,
                                                           const ResidualMap* bucket) const;
    bool note_odd(const LastingTensor& tensor);
    [[nodiscard]] static Atoms::One take_record(AllWaiting* waiting,
                                                const LastingTensor& tensor,
                                                StateKind kind);
    [[nodiscard]] static AllWaiting::const_iterator find_parameter(const AllWaiting& waiting,
                                                                   const LastingTensor& tensor,
                                                                   const ResidualMap& bucket,
                                                                   size_t parameter,
                                                                   StateKind kind);
    [[nodiscard]] Atoms take_parameters(AllWaiting* waiting,
                                        const LastingTensor& tensor,
                                        const ResidualMap& bucket,
                                        const RankGroup& group);
    // Those that have a name go by it.
    static void put_by_name(AllWaiting* waiting);
    // Where parameters were, by parameter_of().
    struct Place {
        LastingTensor bucket;
        int64_t at = 0;
    };
    using Places = std::map<LastingTensor, Place>;
    // What a record of kMap says; nothing where it is another.
    [[nodiscard]] static ResidualMap map_of(const AllWaiting& waiting,
                                            AllWaiting::const_iterator record);
    void note_places();
    void note_names();
    [[nodiscard]] const Place* place_of(const LastingTensor& bucket,
                                        const ResidualMap& map,
                                        size_t parameter) const;
    [[nodiscard]] bool laid_out_so(const LastingTensor& tensor, const ResidualMap* bucket) const;
    Status read_instead();

    std::atomic<bool> loaded_{false}, held_back_{false};
    mutable std::mutex mutex_;
    AllWaiting waiting_;
    Places places_;
    std::map<uint64_t, ResidualMap::Name> names_;  // that the state has, by named()'s path
    std::map<uint64_t, const char*> odd_;          // of these, why they are not taken
    std::function<Result<StateContent>()> by_atoms_;
    std::optional<AllWaiting> instead_;  // what that gave
    std::map<uint64_t, StateComm> comms_;

    // Since it was loaded.
    AllMissed missed_;
    std::atomic<uint64_t> begun_{0};  // tensors, at zero
    uint64_t step_ = 0;               // its own
    uint64_t marked_ = 0;             // steps begun
    bool told_ = false;               // of what no call took
};

}  // namespace slimwire
