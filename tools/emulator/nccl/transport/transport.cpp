#include "tools/emulator/nccl/transport/transport.h"

#include <algorithm>
#include <map>
#include <string>

#include "tools/emulator/nccl/transport/shared_link.h"

namespace slimwire::emu {
namespace {

constexpr size_t kMaxTransferBytes = size_t{1} << 40;

}  // namespace

bool Transport::inter_node(int peer) const {
    return members_.info(peer).node != members_.info(members_.rank).node;
}

Status Transport::open_plugin(int device) {
    inter_.table = assigned_.table;
    inter_.context = assigned_.context;
    inter_.device = device % assigned_.devices;
    NetCard& card = inter_.card;
    const std::string name = std::string(assigned_.table->name) + " network: ";
    if (!assigned_.card(inter_.device, &card)) {
        return {Code::kSystemError,
                name + "no properties of device " + std::to_string(inter_.device)};
    }
    if (card.max_p2p_bytes == 0 || card.max_p2p_bytes > kMaxTransferBytes) {
        return {Code::kInternalError,
                name + "largest transfer is " + std::to_string(card.max_p2p_bytes) +
                    " bytes: expected 1 to " + std::to_string(kMaxTransferBytes)};
    }
    inter_.buffers = wire_buffers();
    inter_.optional_completion = nccl_env_number("NCCL_NET_OPTIONAL_RECV_COMPLETION", 1) != 0;
    inter_.attributes = {{-1, -1, -1, -1}, {-1, -1, -1, -1}, ~0u, ~0u, ~0u};
    if (inter_.table->set_net_attr != nullptr) {
        const int32_t peers = std::max(1, members_.size() - 1);
        inter_.attributes.send = inter_.attributes.recv = {peers, 1, 1, 1};
        (void)inter_.table->set_net_attr(inter_.context, &inter_.attributes);
    }
    return {};
}

Status Transport::open_tuner() {
    std::map<int, int> ranks_of_node;
    for (int rank = 0; rank < members_.size(); ++rank) {
        ++ranks_of_node[members_.info(rank).node];
    }
    const auto [least, most] =
        std::minmax_element(ranks_of_node.begin(), ranks_of_node.end(),
                            [](const auto& a, const auto& b) { return a.second < b.second; });
    const int nodes = static_cast<int>(ranks_of_node.size());
    SLIMWIRE_TRY_ASSIGN(tuning_, Tuning::make({members_.comm, nodes, members_.size(), least->second,
                                               most->second, inter_.card.speed_mbps}));
    return {};
}

Status Transport::open(int device, const CommSettings& settings) {
    for (int peer = 0; peer < members_.size(); ++peer) {
        spans_nodes_ = spans_nodes_ || inter_node(peer);
    }
    SLIMWIRE_TRY_ASSIGN(assigned_, assign_net(members_.comm, settings));
    if (staged()) {
        SLIMWIRE_TRY(open_plugin(device));
    } else {
        SLIMWIRE_TRY_ASSIGN(shaper_, job_shaper(""));
    }
    return open_tuner();
}

void Transport::close() noexcept {
    links_.clear();
    const std::lock_guard lock(tuning_mutex_);
    if (staged()) {
        release_net(assigned_);
    }
    inter_ = {};
    assigned_ = {};
    tuning_.reset();
}

Link& Transport::link(int peer, Channel channel, bool sending) {
    std::unique_ptr<Link>& entry = links_[{peer, channel, sending}];
    if (entry == nullptr) {
        const bool far = inter_node(peer);
        if (far && staged()) {
            entry = std::make_unique<StagedLink>(members_, inter_, peer, channel, sending);
        } else {
            entry = std::make_unique<SharedLink>(members_, shaper_, peer, channel, sending, far);
        }
    }
    return *entry;
}

Status Transport::tune(Task* task) {
    const std::lock_guard lock(tuning_mutex_);
    if (is_point_to_point(task->kind)) {
        const bool ll = staged() && task->bytes() <= inter_.buffers.p2p_ll_limit;
        task->protocol = ll ? Protocol::kLl : Protocol::kSimple;
        return {};
    }
    if (members_.size() > 1 && tuning_ != nullptr) {
        SLIMWIRE_TRY_ASSIGN(task->protocol, tuning_->choose(*task));
    }
    return {};
}

size_t Transport::collective_message(Protocol protocol, size_t otherwise) const noexcept {
    return staged() && spans_nodes_ ? inter_.buffers.capacity(protocol, false) : otherwise;
}

}  // namespace slimwire::emu
