#include "collectives/dispatch/save_state.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <mutex>
#include <span>
#include <utility>

#include "codecs/base/device_scope.h"
#include "collectives/call/launcher.h"
#include "collectives/call/log.h"
#include "collectives/dispatch/dispatch_state.h"
#include "collectives/dispatch/gather_state.h"
#include "collectives/dispatch/ring/state_ring.h"
#include "collectives/dispatch/session.h"
#include "collectives/state/loaded_state.h"

namespace slimwire {
namespace {

// What this process's configuration says; before the runtime is there as it will read it.
struct Job {
    bool compresses = false;
    uint64_t config_hash = 0;
};
Result<Job> job_of(const Runtime* runtime) {
    if (runtime != nullptr) {
        SLIMWIRE_TRY(runtime->config_status);
        return Job{runtime->config.active, runtime->config.hash};
    }
    SLIMWIRE_TRY_ASSIGN(const Config config, load_config(process_getenv));
    return Job{config.active, config.hash};
}

StateOutcome nothing() {
    return {StateOutcome::Kind::kNothing,
            "nothing is compressed in this process (SLIMWIRE_MODE, no policy), so there is no "
            "state to save or load"};
}

bool asks_for_rank(std::string_view pattern) noexcept {
    for (size_t i = 0; i + 1 < pattern.size(); ++i) {
        if (pattern[i] == '%' && pattern[++i] == 'r') {
            return true;
        }
    }
    return false;
}

Result<std::string> path_of(Runtime* runtime, const char* pattern) {
    if (pattern == nullptr || *pattern == 0) {
        return Status(Code::kInvalidArgument, "the path is null or empty");
    }
    std::optional<int> rank = launcher_rank();
    if (!rank.has_value() && runtime != nullptr) {
        int most = 0;
        for_each_session(*runtime, [&](Session& state) {
            if (state.shape.ranks > most || (state.shape.ranks == most && state.rank < *rank)) {
                most = state.shape.ranks;
                rank = state.rank;
            }
        });
    }
    if (!rank.has_value() && asks_for_rank(pattern)) {
        return Status(Code::kInvalidArgument, std::string("path '") + pattern +
                                                  "' has %r, but no launcher said a rank and "
                                                  "there is no communicator yet");
    }
    return expand_pattern_for(pattern, rank.value_or(-1));
}

}  // namespace

std::mutex& state_in_use() noexcept {
    static constinit std::mutex mutex;
    return mutex;
}

Status settle(Runtime* runtime, uint64_t patience_us) {
    constexpr unsigned kPauseUs = 200;
    const uint64_t deadline_us = steady_us() + patience_us;
    while (runtime != nullptr) {
        bool busy = false;
        Status failed;
        for_each_session(*runtime, [&](Session& state) {
            busy |= state.users.load() > 0;
            if (!state.objects.chained || state.ended) {
                return;
            }
            const DeviceApi& api = runtime->api();
            const DeviceScope scope(api, state.device);
            const cudaError_t done = api.event_query(state.objects.chain);
            if (!tolerate(api, done)) {
                busy |= done == cudaErrorNotReady;
                if (done != cudaErrorNotReady) {
                    failed = cuda_status(api, done, "end of the compressed calls");
                }
            }
        });
        SLIMWIRE_TRY(std::move(failed));
        if (!busy) {
            break;
        }
        if (steady_us() >= deadline_us) {
            return {Code::kInvalidUsage, "compressed calls have not ended for " +
                                             std::to_string(patience_us / 1'000'000) +
                                             " s; does another rank lag, or make calls now?"};
        }
        usleep(kPauseUs);
    }
    return {};
}

namespace {

Status write(const DeviceApi* api, const std::string& path, const GatheredState& all) {
    return write_state(
        path, all.index,
        [&](size_t i, uint64_t offset, std::span<std::byte> out) {
            const StateSource& source = all.sources[i];
            return copy_to_host(*api, source.device,
                                static_cast<const std::byte*>(source.memory) + offset, out);
        },
        [&](size_t i) { return all.sources[i].on_host(); });
}

std::string of_ranks(int rank, int ranks) {
    return rank < 0
               ? std::string("a process without a launcher's rank")
               : "rank " + std::to_string(rank) + (ranks < 0 ? "" : " of " + std::to_string(ranks));
}

// Whether the file is of this rank of such a job.
Status same_job(uint64_t config_hash,
                Runtime* runtime,
                const StateIndex& index,
                const std::string& path) {
    const int rank = launcher_rank().value_or(-1), size = launcher_size().value_or(-1);
    const std::string begin = "state file '" + path + "' ";
    if (index.atoms) {
        return index.launcher_size == size
                   ? Status()
                   : Status(Code::kInvalidUsage, begin + "is laid out for " +
                                                     std::to_string(index.launcher_size) +
                                                     " ranks; this is " + of_ranks(rank, size));
    }
    if (index.launcher_rank != rank || index.launcher_size != size) {
        return {Code::kInvalidUsage,
                begin + "was saved by " + of_ranks(index.launcher_rank, index.launcher_size) +
                    "; this is " + of_ranks(rank, size) +
                    (index.launcher_size != size
                         ? "; slimwire state convert lays it out for another number of ranks"
                         : "")};
    }
    if (index.config_hash != config_hash) {
        return {Code::kInvalidUsage,
                begin +
                    "was saved under another policy, or other variables that plans follow from; "
                    "slimwire state convert lays it out for any, also for as many ranks"};
    }
    bool any = false, known = false;
    std::string here;
    if (runtime != nullptr) {
        for_each_session(*runtime, [&](Session& state) {
            any |= state.checkpoint_key != 0;
            known |= std::any_of(
                index.comms.begin(), index.comms.end(),
                [&](const StateComm& comm) { return comm.key == state.checkpoint_key; });
            here = of_ranks(state.rank, state.shape.ranks);
        });
    }
    if (any && !known && !index.comms.empty()) {
        const StateComm& comm = index.comms.front();
        return {Code::kInvalidUsage, begin +
                                         "knows none of this process's communicators: it is of " +
                                         of_ranks(comm.rank, comm.ranks) + ", here is " + here};
    }
    return {};
}

}  // namespace

Result<StateOutcome> save_state(Runtime* runtime, const char* pattern, uint64_t patience_us) {
    const std::lock_guard lock(state_in_use());
    SLIMWIRE_TRY_ASSIGN(const Job job, job_of(runtime));
    if (!job.compresses) {
        return nothing();
    }
    SLIMWIRE_TRY_ASSIGN(const std::string path, path_of(runtime, pattern));
    SLIMWIRE_TRY(settle(runtime, patience_us));
    uint64_t left_out = 0;
    size_t tensors = 0;
    SLIMWIRE_TRY(gather_state(runtime, job.config_hash, true, [&](const GatheredState& all) {
        left_out = all.index.left_out;
        tensors = all.index.tensors.size();
        return write(runtime != nullptr ? &runtime->api() : nullptr, path, all);
    }));
    log_line(LogLevel::kInfo,
             "state of " + std::to_string(tensors) + " tensors saved to '" + path + "'");
    if (left_out == 0) {
        return StateOutcome{};
    }
    StateOutcome partial{StateOutcome::Kind::kPartial,
                         "not in '" + path + "': " + left_out_text(left_out)};
    log_once(LogLevel::kWarn, "state by address", partial.text);
    return partial;
}

Status take_state(Runtime* runtime, StateContent content, bool idle) {
    static const int at_end = std::atexit([] {
        if (!Runtime::forked()) {
            PendingState::instance().tell_missed(true);
        }
    });
    (void)at_end;
    std::map<uint64_t, StateComm> saved;
    for (const StateComm& comm : content.index.comms) {
        saved.emplace(comm.key, comm);
    }
    if (runtime == nullptr) {
        PendingState::instance().replace(std::move(content));
        return {};
    }
    const HeldSessions sessions(*runtime);
    std::map<Session*, std::array<uint32_t, 2>> before;
    for (Session* state : sessions.all()) {
        auto found = saved.find(state->checkpoint_key);
        if (found == saved.end() && state->group.number != 0) {
            found = saved.find(atoms_key(state->group));
        }
        if (found != saved.end() && (idle || state->random.on_device == nullptr)) {
            SLIMWIRE_TRY_ASSIGN(const RandomSteps::Counts here, drawn_here(*runtime, *state));
            for (size_t i = 0; i < 2; ++i) {
                before[state][i] = found->second.drawn[i] - here[i];
            }
        }
    }
    PendingState::instance().replace(std::move(content));
    dispatch_state(*runtime).residuals.renew_placed();
    for (const auto& [state, counts] : before) {
        std::copy_n(counts.begin(), 2, state->random.before);
    }
    return {};
}

void step_marked(Runtime& runtime, uint64_t step) {
    if (StateRing* const ring = dispatch_state(runtime).ring.get(); ring != nullptr) {
        ring->marked(step);
    }
    PendingState::instance().tell_missed(false);
}

Result<StateContent> read_own_state(Runtime* runtime,
                                    uint64_t config_hash,
                                    const StateReader& reader) {
    SLIMWIRE_TRY(same_job(config_hash, runtime, reader.index(), reader.path()));
    return read_state(reader);
}

Result<StateOutcome> load_state(Runtime* runtime, const char* pattern, uint64_t patience_us) {
    const std::lock_guard lock(state_in_use());
    SLIMWIRE_TRY_ASSIGN(const Job job, job_of(runtime));
    if (!job.compresses) {
        return nothing();
    }
    SLIMWIRE_TRY_ASSIGN(const std::string path, path_of(runtime, pattern));
    SLIMWIRE_TRY_ASSIGN(const StateReader reader, StateReader::open(path));
    SLIMWIRE_TRY_ASSIGN(StateContent content, read_own_state(runtime, job.config_hash, reader));
    SLIMWIRE_TRY(settle(runtime, patience_us));
    const size_t tensors = content.index.tensors.size();
    SLIMWIRE_TRY(take_state(runtime, std::move(content)));
    if (runtime != nullptr && dispatch_state(*runtime).ring != nullptr) {
        dispatch_state(*runtime).ring->overruled();
    }
    log_line(LogLevel::kInfo, "state of " + std::to_string(tensors) + " tensors loaded from '" +
                                  path + "'; each waits for its tensor's next call");
    return StateOutcome{};
}

}  // namespace slimwire
