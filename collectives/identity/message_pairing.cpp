#include "collectives/identity/message_pairing.h"

#include <algorithm>

namespace slimwire {

MessagePairing::Place MessagePairing::next(const Message& message, const PairOrder& order) {
    if (message.group != 0 && message.group != group_) {
        before_ = state_;
        group_ = message.group;
    }
    if (message.mark != state_.mark) {
        drop_oldest(state_.open.size());
        state_.unasked = true;
        state_.mark = message.mark;
    }
    if (!state_.forward.has_value()) {
        state_.forward = message.op;
        state_.first_group = message.group;
    } else if (message.op != *state_.forward && message.group != 0 &&
               message.group == state_.first_group) {
        state_.both_ways = true;
    }
    Place place;
    uint64_t& number = state_.numbers[message.op == Op::kSend ? 0 : 1];
    place.number = number;
    number += message.training ? 1 : 0;
    if (state_.both_ways) {
        return place;
    }
    const bool forward = message.op == *state_.forward;
    place.waits = forward && message.training;
    if (place.number >= kUndirected) {
        place.direction = forward ? Direction::kForward : Direction::kBackward;
    }
    if (!forward) {
        place.answers = answer(message.kind, order);
    } else if (place.waits) {
        state_.unasked |= state_.open.empty();
        drop_oldest(state_.open.size() == kMostOpen ? 1 : 0);
        state_.open.push_back({place.number, message.kind});
    }
    return place;
}

void MessagePairing::rewind(uint64_t group) noexcept {
    if (group_ == group) {
        std::swap(state_, before_);
        group_ = 0;
    }
}

void MessagePairing::drop_oldest(size_t count) noexcept {
    state_.open.erase(state_.open.begin(), state_.open.begin() + static_cast<int64_t>(count));
    state_.dropped += count;
}

std::optional<uint64_t> MessagePairing::answer(uint64_t kind, const PairOrder& order) noexcept {
    if (state_.unasked) {
        state_.unasked = false;
        const size_t waiting = state_.open.size();
        drop_oldest(state_.usual != 0 && waiting > state_.usual ? waiting - state_.usual : 0);
        state_.usual = std::max(state_.usual, state_.open.size());
    }
    const size_t at = find(kind, order);
    if (at == state_.open.size()) {
        state_.usual = 0;  // too many may have been dropped
        ++state_.unanswered;
        return std::nullopt;
    }
    const uint64_t number = state_.open[at].number;
    state_.open.erase(state_.open.begin() + static_cast<int64_t>(at));
    return number;
}

// The place among those that wait; their number: none.
size_t MessagePairing::find(uint64_t kind, const PairOrder& order) noexcept {
    const std::vector<Open>& open = state_.open;
    if (open.empty()) {
        return 0;
    }
    const auto place_of = [&](const auto& fits) {
        return static_cast<size_t>(std::find_if(open.begin(), open.end(), fits) - open.begin());
    };
    if (order.chunks > 1) {
        const uint64_t size = uint64_t{order.chunks} * order.ranks;
        const uint64_t block = open.front().number / size * size;
        state_.answers = block == state_.block ? state_.answers : 0;
        state_.block = block;
        const uint64_t group = state_.answers / order.ranks, within = state_.answers % order.ranks;
        ++state_.answers;
        const uint64_t wanted = block + (order.chunks - 1 - group) * order.ranks + within;
        return place_of([&](const Open& one) { return one.number == wanted && one.kind == kind; });
    }
    const bool oldest_fits = open.front().kind == kind, newest_fits = open.back().kind == kind;
    if (oldest_fits != newest_fits) {
        state_.newest = newest_fits;
    }
    const bool newest =
        order.kind == PairOrder::kLifo || (order.kind == PairOrder::kAuto && state_.newest);
    const auto of_kind = [&](const Open& one) { return one.kind == kind; };
    if (!newest) {
        return place_of(of_kind);
    }
    const auto last = std::find_if(open.rbegin(), open.rend(), of_kind);
    return last == open.rend() ? open.size() : static_cast<size_t>(open.rend() - last) - 1;
}

}  // namespace slimwire
