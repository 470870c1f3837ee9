#include "collectives/members.h"

#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <mutex>
#include <utility>

#include "codecs/base/emulator_abi.h"
#include "collectives/hash.h"
#include "collectives/launcher.h"
#include "topology/comm_shape.h"

namespace slimwire {
namespace {

// What makes ranks neighbours: NCCL_HOSTID as NCCL itself uses it, else host name and boot id; on
// the emulator the emulated node.
uint64_t host_id(const DeviceApi& api, int device) {
    if (api.emulator != nullptr) {
        return mix_key(stable_hash("emulated node"),
                       static_cast<uint64_t>(api.emulator->node_of_device(device)) + 1);
    }
    if (const char* given = getenv("NCCL_HOSTID"); given != nullptr && *given != 0) {
        return stable_hash(given);
    }
    std::string boot;
    std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
    return stable_hash(host_name() + boot);
}

}  // namespace

uint64_t mix_key(uint64_t key, uint64_t value) noexcept {
    key = (key ^ value) * 0x9e3779b97f4a7c15ull;
    return key ^ key >> 32;
}

std::string hex_key(uint64_t value) {
    char text[17];
    for (int i = 15; i >= 0; --i, value >>= 4) {
        text[i] = "0123456789abcdef"[value & 15];
    }
    text[16] = 0;
    return text;
}

Member member_of(Runtime& runtime, int device) {
    Member member;
    member.place.host_id = runtime.device().ok() ? host_id(runtime.api(), device) : 0;
    member.place.device = device;
    member.place.launcher_rank = launcher_rank().value_or(-1);
    member.process = mix_key(member.place.host_id, static_cast<uint64_t>(getpid()));
    return member;
}

// The communicator's key: its members and how many were made of them before.
Status adopt_members(Runtime& runtime, CommState* state, uint64_t parent_key) {
    uint64_t members = parent_key;
    std::vector<RankIdentity> places;
    for (const Member& member : state->members) {
        members = mix_key(mix_key(members, member.place.host_id), member.process);
        members = mix_key(members, static_cast<uint64_t>(member.place.device));
        places.push_back(member.place);
    }
    SLIMWIRE_TRY_ASSIGN(const CommShape shape, make_comm_shape(places));
    state->shape.scope = shape.scope;
    state->shape.max_ranks_per_node = shape.max_ranks_per_node;
    state->shape.nodes = std::make_shared<const NodeTable>(shape);
    state->stats->nodes = shape.nodes;
    // Ranks of one process count their communicators of these members apart.
    const uint64_t ordinal =
        runtime.comms.next_ordinal(mix_key(members, static_cast<uint64_t>(state->rank)));
    state->comm_key = mix_key(members, ordinal);
    state->state_key = mix_key(state->comm_key, static_cast<uint64_t>(state->rank) + 1);
    state->stats->comm = hex_key(state->comm_key);
    return {};
}

namespace {

// Waits for what is on `stream`; an all-gather on it never ends by itself when a rank is gone.
Status await_stream(const DeviceApi& api, cudaStream_t stream, Watch* watch) {
    bool busy = false;
    for (Patience patience;; patience.pause()) {
        const cudaError_t error = api.stream_query(stream);
        if (error == cudaSuccess) {
            return {};
        }
        if (error != cudaErrorNotReady) {
            return cuda_status(api, error, "identity copy");
        }
        (void)api.get_last_error();  // not being ready is no error of the program
        SLIMWIRE_TRY(watch->look(&busy));
    }
}

// Device memory in which ranks tell each other who they are. Never freed but used again: freeing
// waits for the whole device, where a call may wait for a rank that waits for the creation at hand.
// As many as creations were under way at once.
class IdentityBuffers {
  public:
    struct Buffer {
        char* memory = nullptr;
        int device = 0;
        size_t bytes = 0;
    };
    static IdentityBuffers& instance() {
        static IdentityBuffers* const buffers = new IdentityBuffers;
        return *buffers;
    }
    // On the current device, which is `device`.
    Result<Buffer> take(const DeviceApi& api, int device, size_t bytes) {
        {
            const std::lock_guard lock(mutex_);
            for (auto spare = spare_.begin(); spare != spare_.end(); ++spare) {
                if (spare->device == device && spare->bytes >= bytes) {
                    const Buffer buffer = *spare;
                    spare_.erase(spare);
                    if (lives(api, buffer.memory)) {
                        return buffer;
                    }
                    break;
                }
            }
        }
        void* memory = nullptr;
        SLIMWIRE_TRY(cuda_status(api, api.malloc(&memory, bytes), "identity buffer"));
        return Buffer{static_cast<char*>(memory), device, bytes};
    }
    void give_back(const Buffer& buffer) {
        const std::lock_guard lock(mutex_);
        spare_.push_back(buffer);
    }

