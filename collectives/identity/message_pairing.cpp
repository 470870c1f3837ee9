#include "collectives/identity/message_pairing.h"

#include <algorithm>

namespace slimwire {

MessagePairing::Place MessagePairing::next(const Message& message, const PairOrder& order) {
    if (message.group != 0 && message.group != group_) {
        before_ = state_;
        group_ = message.group;
    }
    if (message.mark != state_.mark) {
        for (Way& way : state_.ways) {
            way.drop_oldest(way.open.size());
            way.unasked = true;
            way.first = way.numbers[0];
            way.numbers[1] = way.numbers[0];
        }
        state_.mark = message.mark;
        for (State::Exchanged& one : state_.exchanged) {
            one.end_step();
        }
    }
    if (order.calls > 0) {
        return exchange(message, order);
    }
    if (!state_.forward.has_value()) {
        state_.forward = message.op;
        state_.first_group = message.group;
    } else if (message.op != *state_.forward && message.group != 0 &&
               message.group == state_.first_group) {
        state_.both_ways = true;
    }
    state_.told |= !message.training;
    const bool forward = message.op == *state_.forward;
    Way& way = state_.ways[*state_.forward == Op::kRecv ? 1 : 0];
    uint64_t& number = way.numbers[forward ? 0 : 1];
    Place place;
    place.mark = message.mark;
    place.forward = *state_.forward;
    place.number = number;
    number += message.training ? 1 : 0;
    if (state_.both_ways) {
        return place;
    }
    place.waits = forward && message.training;
    place.behind = forward ? std::max(way.numbers[1], place.number) - place.number : 0;
    if (place.number >= kUndirected) {
        place.direction = forward ? Direction::kForward : Direction::kBackward;
    }
    if (!forward) {
        if (message.mark == 0 && !state_.told) {
            way.end_asking();
        }
        const auto open = way.answer(message.asked != 0 ? message.asked : message.kind, order);
        place.answers = open.has_value() ? std::optional(open->number) : std::nullopt;
    } else if (place.waits) {
        way.add({place.number, message.kind});
    }
    return place;
}

// Where nothing would show that groups stop early, what is missing may add up to whole periods:
// then as many calls are also those of more periods, each shorter.
void MessagePairing::State::Exchanged::end_step() noexcept {
    if (calls == 0) {
        return;
    }
    const uint64_t left = calls % period;
    whole = (left == 0 || (cut > 0 && (left == cut || calls < period))) && !other;
    for (uint64_t more = calls / period + 1; whole && alike && more * least <= calls; ++more) {
        whole = calls % more != 0;
    }
    unlike = !whole;
    alike = other = false;
    calls = 0;
}

MessagePairing::State::Exchanged& MessagePairing::counted(const Message& message,
                                                          const PairOrder& order) {
    std::vector<State::Exchanged>& all = state_.exchanged;
    const bool received = message.op == Op::kRecv;
    const auto found = std::find_if(all.begin(), all.end(), [&](const State::Exchanged& one) {
        return one.rule == order.rule && one.received == received &&
               one.training == message.training;
    });
    if (found != all.end()) {
        return *found;
    }
    const bool again = message.training && order.again > 0;
    const uint64_t period = (!message.training ? 1 : again ? 3 : 2) * uint64_t{order.calls};
    const uint64_t least =
        again && !order.stops_said ? 2 * order.calls + order.calls / order.again : period;
    return *all.insert(found, {order.rule, received, message.training, period, least,
                               again ? 0 : order.calls, state_.resumed_whole.value_or(!again)});
}

MessagePairing::Place MessagePairing::exchange(const Message& message, const PairOrder& order) {
    Place place;
    place.mark = message.mark;
    const bool received = message.op == Op::kRecv;
    place.forward = received ? Op::kRecv : Op::kSend;
    if (message.mark == 0) {
        return place;
    }
    const Place unknown = place;
    State::Exchanged& of = counted(message, order);
    const uint64_t at = of.calls % of.period;
    bool repeats = false, answers_begin = false;
    if (at >= order.calls && order.again > 0) {
        const uint64_t group = (at - order.calls) / (2 * order.again) + 1;
        const uint64_t within = (at - order.calls) % (2 * order.again);
        repeats = within + order.skipped < order.again &&
                  of.kinds[order.calls - group * order.again + within] == message.kind;
        answers_begin = !repeats && within <= order.again;
        if (answers_begin) {
            const uint64_t stops = order.again - within;
            of.other |= within == 0 || (group > 1 && stops != of.stops);
            of.whole &= !of.other;
            of.stops = stops;
            of.calls += stops;
        }
        const auto first = of.kinds.end() - static_cast<int64_t>(group * order.again);
        const auto end = first + order.again;
        of.alike |= within == order.again && std::find(first + 1, end, message.kind) != end;
    }
    ++of.calls;
    const bool forward = at < order.calls || repeats;
    place.direction = forward ? Direction::kForward : Direction::kBackward;
    if (forward && !repeats) {
        if (at == 0) {
            of.kinds.clear();
        }
        place.ordinal =
            static_cast<uint32_t>(std::count(of.kinds.begin(), of.kinds.end(), message.kind));
        of.kinds.push_back(message.kind);
    }
    if (!message.training) {
        return place;
    }
    place.forward = is_point_to_point(message.op) && received == forward ? Op::kRecv : Op::kSend;
    Way& way = state_.ways[place.forward == Op::kRecv ? 1 : 0];
    place.number = way.numbers[forward ? 0 : 1]++;
    place.waits = forward;
    if (repeats) {
        const std::optional<Open> before = way.take_again(order);
        place.ordinal = before.has_value() ? std::optional(before->ordinal) : std::nullopt;
    }
    if (forward) {
        way.add({.number = place.number,
                 .kind = message.kind,
                 .ordinal = place.ordinal.value_or(0),
                 .rule = order.rule,
                 .again = repeats});
    } else {
        if (answers_begin) {
            way.end_again(order);
        }
        // Which collective answers none all ranks know alike: it has positions of its own.
        const auto open = way.answer(message.asked != 0 ? message.asked : message.kind, order);
        if (open.has_value()) {
            place.answers = open->number;
            place.ordinal = open->ordinal;
            place.answers_native = open->native;
        } else if (!is_point_to_point(message.op)) {
            place.direction = Direction::kUnknown;
        }
    }
    if (!of.whole) {
        place = unknown;
        place.unlike = of.unlike && of.calls == 1;
    }
    return place;
}

void MessagePairing::use(uint64_t code, Place* place) {
    Way& way = state_.ways[place->forward == Op::kRecv ? 1 : 0];
    auto used = std::find_if(way.used.begin(), way.used.end(),
                             [&](const Used& one) { return one.code == code; });
    if (used == way.used.end()) {
        used = way.used.insert(used, {code, 0});
    }
    place->use = used->times++;
    if (place->waits && !way.open.empty()) {
        way.open.back().code = code;
    }
    place->last = place->answers.has_value() &&
                  std::none_of(way.open.begin(), way.open.end(),
                               [&](const Open& one) { return one.code == code; });
}

void MessagePairing::stays_native() noexcept {
    if (std::vector<Open>& open = state_.ways[0].open; !open.empty()) {
        open.back().native = true;
    }
}

bool MessagePairing::newest_use(uint64_t code, const Place& place) const noexcept {
    const Way& way = state_.ways[place.forward == Op::kRecv ? 1 : 0];
    return std::any_of(way.used.begin(), way.used.end(), [&](const Used& one) {
        return one.code == code && one.times == place.use + 1;
    });
}

void MessagePairing::rewind(uint64_t group) noexcept {
    if (group_ == group) {
        std::swap(state_, before_);
        group_ = 0;
    }
}

std::vector<uint64_t> MessagePairing::save() const {
    const bool known = state_.forward.has_value();
    const bool unlike =
        std::any_of(state_.exchanged.begin(), state_.exchanged.end(), [](State::Exchanged one) {
            one.end_step();
            return one.training && !one.whole;
        });
    std::vector<uint64_t> saved = {known ? static_cast<uint64_t>(*state_.forward) + 1 : 0,
                                   (state_.both_ways ? 1u : 0u) + (unlike ? 2u : 0u)};
    for (const Way& way : state_.ways) {
        saved.insert(saved.end(), {way.numbers[0], way.numbers[1], way.usual, way.newest});
    }
    return saved;
}

bool MessagePairing::go_on(std::span<const uint64_t> saved) {
    if (saved.size() != 10 || saved[0] > static_cast<uint64_t>(kOpCount)) {
        return false;
    }
    state_ = before_ = {};
    state_.resumed_whole = saved[1] < 2;
    if (saved[0] > 0) {
        state_.forward = static_cast<Op>(saved[0] - 1);
    }
    state_.both_ways = saved[1] % 2 != 0;
    saved = saved.subspan(2);
    for (Way& way : state_.ways) {
        way.numbers[0] = saved[0];
        way.numbers[1] = saved[1];
        way.usual = saved[2];
        way.newest = saved[3] != 0;
        saved = saved.subspan(4);
    }
    return true;
}

void MessagePairing::Way::drop_oldest(size_t count) noexcept {
    open.erase(open.begin(), open.begin() + static_cast<int64_t>(count));
}

void MessagePairing::Way::add(const Open& one) {
    unasked |= open.empty();
    drop_oldest(open.size() == kMostOpen ? 1 : 0);
    open.push_back(one);
}

std::optional<MessagePairing::Open> MessagePairing::Way::take_again(
    const PairOrder& order) noexcept {
    uint32_t left = order.again;
    for (size_t at = open.size(); at-- > 0;) {
        left -= open[at].rule == order.rule ? 1 : 0;
        if (left == 0) {
            const Open one = open[at];
            open.erase(open.begin() + static_cast<int64_t>(at));
            return one;
        }
    }
    return std::nullopt;
}

void MessagePairing::Way::end_again(const PairOrder& order) noexcept {
    size_t first = open.size();
    for (uint32_t left = order.again; left > 0 && first > 0;) {
        left -= open[--first].rule == order.rule ? 1 : 0;
    }
    for (size_t left = open.size() - first; left > 0; --left) {
        const bool newest = open[first].rule == order.rule && !open[first].again;
        const auto at = open.begin() + static_cast<int64_t>(first);
        std::rotate(at, at + (newest ? 1 : 0), open.end());
        first += newest ? 0 : 1;
    }
}

void MessagePairing::Way::end_asking() noexcept {
    if (unasked) {
        unasked = false;
        const size_t waiting = open.size();
        drop_oldest(usual != 0 && waiting > usual ? waiting - usual : 0);
        usual = std::max(usual, open.size());
    }
}

std::optional<MessagePairing::Open> MessagePairing::Way::answer(uint64_t kind,
                                                                const PairOrder& order) noexcept {
    const size_t at = order.calls > 0 ? due(kind, order) : find(kind, order);
    if (at == open.size()) {
        usual = 0;  // too many may have been dropped
        return std::nullopt;
    }
    const Open one = open[at];
    open.erase(open.begin() + static_cast<int64_t>(at));
    return one;
}

// Exchanges of a rule are answered newest first, or oldest. Another kind than that shows that some
// were left out; then it is known where one alone of the kind waits.
size_t MessagePairing::Way::due(uint64_t kind, const PairOrder& order) const noexcept {
    size_t found = open.size(), of_kind = 0;
    bool in_turn = false;
    for (size_t i = 0; i < open.size(); ++i) {
        const size_t at = order.kind == PairOrder::kFifo ? open.size() - 1 - i : i;
        if (open[at].rule == order.rule) {
            in_turn = open[at].kind == kind;
            found = in_turn ? at : found;
            of_kind += in_turn ? 1 : 0;
        }
    }
    return in_turn || of_kind == 1 ? found : open.size();
}

// The place among those that wait; their number: none.
size_t MessagePairing::Way::find(uint64_t kind, const PairOrder& order) noexcept {
    if (open.empty()) {
        return 0;
    }
    const auto place_of = [&](const auto& fits) {
        return static_cast<size_t>(std::find_if(open.begin(), open.end(), fits) - open.begin());
    };
    if (order.chunks > 1) {
        const uint64_t size = uint64_t{order.chunks} * order.ranks;
        const uint64_t begin = open.front().number / size * size;
        answers = begin == block ? answers : 0;
        block = begin;
        const uint64_t group = answers / order.ranks, within = answers % order.ranks;
        ++answers;
        const uint64_t wanted = begin + (order.chunks - 1 - group) * order.ranks + within;
        return place_of([&](const Open& one) { return one.number == wanted && one.kind == kind; });
    }
    const auto of_kind = [&](const Open& one) { return one.kind == kind; };
    const auto bits = [](uint64_t of) { return 1ull << of % 64 | 1ull << of / 64 % 64; };
    const bool oldest_fits = open.front().kind == kind, newest_fits = open.back().kind == kind;
    // What nothing ever answers may be in front of the oldest that is answered.
    const bool waits = kinds != 0 ? (bits(open.front().kind) & ~kinds) == 0
                                  : std::count_if(open.begin(), open.end(), of_kind) == 1;
    if (oldest_fits != newest_fits && (oldest_fits || waits)) {
        newest = newest_fits;
    }
    kinds |= bits(kind);
    const bool from_newest =
        order.kind == PairOrder::kLifo || (order.kind == PairOrder::kAuto && newest);
    if (!from_newest) {
        return place_of(of_kind);
    }
    const auto last = std::find_if(open.rbegin(), open.rend(), of_kind);
    return last == open.rend() ? open.size() : static_cast<size_t>(open.rend() - last) - 1;
}

}  // namespace slimwire
