#include "tools/emulator/nccl/execution/p2p.h"

#include <algorithm>
#include <cstring>
#include <string>

namespace slimwire::emu {
namespace {

constexpr size_t kMessagesInFlight = 16;

// Pairs sends to oneself with receives from oneself, in order.
Status copy_to_self(const std::vector<Task>& tasks, int rank) {
    std::deque<const Task*> sends;
    std::deque<const Task*> receives;
    for (const Task& task : tasks) {
        if (task.root == rank) {
            (task.kind == TaskKind::kSend ? sends : receives).push_back(&task);
        }
    }
    if (sends.size() != receives.size()) {
        return {Code::kInvalidUsage, "rank " + std::to_string(rank) + " sends to itself " +
                                         std::to_string(sends.size()) + " times and receives " +
                                         std::to_string(receives.size()) +
                                         " times in one group: these must be equal"};
    }
    for (size_t i = 0; i < sends.size(); ++i) {
        const size_t sent = sends[i]->count * sends[i]->element_bytes();
        const size_t wanted = receives[i]->count * receives[i]->element_bytes();
        if (sent != wanted) {
            return {Code::kInvalidUsage, "a send to oneself has " + std::to_string(sent) +
                                             " bytes, its receive " + std::to_string(wanted)};
        }
        if (sent > 0) {
            memmove(receives[i]->recv, sends[i]->send, sent);
        }
    }
    return {};
}

}  // namespace

Result<PointToPoint> PointToPoint::make(Transport& transport,
                                        const std::vector<Task>& tasks,
                                        size_t chunk_bytes) {
    const int rank = transport.members().rank;
    SLIMWIRE_TRY(copy_to_self(tasks, rank));
    PointToPoint result;
    std::map<std::pair<int, bool>, size_t> flow_of;
    for (const Task& task : tasks) {
        if (task.root == rank) {
            continue;
        }
        const bool sending = task.kind == TaskKind::kSend;
        const auto [entry, created] =
            flow_of.try_emplace({task.root, sending}, result.flows_.size());
        if (created) {
            Link& link = transport.link(task.root, Channel::kPointToPoint, sending);
            result.flows_.push_back({&link, sending, task.root, {}, {}});
        }
        const void* data = sending ? task.send : task.recv;
        Flow& flow = result.flows_[entry->second];
        const size_t largest = flow.link->largest_message(task.protocol);
        const size_t message_bytes = largest != 0 ? largest : chunk_bytes;
        flow.waiting.push_back({static_cast<unsigned char*>(const_cast<void*>(data)), task.bytes(),
                                message_bytes, WireOperation::of(task, task.bytes())});
    }
    // Every rank begins with its next neighbour, so that no two begin with the same receiver.
    const int ranks = transport.members().size();
    const auto distance = [&](const Flow& flow) {
        return (flow.sending ? flow.peer - rank + ranks : rank - flow.peer + ranks) % ranks;
    };
    std::stable_sort(result.flows_.begin(), result.flows_.end(),
                     [&](const Flow& a, const Flow& b) { return distance(a) < distance(b); });
    return result;
}

bool PointToPoint::done() const noexcept {
    return std::all_of(flows_.begin(), flows_.end(), [](const Flow& flow) { return flow.done(); });
}

bool PointToPoint::waits_for(int rank) const noexcept {
    return std::any_of(flows_.begin(), flows_.end(),
                       [&](const Flow& flow) { return flow.peer == rank && !flow.done(); });
}

Status PointToPoint::start_one(Flow& flow, bool* moved) {
    if (flow.waiting.empty() || flow.in_flight.size() >= kMessagesInFlight) {
        return {};
    }
    Buffer& buffer = flow.waiting.front();
    const size_t bytes = std::min(buffer.message_bytes, buffer.bytes - buffer.started);
    InFlight message{{}, bytes};
    bool started = false;
    SLIMWIRE_TRY(flow.link->start(buffer.data + buffer.started, bytes, buffer.operation,
                                  &message.transfer, &started));
    if (!started) {
        return {};
    }
    buffer.started += bytes;
    buffer.empty_started = true;
    flow.in_flight.push_back(message);
    if (buffer.all_started()) {
        flow.waiting.pop_front();
    }
    *moved = true;
    return {};
}

Status PointToPoint::complete(Flow& flow, bool* moved) {
    while (!flow.in_flight.empty()) {
        InFlight& oldest = flow.in_flight.front();
        bool finished = false;
        size_t bytes = 0;
        SLIMWIRE_TRY(flow.link->test(&oldest.transfer, &finished, &bytes));
        if (!finished) {
            return {};
        }
        if (bytes != oldest.bytes) {
            return {Code::kInvalidUsage, "rank " + std::to_string(flow.peer) + " sent " +
                                             std::to_string(bytes) + " bytes where " +
                                             std::to_string(oldest.bytes) + " were expected"};
        }
        flow.in_flight.pop_front();
        *moved = true;
    }
    return {};
}

Status PointToPoint::advance(bool* moved) {
    for (Flow& flow : flows_) {
        SLIMWIRE_TRY(complete(flow, moved));
    }
    // One message of each flow in turn, so that peers share the wire evenly.
    for (bool again = true; again;) {
        again = false;
        for (Flow& flow : flows_) {
            SLIMWIRE_TRY(start_one(flow, &again));
        }
        *moved = *moved || again;
    }
    return {};
}

}  // namespace slimwire::emu
