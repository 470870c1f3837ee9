#include "collectives/identity/step_detector.h"

#include <algorithm>
#include <bit>
#include <unordered_map>
#include <utility>

namespace slimwire {
namespace {

constexpr unsigned long long kFirstRing = 32;  // calls; a power of two

// Where the only longest run of gathers begins, of a block with reduce-scatters; its size where
// there is none.
uint32_t first_gather(const std::vector<StreamCall>& kinds) {
    const auto size = static_cast<uint32_t>(kinds.size());
    const auto is = [&](uint32_t i, StreamCall kind) { return kinds[i % size] == kind; };
    if (std::count(kinds.begin(), kinds.end(), StreamCall::kReduceScatter) == 0) {
        return size;
    }
    uint32_t found = size, longest = 0;
    for (uint32_t i = 0; i < size; ++i) {
        if (!is(i, StreamCall::kAllGather) || is(i + size - 1, StreamCall::kAllGather)) {
            continue;
        }
        uint32_t run = 1;
        while (is(i + run, StreamCall::kAllGather)) {
            ++run;
        }
        found = run > longest ? i : run == longest ? size : found;
        longest = std::max(longest, run);
    }
    return found;
}

// Where the step begins: behind the flag of an overflow or else a norm, and what other marks follow
// it; the least such rotation. Where there are none, or so many that they mark something else, the
// first gather, or else the least rotation of all.
uint32_t first_call(const std::vector<uint64_t>& block, const std::vector<StreamCall>& kinds) {
    constexpr size_t kMostMarked = 16;
    const auto size = static_cast<uint32_t>(block.size());
    std::vector<uint32_t> begins;
    StepMark best = StepMark::kNone;
    for (uint32_t i = 0; i < size; ++i) {
        if (step_mark(block[i]) != StepMark::kNone) {
            continue;
        }
        StepMark before = StepMark::kNone;  // the highest of the marks just before it
        for (uint32_t back = 1; back < size; ++back) {
            const StepMark mark = step_mark(block[(i + size - back) % size]);
            if (mark == StepMark::kNone) {
                break;
            }
            before = std::max(before, mark);
        }
        if (before > best) {
            begins.clear();
            best = before;
        }
        if (before == best && best != StepMark::kNone) {
            begins.push_back(i);
        }
    }
    if (begins.empty() || begins.size() > kMostMarked) {
        if (const uint32_t gather = first_gather(kinds); gather < size) {
            return gather;
        }
        // Only the begins of runs: where thousands of calls are equal, comparing all takes long.
        begins.clear();
        const uint64_t least = *std::min_element(block.begin(), block.end());
        for (uint32_t i = 0; i < size; ++i) {
            if (block[i] == least && block[(i + size - 1) % size] != least) {
                begins.push_back(i);
            }
        }
        if (begins.empty()) {
            return 0;  // all are equal
        }
    }
    const auto earlier = [&](uint32_t a, uint32_t b) {
        for (uint32_t i = 0; i < size; ++i) {
            const uint64_t x = block[(a + i) % size], y = block[(b + i) % size];
            if (x != y) {
                return x < y;
            }
        }
        return false;
    };
    return *std::min_element(begins.begin(), begins.end(), earlier);
}

}  // namespace

StepDetector::StepDetector(const StepLimits& limits) : limits_(limits) {
    limits_.history = std::bit_ceil(limits.history);
    ring_.resize(std::min(kFirstRing, 2ull * limits_.history));
    kinds_.resize(ring_.size());
    for (Knowledge* knowledge : {&now_, &marked_}) {
        knowledge->paths.reserve(limits.paths);
        knowledge->anchors.reserve(limits.paths);
    }
}

uint32_t StepDetector::least_recall(const Path& path) const noexcept {
    return std::max(2 * static_cast<uint32_t>(path.block->size()), limits_.recall_calls);
}

// A block that is soon left again is more likely a part of another step: it is asked for more,
// until that other one comes back first.
void StepDetector::leave() noexcept {
    Path& left = now_.paths[now_.current];
    left.recall_calls =
        now_.calls - now_.turned < 2ull * left.recall_calls
            ? std::min(2 * left.recall_calls, std::max(least_recall(left), limits_.learn_calls))
            : least_recall(left);
    left.used = now_.calls;
    now_.following = false;
    now_.turned = now_.calls - 1;
    now_.unchecked = 0;
}

StepPosition StepDetector::follow() noexcept {
    const Path& path = now_.paths[now_.current];
    const Block& block = *path.block;
    const uint32_t occurrence = block.occurrence[now_.position];
    StepPosition place{path.id,          now_.current, now_.position,
                       now_.steps,       occurrence,   block.equals[now_.position],
                       block.size() == 1};
    GatheredSteps& gathered = now_.gathered;
    if (block.gathered) {
        place.ordinal = occurrence;
        place.begins = now_.position == 0;
        gathered.path = path.id;
        gathered.calls = static_cast<uint32_t>(block.size());
        gathered.first = 0;
    }
    if (++now_.position == path.block->size()) {
        now_.position = 0;
        ++now_.steps;
        gathered.first = block.gathered ? block.calls.front() : gathered.first;
    }
    return place;
}

StepPosition StepDetector::next(uint64_t signature, StreamCall kind) {
    if (now_.calls == ring_.size() && ring_.size() < 2ull * limits_.history) {
        ring_.resize(2 * ring_.size());  // of which nothing was overwritten yet
        kinds_.resize(ring_.size());
    }
    ring_[now_.calls & (ring_.size() - 1)] = signature;
    kinds_[now_.calls & (ring_.size() - 1)] = kind;
    ++now_.calls;
    now_.gathered.came += signature == now_.gathered.counter ? 1 : 0;
    if (now_.following) {
        if (now_.paths[now_.current].block->calls[now_.position] == signature) {
            return follow();
        }
        if (kind == StreamCall::kStartUp) {
            return {};
        }
        leave();
    }
    if (!recall(signature) && !learn_young(kind) && !learn()) {
        StepPosition unknown;
        unknown.begins = signature == now_.gathered.first;
        unknown.repeats = young_repeats();
        now_.gathered.first = unknown.begins ? 0 : now_.gathered.first;
        return unknown;
    }
    count_by(*now_.paths[now_.current].block);
    now_.following = true;
    now_.turned = now_.calls;
    return follow();
}

// Whether the last calls are the whole block, ending with its anchor.
bool StepDetector::came(const Path& path) const noexcept {
    const std::vector<uint64_t>& block = path.block->calls;
    size_t distance = 0;
    while (distance < block.size() &&
           back(distance) == block[(path.anchor + block.size() - distance) % block.size()]) {
        ++distance;
    }
    return distance == block.size();
}

// Looks only at calls like a known block's rarest.
bool StepDetector::recall(uint64_t signature) noexcept {
    for (uint32_t i = 0; i < now_.anchors.size(); ++i) {
        if (now_.anchors[i] != signature) {
            continue;
        }
        Path& path = now_.paths[i];
        const auto size = static_cast<uint32_t>(path.block->size());
        if (now_.calls < size || !came(path)) {
            continue;
        }
        path.whole = path.whole > 0 && path.whole_at + size == now_.calls ? path.whole + 1 : 1;
        path.whole_at = now_.calls;
        if (path.whole * size >= path.recall_calls) {
            now_.current = i;
            now_.position = path.anchor;
            return true;
        }
    }
    return false;
}

// The period of the last n calls is n less their longest border, and grows with n (Knuth, Morris
// and Pratt). Looking each time the history grew by a quarter, a call costs a constant on average.
bool StepDetector::learn() {
    const auto known =
        static_cast<uint32_t>(std::min<uint64_t>(now_.calls - now_.turned, limits_.history));
    ++now_.unchecked;
    if (known < limits_.learn_calls || now_.unchecked < std::max(64u, known / 4)) {
        return false;
    }
    now_.unchecked = 0;
    borders_.resize(limits_.history + 1ull);
    uint32_t border = 0;
    uint32_t* const borders = borders_.data();
    borders[1] = 0;
    for (uint32_t n = 2; n <= known; ++n) {
        const uint64_t call = back(n - 1);
        while (border > 0 && back(border) != call) {
            border = borders[border];
        }
        border += back(border) == call ? 1 : 0;
        borders[n] = border;
        const uint32_t period = n - border;
        if (period > known / 3) {
            return false;
        }
        if (n >= limits_.learn_calls && period > 1 && n / 3 >= period) {
            adopt(period);
            return true;
        }
    }
    return false;
}

// The same of the stream's first calls, each time: all of them must be the block again and again.
bool StepDetector::learn_young(StreamCall kind) {
    if (now_.turned > 0 || now_.young >= limits_.learn_calls) {
        return false;
    }
    if (now_.young == 0) {
        now_.begin = now_.calls - 1;
        if (kind == StreamCall::kStartUp) {
            return false;
        }
    }
    const uint32_t n = ++now_.young;
    young_borders_.resize(std::max<size_t>(young_borders_.size(), n + 1ull));
    now_.kinds |=
        1u << static_cast<unsigned>(kind == StreamCall::kAllGather ? StreamCall::kOther : kind);
    const uint64_t call = back(0);
    const auto at = [&](uint32_t i) { return ring_[(now_.begin + i) & (ring_.size() - 1)]; };
    uint32_t border = n > 1 ? young_borders_[n - 1] : 0;
    while (border > 0 && at(border) != call) {
        border = young_borders_[border];
    }
    border += n > 1 && at(border) == call ? 1 : 0;
    young_borders_[n] = border;
    const uint32_t period = n - border;
    const bool is_step =
        period == 1 ? n >= 3 && now_.kinds == 1u << static_cast<unsigned>(StreamCall::kAllReduce)
                    : n / limits_.young_times >= period && std::popcount(now_.kinds) > 1;
    if (!is_step) {
        return false;
    }
    adopt(period);
    return true;
}

uint32_t StepDetector::young_repeats() const noexcept {
    const uint32_t n = now_.young;
    return n > 0 && now_.turned == 0 && std::popcount(now_.kinds) > 1 ? n / (n - young_borders_[n])
                                                                      : 0;
}

// The reduce-scatter that comes least often, or what steps are counted by already.
void StepDetector::choose_counter(Block* made, const std::vector<StreamCall>& kinds) const {
    const auto counted = std::find(made->calls.begin(), made->calls.end(), now_.gathered.counter);
    auto found = static_cast<size_t>(counted - made->calls.begin());
    for (size_t i = 0; i < made->size() && counted == made->calls.end(); ++i) {
        if (kinds[i] == StreamCall::kReduceScatter &&
            (found == made->size() || made->equals[i] < made->equals[found])) {
            found = i;
        }
    }
    made->counter = made->calls[found];
    made->counts = made->equals[found];
}

// Steps since the last ones were left are counted anew, as far back as is known.
void StepDetector::count_by(const Block& block) noexcept {
    GatheredSteps& gathered = now_.gathered;
    if (!block.gathered || (block.counter == gathered.counter && block.counts == gathered.times)) {
        return;
    }
    const uint64_t known = std::min<uint64_t>(now_.calls - now_.turned, limits_.history);
    uint64_t as_before = 0, came = 0;
    for (uint64_t distance = 0; distance < known; ++distance) {
        as_before += back(distance) == gathered.counter ? 1 : 0;
        came += back(distance) == block.counter ? 1 : 0;
    }
    gathered.before += (gathered.came - as_before) / gathered.times;
    gathered.came = came;
    gathered.counter = block.counter;
    gathered.times = block.counts;
}

// Takes the last `period` calls for a step, with the last of them being the call at hand.
void StepDetector::adopt(uint32_t period) {
    Block made;
    std::vector<uint64_t>& block = made.calls;
    block.resize(period);
    std::vector<StreamCall> kinds(period);
    for (uint32_t i = 0; i < period; ++i) {
        block[i] = back(period - 1 - i);
        kinds[i] = kinds_[(now_.calls - period + i) & (ring_.size() - 1)];
    }
    const uint32_t begin = first_call(block, kinds);
    std::rotate(block.begin(), block.begin() + static_cast<std::ptrdiff_t>(begin), block.end());
    made.gathered = kinds[begin] == StreamCall::kAllGather &&
                    std::count(kinds.begin(), kinds.end(), StreamCall::kReduceScatter) > 0;
    std::rotate(kinds.begin(), kinds.begin() + static_cast<std::ptrdiff_t>(begin), kinds.end());
    uint64_t id = period;
    for (uint32_t i = 0; i < period; ++i) {
        id = mixed(id ^ (made.gathered ? static_cast<uint64_t>(kinds[i]) : block[i])) +
             0x9E3779B97F4A7C15ull;
    }
    std::unordered_map<uint64_t, uint32_t> times;
    for (const uint64_t call : block) {
        made.occurrence.push_back(times[call]++);
    }
    for (const uint64_t call : block) {
        made.equals.push_back(times[call]);
    }
    if (made.gathered) {
        choose_counter(&made, kinds);
    }
    const auto older = [](const Path& a, const Path& b) { return a.used < b.used; };
    if (now_.paths.size() < limits_.paths) {
        now_.current = static_cast<uint32_t>(now_.paths.size());
        now_.paths.emplace_back();
        now_.anchors.push_back(0);
    } else {
        const auto oldest = std::min_element(now_.paths.begin(), now_.paths.end(), older);
        now_.current = static_cast<uint32_t>(oldest - now_.paths.begin());
    }
    now_.position = period - 1 - begin;
    Path path;
    path.id = std::max<uint64_t>(id, 1);
    path.anchor = static_cast<uint32_t>(std::min_element(made.equals.begin(), made.equals.end()) -
                                        made.equals.begin());
    now_.anchors[now_.current] = block[path.anchor];
    path.block = std::make_shared<const Block>(std::move(made));
    path.recall_calls = least_recall(path);
    path.used = now_.calls;
    now_.paths[now_.current] = std::move(path);
}

}  // namespace slimwire
