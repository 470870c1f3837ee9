#include "collectives/agreed_names.h"

#include <algorithm>
#include <bit>

#include "collectives/comparison.h"

namespace slimwire {
namespace {

// Few sizes, as each is a kind of call of its own in the report.
constexpr size_t kLeastWords = 64;

}  // namespace

void AgreedNames::next(uint32_t number, uint32_t hash) {
    last_ = number;
    const auto [found, came_anew] = entries_.try_emplace(number);
    Entry& entry = found->second;
    if (came_anew) {
        entry.hash = hash;
        round_ += !fresh_ && given_.empty() ? 1 : 0;
        fresh_ = true;
    } else if (entry.round == round_) {
        read_due_ = !given_.empty();
        compare_due_ = given_.empty() && fresh_;
    }
    entry.round = round_;
}

AgreedNames::Told AgreedNames::told(uint32_t number) const noexcept {
    const auto found = entries_.find(number);
    return found != entries_.end() ? found->second.told : Told::kUnknown;
}

std::vector<uint32_t> AgreedNames::give() {
    std::vector<uint32_t> words;
    given_.clear();
    for (const auto& [number, entry] : entries_) {
        if (entry.told == Told::kUnknown) {
            given_.push_back(number);
            words.push_back(entry.hash);
        }
    }
    words.resize(std::bit_ceil(std::max(words.size(), kLeastWords)), 0);
    compare_due_ = fresh_ = false;
    entries_[last_].round = ++round_;
    return with_complements(std::move(words));
}

size_t AgreedNames::adopt(const std::vector<uint32_t>& greatest) {
    size_t different = 0;
    for (size_t place = 0; place < given_.size(); ++place) {
        const auto found = entries_.find(given_[place]);
        if (found == entries_.end()) {
            continue;
        }
        const bool same = same_on_all(greatest, place);
        different += same ? 0 : 1;
        found->second.told = !same                  ? Told::kDifferently
                             : greatest[place] == 0 ? Told::kNothing
                                                    : Told::kAlike;
    }
    given_.clear();
    read_due_ = false;
    return different;
}

void AgreedNames::taken_back() noexcept {
    given_.clear();
    read_due_ = false;
    fresh_ = true;
}

void AgreedNames::forget_above(uint32_t number) {
    entries_.erase(entries_.upper_bound(number), entries_.end());
}

}  // namespace slimwire
