// preview: what a rank of sharded training gathers to compute with is moved by what it still owes
// the reduce-scatter of the same unit, and nothing else is: not what it sends, not what other ranks
// get, not evaluation, not what is saved. Units of an FSDP step by one process, up to three
// emulated devices; a gradient is on one rank alone, so that what this owes is what it gave less
// what came.
#include <algorithm>
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>

#include "codecs/float16.h"
#include "plugin/capi/slimwire.h"
#include "tests/plugin/several_devices.h"

namespace slimwire::test {
namespace {

using Values = std::vector<float>;

// Elements of a rank's shard, by which the policy knows what to do.
constexpr size_t kGiven = 600, kTold = 604, kEstimated = 608, kOff = 616, kHalves = 620,
                 kOnce = 624;
constexpr double kStepSize = 0.25;

std::string rule(const char* name, size_t count, const std::string& rest) {
    std::string bytes;
    for (int ranks = 2; ranks <= 3; ++ranks) {
        const std::string size = std::to_string(4 * count * static_cast<size_t>(ranks));
        bytes += "[[rule]]\nname = \"" + std::string(name) + std::to_string(ranks) +
                 "\"\nmatch = { op = \"reducescatter\", bytes = \"" + size + ".." + size +
                 "\", ranks = " + std::to_string(ranks) +
                 " }\ncodec = \"topk:fraction=0.05\"\nef = \"ef14\"\n" + rest + "\n";
    }
    return bytes;
}

class Preview : public SeveralDevices<3> {
  protected:
    struct Unit {
        size_t count = 0;
        std::vector<Values> shards;      // by rank
        std::vector<float*> sent, full;  // on the devices
        Values given, delivered;         // in all, of every rank's block
        int by = 0;                      // the rank with a gradient
    };

    static void SetUpTestSuite() {
        write_policy(
            "version = 1\n" + rule("given", kGiven, "step_ahead = { step_size = 0.25 }") +
            rule("told", kTold, "step_ahead = { gain = 2.0, step_size = \"told\" }") +
            rule("estimated", kEstimated, "step_ahead = {}") + rule("off", kOff, "") +
            rule("halves", kHalves, "residual = \"bf16\"\nstep_ahead = { step_size = 0.25 }") +
            "[[rule]]\nname = \"sums\"\nmatch = { op = \"allreduce\" }\n"
            "codec = \"topk:fraction=0.05\"\nef = \"ef14\"\nalgorithm = \"gather\"\n"
            "step_ahead = { step_size = 0.25 }\n" +
            rule("once", kOnce, "average_every = 2\nstep_ahead = { step_size = 0.25 }"));
        ask_for_report();
    }
    Preview() : SeveralDevices(16) {}
    void TearDown() override {
        for (Unit& unit : units_) {
            for (int rank = 0; rank < ranks(); ++rank) {
                (void)cudaFree(unit.sent[static_cast<size_t>(rank)]);
                (void)cudaFree(unit.full[static_cast<size_t>(rank)]);
            }
        }
        SeveralDevices::TearDown();
    }

    static size_t n() { return static_cast<size_t>(ranks()); }
    void add_units(std::initializer_list<size_t> counts) {
        for (const size_t count : counts) {
            Unit unit;
            unit.count = count;
            unit.by = static_cast<int>(units_.size()) % ranks();
            unit.given.assign(n() * count, 0);
            unit.delivered = unit.given;
            for (int rank = 0; rank < ranks(); ++rank) {
                Values shard(count);
                for (size_t i = 0; i < count; ++i) {
                    shard[i] = std::sin(0.01f * static_cast<float>(i + 7 * units_.size()) +
                                        static_cast<float>(rank));
                }
                unit.shards.push_back(shard);
                unit.sent.push_back(buffer_of(rank, count * n()));
                unit.full.push_back(buffer_of(rank, count * n()));
            }
            units_.push_back(std::move(unit));
        }
    }

    // A call of every rank: in one group, or each by a thread of its own.
    void all(const std::function<ncclResult_t(int)>& call) {
        if (grouped_) {
            group(call);
            return;
        }
        std::vector<std::thread> threads;
        for (int rank = 0; rank < ranks(); ++rank) {
            threads.emplace_back([&, rank] {
                EXPECT_EQ(cudaSetDevice(rank), cudaSuccess);
                EXPECT_EQ(call(rank), ncclSuccess) << ncclGetLastError(nullptr);
            });
        }
        for (std::thread& thread : threads) {
            thread.join();
        }
    }

