// How communicators come to be: by joining at an id's root, or as parts of another one.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tools/emulator/nccl/execution/communicator.h"
#include "tools/emulator/nccl/transport/device.h"
#include "tools/emulator/nccl/transport/shaper.h"

namespace slimwire::emu {
namespace {

constexpr uint64_t kSplitTag = 2ull << 56;
constexpr uint64_t kShrinkTag = 3ull << 56;
constexpr uint64_t kGrowTag = 4ull << 56;
// Keeps names made by shrinking apart from those made by splitting.
constexpr uint64_t kShrinkMark = 1ull << 63;

uint64_t mix(uint64_t value) noexcept {
    value = (value ^ value >> 30) * 0xbf58476d1ce4e5b9u;
    value = (value ^ value >> 27) * 0x94d049bb133111ebu;
    return value ^ value >> 31;
}

uint64_t process_number() {
    static const uint64_t number = random_u64();
    return number;
}

// Two ranks on one device of one process would be two GPUs that are one.
Status check_devices(const Mesh& mesh) {
    for (int a = 0; a < mesh.size(); ++a) {
        for (int b = a + 1; b < mesh.size(); ++b) {
            if (mesh.info(a).process == mesh.info(b).process &&
                mesh.info(a).device == mesh.info(b).device) {
                return {Code::kInvalidUsage,
                        "duplicate GPU: rank " + std::to_string(a) + " and rank " +
                            std::to_string(b) + " both on device " +
                            std::to_string(mesh.info(a).device) + " of one process"};
            }
        }
    }
    return {};
}

// A link that no rank will use, said once a process by rank 0.
void warn_of_unused_link(const Mesh& mesh, int rank) {
    static std::atomic<bool> said = false;
    const char* text = getenv("SLIMWIRE_EMU_LINK");
    if (rank != 0 || mesh.size() < 2 || text == nullptr || *text == '\0') {
        return;
    }
    for (int i = 1; i < mesh.size(); ++i) {
        if (mesh.info(i).node != mesh.info(0).node) {
            return;
        }
    }
    if (!said.exchange(true)) {
        std::fprintf(stderr,
                     "slimwire emulator: SLIMWIRE_EMU_LINK=%s shapes what leaves a node, and all "
                     "%d ranks of this communicator stand on one; SLIMWIRE_EMU_NODES=%dx1 makes "
                     "each rank a node\n",
                     text, mesh.size(), mesh.size());
    }
}

// What each rank of `members` says under `tag`, this one `own`.
template <class T>
Result<std::vector<T>> tell_all(const Members& members,
                                uint64_t tag,
                                const T& own,
                                const std::atomic<bool>& stop) {
    for (int rank = 0; rank < members.size(); ++rank) {
        members.mesh->send(members.mesh_rank(rank), members.comm, tag, &own, sizeof own);
    }
    std::vector<T> said;
    for (int rank = 0; rank < members.size(); ++rank) {
        std::vector<char> message;
        SLIMWIRE_TRY(
            members.mesh->receive(members.mesh_rank(rank), members.comm, tag, stop, &message));
        memcpy(&said.emplace_back(), message.data(), std::min(message.size(), sizeof own));
    }
    return said;
}

Result<uint64_t> wanted_chunk_bytes() {
    const char* text = getenv("SLIMWIRE_EMU_LINK");
    SLIMWIRE_TRY_ASSIGN(const LinkSpec spec, parse_link_spec(text != nullptr ? text : ""));
    return spec.chunk_bytes();
}

}  // namespace

Result<std::shared_ptr<Communicator>> Communicator::create(
    const ncclUniqueId& id, int nranks, int rank, int device, const CommSettings& settings) {
    // The first id names the job's shared network cards where nothing else does.
    SLIMWIRE_TRY(job_shaper("id:" + std::to_string(unique_id_token(id))).status());
    SLIMWIRE_TRY_ASSIGN(const uint64_t chunk_bytes, wanted_chunk_bytes());
    {
        const DeviceScope scope(device);
        SLIMWIRE_TRY(
            cuda_check(emulator_api().load_kernels(reinterpret_cast<const void*>(&cuda_check)),
                       "NCCL's kernels"));
    }
    RankInfo self{};
    self.node = emulator_api().node_of_device(device);
    self.device = device;
    self.chunk_bytes = static_cast<int32_t>(chunk_bytes);
    self.process = process_number();
    Members members;
    SLIMWIRE_TRY_ASSIGN(members.mesh, Mesh::join(id, nranks, rank, self));
    SLIMWIRE_TRY(check_devices(*members.mesh));
    warn_of_unused_link(*members.mesh, rank);
    members.rank = rank;
    members.comm = members.mesh->token();
    for (int i = 0; i < nranks; ++i) {
        members.mesh_ranks.push_back(i);
    }
    std::shared_ptr<Communicator> result(new Communicator(std::move(members), device, settings));
    SLIMWIRE_TRY(result->open());
    return result;
}

Result<std::shared_ptr<Communicator>> Communicator::split(
    Communicator& parent, uint64_t number, int color, int key, const CommSettings& settings) {
    struct Wish {
        int32_t color;
        int32_t key;
    };
    const Members& from = parent.transport_.members();
    SLIMWIRE_TRY_ASSIGN(const std::vector<Wish> wishes,
                        tell_all(from, kSplitTag | number, Wish{color, key}, *parent.stop_));
    std::vector<std::pair<int, int>> chosen;  // key, parent's rank: the new order
    for (int rank = 0; rank < from.size(); ++rank) {
        const Wish& wish = wishes[static_cast<size_t>(rank)];
        if (wish.color == color) {
            chosen.emplace_back(wish.key, rank);
        }
    }
    if (color == NCCL_SPLIT_NOCOLOR) {
        return std::shared_ptr<Communicator>();
    }
    std::sort(chosen.begin(), chosen.end());
    Members members;
    members.mesh = from.mesh;
    members.comm = mix(from.comm ^ mix(number << 32 ^ static_cast<uint32_t>(color)));
    for (const auto& [order, rank] : chosen) {
        if (rank == from.rank) {
            members.rank = members.size();
        }
        members.mesh_ranks.push_back(from.mesh_rank(rank));
    }
    std::shared_ptr<Communicator> result(
        new Communicator(std::move(members), parent.device_, settings,
                         parent.settings_.split_share ? parent.stop_ : nullptr));
    SLIMWIRE_TRY(result->open());
    return result;
}

Result<std::shared_ptr<Communicator>> Communicator::shrink(Communicator& parent,
                                                           uint64_t number,
                                                           const std::vector<int>& excluded,
                                                           bool abort,
                                                           const CommSettings& settings) {
    if (abort) {
        parent.revoke();
        const std::lock_guard running(parent.run_mutex_);  // the job that ran is over
    }
    const Members& from = parent.transport_.members();
    Members members;
    members.mesh = from.mesh;
    members.comm = mix(from.comm ^ mix(number | kShrinkMark));
    for (int rank = 0; rank < from.size(); ++rank) {
        if (std::binary_search(excluded.begin(), excluded.end(), rank)) {
            members.comm = mix(members.comm ^ static_cast<uint64_t>(rank + 1));
            continue;
        }
        if (rank == from.rank) {
            members.rank = members.size();
        }
        members.mesh_ranks.push_back(from.mesh_rank(rank));
    }
    // All survivors come; one that excludes others than this rank does waits under another name.
    SLIMWIRE_TRY(tell_all(members, kShrinkTag, char{1}, *parent.stop_).status());
    std::shared_ptr<Communicator> result(
        new Communicator(std::move(members), parent.device_, settings));
    SLIMWIRE_TRY(result->open());
    return result;
}

Result<ncclUniqueId> Communicator::share_id(uint64_t number, const ncclUniqueId& id) {
    SLIMWIRE_TRY_ASSIGN(const std::vector<ncclUniqueId> ids,
                        tell_all(transport_.members(), kGrowTag | number, id, *stop_));
    ncclUniqueId shared{};
    int makers = 0;
    for (const ncclUniqueId& theirs : ids) {
        if (unique_id_token(theirs) != 0) {
            shared = theirs;
            ++makers;
        }
    }
    if (makers != 1) {
        return Status(Code::kInvalidArgument,
                      "ncclCommGrow: " + std::to_string(makers) +
                          " ranks of the communicator pass an id: expected one");
    }
    return shared;
}

}  // namespace slimwire::emu
