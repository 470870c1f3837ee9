#include "collectives/identity/gather_pairs.h"

#include <algorithm>
#include <map>

namespace slimwire {
namespace {

// Where passes over the model begin: long runs of gathers without a reduce-scatter between them,
// against the short ones of backward.
std::vector<size_t> begins_of_passes(const std::vector<StepCall>& step) {
    std::map<size_t, size_t> runs;  // how many gathers, by the first one
    size_t most = 0;
    for (size_t i = 0; i < step.size(); ++i) {
        if (!step[i].scatter) {
            const bool goes_on = i > 0 && !step[i - 1].scatter;
            size_t& gathers = goes_on ? runs.rbegin()->second : runs[i];
            most = std::max(most, ++gathers);
        }
    }
    std::vector<size_t> begins;
    for (const auto& [begin, gathers] : runs) {
        if (2 * gathers > most) {
            begins.push_back(begin);
        }
    }
    return begins;
}

// The calls of one count in one pass, by their places in the step.
struct Class {
    std::vector<size_t> gathers, scatters;
};

// The scatter of each gather, where they are gathered once or twice and each gather comes before
// what reduces it; else empty.
std::vector<size_t> scatters_of(const Class& of, const std::vector<StepCall>& step) {
    const size_t units = of.scatters.size(), gathers = of.gathers.size();
    if (units == 0 || gathers < units || gathers > 2 * units) {
        return {};
    }
    std::vector<size_t> found;
    for (size_t j = 0; j < gathers; ++j) {
        size_t unit = j < units ? units - 1 - j : j - units;
        if (j >= units && gathers < 2 * units) {
            size_t same = 0;
            for (size_t i = 0; i < units; ++i) {
                if (step[of.gathers[i]].sent == step[of.gathers[j]].sent) {
                    unit = units - 1 - i;
                    ++same;
                }
            }
            if (same != 1) {
                return {};
            }
        }
        // Forward is over before the first of them.
        if (of.gathers[j] > of.scatters[j < units ? 0 : unit]) {
            return {};
        }
        found.push_back(of.scatters[unit]);
    }
    return found;
}

void pair_pass(const std::vector<StepCall>& step,
               size_t begin,
               size_t end,
               std::vector<GatherPair>* pairs) {
    std::map<uint64_t, Class> classes;
    for (size_t i = begin; i < end; ++i) {
        Class& of = classes[step[i].count];
        (step[i].scatter ? of.scatters : of.gathers).push_back(i);
    }
    for (const auto& [count, of] : classes) {
        const std::vector<size_t> scatters = scatters_of(of, step);
        for (size_t j = 0; j < scatters.size(); ++j) {
            (*pairs)[of.gathers[j]] = {step[scatters[j]].key, j < of.scatters.size()};
        }
    }
}

}  // namespace

std::vector<GatherPair> pair_gathers(const std::vector<StepCall>& step) {
    std::vector<GatherPair> pairs(step.size());
    const std::vector<size_t> begins = begins_of_passes(step);
    for (size_t pass = 0; pass < begins.size(); ++pass) {
        pair_pass(step, begins[pass], pass + 1 < begins.size() ? begins[pass + 1] : step.size(),
                  &pairs);
    }
    return pairs;
}

void GatherPairs::end_step() {
    // What is only gathered behind it is evaluation, or an optimizer's.
    while (!now_.empty() && !now_.back().scatter) {
        now_.pop_back();
    }
    if (now_.empty()) {
        return;
    }
    const bool goes_on = !known_.empty() && now_.size() >= known_.size() &&
                         std::equal(known_.begin(), known_.end(), now_.begin());
    if (!goes_on) {
        known_.clear();
        if (now_ == last_ && now_.size() <= kMostCalls) {
            known_ = now_;
            pairs_ = pair_gathers(known_);
        }
    }
    std::swap(last_, now_);
    now_.clear();
}

GatherPair GatherPairs::next(const StepCall& call, uint64_t step) {
    if (!begun_ || step != step_) {
        if (begun_) {
            end_step();
        }
        begun_ = true;
        step_ = step;
        follows_ = !known_.empty();
    }
    const size_t at = now_.size();
    if (at <= kMostCalls) {
        now_.push_back(call);
    }
    follows_ = follows_ && at < known_.size() && known_[at] == call;
    return follows_ ? pairs_[at] : GatherPair{};
}

// The steps as {calls, then of each key, count, scatter}, and pairs of the known one.
std::vector<uint64_t> GatherPairs::save() const {
    std::vector<uint64_t> saved;
    for (const std::vector<StepCall>* step : {&now_, &last_, &known_}) {
        saved.push_back(step->size());
        for (const StepCall& call : *step) {
            saved.insert(saved.end(), {call.key, call.count, call.scatter ? 1u : 0u});
        }
    }
    for (size_t i = 0; i < known_.size(); ++i) {
        saved.insert(saved.end(), {pairs_[i].unit, pairs_[i].first ? 1u : 0u});
    }
    return saved;
}

bool GatherPairs::go_on(std::span<const uint64_t> saved) {
    std::vector<StepCall> steps[3];
    for (std::vector<StepCall>& step : steps) {
        if (saved.empty() || saved[0] > kMostCalls + 1 || (saved.size() - 1) / 3 < saved[0]) {
            return false;
        }
        const size_t calls = saved[0];
        for (size_t i = 0; i < calls; ++i) {
            step.push_back({saved[3 * i + 1], saved[3 * i + 2], saved[3 * i + 3] != 0});
        }
        saved = saved.subspan(3 * calls + 1);
    }
    if (saved.size() != 2 * steps[2].size()) {
        return false;
    }
    lose();
    begun_ = true;
    step_ = 0;  // none: the next call begins another step
    now_ = std::move(steps[0]);
    last_ = std::move(steps[1]);
    known_ = std::move(steps[2]);
    pairs_.clear();
    for (size_t i = 0; i < saved.size(); i += 2) {
        pairs_.push_back({saved[i], saved[i + 1] != 0});
    }
    return true;
}

void GatherPairs::lose() noexcept {
    begun_ = follows_ = false;
    now_.clear();
    last_.clear();
    known_.clear();
}

}  // namespace slimwire
