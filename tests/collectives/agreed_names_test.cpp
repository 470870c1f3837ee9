// When ranks compare what they were told of contents, and what they use of it, without devices.
#include "collectives/agreed_names.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace slimwire {
namespace {

// What each of some ranks was told of contents 1, 3, 5, ...
using Told = std::vector<std::vector<uint32_t>>;

class Ranks {
  public:
    explicit Ranks(Told told) : told_(std::move(told)), ranks_(told_.size()) {}

    // A call with the content `number` on all ranks; whether it is used with what they were told.
    bool call(uint32_t number) {
        for (size_t rank = 0; rank < ranks_.size(); ++rank) {
            ranks_[rank].next(number, told_[rank][number / 2]);
            EXPECT_EQ(ranks_[rank].read_due(), ranks_[0].read_due());
            EXPECT_EQ(ranks_[rank].compare_due(), ranks_[0].compare_due());
        }
        if (ranks_[0].read_due()) {
            ++reads;
            for (AgreedNames& rank : ranks_) {
                different = rank.adopt(greatest_);
            }
        }
        if (ranks_[0].compare_due()) {
            ++comparisons;
            greatest_.clear();
            for (AgreedNames& rank : ranks_) {
                const std::vector<uint32_t> words = rank.give();
                greatest_.resize(words.size());
                std::transform(words.begin(), words.end(), greatest_.begin(), greatest_.begin(),
                               [](uint32_t a, uint32_t b) { return std::max(a, b); });
            }
        }
        for (const AgreedNames& rank : ranks_) {
            EXPECT_EQ(rank.told(number), ranks_[0].told(number));
        }
        return ranks_[0].told(number) == AgreedNames::Told::kAlike;
    }
    // A step with so many contents: which were used with what the ranks were told.
    std::vector<bool> step(uint32_t contents) {
        std::vector<bool> used;
        for (uint32_t i = 0; i < contents; ++i) {
            used.push_back(call(2 * i + 1));
        }
        return used;
    }
    std::vector<AgreedNames>& all() { return ranks_; }

    int reads = 0, comparisons = 0;
    size_t different = 0;

  private:
    Told told_;
    std::vector<AgreedNames> ranks_;
    std::vector<uint32_t> greatest_;
};

using Used = std::vector<bool>;

TEST(AgreedNames, WhatAllWereToldAlikeIsUsedFromTheThirdStep) {
    Ranks ranks({{7, 8, 9}, {7, 8, 9}, {7, 8, 9}});
    EXPECT_EQ(ranks.step(3), Used({false, false, false}));
    EXPECT_EQ(ranks.comparisons, 0);
    EXPECT_EQ(ranks.step(3), Used({false, false, false}));
    EXPECT_EQ(ranks.comparisons, 1);
    EXPECT_EQ(ranks.reads, 0) << "a step later, so that nobody waits";
    EXPECT_EQ(ranks.step(3), Used({true, true, true}));
    for (int step = 0; step < 20; ++step) {
        EXPECT_EQ(ranks.step(3), Used({true, true, true}));
    }
    EXPECT_EQ(ranks.comparisons, 1) << "once is enough";
    EXPECT_EQ(ranks.different, 0U);
}

TEST(AgreedNames, WhatRanksWereToldDifferentlyIsNotUsed) {
    Ranks ranks({{7, 0, 9, 0}, {7, 8, 1, 0}});
    for (int step = 0; step < 2; ++step) {
        EXPECT_EQ(ranks.step(4), Used(4, false));
    }
    for (int step = 0; step < 3; ++step) {
        EXPECT_EQ(ranks.step(4), Used({true, false, false, false}))
            << "one rank was told nothing, two not the same, nobody anything";
    }
    EXPECT_EQ(ranks.different, 2U);
    using enum AgreedNames::Told;
    const AgreedNames& rank = ranks.all()[1];
    EXPECT_EQ(rank.told(1), kAlike);
    EXPECT_EQ(rank.told(3), kDifferently);
    EXPECT_EQ(rank.told(5), kDifferently);
    EXPECT_EQ(rank.told(7), kNothing);
    EXPECT_EQ(rank.told(9), kUnknown);
}

TEST(AgreedNames, ContentsThatComeLaterAreComparedByThemselves) {
    Ranks ranks({{7, 8, 9}, {7, 8, 9}});
    ranks.step(2);
    ranks.step(2);
    EXPECT_EQ(ranks.step(3), Used({true, true, false})) << "a rebuilt bucket, say";
    EXPECT_EQ(ranks.step(3), Used({true, true, false}));
    EXPECT_EQ(ranks.step(3), Used({true, true, true}));
    EXPECT_EQ(ranks.comparisons, 2);
}

TEST(AgreedNames, ADroppedGroupsComparisonIsMadeAgain) {
    Ranks ranks({{7, 8}, {7, 8}});
    ranks.step(2);
    EXPECT_FALSE(ranks.call(1));
    EXPECT_EQ(ranks.comparisons, 1);
    for (AgreedNames& rank : ranks.all()) {
        rank.taken_back();
        rank.forget_above(1);
    }
    EXPECT_FALSE(ranks.call(1));
    EXPECT_EQ(ranks.comparisons, 2);
    EXPECT_FALSE(ranks.call(3)) << "it comes anew";
    EXPECT_EQ(ranks.step(2), Used({true, false}));
    EXPECT_EQ(ranks.step(2), Used({true, true}));
}

}  // namespace
}  // namespace slimwire
