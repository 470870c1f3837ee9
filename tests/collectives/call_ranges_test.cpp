// The table by which ranks agree on NVTX ranges, without devices: several ranks' tables, given the
// same calls in ranges of their own, compared as the all-reduce would.
#include "collectives/call_ranges.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace slimwire {
namespace {

using Local = std::optional<uint32_t>;

CallFacts facts_of(uint64_t count) {
    CallFacts facts;
    facts.redop = RedOp::kSum;
    facts.count = count;
    return facts;
}

StepPlace place_of(uint32_t nth, uint64_t path = 7) {
    StepPlace place;
    place.path = path;
    place.nth = nth;
    return place;
}

// Reads what is due, as all ranks do at the same call; how many places differ.
size_t compare(std::vector<RangeTable>* ranks) {
    std::vector<uint32_t> greatest;
    for (RangeTable& rank : *ranks) {
        const std::vector<uint32_t> words = rank.give();
        greatest.resize(words.size());
        std::transform(words.begin(), words.end(), greatest.begin(), greatest.begin(),
                       [](uint32_t a, uint32_t b) { return std::max(a, b); });
    }
    size_t different = 0;
    for (RangeTable& rank : *ranks) {
        different = rank.adopt(greatest);
    }
    return different;
}

TEST(RangeTable, ComparesNewPlacesAfterTwoStepsAndAllAfterSixteen) {
    RangeTable table;
    std::vector<uint64_t> compared;
    bool reading = false;
    std::vector<uint32_t> words;
    for (uint64_t step = 0; step < 45; ++step) {
        const uint32_t ranges = table.next(facts_of(100), place_of(0), step, 1u);
        EXPECT_EQ(ranges, step <= 3 ? 0 : known_ranges(1)) << step;
        EXPECT_EQ(table.read_due(), reading) << "in the step after, and not before";
        if (table.read_due()) {
            EXPECT_EQ(table.adopt(words), 0u);
            reading = false;
        }
        if (table.compare_due()) {
            compared.push_back(step);
            words = table.give();
            reading = true;
        }
        // A place that comes late.
        if (step >= 30) {
            (void)table.next(facts_of(200), place_of(0), step, 0u);
        }
        EXPECT_FALSE(table.compare_due());
    }
    EXPECT_EQ(compared, (std::vector<uint64_t>{2, 18, 32}));
}

TEST(RangeTable, WhatRanksDoNotShareIsKnownToNone) {
    std::vector<RangeTable> ranks(3);
    // By rank: the same, another on the last, untold on one, on all, coming and going on one.
    const Local locals[][3] = {{5, 5, 5}, {1, 1, 2}, {1, {}, 1}, {{}, {}, {}}, {3, 3, 3}};
    constexpr uint32_t kPlaces = 5;
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
        for (uint64_t step = 0; step < 2; ++step) {
            for (uint32_t at = 0; at < kPlaces; ++at) {
                const Local local =
                    at == 4 && rank == 1 && step == 1 ? Local(0u) : locals[at][rank];
                EXPECT_EQ(ranks[rank].next(facts_of(100), place_of(at), step, local), 0u);
            }
        }
    }
    EXPECT_EQ(compare(&ranks), 3u);
    const uint32_t wanted[] = {known_ranges(5), kRangesDiffer, kRangesDiffer, 0, kRangesDiffer};
    for (RangeTable& rank : ranks) {
        for (uint32_t at = 0; at < kPlaces; ++at) {
            EXPECT_EQ(rank.next(facts_of(100), place_of(at), 2, 9u), wanted[at]) << at;
        }
    }
    // All in the same now; a place that no call came to stays what it was.
    for (RangeTable& rank : ranks) {
        (void)rank.give();
        for (uint32_t at = 1; at < kPlaces; ++at) {
            (void)rank.next(facts_of(100), place_of(at), 3, 9u);
        }
    }
    EXPECT_EQ(compare(&ranks), 0u);
    EXPECT_EQ(ranks[0].next(facts_of(100), place_of(0), 4, 9u), known_ranges(5));
    EXPECT_EQ(ranks[0].next(facts_of(100), place_of(1), 4, 9u), known_ranges(9));
}

TEST(RangeTable, PlacesAreOfPathKindAndNumber) {
    std::vector<RangeTable> ranks(1);
    RangeTable& table = ranks[0];
    (void)table.next(facts_of(100), place_of(0), 0, 1u);
    (void)table.next(facts_of(100), place_of(1), 0, 2u);
    (void)table.next(facts_of(200), place_of(0), 0, 4u);
    (void)table.next(facts_of(100), place_of(0, 8), 0, 8u);
    (void)compare(&ranks);
    // While these are compared another comes: it is the next one's.
    (void)table.give();
    (void)table.next(facts_of(300), place_of(0), 1, 16u);
    EXPECT_EQ(table.next(facts_of(100), place_of(0), 1, {}), known_ranges(1));
    EXPECT_EQ(table.next(facts_of(100), place_of(1), 1, {}), known_ranges(2));
    EXPECT_EQ(table.next(facts_of(200), place_of(0), 1, {}), known_ranges(4));
    EXPECT_EQ(table.next(facts_of(100), place_of(0, 8), 1, {}), known_ranges(8));
    EXPECT_EQ(table.next(facts_of(300), place_of(0), 1, {}), 0u);
}

TEST(RangeTable, BeyondItsPlacesNothingIsKnown) {
    std::vector<RangeTable> ranks(1);
    RangeTable& table = ranks[0];
    const auto all = [&](uint64_t step) {
        size_t known = 0;
        for (uint32_t at = 0; at < RangeTable::kMostPlaces + 9; ++at) {
            known += table.next(facts_of(100), place_of(at), step, 1u) != 0 ? 1 : 0;
        }
        return known;
    };
    EXPECT_EQ(all(0), 0u);
    EXPECT_EQ(table.give().size(), 2 * RangeTable::kMostPlaces);
    table.taken_back();
    EXPECT_EQ(all(1), 0u);
    EXPECT_EQ(compare(&ranks), 0u);
    EXPECT_EQ(all(2), RangeTable::kMostPlaces);
}

}  // namespace
}  // namespace slimwire