  private:
    // The program may have reset the device since.
    static bool lives(const DeviceApi& api, const char* memory) {
        cudaPointerAttributes attributes{};
        const bool known = api.pointer_get_attributes(&attributes, memory) == cudaSuccess &&
                           attributes.type == cudaMemoryTypeDevice;
        (void)api.get_last_error();
        return known;
    }
    std::mutex mutex_;
    std::vector<Buffer> spare_;
};

}  // namespace

Status all_gather(Runtime& runtime, const std::vector<Gathering>& gatherings, Watch* watch) {
    if (gatherings.empty()) {
        return {};
    }
    const DeviceApi& api = runtime.api();
    const RealNccl& nccl = runtime.nccl;
    struct Exchange {
        IdentityBuffers::Buffer buffer;
        cudaStream_t stream = nullptr;
    };
    std::vector<Exchange> exchanges(gatherings.size());
    const auto own = [&](size_t i) {
        return exchanges[i].buffer.memory +
               static_cast<size_t>(gatherings[i].rank) * gatherings[i].mine.size();
    };
    const auto run = [&]() -> Status {
        for (size_t i = 0; i < gatherings.size(); ++i) {
            const Gathering& of = gatherings[i];
            const DeviceScope device(api, of.device);
            SLIMWIRE_TRY_ASSIGN(exchanges[i].buffer,
                                IdentityBuffers::instance().take(api, of.device, of.all.size()));
            SLIMWIRE_TRY(cuda_status(
                api, api.stream_create_with_flags(&exchanges[i].stream, cudaStreamNonBlocking),
                "identity stream"));
            SLIMWIRE_TRY(cuda_status(api,
                                     api.memcpy_async(own(i), of.mine.data(), of.mine.size(),
                                                      cudaMemcpyHostToDevice, exchanges[i].stream),
                                     "identity copy"));
            SLIMWIRE_TRY(
                cuda_status(api, api.stream_synchronize(exchanges[i].stream), "identity copy"));
        }
        SLIMWIRE_TRY(nccl_status(nccl, nccl.GroupStart(), "ncclGroupStart"));
        for (size_t i = 0; i < gatherings.size(); ++i) {
            const Gathering& of = gatherings[i];
            const ncclResult_t result =
                nccl.AllGather(own(i), exchanges[i].buffer.memory, of.mine.size(), ncclUint8,
                               of.comm, exchanges[i].stream);
            if (result != ncclSuccess && result != ncclInProgress) {
                (void)nccl.GroupEnd();
                return nccl_status(nccl, result, "ncclAllGather of identities");
            }
        }
        const ncclResult_t ended = nccl.GroupEnd();
        SLIMWIRE_TRY(nccl_status(nccl, ended, "ncclGroupEnd"));
        SLIMWIRE_TRY(watch->settle());
        for (const Gathering& of : gatherings) {
            ncclResult_t state = ended;  // of one that `watch` need not know
            for (Patience patience; state == ncclInProgress; patience.pause()) {
                bool busy = false;
                SLIMWIRE_TRY(watch->look(&busy));
                SLIMWIRE_TRY(nccl_status(nccl, nccl.CommGetAsyncError(of.comm, &state),
                                         "ncclAllGather of identities"));
            }
        }
        for (size_t i = 0; i < gatherings.size(); ++i) {
            const Gathering& of = gatherings[i];
            const DeviceScope device(api, of.device);
            // First: a copy to pageable memory is waited for by CUDA itself.
            SLIMWIRE_TRY(await_stream(api, exchanges[i].stream, watch));
            SLIMWIRE_TRY(cuda_status(
                api,
                api.memcpy_async(of.all.data(), exchanges[i].buffer.memory, of.all.size(),
                                 cudaMemcpyDeviceToHost, exchanges[i].stream),
                "identity copy"));
            SLIMWIRE_TRY(await_stream(api, exchanges[i].stream, watch));
        }
        return {};
    };
    Status status = run();
    for (size_t i = 0; i < gatherings.size(); ++i) {
        const DeviceScope device(api, gatherings[i].device);
        if (exchanges[i].stream != nullptr &&
            !tolerate(api, api.stream_query(exchanges[i].stream))) {
            // Freeing would wait for ranks that are gone.
            Parked left{gatherings[i].device,
                        nullptr,
                        {std::exchange(exchanges[i].buffer.memory, nullptr)}};
            if (tolerate(api, api.event_create_with_flags(&left.end, cudaEventDisableTiming)) &&
                tolerate(api, api.event_record(left.end, exchanges[i].stream))) {
                runtime.parked.park(std::move(left));
            }
        }
        if (exchanges[i].stream != nullptr) {
            tolerate(api, api.stream_destroy(exchanges[i].stream));
        }
        if (exchanges[i].buffer.memory != nullptr) {
            IdentityBuffers::instance().give_back(exchanges[i].buffer);
        }
    }
    return status;
}

Status gather_members(Runtime& runtime, const std::vector<CommState*>& states, Watch* watch) {
    std::vector<Member> mine;
    std::vector<std::vector<Member>> members;
    for (const CommState* state : states) {
        mine.push_back(member_of(runtime, state->device));
        members.emplace_back(static_cast<size_t>(state->shape.ranks));
    }
    std::vector<Gathering> gatherings;
    for (size_t i = 0; i < states.size(); ++i) {
        gatherings.push_back({states[i]->comm, states[i]->device, states[i]->rank,
                              std::as_bytes(std::span(&mine[i], 1)),
                              std::as_writable_bytes(std::span(members[i]))});
    }
    SLIMWIRE_TRY(all_gather(runtime, gatherings, watch));
    for (size_t i = 0; i < states.size(); ++i) {
        states[i]->members = std::move(members[i]);
    }
    return {};
}

}  // namespace slimwire
