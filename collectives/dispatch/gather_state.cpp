#include "collectives/dispatch/gather_state.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <utility>

#include "codecs/base/device_scope.h"
#include "codecs/base/own_stream.h"
#include "collectives/algorithms/algorithm.h"
#include "collectives/call/launcher.h"
#include "collectives/call/log.h"
#include "collectives/call/training.h"
#include "collectives/dispatch/call_pairs.h"
#include "collectives/dispatch/dispatch_state.h"
#include "collectives/dispatch/session.h"
#include "collectives/feedback/ef21_sync.h"
#include "collectives/identity/parameter_registry.h"
#include "collectives/state/loaded_state.h"
#include "collectives/state/replicated_progress.h"

namespace slimwire {
namespace {

Status in_use() {
    return {Code::kUnsupported, "calls may be using what is saved"};
}

Status comms_of(Runtime* runtime,
                const HeldSessions& sessions,
                bool idle,
                std::vector<StateComm>* comms,
                std::set<uint64_t>* begun) {
    std::set<uint64_t> live;
    for (const Session* one : sessions.all()) {
        const Session& state = *one;
        if (state.checkpoint_key == 0) {
            continue;
        }
        SLIMWIRE_TRY_ASSIGN(
            const RandomSteps::Counts drawn,
            !idle && state.random.on_device != nullptr ? in_use() : drawn_here(*runtime, state));
        Progress so_far;
        so_far.replicated_calls = state.progress.replicated_calls + drawn[2];
        if (runtime->config.policy.wants_pairs()) {  // of messages marks are what all know alike
            so_far.replicated_calls += training_state().marks.load(std::memory_order_acquire);
        }
        StateComm comm{state.checkpoint_key,     state.rank, state.shape.ranks, {},
                       moment_of(state, so_far), 0,          state.group};
        comm.drawn_alike = drawn[0] + state.progress.drawn;
        for (size_t i = 0; i < 2; ++i) {
            comm.drawn[i] = drawn[i] + state.random.before[i];
        }
        live.insert(comm.key);
        if (comm.snapshot_id != 0) {
            begun->insert({comm.key, atoms_key(state.group)});
            live.insert(atoms_key(state.group));
        } else {
            comm.snapshot_id = PendingState::instance().comm_of(state).snapshot_id;
        }
        comms->push_back(comm);
    }
    for (const StateComm& waiting : PendingState::instance().comms()) {
        if (!live.contains(waiting.key)) {
            comms->push_back(waiting);
        }
    }
    return {};
}

// Of a suspended communicator the host has it.
Status read_memory(const Runtime& runtime,
                   const Session& state,
                   const void* memory,
                   std::span<std::byte> out) {
    if (const void* away = runtime.device_memory.mapped().away(memory); away != nullptr) {
        std::memcpy(out.data(), away, out.size());
        return {};
    }
    return copy_to_host(runtime.api(), state.device, memory, out);
}

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
Status add_progress(Runtime* runtime,
                    const HeldSessions& sessions,
                    bool idle,
                    StateIndex* index,
                    std::vector<StateSource>* sources) {
    // Of two plans that had a tensor the later one counts, whose calls are known better.
    std::map<std::pair<LastingTensor, StateKind>, std::vector<std::byte>> records;
    for (Session* state : sessions.all()) {
        if (state->checkpoint_key == 0 || state->ended) {
            continue;
        }
        const auto read = [&](const void* memory, std::span<std::byte> out) {
            return !idle ? in_use() : read_memory(*runtime, *state, memory, out);
        };
        SLIMWIRE_TRY(for_progress(
            *state, read,
            [&](const LastingTensor& tensor, StateKind kind, std::vector<std::byte> bytes) {
                const auto found = records.find({tensor, kind});
                if (found != records.end()) {
                    if (found->first.first.signature.ordinal > tensor.signature.ordinal) {
                        return;
                    }
                    records.erase(found);
                }
                records.emplace(std::pair(tensor, kind), std::move(bytes));
            }));
    }
    for (Session* state : sessions.all()) {
        if (state->checkpoint_key != 0 && !state->ended &&
            training_state().marks.load(std::memory_order_acquire) > 0) {
            add_pairs(*state, index, sources);
        }
    }
    for (auto& [of, bytes] : records) {
        index->tensors.push_back({of.first, 0, bytes.size(), of.second});
        sources->push_back({.own = std::move(bytes)});
    }
    return {};
}

// `begun`: keys of communicators with a moment of their own. What all ranks must have alike is of
// one moment, and what waits is of another. Nothing waits that a communicator took over, unless it
// was loaded once more, nor of the tensors `by_name`, which are saved and got their names late. Of
// what cannot be read any more nothing is left.
void add_waiting(const std::set<uint64_t>& begun,
                 const std::set<LastingTensor>& by_name,
                 StateIndex* index,
                 std::vector<StateSource>* sources) {
    std::set<std::pair<LastingTensor, StateKind>> taken;
    for (const StateTensor& tensor : index->tensors) {
        taken.emplace(tensor.tensor, record_of(tensor.kind));
    }
    PendingState::instance().with_rest(
        [&](const StateTensor& tensor, const std::byte* bytes, const ReadTensor& read) {
            const bool counts = !of_all_ranks(tensor.kind) || !begun.contains(tensor.tensor.comm);
            if (!counts || taken.contains({tensor.tensor, record_of(tensor.kind)}) ||
                by_name.contains(tensor.tensor)) {
                return;
            }
            StateSource source{.host = bytes};
            if (bytes == nullptr) {
                source.own.resize(tensor.bytes);
                if (const Status there = read(0, source.own); !there.ok()) {
                    log_once(LogLevel::kWarn, there.message(),
                             "what waits is not saved again: " + there.message());
                    return;
                }
            }
            index->tensors.push_back(tensor);
            sources->push_back(std::move(source));
        });
}

}  // namespace

Status copy_to_host(const DeviceApi& api, int device, const void* from, std::span<std::byte> out) {
    constexpr const char* kWhat = "copy of saved state";
    const DeviceScope scope(api, device);
    return on_own_stream(api, kWhat, [&](cudaStream_t own) {
        return cuda_status(
            api, api.memcpy_async(out.data(), from, out.size(), cudaMemcpyDeviceToHost, own),
            kWhat);
    });
}

Result<RandomSteps::Counts> drawn_here(const Runtime& runtime, const Session& state) {
    RandomSteps::Counts drawn = state.random.here;
    if (state.random.on_device != nullptr) {
        SLIMWIRE_TRY(read_memory(runtime, state, state.random.on_device,
                                 std::as_writable_bytes(std::span(drawn))));
    }
    return drawn;
}

Status gather_state(Runtime* runtime, uint64_t config_hash, bool idle, const UseState& use) {
    GatheredState all;
    StateIndex& index = all.index;
    index.config_hash = config_hash;
    index.launcher_rank = launcher_rank().value_or(-1);
    index.launcher_size = launcher_size().value_or(-1);
    index.step = training_state().step.load(std::memory_order_relaxed);
    std::set<uint64_t> begun;
    if (runtime == nullptr) {
        index.comms = PendingState::instance().comms();
        add_waiting(begun, {}, &index, &all.sources);
        return use(all);
    }
    const HeldSessions sessions(*runtime);
    SLIMWIRE_TRY(comms_of(runtime, sessions, idle, &index.comms, &begun));
    SLIMWIRE_TRY(add_progress(runtime, sessions, idle, &index, &all.sources));
    const auto add = [&](const std::vector<ResidualStore::Placed>& placed, uint64_t by_address) {
        index.left_out = static_cast<uint32_t>(by_address);
        std::set<LastingTensor> by_name;
        const RegisteredParameters::Pieces pieces = ParameterRegistry::instance().now()->pieces();
        for (const ResidualStore::Placed& one : placed) {
            const CheckpointSlot& lasting = one.lasting;
            index.tensors.push_back({one.tensor, lasting.shape, one.bytes,
                                     lasting.shared ? StateKind::kShared : StateKind::kResiduals,
                                     one.loss_scale});
            const void* away = runtime->device_memory.mapped().away(one.buffer);
            all.sources.push_back({.host = static_cast<const std::byte*>(away),
                                   .memory = one.buffer,
                                   .device = one.device});
            if (lasting.plan != nullptr || one.name != nullptr) {
                ResidualMap said;
                if (lasting.plan != nullptr) {
                    const Communicator& of = *lasting.communicator;
                    said = residual_map(*lasting.plan, of.shape, of.rank);
                }
                if (one.name != nullptr) {
                    said.names.push_back({one.name});
                    LastingTensor name = named(one.tensor, one.name);
                    by_name.insert(name);
                    name.comm =
                        lasting.plan != nullptr ? atoms_key(lasting.communicator->group) : 0;
                    by_name.insert(name);
                }
                for (size_t i = 0; i < said.names.size(); ++i) {
                    const uint64_t count = said.parameters.empty()
                                               ? one.tensor.signature.count
                                               : static_cast<uint64_t>(said.parameters[i].count);
                    const auto told = pieces.find({said.names[i].text, count});
                    said.names[i].pieces = told == pieces.end() ? 0 : told->second;
                }
                std::vector<std::byte> map = bytes_of(said);
                index.tensors.push_back({one.tensor, lasting.shape, map.size(), StateKind::kMap});
                all.sources.push_back({.own = std::move(map)});
            }
        }
        add_waiting(begun, by_name, &index, &all.sources);
        return use(all);
    };
    return dispatch_state(*runtime).residuals.with_placed(idle, add);
}

}  // namespace slimwire