    // What each rank got; sent from the block of the result where in_place. The shards that were
    // sent must still be what they were.
    std::vector<Values> gather(Unit& unit, bool in_place = false, bool halves = false) {
        return halves ? gather_as<uint16_t>(unit, in_place, float_to_bfloat16, bfloat16_to_float)
                      : gather_as<float>(
                            unit, in_place, [](float x) { return x; }, [](float x) { return x; });
    }
    template <class Element>
    std::vector<Values> gather_as(Unit& unit,
                                  bool in_place,
                                  Element (*to)(float),
                                  float (*back)(Element)) {
        const auto of = [](const std::vector<float*>& buffers, int rank) {
            return reinterpret_cast<Element*>(buffers[static_cast<size_t>(rank)]);
        };
        const auto from = [&](int rank) {
            return in_place ? of(unit.full, rank) + static_cast<size_t>(rank) * unit.count
                            : of(unit.sent, rank);
        };
        std::vector<std::vector<Element>> given;
        for (int rank = 0; rank < ranks(); ++rank) {
            const Values& shard = unit.shards[static_cast<size_t>(rank)];
            given.emplace_back(shard.size());
            std::transform(shard.begin(), shard.end(), given.back().begin(), to);
            upload(rank, from(rank), given.back());
        }
        all([&](int rank) {
            return ncclAllGather(from(rank), of(unit.full, rank), unit.count,
                                 sizeof(Element) == 2 ? ncclBfloat16 : ncclFloat32, comms_[rank],
                                 nullptr);
        });
        std::vector<Values> got;
        for (int rank = 0; rank < ranks(); ++rank) {
            EXPECT_EQ(download<Element>(rank, from(rank), unit.count),
                      given[static_cast<size_t>(rank)])
                << "what is sent has changed";
            const auto full = download<Element>(rank, of(unit.full, rank), n() * unit.count);
            std::transform(full.begin(), full.end(), std::back_inserter(got.emplace_back()), back);
        }
        return got;
    }
    static float parameter(const Unit& unit, size_t i) {
        return unit.shards[i / unit.count][i % unit.count];
    }
    // Largest difference of a rank's copy from the parameters, and from where it should be with a
    // step so long.
    double off(const Unit& unit, const std::vector<Values>& got, double step) {
        double most = 0;
        for (int rank = 0; rank < ranks(); ++rank) {
            const Values& values = got[static_cast<size_t>(rank)];
            for (size_t i = 0; i < values.size(); ++i) {
                const double owed = static_cast<double>(unit.given[i]) - unit.delivered[i];
                const double x = static_cast<double>(parameter(unit, i)) -
                                 (rank == unit.by ? step * ranks() * owed : 0);
                most = std::max(most, std::abs(values[i] - x));
            }
        }
        return most;
    }

    void scatter(Unit& unit, int step) {
        Values gradient(n() * unit.count);
        for (size_t i = 0; i < gradient.size(); ++i) {
            gradient[i] = std::cos(0.3f * static_cast<float>(i) + static_cast<float>(step)) *
                          (i % 11 == 0 ? 1.0f : 0.1f);
            unit.given[i] += gradient[i];
        }
        const Values none(gradient.size(), 0.0f);
        for (int rank = 0; rank < ranks(); ++rank) {
            upload(rank, unit.full[static_cast<size_t>(rank)], rank == unit.by ? gradient : none);
        }
        all([&](int rank) {
            const auto at = static_cast<size_t>(rank);
            return ncclReduceScatter(unit.full[at], unit.sent[at], unit.count, ncclFloat32, ncclSum,
                                     comms_[rank], nullptr);
        });
        for (int rank = 0; rank < ranks(); ++rank) {
            const Values reduced = download(rank, unit.sent[static_cast<size_t>(rank)], unit.count);
            for (size_t i = 0; i < unit.count; ++i) {
                unit.delivered[static_cast<size_t>(rank) * unit.count + i] += reduced[i];
                // The optimizer, where there is one.
                unit.shards[static_cast<size_t>(rank)][i] -= rate_ * reduced[i];
            }
        }
    }

