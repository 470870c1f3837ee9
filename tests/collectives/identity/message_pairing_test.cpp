// Which backward message answers which forward one, on both ends of every pair of neighbours, for
// schedules that are written down here as each stage's own order of passes.
#include "collectives/identity/message_pairing.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

namespace slimwire {
namespace {

using Message = MessagePairing::Message;
using Place = MessagePairing::Place;

// One pass of a stage: a micro-batch through a chunk of its layers.
struct Pass {
    bool forward;
    int chunk, batch;
};
using Schedule = std::vector<std::vector<Pass>>;  // by stage

Schedule one_forward_one_backward(int stages, int batches) {
    Schedule all(static_cast<size_t>(stages));
    for (int stage = 0; stage < stages; ++stage) {
        auto& own = all[static_cast<size_t>(stage)];
        const int ahead = std::min(batches, stages - stage - 1);
        for (int batch = 0; batch < ahead; ++batch) {
            own.push_back({true, 0, batch});
        }
        for (int batch = 0; batch < batches; ++batch) {
            if (batch + ahead < batches) {
                own.push_back({true, 0, batch + ahead});
            }
            own.push_back({false, 0, batch});
        }
    }
    return all;
}

Schedule all_forward_first(int stages, int batches, bool newest_first) {
    std::vector<Pass> own;
    for (int batch = 0; batch < batches; ++batch) {
        own.push_back({true, 0, batch});
    }
    for (int batch = 0; batch < batches; ++batch) {
        own.push_back({false, 0, newest_first ? batches - 1 - batch : batch});
    }
    return Schedule(static_cast<size_t>(stages), own);
}

// As Megatron does: micro-batches in groups of `stages`, each group through all chunks.
Schedule interleaved(int stages, int chunks, int batches) {
    Schedule all(static_cast<size_t>(stages));
    const auto pass = [&](bool forward, int number) {
        const int chunk = number / stages % chunks;
        const int batch = number / (stages * chunks) * stages + number % stages;
        return Pass{forward, forward ? chunk : chunks - 1 - chunk, batch};
    };
    const int passes = batches * chunks;
    for (int stage = 0; stage < stages; ++stage) {
        const int ahead = std::min(passes, (stages - stage - 1) * 2 + (chunks - 1) * stages);
        for (int number = 0; number < passes + ahead; ++number) {
            auto& own = all[static_cast<size_t>(stage)];
            if (number < passes) {
                own.push_back(pass(true, number));
            }
            if (number >= ahead) {
                own.push_back(pass(false, number - ahead));
            }
        }
    }
    return all;
}

// A message as its end makes it: the boundary between chunks that it crosses, and the micro-batch.
struct Sent {
    int peer;
    Op op;
    bool forward;
    int boundary, batch;
};
std::vector<Sent> messages_of(const Schedule& schedule, int stage, int chunks) {
    const int stages = static_cast<int>(schedule.size()), last = stages * chunks - 1;
    const int next = (stage + 1) % stages, previous = (stage + stages - 1) % stages;
    std::vector<Sent> out;
    for (const Pass& pass : schedule[static_cast<size_t>(stage)]) {
        const int place = pass.chunk * stages + stage;
        const auto add = [&](bool wanted, int peer, Op op, int boundary) {
            if (wanted) {
                out.push_back({peer, op, pass.forward, boundary, pass.batch});
            }
        };
        add(pass.forward && place > 0, previous, Op::kRecv, place - 1);
        add(!pass.forward && place < last, next, Op::kRecv, place);
        add(pass.forward && place < last, next, Op::kSend, place);
        add(!pass.forward && place > 0, previous, Op::kSend, place - 1);
    }
    return out;
}

struct Job {
    int stages = 2, chunks = 1;
    PairOrder order = {};
    // Kept over steps, by stage and peer.
    std::map<std::pair<int, int>, MessagePairing> pairs = {};
    std::map<std::pair<int, int>, std::map<uint64_t, std::pair<int, int>>> forward = {};
    uint64_t mark = 0;
    bool training = true;
    int wrong = 0, right = 0, undirected = 0;

    static uint64_t kind_of(int batch) { return batch == 99 ? 7 : 6; }

