#include "collectives/dispatch/save_state.h"

#include <unistd.h>

#include <algorithm>
#include <map>
#include <set>
#include <span>
#include <utility>

#include "codecs/base/device_scope.h"
#include "codecs/base/own_stream.h"
#include "collectives/algorithms/algorithm.h"
#include "collectives/call/launcher.h"
#include "collectives/call/log.h"
#include "collectives/call/training.h"
#include "collectives/dispatch/dispatch_state.h"
#include "collectives/dispatch/session.h"
#include "collectives/feedback/ef21_sync.h"
#include "collectives/state/loaded_state.h"
#include "collectives/state/replicated_progress.h"

namespace slimwire {
namespace {

std::mutex& one_at_a_time() noexcept {
    static constinit std::mutex mutex;
    return mutex;
}

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

// Waits until the compressed calls of all communicators are done.
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

Status copy_to_host(const DeviceApi& api, int device, const void* from, std::span<std::byte> out) {
    constexpr const char* kWhat = "copy of saved state";
    const DeviceScope scope(api, device);
    return on_own_stream(api, kWhat, [&](cudaStream_t own) {
        return cuda_status(
            api, api.memcpy_async(out.data(), from, out.size(), cudaMemcpyDeviceToHost, own),
            kWhat);
    });
}

// Calls of this process that drew; those that the communicator took over are not in it.
Status drawn_here(const Runtime& runtime, const Session& state, uint32_t* drawn) {
    std::copy_n(state.random.here, 2, drawn);
    return state.random.on_device == nullptr
               ? Status()
               : copy_to_host(runtime.api(), state.device, state.random.on_device,
                              std::as_writable_bytes(std::span(drawn, 2)));
}

Status comms_of(Runtime* runtime, std::vector<StateComm>* comms, std::set<uint64_t>* begun) {
    Status status;
    std::set<uint64_t> live;
    for_each_session(*runtime, [&](Session& state) {
        if (state.checkpoint_key == 0 || !status.ok()) {
            return;
        }
        StateComm comm{state.checkpoint_key,
                       state.rank,
                       state.shape.ranks,
                       {},
                       moment_of(state, state.progress),
                       0,
                       state.world};
        status = drawn_here(*runtime, state, comm.drawn);
        comm.drawn_alike = comm.drawn[0] + state.progress.drawn;
        for (int i = 0; i < 2; ++i) {
            comm.drawn[i] += state.random.before[i];
        }
        live.insert(comm.key);
        if (comm.snapshot_id != 0) {
            begun->insert({comm.key, atoms_key(state.world)});
            live.insert(atoms_key(state.world));
        } else {
            comm.snapshot_id = PendingState::instance().comm_of(state).snapshot_id;
        }
        comms->push_back(comm);
    });
    for (const StateComm& waiting : PendingState::instance().comms()) {
        if (!live.contains(waiting.key)) {
            comms->push_back(waiting);
        }
    }
    return status;
}

// Where the bytes of a record are.
struct Source {
    const std::byte* host = nullptr;  // else on the device
    const void* memory = nullptr;
    int device = 0;
    std::vector<std::byte> own = {};  // of progress; host is null
};

// Every record of the communicator as it is now, between two calls; of a tensor that two plans know
// the later one counts. An error is the device's.
Status for_progress(const Session& state, const ReadMemory& read, const KeepRecord& keep) {
    for (const auto& [of, bytes] : state.progress.waiting) {
        keep(of.first, of.second, bytes);
    }
    for (const std::unique_ptr<CallHook>& hook : state.hooks) {
        SLIMWIRE_TRY(hook->save(state, read, keep));
    }
    for (const std::unique_ptr<Controller>& controller : state.controllers) {
        SLIMWIRE_TRY(controller->save(state, read, keep));
    }
    return {};
}

// Adds the records of all communicators' progress (replicated_progress.h).
Status add_progress(Runtime* runtime, StateIndex* index, std::vector<Source>* sources) {
    // Of two plans that had a tensor the later one counts, whose calls are known better.
    std::map<std::pair<LastingTensor, StateKind>, std::vector<std::byte>> records;
    Status status;
    for_each_session(*runtime, [&](Session& state) {
        if (state.checkpoint_key == 0 || state.ended || !status.ok()) {
            return;
        }
        const auto read = [&](const void* memory, std::span<std::byte> out) {
            return copy_to_host(runtime->api(), state.device, memory, out);
        };
        status = for_progress(
            state, read,
            [&](const LastingTensor& tensor, StateKind kind, std::vector<std::byte> bytes) {
                const auto found = records.find({tensor, kind});
                if (found != records.end()) {
                    if (found->first.first.signature.ordinal > tensor.signature.ordinal) {
                        return;
                    }
                    records.erase(found);
                }
                records.emplace(std::pair(tensor, kind), std::move(bytes));
            });
    });
    SLIMWIRE_TRY(std::move(status));
    for (auto& [of, bytes] : records) {
        index->tensors.push_back({of.first, 0, bytes.size(), of.second});
        sources->push_back({.own = std::move(bytes)});
    }
    return {};
}

// `begun`: keys of communicators with a moment of their own. What all ranks must have alike is of
// one moment, and what waits is of another. Nothing waits that a communicator took over, unless it
// was loaded once more.
void add_waiting(const std::set<uint64_t>& begun, StateIndex* index, std::vector<Source>* sources) {
    std::set<std::pair<LastingTensor, StateKind>> taken;
    for (const StateTensor& tensor : index->tensors) {
        taken.emplace(tensor.tensor, record_of(tensor.kind));
    }
    PendingState::instance().with_rest([&](const StateTensor& tensor, const std::byte* bytes) {
        const bool counts = !of_all_ranks(tensor.kind) || !begun.contains(tensor.tensor.comm);
        if (counts && !taken.contains({tensor.tensor, record_of(tensor.kind)})) {
            index->tensors.push_back(tensor);
            sources->push_back({.host = bytes});
        }
    });
}

Status write(const DeviceApi* api,
             const std::string& path,
             const StateIndex& index,
             const std::vector<Source>& sources) {
    return write_state(
        path, index, [&](size_t i, uint64_t offset, std::span<std::byte> out) -> Status {
            const Source& source = sources[i];
            const std::byte* const host = source.own.empty() ? source.host : source.own.data();
            if (host != nullptr) {
                std::copy_n(host + offset, out.size(), out.data());
                return {};
            }
            return copy_to_host(*api, source.device,
                                static_cast<const std::byte*>(source.memory) + offset, out);
        });
}

std::string of_ranks(int rank, int ranks) {
    return rank < 0
               ? std::string("a process without a launcher's rank")
               : "rank " + std::to_string(rank) + (ranks < 0 ? "" : " of " + std::to_string(ranks));
}

// Whether the file is of this rank of such a job.
Status same_job(const Job& job,
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
    if (index.config_hash != job.config_hash) {
        return {
            Code::kInvalidUsage,
            begin + "was saved under another policy, or other variables that plans follow from"};
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
    const std::lock_guard lock(one_at_a_time());
    SLIMWIRE_TRY_ASSIGN(const Job job, job_of(runtime));
    if (!job.compresses) {
        return nothing();
    }
    SLIMWIRE_TRY_ASSIGN(const std::string path, path_of(runtime, pattern));
    SLIMWIRE_TRY(settle(runtime, patience_us));
    StateIndex index;
    index.config_hash = job.config_hash;
    index.launcher_rank = launcher_rank().value_or(-1);
    index.launcher_size = launcher_size().value_or(-1);
    index.step = training_state().step.load(std::memory_order_relaxed);
    std::vector<Source> sources;
    uint64_t left_out = 0;
    std::set<uint64_t> begun;
    if (runtime == nullptr) {
        index.comms = PendingState::instance().comms();
        add_waiting(begun, &index, &sources);
        SLIMWIRE_TRY(write(nullptr, path, index, sources));
    } else {
        SLIMWIRE_TRY(comms_of(runtime, &index.comms, &begun));
        SLIMWIRE_TRY(add_progress(runtime, &index, &sources));
        SLIMWIRE_TRY(dispatch_state(*runtime).residuals.with_placed(
            [&](const std::vector<ResidualStore::Placed>& placed, uint64_t by_address) {
                left_out = by_address;
                for (const ResidualStore::Placed& one : placed) {
                    const CheckpointSlot& lasting = one.lasting;
                    index.tensors.push_back(
                        {one.tensor, lasting.shape, one.bytes,
                         lasting.shared ? StateKind::kShared : StateKind::kResiduals,
                         one.loss_scale});
                    sources.push_back({.memory = one.buffer, .device = one.device});
                    if (lasting.plan != nullptr) {
                        const Communicator& of = *lasting.communicator;
                        std::vector<std::byte> map =
                            bytes_of(residual_map(*lasting.plan, of.shape, of.rank));
                        index.tensors.push_back(
                            {one.tensor, lasting.shape, map.size(), StateKind::kMap});
                        sources.push_back({.own = std::move(map)});
                    }
                }
                add_waiting(begun, &index, &sources);
                return write(placed.empty() ? nullptr : &runtime->api(), path, index, sources);
            }));
    }
    log_line(LogLevel::kInfo, "state of " + std::to_string(index.tensors.size()) +
                                  " tensors saved to '" + path + "'");
    if (left_out == 0) {
        return StateOutcome{};
    }
    StateOutcome partial{StateOutcome::Kind::kPartial,
                         "not in '" + path + "': the residuals of " + std::to_string(left_out) +
                             " tensors that are told apart by their buffers' addresses, which "
                             "another process does not know: their slot in the step is not known "
                             "(slimwire_mark_step tells it)"};
    log_once(LogLevel::kWarn, "state by address", partial.text);
    return partial;
}

Result<StateOutcome> load_state(Runtime* runtime, const char* pattern, uint64_t patience_us) {
    const std::lock_guard lock(one_at_a_time());
    SLIMWIRE_TRY_ASSIGN(const Job job, job_of(runtime));
    if (!job.compresses) {
        return nothing();
    }
    SLIMWIRE_TRY_ASSIGN(const std::string path, path_of(runtime, pattern));
    SLIMWIRE_TRY_ASSIGN(StateContent content, read_state(path));
    SLIMWIRE_TRY(same_job(job, runtime, content.index, path));
    SLIMWIRE_TRY(settle(runtime, patience_us));
    std::map<uint64_t, StateComm> saved;
    for (const StateComm& comm : content.index.comms) {
        saved.emplace(comm.key, comm);
    }
    Status status;
    std::map<const Session*, std::array<uint32_t, 2>> before;
    if (runtime != nullptr) {
        for_each_session(*runtime, [&](Session& state) {
            auto found = saved.find(state.checkpoint_key);
            if (found == saved.end() && state.world != 0) {
                found = saved.find(atoms_key(state.world));
            }
            uint32_t here[2] = {};
            if (found != saved.end() && status.ok()) {
                status = drawn_here(*runtime, state, here);
                before[&state] = {found->second.drawn[0] - here[0],
                                  found->second.drawn[1] - here[1]};
            }
        });
        SLIMWIRE_TRY(std::move(status));
    }
    log_line(LogLevel::kInfo, "state of " + std::to_string(content.index.tensors.size()) +
                                  " tensors loaded from '" + path +
                                  "'; each waits for its tensor's next call");
    PendingState::instance().replace(std::move(content));
    if (runtime != nullptr) {
        dispatch_state(*runtime).residuals.renew_placed();
        for_each_session(*runtime, [&](Session& state) {
            if (const auto found = before.find(&state); found != before.end()) {
                std::copy_n(found->second.begin(), 2, state.random.before);
            }
        });
    }
    return StateOutcome{};
}

}  // namespace slimwire
