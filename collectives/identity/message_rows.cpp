#include "collectives/identity/message_rows.h"

#include <cstring>
#include <string>
#include <utility>

#include "codecs/base/device_scope.h"
#include "collectives/call/log.h"
#include "collectives/communicator/communicator.h"

namespace slimwire {
namespace {

constexpr int64_t kMostDimensions = 8;
// Of DeepSpeed's int32: how many, and the first of a tuple.
constexpr uint64_t kMetaWords = 256;
constexpr int64_t kTuple = 2;

// Of several tensors, each with a row of its own.
bool is_tuple(DType dtype, std::span<const std::byte> values) noexcept {
    int32_t words[2] = {};
    std::memcpy(words, values.data(), sizeof(words));
    return dtype == DType::kInt32 && words[0] == kTuple && words[1] > 1;
}

bool is_floats(DType dtype) noexcept {
    return dtype == DType::kFloat32 || dtype == DType::kFloat16 || dtype == DType::kBfloat16;
}

}  // namespace

bool MessageRows::may_be_header(const CallSignature& signature) noexcept {
    return (signature.dtype == DType::kInt64 && signature.count >= 2 &&
            signature.count <= uint64_t{kMostDimensions}) ||
           (signature.dtype == DType::kInt32 && signature.count == kMetaWords);
}

uint32_t MessageRows::row_told(DType dtype, std::span<const std::byte> values, uint64_t count) {
    const auto word = [&](size_t at) -> int64_t {
        int64_t wide = 0;
        int32_t narrow = 0;
        std::memcpy(dtype == DType::kInt64 ? static_cast<void*>(&wide) : &narrow,
                    values.data() + at * dtype_bytes(dtype), dtype_bytes(dtype));
        return dtype == DType::kInt64 ? wide : narrow;
    };
    const auto words = static_cast<int64_t>(values.size() / dtype_bytes(dtype));
    // Of a shape that begins at `at`.
    const auto row_at = [&](int64_t at, int64_t dimensions) -> uint32_t {
        if (dimensions < 2 || dimensions > kMostDimensions) {
            return 0;
        }
        uint64_t elements = 1, row = 0;
        for (const int64_t end = at + dimensions; at < end; ++at) {
            const int64_t extent = word(static_cast<size_t>(at));
            if (extent <= 0 || extent > INT32_MAX ||
                elements > count / static_cast<uint64_t>(extent)) {
                return 0;
            }
            row = static_cast<uint64_t>(extent);
            elements *= row;
        }
        return elements == count && row > 1 ? static_cast<uint32_t>(row) : 0;
    };
    if (dtype == DType::kInt64) {
        return row_at(0, words);
    }
    const bool tuple = word(0) == kTuple;
    int64_t at = tuple ? 2 : 1;
    uint32_t row = 0;
    for (int64_t left = tuple ? word(1) : word(0) == 0 ? 1 : 0; left > 0; --left) {
        const int64_t dimensions = at + 1 < words ? word(static_cast<size_t>(at) + 1) : -1;
        if (dimensions < 0 || dimensions > words - at - 2) {  // behind its type and their number
            return 0;
        }
        const uint32_t own = row_at(at + 2, dimensions);
        if (own != 0 && row != 0 && own != row) {
            return 0;
        }
        row = own != 0 ? own : row;
        at += 2 + dimensions;
    }
    return row;
}

bool MessageRows::wants(const CallSignature& signature) const noexcept {
    if (!may_be_header(signature) && (!is_floats(signature.dtype) || signature.count == 0)) {
        return false;
    }
    const auto found = peers_.find(signature.root_or_peer);
    if (found == peers_.end()) {
        return true;
    }
    // In evaluation no number goes on.
    const Told& told = found->second.now;
    return !told.settled && told.reads.size() < kMostRead &&
           told.forward.value_or(signature.op) == signature.op;
}

Status MessageRows::hear(const DeviceApi& api,
                         Communicator* state,
                         const CollectiveCall& call,
                         bool captured,
                         uint64_t group) {
    const CallSignature& signature = call.signature;
    Peer& peer = peers_[signature.root_or_peer];
    if (group != 0 && group != peer.group) {
        peer.before = peer.now;
        peer.group = group;
    }
    const bool sent = signature.op == Op::kSend;
    std::vector<Header>& waiting = peer.now.waiting[sent ? 0 : 1];
    if (!may_be_header(signature)) {
        peer.now.taken.reset();
        if (!waiting.empty()) {
            peer.now.taken = std::move(waiting.front());
            waiting.erase(waiting.begin());
        }
        return {};
    }
    if (waiting.size() == kMostWaiting) {
        waiting.erase(waiting.begin());
    }
    Header& header = waiting.emplace_back();
    header.dtype = signature.dtype;
    if (captured) {
        return {};
    }
    header.value = std::make_shared<HostValue>(signature.count * dtype_bytes(signature.dtype));
    if (!sent) {
        arriving_.push_back({header.value, call.recv, call.stream});
        return {};
    }
    // In front of the message, which may wait for the other rank.
    return copy(api, state, {{header.value, call.send, call.stream}});
}

Status MessageRows::copy(const DeviceApi& api,
                         Communicator* state,
                         const std::vector<Wanted>& wanted) {
    const InUse use(state);
    if (state->ended) {
        return {};  // which the program's call says
    }
    const DeviceScope device(api, state->device);
    for (const Wanted& one : wanted) {
        SLIMWIRE_TRY(state->objects.copies.to_host(api, one.from, one.value, one.stream));
    }
    return {};
}

Status MessageRows::launched(const DeviceApi& api, Communicator* state) {
    const std::vector<Wanted> arrived = std::exchange(arriving_, {});
    SLIMWIRE_TRY(await_launch(api, *state, "the launch of a header"));
    return copy(api, state, arrived);
}

// Reads what messages before this number took.
Status MessageRows::settle(
    const DeviceApi& api, const Communicator& state, int peer, uint64_t number, Told* told) {
    while (!told->reads.empty() && told->reads.front().number + kLag <= number) {
        const Read read = std::move(told->reads.front());
        told->reads.erase(told->reads.begin());
        uint32_t row = 0;
        if (const HostValue* const value = read.header.value.get(); value != nullptr) {
            SLIMWIRE_TRY(
                await_value(api, state, state.objects.copies, *value, "the values of a header"));
            row = row_told(read.header.dtype, value->bytes, read.count);
        }
        if (row != 0 && told->row == 0) {
            told->row = row;
            told->first = read.number;
            if (is_tuple(read.header.dtype, read.header.value->bytes)) {
                told->tuple = read.header.value;
            }
        }
        told->unlike |= row != 0 && row != told->row;
        told->idle += row == 0 ? 1 : 0;
    }
    if (told->row != 0 ? number >= told->first + 2 * kLag : told->idle >= kMostRead) {
        told->settled = true;
        told->waiting = {};
        told->reads = {};
        if (told->row != 0) {
            log_line(LogLevel::kInfo,
                     log_prefix(state) + ": messages to and from rank " + std::to_string(peer) +
                         (told->unlike  ? " have rows of several lengths, and go natively"
                          : told->tuple ? " have the rows of a tuple of tensors"
                                        : " have rows of " + std::to_string(told->row)));
        }
    }
    return {};
}

Result<uint32_t> MessageRows::next(const DeviceApi& api,
                                   const Communicator& state,
                                   const CallSignature& signature,
                                   const MessagePairing::Place& place) {
    const auto found = peers_.find(signature.root_or_peer);
    if (found == peers_.end()) {
        return 0u;
    }
    Told& told = found->second.now;
    const bool forward = signature.op == place.forward;
    told.forward = place.forward;
    if (forward && !told.settled) {
        SLIMWIRE_TRY(settle(api, state, found->first, place.number, &told));
        if (told.taken.has_value()) {
            told.reads.push_back({*std::exchange(told.taken, {}), place.number, signature.count});
        }
    }
    const uint64_t begins = told.first + 2 * kLag + (forward ? 0 : kAnswersLater);
    const bool has = told.row != 0 && !told.unlike && place.direction != Direction::kUnknown &&
                     place.number >= begins;
    if (has && told.tuple != nullptr) {
        return row_told(DType::kInt32, told.tuple->bytes, signature.count);
    }
    return has && signature.count % told.row == 0 ? told.row : 0u;
}

void MessageRows::rewind(uint64_t group) noexcept {
    for (auto& [number, peer] : peers_) {
        if (peer.group == group) {
            std::swap(peer.now, peer.before);
            peer.group = 0;
        }
    }
    arriving_.clear();
}

}  // namespace slimwire
