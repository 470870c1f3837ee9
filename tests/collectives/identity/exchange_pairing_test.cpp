// Which exchange answers which, where programs make fewer than the rule says: groups that stop
// early when they are made again, and parts of no elements. Nothing that is said is wrong.
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "collectives/identity/message_pairing.h"

namespace slimwire {
namespace {

using Message = MessagePairing::Message;
using Place = MessagePairing::Place;

// Whatever adds up: steps of any number of micro-batches whose groups stop early, all or but the
// last, unsaid. Each answer has the activation that it answers, or none.
TEST(ExchangePairing, EarlyStopsUnsaidPairNothingWrong) {
    enum Kinds { kAllAlike, kInTurn, kOfLayers, kOfTwoLayers, kOfLayersAndWays };
    struct Steps {
        Kinds kinds;
        uint32_t calls, again, stops;
        bool last_too;
        int batches;
        bool messages = false;
    };
    int known = 0, unknown = 0, unlike = 0;
    const auto run = [&](const Steps& steps, const PairOrder& order) {
        MessagePairing pair, there;
        const auto next = [&](uint64_t mark, uint32_t layer, bool back) {
            Message message{Op::kAllToAll, 1, mark};
            switch (steps.kinds) {
                case kAllAlike:
                    break;
                case kInTurn:
                    message.kind = (layer % 2 == 0) != back ? 1 : 2;
                    message.asked = 3 - message.kind;
                    break;
                case kOfLayers:
                case kOfTwoLayers:
                    message.kind = 1 + layer / (steps.kinds == kOfTwoLayers ? 2 : 1);
                    break;
                case kOfLayersAndWays:
                    message.kind = 1 + layer + (back ? 100 : 0);
                    message.asked = 1 + layer + (back ? 0 : 100);
                    break;
            }
            if (!steps.messages) {
                return pair.next(message, order);
            }
            // Both ends know the same of a message, whichever way they count first.
            const uint64_t comes = message.asked != 0 ? message.asked : message.kind;
            const Place given = pair.next({Op::kSend, message.kind, mark}, order);
            const Place here = pair.next({Op::kRecv, comes, mark}, order);
            const Place gives = there.next({Op::kSend, comes, mark}, order);
            EXPECT_EQ(given.direction,
                      there.next({Op::kRecv, message.kind, mark}, order).direction);
            EXPECT_EQ(gives.direction, here.direction);
            EXPECT_EQ(gives.number, here.number);
            Place place = given;
            place.number = here.number;
            return place;
        };
        for (uint64_t mark = 1; mark < 4; ++mark) {
            for (int batch = 0; batch < steps.batches; ++batch) {
                std::vector<uint64_t> latest(steps.calls);
                const auto forward = [&](uint32_t layer) {
                    const Place place = next(mark, layer, false);
                    EXPECT_NE(place.direction, Direction::kBackward);
                    EXPECT_EQ(place.waits, place.direction == Direction::kForward);
                    EXPECT_TRUE(!place.waits || steps.kinds != kAllAlike || place.ordinal == layer);
                    latest[layer] = place.number;
                    unlike += place.unlike ? 1 : 0;
                };
                for (uint32_t layer = 0; layer < steps.calls; ++layer) {
                    forward(layer);
                }
                // Of another rule, whose calls are not made again, one waits all the time.
                const auto beside = [&] {
                    return steps.messages ? Place()
                                          : pair.next({Op::kAllToAll, 500, mark},
                                                      PairOrder{.calls = 1, .rule = 9});
                };
                const uint64_t waits = beside().number;
                for (uint32_t first = steps.calls; first > 0;) {
                    first -= steps.again;
                    const uint32_t stops = first > 0 || steps.last_too ? steps.stops : 0;
                    for (uint32_t layer = first; layer < first + steps.again - stops; ++layer) {
                        forward(layer);
                    }
                    for (uint32_t layer = first + steps.again; layer-- > first;) {
                        const Place answer = next(mark, layer, true);
                        EXPECT_NE(answer.direction, Direction::kForward);
                        EXPECT_FALSE(answer.unlike);
                        const bool told = answer.direction == Direction::kBackward;
                        EXPECT_TRUE(!told || answer.answers == latest[layer]);
                        EXPECT_TRUE(!told || steps.kinds != kAllAlike || answer.ordinal == layer);
                        EXPECT_FALSE(told && mark == 1) << "no step has shown that it is whole";
                        known += told ? 1 : 0;
                        unknown += told || mark == 1 ? 0 : 1;
                    }
                }
                EXPECT_EQ(beside().answers.value_or(0), waits);
            }
        }
        return !::testing::Test::HasFailure();
    };
    for (const Kinds kinds : {kAllAlike, kInTurn, kOfLayers, kOfTwoLayers, kOfLayersAndWays}) {
        for (const auto& [calls, again] : std::vector<std::pair<uint32_t, uint32_t>>{
                 {2, 2}, {4, 2}, {4, 4}, {6, 3}, {8, 4}, {8, 8}, {12, 6}}) {
            for (uint32_t stops = 0; stops < again; ++stops) {
                for (int batches = 1; batches <= 12; ++batches) {
                    for (const int form : {0, 1, 2, 3}) {
                        ASSERT_TRUE(run({kinds, calls, again, stops, form % 2 == 0, batches,
                                         form > 1 && kinds != kInTurn},
                                        {.calls = calls, .again = again}))
                            << kinds << ' ' << calls << ' ' << again << ' ' << stops << ' '
                            << batches << ' ' << form;
                    }
                }
            }
        }
    }
    EXPECT_GT(known, unknown / 4) << "most is not known";
    // One micro-batch, what the rule says, and what the next call shows is always known.
    unknown = unlike = 0;
    for (int batches = 1; batches <= 12; ++batches) {
        for (uint32_t stops = 0; stops < 4; ++stops) {
            const PairOrder said{.calls = 8, .again = 4, .skipped = stops, .stops_said = true};
            ASSERT_TRUE(run({kAllAlike, 8, 4, stops, true, batches}, said));
        }
    }
    ASSERT_TRUE(run({kAllAlike, 8, 4, 0, true, 1}, {.calls = 8, .again = 4}));
    ASSERT_TRUE(run({kInTurn, 8, 4, 1, true, 3}, {.calls = 8, .again = 4, .stops_said = true}));
    EXPECT_EQ(unknown, 0);
    EXPECT_EQ(unlike, 0);
    // Steps behind one that was not as the rule says tell so once each.
    ASSERT_TRUE(run({kAllAlike, 8, 4, 1, true, 3}, {.calls = 8, .again = 4, .stops_said = true}));
    EXPECT_EQ(unlike, 2);
}

// Exchanges of uneven parts, of which those of no elements are not sent at all, as PyTorch does it:
// a rank got no tokens of an expert's. Both ends agree on each message, no answer goes by the mask
// of another one, nor an activation by any; a step behind one that lacked some has no direction.
TEST(ExchangePairing, PartsThatAreNotSentPairNothingWrong) {
    std::mt19937 random(1);
    int known = 0, none = 0;
    for (int program = 0; program < 400; ++program) {
        const uint32_t calls = 2u << program % 3;
        const PairOrder order{.calls = calls};
        const bool marks_lack = program % 4 > 0;
        MessagePairing one, other;
        bool lacked[2] = {};
        for (uint64_t mark = 1; mark < 8; ++mark) {
            const bool lacks = marks_lack && random() % 2 == 0;
            uint64_t sent[2] = {};
            for (int batch = 0; batch < 3; ++batch) {
                std::vector<uint64_t> parts[2], numbers[2] = {{}, {}};
                for (uint32_t layer = 0; layer < calls; ++layer) {
                    for (auto& way : parts) {
                        way.push_back(lacks && random() % 4 == 0 ? 0 : 1 + random() % 1000000);
                    }
                    numbers[0].push_back(0), numbers[1].push_back(0);
                }
                // A message from `from`, forward or an answer to what came of the layer.
                const auto message = [&](int from, uint64_t kind, uint32_t layer, bool back,
                                         bool training) {
                    MessagePairing& sender = from == 0 ? one : other;
                    MessagePairing& receiver = from == 0 ? other : one;
                    const Place given = sender.next({Op::kSend, kind, mark, 0, training}, order);
                    const Place got = receiver.next({Op::kRecv, kind, mark, 0, training}, order);
                    EXPECT_EQ(given.direction, got.direction);
                    EXPECT_EQ(given.number, got.number);
                    if (!training) {
                        EXPECT_NE(given.direction, Direction::kBackward);
                        return;
                    }
                    ++sent[from];
                    if (given.direction == Direction::kBackward) {
                        (given.answers.has_value() ? known : none) += 1;
                        EXPECT_TRUE(!given.answers.has_value() || back);
                        EXPECT_TRUE(!given.answers.has_value() ||
                                    given.answers == numbers[1 - from][layer]);
                    }
                    EXPECT_TRUE(given.direction == Direction::kUnknown || !lacked[from]);
                    EXPECT_TRUE(lacks || lacked[from] ||
                                given.direction ==
                                    (back ? Direction::kBackward : Direction::kForward));
                    numbers[from][layer] = back ? numbers[from][layer] : given.number;
                };
                for (uint32_t i = 0; i < 2 * calls; ++i) {
                    const bool back = i >= calls;
                    const uint32_t layer = back ? 2 * calls - 1 - i : i;
                    for (const int from : {0, 1}) {
                        const uint64_t kind = parts[back ? 1 - from : from][layer];
                        if (kind != 0) {
                            message(from, kind, layer, back, true);
                        }
                    }
                }
                message(0, 5, 0, false, false);
            }
            for (const int from : {0, 1}) {
                const bool whole = sent[from] % calls == 0 || sent[from] < 2 * calls;
                lacked[from] = sent[from] == 0 ? lacked[from] : !whole;
            }
        }
        ASSERT_FALSE(HasFailure()) << program;
    }
    EXPECT_GT(known, 5 * none);
}

// A pass of a validation that nobody told of, one that ends before its answers come, or a first
// layer whose input needs no gradient.
TEST(ExchangePairing, StepsMayEndBeforeTheirAnswers) {
    const PairOrder order{.calls = 3};
    MessagePairing pair;
    for (uint64_t mark = 1; mark < 6; ++mark) {
        for (int pass = 0; pass < (mark == 2 ? 1 : mark == 3 ? 5 : mark == 4 ? 2 : 3); ++pass) {
            for (int call = 0; call < (mark == 4 && pass == 1 ? 2 : 3); ++call) {
                EXPECT_EQ(pair.next({Op::kAllToAll, 1, mark}, order).direction,
                          pass % 2 == 0 ? Direction::kForward : Direction::kBackward);
            }
        }
    }
}

// What was known of steps when a job was saved is known of those after it, and no more.
TEST(ExchangePairing, ASavedJobKnowsOfItsStepsWhatItKnew) {
    const PairOrder order{.calls = 2, .again = 2};
    for (const int batches : {4, 5}) {  // five whole ones have the calls of six that stop early
        MessagePairing before, after;
        const auto run = [&](uint64_t mark, MessagePairing* pair) {
            Direction last = Direction::kUnknown;
            for (int call = 0; call < 6 * batches; ++call) {
                last = pair->next({Op::kAllToAll, 1, mark}, order).direction;
            }
            return last;
        };
        (void)run(1, &before);
        const std::vector<uint64_t> saved = before.save();
        EXPECT_EQ(saved.size(), 10u);
        ASSERT_TRUE(after.go_on(saved));
        const Direction known = batches == 4 ? Direction::kBackward : Direction::kUnknown;
        EXPECT_EQ(run(2, &before), known);
        EXPECT_EQ(run(2, &after), known);
    }
    MessagePairing old, fresh;
    ASSERT_TRUE(old.go_on(fresh.save()));
}

}  // namespace
}  // namespace slimwire