    // Forward and backward of all units, as FSDP gathers them; the largest distance of a gathered
    // parameter from where it should be.
    double train(int step, double size, bool halves = false) {
        double most = 0;
        const auto look = [&](Unit& unit) {  // a unit without a preview does not move
            const double moved = unit.count == kOff ? 0 : size;
            most = std::max(most, off(unit, gather(unit, false, halves), moved));
        };
        for (Unit& unit : units_) {
            look(unit);
        }
        for (size_t i = units_.size(); i-- > 0;) {
            look(units_[i]);
            scatter(units_[i], step);
        }
        return most;
    }
    bool owes() const {
        return std::any_of(units_.begin(), units_.end(), [](const Unit& unit) {
            double owed = 0;
            for (size_t i = 0; i < unit.given.size(); ++i) {
                owed = std::max<double>(owed, std::abs(unit.given[i] - unit.delivered[i]));
            }
            return owed > 0.1;
        });
    }
    std::vector<Unit> units_;
    bool grouped_ = true;
    float rate_ = 0;
};

constexpr double kStepAheadRounding = 1e-5;

TEST_P(Preview, WhatIsGatheredIsMovedByWhatThisRankOwes) {
    for (const bool grouped : {true, false}) {
        SCOPED_TRACE(grouped ? "in groups" : "each call alone");
        grouped_ = grouped;
        if (!grouped) {
            TearDown();
            units_.clear();
            SetUp();
        }
        add_units({kGiven, kGiven, kGiven, kOff});
        for (int step = 0; step < 6; ++step) {
            SCOPED_TRACE(step);
            mark();
            EXPECT_LT(train(step, step < 2 ? 0 : kStepSize), kStepAheadRounding);
            EXPECT_TRUE(owes());
        }
    }
}

TEST_P(Preview, EvaluationAndSavedParametersAreAsTheyAre) {
    add_units({kGiven, kGiven});
    for (int step = 0; step < 8; ++step) {
        SCOPED_TRACE(step);
        mark();
        EXPECT_LT(train(step, step < 2 ? 0 : kStepSize), kStepAheadRounding);
        if (step % 2 == 1) {
            // Behind the step, told or not, in every order, and in another type.
            for (const bool told : {false, true}) {
                ASSERT_EQ(slimwire_mark_phase(told ? SLIMWIRE_EVALUATION : SLIMWIRE_TRAINING),
                          SLIMWIRE_OK);
                for (const size_t i : {size_t{0}, size_t{1}, size_t{1}, size_t{0}}) {
                    EXPECT_EQ(off(units_[i], gather(units_[i]), 0), 0.0);
                }
                ASSERT_EQ(slimwire_mark_phase(SLIMWIRE_TRAINING), SLIMWIRE_OK);
            }
            EXPECT_LT(off(units_[0], gather(units_[0], false, true), 0), 0x1p-8);
        }
    }
    // Evaluation that is told, between the mark and the step.
    mark();
    ASSERT_EQ(slimwire_mark_phase(SLIMWIRE_EVALUATION), SLIMWIRE_OK);
    for (Unit& unit : units_) {
        EXPECT_EQ(off(unit, gather(unit), 0), 0.0);
    }
    ASSERT_EQ(slimwire_mark_phase(SLIMWIRE_TRAINING), SLIMWIRE_OK);
    EXPECT_LT(train(9, kStepSize), kStepAheadRounding);
}

TEST_P(Preview, InPlaceOwnShardsStay) {
    add_units({kGiven, kGiven});
    for (int step = 0; step < 5; ++step) {
        mark();
        for (int pass = 0; pass < 2; ++pass) {
            for (size_t k = 0; k < units_.size(); ++k) {
                Unit& unit = units_[pass == 0 ? k : units_.size() - 1 - k];
                const std::vector<Values> got = gather(unit, true);
                const Values& moved = got[static_cast<size_t>(unit.by)];
                size_t others = 0;
                for (size_t i = 0; i < moved.size(); ++i) {
                    const bool own = i / unit.count == static_cast<size_t>(unit.by);
                    const double owed = static_cast<double>(unit.given[i]) - unit.delivered[i];
                    const double by = own || step < 2 ? 0 : kStepSize * ranks() * owed;
                    ASSERT_NEAR(moved[i], parameter(unit, i) - by, kStepAheadRounding);
                    others += !own && moved[i] != parameter(unit, i) ? 1 : 0;
                }
                EXPECT_EQ(others > 0, step >= 2);
                if (pass == 1) {
                    scatter(unit, step);
                }
            }
        }
    }
}

TEST_P(Preview, ParametersOfSixteenBitsAndResidualsToo) {
    add_units({kHalves});
    for (int step = 0; step < 5; ++step) {
        mark();
        // Rounding of parameters around 1, of what moved them, and of what is stored.
        EXPECT_LT(train(step, step < 2 ? 0 : kStepSize, true), 0.03);
    }
    EXPECT_TRUE(owes());
    const std::vector<Values> got = gather(units_[0], false, true);
    EXPECT_LT(off(units_[0], got, 0), 0x1p-8) << "behind the step";
}

TEST_P(Preview, ByTheRateThatTheProgramTells) {
    add_units({kTold});
    for (int step = 0; step < 6; ++step) {
        mark();
        const double rate = step < 4 ? 0.125 : 0.0625;
        if (step > 0) {
            ASSERT_EQ(slimwire_set_learning_rate(rate), SLIMWIRE_OK);
        }
        // Its gain is 2.
        EXPECT_LT(train(step, step < 2 ? 0 : 2 * rate), kStepAheadRounding) << step;
    }
}

TEST_P(Preview, ByTheStepThatTheOptimizerMakes) {
    add_units({kEstimated, kEstimated});
    rate_ = 0.05f;
    for (int step = 0; step < 40; ++step) {
        mark();
        // The third step is the first whose gradients are kept.
        EXPECT_LT(train(step, step < 3 ? 0 : static_cast<double>(rate_)), 1e-3) << step;
    }
    renew_communicators();
    int moved = 0;
    for (const nlohmann::json& key : keys("estimated" + std::to_string(ranks()))) {
        if (key.at("codec") == "native") {
            continue;
        }
        ++moved;
        EXPECT_NEAR(key.at("step_size").get<double>(), 0.05, 1e-4);
        // Two gathers of both units in all steps but the first two.
        EXPECT_EQ(key.at("previews"), 2 * 2 * 38);
    }
    EXPECT_EQ(moved, ranks());
}

TEST_P(Preview, AfterAveragingByTheMean) {
    add_units({kOnce});
    Unit& unit = units_[0];
    for (int step = 0; step < 6; ++step) {
        mark();
        for (int pass = 0; pass < 2; ++pass) {
            const std::vector<Values> got = gather(unit);
            if (step == 4) {
                // The fourth call averaged: all ranks owe alike.
                for (int rank = 0; rank < ranks(); ++rank) {
                    for (size_t i = 0; i < unit.given.size(); ++i) {
                        const double owed =
                            (static_cast<double>(unit.given[i]) - unit.delivered[i]) / ranks();
                        ASSERT_NEAR(got[static_cast<size_t>(rank)][i],
                                    parameter(unit, i) - kStepSize * ranks() * owed,
                                    kStepAheadRounding);
                    }
                }
            }
        }
        scatter(unit, step);
    }
    EXPECT_TRUE(owes());
}

// Gradients that are all-reduced whole: the program moves its parameters and brings them back.
TEST_P(Preview, TheProgramMovesParametersThatAreNeverGathered) {
    constexpr size_t kCount = 2000, kFirst = 700;  // of two parameters in one bucket
    Values given(kCount, 0), delivered(kCount, 0);
    std::vector<float*> buckets(n()), parameters(n());
    for (int rank = 0; rank < ranks(); ++rank) {
        const auto at = static_cast<size_t>(rank);
        buckets[at] = buffer_of(rank, kCount);
        parameters[at] = buffer_of(rank, kCount);
        EXPECT_EQ(slimwire_step_ahead(buckets[at], parameters[at], kFirst, ncclFloat32, nullptr),
                  SLIMWIRE_NOTHING);
    }
    Values x(kCount);
    for (size_t i = 0; i < kCount; ++i) {
        x[i] = std::sin(0.02f * static_cast<float>(i));
    }
    for (int step = 0; step < 5; ++step) {
        mark();
        for (int rank = 0; rank < ranks(); ++rank) {
            const auto at = static_cast<size_t>(rank);
            SCOPED_TRACE(::testing::Message() << "step " << step << " rank " << rank);
            upload(rank, parameters[at], x);
            // The second parameter first.
            for (const size_t begin : {kFirst, size_t{0}}) {
                const size_t count = begin == 0 ? kFirst : kCount - kFirst;
                EXPECT_EQ(slimwire_step_ahead(buckets[at] + begin, parameters[at] + begin, count,
                                              ncclFloat32, nullptr),
                          step == 0 ? SLIMWIRE_NOTHING : SLIMWIRE_OK)
                    << slimwire_last_error();
            }
            const Values moved = download(rank, parameters[at], kCount);
            size_t away = 0;
            for (size_t i = 0; i < kCount; ++i) {
                const double owed = rank == 1 ? static_cast<double>(given[i]) - delivered[i] : 0;
                ASSERT_NEAR(moved[i], x[i] - kStepSize * ranks() * owed, kStepAheadRounding) << i;
                away += moved[i] != x[i] ? 1 : 0;
            }
            EXPECT_EQ(away > kCount / 2, rank == 1 && step > 0);
            if (step > 0) {
                EXPECT_EQ(
                    slimwire_step_ahead(buckets[at], parameters[at], kFirst, ncclFloat32, nullptr),
                    SLIMWIRE_INVALID)
                    << "twice";
                EXPECT_EQ(slimwire_step_ahead(buckets[at] + kFirst, buckets[at], kCount,
                                              ncclFloat32, nullptr),
                          SLIMWIRE_INVALID)
                    << "beyond the bucket";
            }
            for (const size_t begin : {size_t{0}, kFirst}) {
                EXPECT_EQ(slimwire_step_back(parameters[at] + begin, nullptr),
                          step == 0 ? SLIMWIRE_NOTHING : SLIMWIRE_OK);
                EXPECT_EQ(slimwire_step_back(parameters[at] + begin, nullptr), SLIMWIRE_NOTHING);
            }
            EXPECT_EQ(download(rank, parameters[at], kCount), x);
            Values gradient(kCount, 0);
            for (size_t i = 0; rank == 1 && i < kCount; ++i) {
                gradient[i] = std::cos(0.3f * static_cast<float>(i) + static_cast<float>(step));
                given[i] += gradient[i];
            }
            upload(rank, buckets[at], gradient);
        }
        all([&](int rank) {
            float* const bucket = buckets[static_cast<size_t>(rank)];
            return ncclAllReduce(bucket, bucket, kCount, ncclFloat32, ncclSum, comms_[rank],
                                 nullptr);
        });
        const Values got = download(0, buckets[0], kCount);
        for (size_t i = 0; i < kCount; ++i) {
            delivered[i] += got[i];
        }
    }
    // A capture is no place for it, and goes on.
    ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
    cudaStream_t stream = nullptr;
    cudaGraph_t graph = nullptr;
    ASSERT_EQ(cudaStreamCreate(&stream), cudaSuccess);
    ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    EXPECT_EQ(slimwire_step_ahead(buckets[0], parameters[0], kFirst, ncclFloat32, stream),
              SLIMWIRE_INVALID);
    EXPECT_EQ(slimwire_step_back(parameters[0], stream), SLIMWIRE_INVALID);
    EXPECT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
    (void)cudaGraphDestroy(graph);
    (void)cudaStreamDestroy(stream);
    EXPECT_EQ(slimwire_step_ahead(nullptr, parameters[0], 1, ncclFloat32, nullptr),
              SLIMWIRE_INVALID);
    EXPECT_EQ(slimwire_step_ahead(buckets[0], parameters[0], 1, ncclInt32, nullptr),
              SLIMWIRE_INVALID);
    for (int rank = 0; rank < ranks(); ++rank) {
        (void)cudaFree(buckets[static_cast<size_t>(rank)]);
        (void)cudaFree(parameters[static_cast<size_t>(rank)]);
    }
}

INSTANTIATE_TEST_SUITE_P(Ranks, Preview, testing::Values(2, 3));

}  // namespace
}  // namespace slimwire::test