    PairOrder order_of(int stage, int peer) const {
        PairOrder own = order;
        if (own.chunks > 1) {
            own.ranks = static_cast<uint32_t>(stages);
            // The last stage sends to the first what goes into its next chunk: one chunk less.
            const bool around = stages > 2 && std::abs(stage - peer) == stages - 1;
            own.chunks -= around ? 1 : 0;
        }
        return own;
    }
    void run(const Schedule& schedule, uint64_t groups = 0) {
        for (int stage = 0; stage < stages; ++stage) {
            for (const Sent& sent : messages_of(schedule, stage, chunks)) {
                const std::pair<int, int> end(stage, sent.peer);
                const Place place = pairs[end].next(
                    {sent.op, kind_of(sent.batch), mark, groups == 0 ? 0 : groups++, training},
                    order_of(stage, sent.peer));
                undirected += place.direction == Direction::kUnknown ? 1 : 0;
                const std::pair<int, int> what(sent.boundary, sent.batch);
                if (place.direction != Direction::kUnknown &&
                    (place.direction == Direction::kForward) != sent.forward) {
                    ++wrong;
                }
                if (sent.forward) {
                    forward[end][place.number] = what;
                } else {
                    const auto& sent_there = forward[end];
                    const auto named =
                        place.answers ? sent_there.find(*place.answers) : sent_there.end();
                    const bool same = named != sent_there.end() && named->second == what;
                    ++(same ? right : wrong);
                }
            }
        }
    }
    void evaluate(int batches) {
        const int before = wrong;
        run(Schedule(static_cast<size_t>(stages), [&] {
            std::vector<Pass> own;
            for (int batch = 0; batch < batches; ++batch) {
                own.push_back({true, 0, 50 + batch});
            }
            return own;
        }()));
        EXPECT_EQ(wrong, before);
    }
};

TEST(MessagePairing, PipelinesOfTwoAndFourStages) {
    for (const int stages : {2, 4}) {
        for (const int batches : {1, 3, 8}) {
            for (const Schedule& schedule : {one_forward_one_backward(stages, batches),
                                             all_forward_first(stages, batches, false)}) {
                Job job{.stages = stages};
                for (int step = 0; step < 3; ++step) {
                    job.run(schedule);
                }
                EXPECT_EQ(job.wrong, 0) << stages << " " << batches;
                const int ends = 2 * (stages - 1);
                EXPECT_EQ(job.right, ends * 3 * batches);
                const int each_way = std::min(3 * batches, int{MessagePairing::kUndirected});
                EXPECT_EQ(job.undirected, ends * 2 * each_way);
            }
        }
    }
}

TEST(MessagePairing, TheNewestFirstWhereThePolicySaysSo) {
    Job job{.stages = 3, .order = {PairOrder::kLifo}};
    Job other{.stages = 3};
    for (int step = 0; step < 3; ++step) {
        job.run(all_forward_first(3, 5, true));
        other.run(all_forward_first(3, 5, true));
    }
    EXPECT_EQ(job.wrong, 0);
    EXPECT_GT(other.wrong, 0);
}

// A last micro-batch of another size tells which order it is.
TEST(MessagePairing, CountsTellTheOrder) {
    for (const bool newest_first : {false, true}) {
        Job job{.stages = 2};
        Schedule schedule = all_forward_first(2, 4, newest_first);
        for (auto& stage : schedule) {
            for (Pass& pass : stage) {
                pass.batch = pass.batch == 3 ? 99 : pass.batch;
            }
        }
        for (int step = 0; step < 3; ++step) {
            job.run(schedule);
        }
        EXPECT_EQ(job.wrong, 0) << newest_first;
    }
}

TEST(MessagePairing, ChunksThatInterleaveAndGoAround) {
    for (const int chunks : {2, 3}) {
        Job job{.stages = 4, .chunks = chunks, .order = {.chunks = static_cast<uint32_t>(chunks)}};
        Job other{.stages = 4, .chunks = chunks};
        for (int step = 0; step < 3; ++step) {
            job.run(interleaved(4, chunks, 8));
            other.run(interleaved(4, chunks, 8));
        }
        EXPECT_EQ(job.wrong, 0) << chunks;
        EXPECT_GT(job.right, 0);
        EXPECT_GT(other.wrong, 0) << "the test cannot fail";
    }
}

// Where the last stage's successor is also its predecessor activations go both ways, and counts of
// one kind say nothing: such rules are native (dispatch/planner.cpp).
TEST(MessagePairing, ChunksBetweenTwoRanksCannotBeTold) {
    Job job{.stages = 2, .chunks = 2, .order = {.chunks = 2}};
    for (job.mark = 1; job.mark <= 2; ++job.mark) {
        job.run(interleaved(2, 2, 8));
    }
    EXPECT_EQ(job.right, 0);
}

// With marks, with the phase, and by what waits at a step's first answer.
TEST(MessagePairing, EvaluationLeavesNoStalePair) {
    for (const int way : {0, 1, 2}) {
        Job job{.stages = 3};
        for (int step = 0; step < 4; ++step) {
            job.mark = way == 0 ? job.mark + 1 : 0;
            job.run(one_forward_one_backward(3, 6));
            job.mark = way == 0 ? job.mark + 1 : 0;
            job.training = way != 1;
            job.evaluate(5);
            job.training = true;
        }
        EXPECT_EQ(job.wrong, 0) << way;
    }
}

// Where the program marks its steps, or says when it evaluates, what waits is of the step.
TEST(MessagePairing, AStepMayHaveMoreMicroBatchesThanAnyBefore) {
    for (const bool marks : {false, true}) {
        Job job{.stages = 3};
        for (const int batches : {2, 5, 1, 8}) {
            job.mark += marks ? 1 : 0;
            job.run(all_forward_first(3, batches, false));
            job.training = marks;
            job.evaluate(3);
            job.training = true;
        }
        EXPECT_EQ(job.wrong, 0) << marks;
    }
}

// Parameters that are scattered when a job begins, or a tensor of each micro-batch without a
// gradient: that these wait, and are older, does not tell that the newest is answered first.
TEST(MessagePairing, WhatIsNeverAnsweredTellsNoOrder) {
    for (const bool each : {false, true}) {
        MessagePairing pair;
        std::vector<uint64_t> forward;
        for (int batch = -2; batch < 30; ++batch) {
            if (each || batch < 0) {
                (void)pair.next({Op::kSend, 7}, {});
            }
            forward.push_back(pair.next({Op::kSend, 6}, {}).number);
            if (batch >= 0) {
                EXPECT_EQ(pair.next({Op::kRecv, 6}, {}).answers, forward[size_t(batch)]);
            }
        }
    }
}

// A pass forward that is made, and sent, again is the one that is answered; the other goes with the
// step.
TEST(MessagePairing, RecomputationPairsTheLatest) {
    MessagePairing pair;
    const PairOrder order{PairOrder::kLifo};
    for (uint64_t step = 1; step <= 3; ++step) {
        for (int batch = 0; batch < 3; ++batch) {
            (void)pair.next({Op::kSend, 1, step}, order);
            const Place again = pair.next({Op::kSend, 1, step}, order);
            const Place answer = pair.next({Op::kRecv, 1, step}, order);
            EXPECT_EQ(answer.answers, again.number);
        }
    }
}

TEST(MessagePairing, NeighboursThatExchangeBordersHaveNoDirection) {
    MessagePairing pair;
    for (uint64_t group = 1; group < 40; ++group) {
        for (const Op op : {Op::kSend, Op::kSend, Op::kRecv, Op::kRecv}) {
            const Place place = pair.next({op, 1, 0, group}, {});
            EXPECT_EQ(place.direction, Direction::kUnknown);
            EXPECT_FALSE(group > 1 && place.answers.has_value());
        }
    }
}

// Both ends of two ranks that exchange, three forward and then the answers, newest first; with
// evaluation, a step that is cut short, and answers of other counts.
TEST(MessagePairing, ExchangesCountFromTheMark) {
    const PairOrder order{.calls = 3};
    MessagePairing one, other;
    uint64_t mark = 0;
    const auto exchange = [&](uint64_t sent, uint64_t received, bool training = true) {
        const Place given = one.next({Op::kSend, sent, mark, 0, training}, order);
        const Place got = other.next({Op::kRecv, sent, mark, 0, training}, order);
        EXPECT_EQ(given.direction, got.direction);
        EXPECT_EQ(given.number, got.number);
        EXPECT_EQ(given.answers, got.answers);
        EXPECT_TRUE(given.direction == Direction::kUnknown || given.forward != got.forward);
        const Place back = other.next({Op::kSend, received, mark, 0, training}, order);
        const Place here = one.next({Op::kRecv, received, mark, 0, training}, order);
        EXPECT_EQ(back.answers, here.answers);
        EXPECT_EQ(back.direction, given.direction);
        return std::pair(given, back);
    };
    EXPECT_EQ(exchange(1, 2).first.direction, Direction::kUnknown) << "no step is told";
    for (mark = 1; mark < 5; ++mark) {
        std::vector<uint64_t> numbers;
        for (const uint64_t kind : {4u, 5u, 6u}) {
            const auto [sent, received] = exchange(kind, kind + 10);
            EXPECT_EQ(sent.direction, Direction::kForward);
            EXPECT_EQ(sent.forward, Op::kSend);
            EXPECT_TRUE(sent.waits);
            numbers.push_back(sent.number);
        }
        const auto evaluated = exchange(7, 7, false).first;
        EXPECT_EQ(evaluated.direction, Direction::kForward);
        EXPECT_FALSE(evaluated.waits);
        if (mark == 2) {
            continue;  // cut short
        }
        for (const size_t i : {2u, 1u, 0u}) {
            const uint64_t kind = 4 + i;
            const auto [sent, received] = exchange(kind + 10, mark == 3 ? 99 : kind);
            EXPECT_EQ(sent.direction, Direction::kBackward);
            EXPECT_EQ(sent.forward, Op::kRecv) << "it answers what the other one sent";
            EXPECT_EQ(sent.answers, numbers[i]);
            EXPECT_EQ(received.answers, mark == 3 ? std::nullopt : std::optional(numbers[i]));
        }
    }
    // What only one rank may know is not asked of both: a collective that answers none has none.
    MessagePairing all;
    const auto gather = [&](uint64_t kind, uint64_t asked) {
        return all.next({Op::kAllGather, kind, 1, 0, true, asked}, PairOrder{.calls = 1});
    };
    EXPECT_EQ(gather(1, 2).direction, Direction::kForward);
    EXPECT_EQ(gather(1, 2).direction, Direction::kUnknown);
    EXPECT_EQ(gather(3, 4).direction, Direction::kForward);
    EXPECT_EQ(gather(4, 3).answers, 1u);
}

// Of layers with a gather and a scatter each, in two micro-batches: answers have the ordinal of
// their layer, and evaluation counts for itself.
TEST(MessagePairing, ExchangesHaveTheOrdinalsOfTheirLayers) {
    const PairOrder order{.calls = 6};
    constexpr uint64_t kGather = 1, kScatter = 2;
    MessagePairing pair;
    const auto next = [&](bool gathers, uint64_t mark, bool training = true) {
        return pair
            .next({gathers ? Op::kAllGather : Op::kReduceScatter, gathers ? kGather : kScatter,
                   mark, 0, training, gathers ? kScatter : kGather},
                  order)
            .ordinal;
    };
    EXPECT_EQ(next(true, 0), std::nullopt) << "no step is told";
    for (uint64_t mark = 1; mark < 4; ++mark) {
        for (int batch = 0; batch < 2; ++batch) {
            for (uint32_t layer = 0; layer < 3; ++layer) {
                EXPECT_EQ(next(true, mark), layer);
                EXPECT_EQ(next(true, mark, false), 3 * (mark == 3 ? batch : 0) % 6 + layer);
                EXPECT_EQ(next(false, mark), layer);
                if (mark == 3) {
                    continue;  // evaluation of gathers alone
                }
                EXPECT_EQ(next(false, mark, false), layer);
            }
            for (uint32_t layer = 3; layer-- > 0;) {
                EXPECT_EQ(next(true, mark), layer) << "answers a scatter";
                EXPECT_EQ(next(false, mark), layer) << "answers a gather";
            }
        }
    }
    EXPECT_EQ(pair.next({Op::kAllGather, 7, 9, 0, true, 8}, order).ordinal, 0u);
}

// Two of four layers at a time are made again, beside exchanges of another rule that are not. The
// first marked step shows that the calls are what the rule says.
TEST(MessagePairing, ExchangesThatAreMadeAgainPairTheLatest) {
    const PairOrder order{.calls = 4, .again = 2, .rule = 1}, other{.calls = 1};
    MessagePairing pair;
    for (uint64_t mark = 1; mark < 4; ++mark) {
        const auto ordinal = [&](uint32_t of) {
            return mark > 1 ? std::optional(of) : std::nullopt;
        };
        const auto next = [&](bool training = true) {
            return pair.next({Op::kAllToAll, 1, mark, 0, training}, order);
        };
        for (int batch = 0; batch < 2; ++batch) {
            for (uint32_t layer = 0; layer < 4; ++layer) {
                EXPECT_EQ(next().ordinal, ordinal(layer));
                EXPECT_EQ(next(false).ordinal, layer);
            }
            EXPECT_TRUE(pair.next({Op::kAllToAll, 2, mark}, other).waits);
            for (const uint32_t first : {2u, 0u}) {
                std::vector<Place> again;
                for (const uint32_t layer : {first, first + 1}) {
                    again.push_back(next());
                    EXPECT_EQ(again.back().ordinal, ordinal(layer));
                    EXPECT_EQ(again.back().direction,
                              mark > 1 ? Direction::kForward : Direction::kUnknown);
                    EXPECT_EQ(again.back().waits, mark > 1);
                }
                for (const uint32_t back : {1u, 0u}) {
                    const Place answer = next();
                    EXPECT_EQ(answer.direction,
                              mark > 1 ? Direction::kBackward : Direction::kUnknown);
                    EXPECT_EQ(answer.answers,
                              mark > 1 ? std::optional(again[back].number) : std::nullopt);
                    EXPECT_EQ(answer.ordinal, ordinal(first + back));
                    EXPECT_FALSE(answer.unlike);
                }
            }
            EXPECT_TRUE(pair.next({Op::kAllToAll, 2, mark}, other).answers.has_value());
        }
    }
}

// Two groups of four calls whose last one is not made again: what was sent first is what its answer
// answers. Of gathers and scatters in turn the next one shows it; of calls that are all alike the
// rule says it, or else none has a direction.
TEST(MessagePairing, CheckpointingThatStopsEarly) {
    struct Form {
        bool in_turn;
        uint32_t said;
        bool known;
    };
    for (const Form& form :
         {Form{true, 0, true}, {true, 1, true}, {false, 1, true}, {false, 0, false}}) {
        SCOPED_TRACE(std::to_string(form.in_turn) + std::to_string(form.said));
        const PairOrder order{.calls = 8, .again = 4, .skipped = form.said, .stops_said = true};
        MessagePairing pair;
        for (uint64_t mark = 1; mark < 5; ++mark) {
            const auto next = [&](uint32_t layer, bool back) {
                const bool gathers = (layer % 2 == 0) != back;
                const uint64_t kind = gathers ? 1 : 2;
                return form.in_turn ? pair.next({gathers ? Op::kAllGather : Op::kReduceScatter,
                                                 kind, mark, 0, true, 3 - kind},
                                                order)
                                    : pair.next({Op::kAllToAll, 1, mark}, order);
            };
            const bool known = form.known && mark > 1;
            for (int batch = 0; batch < 3; ++batch) {
                std::vector<uint64_t> latest;
                const auto forward = [&](uint32_t layer) {
                    const Place place = next(layer, false);
                    EXPECT_EQ(place.direction, known ? Direction::kForward : Direction::kUnknown);
                    EXPECT_EQ(place.unlike,
                              !form.known && mark > 1 && batch == 0 && latest.empty());
                    return place.number;
                };
                for (uint32_t layer = 0; layer < 8; ++layer) {
                    latest.push_back(forward(layer));
                }
                for (const uint32_t first : {4u, 0u}) {
                    for (uint32_t layer = first; layer < first + 3; ++layer) {
                        latest[layer] = forward(layer);
                    }
                    for (uint32_t layer = first + 4; layer-- > first;) {
                        const Place answer = next(layer, true);
                        EXPECT_EQ(answer.direction,
                                  known ? Direction::kBackward : Direction::kUnknown);
                        EXPECT_EQ(answer.answers,
                                  known ? std::optional(latest[layer]) : std::nullopt);
                        EXPECT_FALSE(answer.unlike);
                    }
                }
            }
        }
    }
}

TEST(MessagePairing, ExchangesOfEachRuleCountTheirOwn) {
    const PairOrder outer{.calls = 1, .rule = 0}, inner{.calls = 2, .rule = 1};
    MessagePairing pair;
    const auto place_of = [&](const PairOrder& order) {
        return pair.next({Op::kAllToAll, order.calls, 1, 0, true}, order);
    };
    for (const PairOrder& order : {outer, inner, inner}) {
        EXPECT_EQ(place_of(order).direction, Direction::kForward);
    }
    EXPECT_EQ(place_of(inner).answers, 2u);
    EXPECT_EQ(place_of(inner).answers, 1u);
    EXPECT_EQ(place_of(outer).answers, 0u);
}

// Behind which call autoencoders make a step: as calls come, however a rank groups them, and though
// a message of another one, or of none, waits.
TEST(MessagePairing, TheLastAnswerOfAnAutoencoder) {
    const PairOrder order{.calls = 2};
    for (const uint64_t group : {0u, 7u}) {
        MessagePairing pair;
        const auto last = [&](uint64_t kind, uint64_t code, uint64_t in) {
            Place place = pair.next({Op::kAllToAll, kind, 1, in}, order);
            if (code != 0) {
                pair.use(code, &place);
                EXPECT_TRUE(pair.newest_use(code, place));
            }
            return place.last;
        };
        EXPECT_FALSE(last(1, 5, 0));
        EXPECT_FALSE(last(1, 5, 0));
        EXPECT_FALSE(last(1, 5, group));
        EXPECT_TRUE(last(1, 5, group));
        EXPECT_FALSE(last(2, 6, 0));
        EXPECT_FALSE(last(1, 5, 0));
        for (int again = 0; again < 2; ++again) {
            EXPECT_TRUE(last(1, 5, 9)) << "another one's waits";
            pair.rewind(9);
        }
        EXPECT_TRUE(last(1, 5, 0));
        EXPECT_TRUE(last(2, 6, 0));
    }
    // Of messages that run together.
    MessagePairing pair;
    const auto use = [&](Op op, uint64_t kind, uint64_t code, uint64_t in = 3) {
        Place place = pair.next({op, kind, 1, in}, {});
        if (code != 0) {
            pair.use(code, &place);
        }
        return place;
    };
    (void)use(Op::kSend, 1, 5, 0);
    (void)use(Op::kSend, 2, 0);  // native
    const Place answer = use(Op::kRecv, 1, 5);
    EXPECT_TRUE(answer.last);
    EXPECT_TRUE(pair.newest_use(5, answer));
    (void)use(Op::kSend, 1, 5);
    EXPECT_FALSE(pair.newest_use(5, answer)) << "encoded before the answer comes";
}

TEST(MessagePairing, MessagesOfAGroupThatIsDroppedNeverWere) {
    Job dropped{.stages = 2}, plain{.stages = 2};
    for (int step = 0; step < 4; ++step) {
        dropped.run(one_forward_one_backward(2, 4), 1 + 100 * static_cast<uint64_t>(step));
        plain.run(one_forward_one_backward(2, 4));
        for (auto& [end, pair] : dropped.pairs) {
            const uint64_t group = 9000 + static_cast<uint64_t>(step);
            const Place once = pair.next({Op::kSend, 6, 0, group}, {});
            (void)pair.next({Op::kRecv, 6, 0, group}, {});
            pair.rewind(group);
            pair.rewind(group);  // of no effect
            const Place again = pair.next({Op::kSend, 6, 0, group + 500}, {});
            EXPECT_EQ(again.number, once.number);
            EXPECT_EQ(again.direction, once.direction);
            pair.rewind(group + 500);
        }
    }
    EXPECT_EQ(dropped.wrong, 0);
    EXPECT_EQ(dropped.right, plain.right);
}

TEST(MessagePairing, AnAnswerWithoutAForwardMessageIsSaid) {
    MessagePairing pair;
    (void)pair.next({Op::kSend, 1}, {});
    EXPECT_EQ(pair.next({Op::kRecv, 2}, {}).answers, std::nullopt);
    EXPECT_EQ(pair.next({Op::kRecv, 1}, {}).answers, 0u);
    EXPECT_EQ(pair.next({Op::kRecv, 1}, {}).answers, std::nullopt);
    // Of more than may wait the oldest is dropped.
    const uint64_t dropped = pair.next({Op::kSend, 1}, {}).number;
    for (size_t i = 0; i < MessagePairing::kMostOpen; ++i) {
        (void)pair.next({Op::kSend, 1}, {});
    }
    EXPECT_EQ(pair.next({Op::kRecv, 1}, {}).answers, dropped + 1);
}

}  // namespace
}  // namespace slimwire
