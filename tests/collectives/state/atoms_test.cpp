// Saved states taken apart into atoms: the maps of real plans say of every byte of a store what it
// is, and what is owed is the same by whatever number of ranks it is kept.
#include "collectives/state/atoms.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <numeric>
#include <random>

#include "collectives/algorithms/algorithm.h"
#include "collectives/dispatch/planner.h"
#include "collectives/feedback/residual_store.h"
#include "collectives/state/conversion.h"
#include "collectives/state/loaded_state.h"
#include "tests/collectives/state/saved_jobs.h"
#include "tests/support/plain_device.h"
#include "tests/support/ranks.h"
#include "tests/support/seed.h"

namespace slimwire::test {
namespace {

// What the optimizer would still receive of each element, by what all ranks' tensors hold, added up
// apart from SavedJob; contributions and sums apart.
struct Owed {
    std::vector<double> given, sums;

    explicit Owed(size_t elems) : given(elems), sums(elems) {}
    void add(const ResidualMap& map, const std::byte* tensor) {
        for (const ResidualMap::Run& run : map.runs) {
            if (run.sums > 2) {
                continue;
            }
            std::vector<float> values(static_cast<size_t>(run.count));
            ASSERT_TRUE(read_run(
                            map,
                            [&](uint64_t offset, std::span<std::byte> out) {
                                std::copy_n(tensor + offset, out.size(), out.data());
                                return Status();
                            },
                            run, 0, values)
                            .ok());
            std::vector<double>& to = run.sums == 1 ? sums : given;
            for (size_t i = 0; i < values.size(); ++i) {
                const size_t at = static_cast<size_t>(run.at) + i;
                to.resize(std::max(to.size(), at + 1));
                to[at] += (run.sums == 1 ? 1 : map.unit) * double{values[i]};
            }
        }
    }
};

// What FSDP1 divides a sum of so many ranks by, from 1 on.
constexpr double kFsdpDivides[] = {1,   1,   1.5, 2, 2.5, 1.5, 3.5, 2,
                                   4.5, 2.5, 5.5, 3, 6.5, 3.5, 7.5, 4};
double divided_by(RedOp redop, SumUse use, int ranks) {
    return redop != RedOp::kSum || use == SumUse::kWhole ? 1
           : use == SumUse::kMean                        ? ranks
                                  : kFsdpDivides[static_cast<size_t>(ranks) - 1];
}

struct Kept {
    const char* rule;
    const char* op = "allreduce";
    bool nodes = false;
};
constexpr Kept kKept[] = {
    {"codec = 'int4'\nerror_feedback = 'ef14'\n"},
    {"codec = 'int4'\nerror_feedback = 'ema'\nresidual = 'int8'\n"},
    {"codec = 'int4'\nerror_feedback = 'ema'\nresidual = 'bf16'\n", "reduce"},
    {"codec = 'int4'\nerror_feedback = 'ef14'\nalgorithm = 'gather'\n"},
    {"codec = 'topk:fraction=0.05'\nerror_feedback = 'ef14'\n"},
    {"codec = 'threshold:fraction=0.05,refresh=10'\nerror_feedback = 'ef14'\n"},
    {"codec = 'randomk:fraction=0.1'\nalgorithm = 'summable'\nerror_feedback = 'ef14'\n"},
    {"codec = 'powersgd:rank=2,row=50'\nerror_feedback = 'ef14'\n"},
    {"codec = 'linear_ae:width=2,row=50'\nerror_feedback = 'ef14'\n"},
    {"codec = 'int4'\nerror_feedback = 'ef14'\nalgorithm = 'direct'\n", "reducescatter"},
    {"codec = 'int4'\nerror_feedback = 'ema'\nresidual = 'int8'\nalgorithm = 'direct'\n",
     "reducescatter"},
    {"codec = 'int4'\nerror_feedback = 'ef14'\nalgorithm = 'hierarchical'\n", "allreduce", true},
    {"codec = 'int4'\nerror_feedback = 'ef14'\nalgorithm = 'hierarchical'\n", "reducescatter",
     true},
    {"codec = 'int4'\nerror_feedback = 'ef14'\nalgorithm = 'hierarchical'\nintra_codec = 'int8'\n",
     "allreduce", true},
    {"codec = 'int4'\nerror_feedback = 'ema'\nresidual = 'int8'\nalgorithm = "
     "'hierarchical'\nintra_codec = 'int8'\n",
     "reducescatter", true},
};

constexpr Kept kFollowed[] = {
    {"codec = 'int4'\nerror_feedback = 'ef21'\n"},
    {"codec = 'topk:fraction=0.05'\nerror_feedback = 'ef21'\n"},
    {"codec = 'int4'\nerror_feedback = 'ef21'\nalgorithm = 'gather'\n"},
    {"codec = 'int4'\nerror_feedback = 'ef21'\nalgorithm = 'direct'\n", "reducescatter"},
};
// Which of the sum that all ranks follow alike.
float followed(int64_t at) {
    return static_cast<float>(std::sin(static_cast<double>(at)));
}

PlanShape shape_of(int ranks, int per_node) {
    PlanShape shape;
    shape.ranks = ranks;
    shape.go = true;
    CommShape places;
    places.ranks = ranks;
    places.scope = Scope::kInterNode;
    for (int rank = 0; rank < ranks; ++rank) {
        places.node_of_rank.push_back(rank / per_node);
        places.local_rank.push_back(rank % per_node);
    }
    places.nodes = places.node_of_rank.back() + 1;
    places.min_ranks_per_node = places.max_ranks_per_node = per_node;
    shape.max_ranks_per_node = places.max_ranks_per_node;
    shape.nodes = std::make_shared<const NodeTable>(places);
    return shape;
}

Plan plan_of(const Kept& kept, const PlanShape& shape, RedOp redop, uint64_t elems) {
    Result<Policy> policy =
        parse_policy(std::string("version = 1\n[[rule]]\nname = 'r'\nmatch = { op = '") + kept.op +
                         "' }\nmin_bytes = 1\n" + kept.rule,
                     "p.toml");
    EXPECT_TRUE(policy.ok()) << policy.status().message();
    Config config;
    config.policy = std::move(policy).value();
    config.active = true;
    config.settings.slice_bytes = 2 * elems;
    const std::string op = kept.op;
    CallSignature signature;
    signature.op = op == "allreduce" ? Op::kAllReduce
                   : op == "reduce"  ? Op::kReduce
                                     : Op::kReduceScatter;
    const auto ranks = static_cast<uint64_t>(shape.ranks);
    signature.count = signature.op == Op::kReduceScatter ? (elems + ranks - 1) / ranks : elems;
    signature.redop = redop;
    Plan plan = make_plan(signature, shape, config);
    EXPECT_TRUE(plan.compressed) << kept.rule << plan.reason;
    return plan;
}

// Each element has its contributors and at most one owner of its sum, no two runs share an element
// of the store, and what is written is read.
TEST(Atoms, MapsSayOfEachResidualWhatItIs) {
    std::mt19937 random(test_seed());
    std::vector<Kept> all(std::begin(kKept), std::end(kKept));
    all.insert(all.end(), std::begin(kFollowed), std::end(kFollowed));
    for (const Kept& kept : all) {
        for (const int ranks : {2, 6}) {
            SCOPED_TRACE(kept.rule + std::to_string(ranks) + kept.op);
            if (kept.nodes && ranks < 4) {
                continue;
            }
            const uint64_t elems = 8200 + random() % 2000;
            const PlanShape shape = shape_of(ranks, kept.nodes ? 2 : 1);
            const Plan plan = plan_of(kept, shape, RedOp::kSum, elems);
            std::vector<uint32_t> counts[5];
            for (int rank = 0; rank < ranks; ++rank) {
                const ResidualMap map = residual_map(plan, shape, rank);
                ASSERT_EQ(map.contributors, static_cast<uint32_t>(kept.nodes ? ranks / 2 : ranks));
                ASSERT_LE(map.state_bytes + map.store_bytes(), plan.residual.bytes);
                const std::vector<std::byte> text = bytes_of(map);
                ASSERT_TRUE(residual_map_of(text, plan.residual.bytes).ok());
                EXPECT_FALSE(
                    residual_map_of(std::span(text).first(text.size() - 1), plan.residual.bytes)
                        .ok());
                EXPECT_FALSE(residual_map_of(text, map.state_bytes + map.store_bytes() - 1).ok());
                for (std::vector<uint32_t>& one : counts) {
                    one.resize(map.elems);
                }
                std::vector<bool> stored(map.stored_elems);
                size_t again = 0;
                std::vector<std::byte> tensor(plan.residual.bytes);
                for (const ResidualMap::Run& run : map.runs) {
                    std::vector<float> values, back(static_cast<size_t>(run.count));
                    for (int64_t i = 0; i < run.count; ++i) {
                        ++counts[run.sums][static_cast<size_t>(run.at + i)];
                        again += stored[static_cast<size_t>(run.begin + i)] ? 1 : 0;
                        stored[static_cast<size_t>(run.begin + i)] = true;
                        values.push_back(static_cast<float>(i % 127));
                    }
                    write_run(map, tensor.data(), run, values);
                    ASSERT_TRUE(read_run(
                                    map,
                                    [&](uint64_t offset, std::span<std::byte> out) {
                                        std::copy_n(tensor.begin() + static_cast<int64_t>(offset),
                                                    out.size(), out.begin());
                                        return Status();
                                    },
                                    run, 0, back)
                                    .ok());
                    const float most = map.type == ResidualType::kFloat32 ? 0.0f : 1.1f;
                    ASSERT_TRUE(
                        std::equal(back.begin(), back.end(), values.begin(),
                                   [&](float a, float b) { return std::abs(a - b) <= most; }));
                }
                EXPECT_EQ(again, 0u);
            }
            const auto most = static_cast<uint32_t>(kept.nodes ? ranks / 2 : ranks);
            const bool intra = std::string(kept.rule).find("intra_codec") != std::string::npos;
            const bool follows = std::string(kept.rule).find("ef21") != std::string::npos;
            const bool shards = std::string(kept.op) == "reducescatter";
            const auto every = static_cast<uint32_t>(ranks);
            const uint32_t wanted[] = {most, counts[1][0], intra ? every : 0,
                                       follows && !shards ? every : 0,
                                       follows && shards ? every : 0};
            for (size_t i = 0; i < std::size(counts); ++i) {
                EXPECT_EQ(counts[i], std::vector<uint32_t>(counts[i].size(), wanted[i])) << i;
            }
        }
    }
}

struct Ranks {
    int ranks = 2, per_node = 1;
};

class Conserved : public SavedJobs {
  protected:
    // A file of each rank, whose residuals of `elems` elements are drawn; what they come to.
    Owed save(const Ranks& of, const Plan& plan, uint64_t elems) {
        const PlanShape shape = shape_of(of.ranks, of.per_node);
        Owed owed(residual_map(plan, shape, 0).elems);
        std::normal_distribution<float> value;
        const uint64_t sent_from = elems - random_() % 3;  // by all ranks, the last ones
        for (int rank = 0; rank < of.ranks; ++rank) {
            const ResidualMap map = residual_map(plan, shape, rank);
            std::vector<std::byte> tensor(plan.residual.bytes);
            for (const ResidualMap::Run& run : map.runs) {
                std::vector<float> values(static_cast<size_t>(run.count));
                // Residuals of very different sizes: a part of them must not be lost in another.
                const float scale = std::ldexp(1.0f, static_cast<int>(random_() % 12));
                for (size_t i = 0; i < values.size(); ++i) {
                    const bool padding = static_cast<uint64_t>(run.at) + i >= elems;
                    const bool sent = static_cast<uint64_t>(run.at) + i >= sent_from;
                    const int64_t at = run.at + static_cast<int64_t>(i);
                    values[i] = run.sums == 3     ? followed(at)
                                : padding || sent ? 0.0f
                                                  : scale * value(random_);
                }
                write_run(map, tensor.data(), run, values);
            }
            owed.add(map, tensor.data());
            HandWritten state = state_of(rank, of.ranks);
            const LastingTensor name{state.index.comms[0].key, plan.signature, 6, 0};
            ResidualMap said = map;
            if (map.model == 0 && name_ != nullptr) {
                said.names.push_back({name_});
            }
            state.add(
                name,
                map.state_bytes > 0 || map.estimates() ? StateKind::kShared : StateKind::kResiduals,
                std::move(tensor));
            state.add(name, StateKind::kMap, bytes_of(said));
            write(state);
        }
        return owed;
    }
    // The atoms of the files, which so many ranks save again that no call took them on.
    void pass_through(int ranks) {
        std::vector<std::string> left_out;
        const Result<StateContent> content =
            converted_state(folder_.path(), ranks, options_, &left_out);
        ASSERT_TRUE(content.ok()) << content.status().message();
        EXPECT_EQ(left_out, std::vector<std::string>());
        std::filesystem::rename(folder_.path(), folder_.path() + ".old");
        std::filesystem::create_directory(folder_.path());
        for (int rank = 0; rank < ranks; ++rank) {
            StateIndex index = content.value().index;
            index.atoms = false;
            index.launcher_rank = rank;
            ASSERT_TRUE(write_state(folder_.file("state." + std::to_string(rank)), index,
                                    content.value().read)
                            .ok());
        }
        std::filesystem::remove_all(folder_.path() + ".old");
    }
    // The tensor of a rank is called first, and has what `loaded_` gets.
    ResidualOrigin first_call(const Plan& plan, const PlanShape& shape, int rank) {
        const DeviceApi api = plain_device();
        MemoryBudget budget;
        DeviceMemory memory;
        ResidualStore store(&budget, &memory);
        Communicator communicator;
        communicator.shape = shape;
        communicator.rank = rank;
        communicator.group.number = 1;
        const bool bucket = plan.parameters != nullptr;  // another one
        const uint64_t path = bucket || name_ != nullptr ? 8 : 6;
        const TensorUse use{{1, plan.signature, nullptr, 0, 0}, path, 1, &plan, 0, false, name_};
        const Result<Residual> got =
            store.get({api, &communicator.objects, nullptr}, 0, use, plan.residual.bytes,
                      {5, 7, false, &plan, &communicator});
        EXPECT_TRUE(got.ok());
        const auto* const buffer = static_cast<const std::byte*>(got.value().buffer);
        loaded_.emplace_back(buffer, buffer + plan.residual.bytes);
        Retirement left(&memory, api, 0);
        store.take(1, &left);
        return got.value().origin;
    }
    // What the next ranks owe that load them.
    Owed load(const Ranks& to, const Plan& plan) {
        const PlanShape shape = shape_of(to.ranks, to.per_node);
        Owed owed(residual_map(plan, shape, 0).elems);
        for (int rank = 0; rank < to.ranks; ++rank) {
            std::vector<std::string> left_out;
            const bool many = rank % 2 == 1;  // files, so that none stays open
            Result<StateContent> content = converted_state(folder_.path(), to.ranks, options_,
                                                           &left_out, many ? 0 : kMostOpenFiles);
            EXPECT_TRUE(content.ok()) << content.status().message();
            EXPECT_EQ(left_out, std::vector<std::string>());
            for (size_t i = 0; i < content.value().held.size(); ++i) {
                EXPECT_EQ(content.value().held[i] != nullptr,
                          content.value().index.tensors[i].kind == StateKind::kAlike ||
                              content.value().index.tensors[i].kind == StateKind::kMap)
                    << "what is owed is read where it is asked for";
            }
            PendingState::instance().replace(std::move(content).value());
            EXPECT_EQ(first_call(plan, shape, rank), ResidualOrigin::kRestored);
            owed.add(residual_map(plan, shape, rank), loaded_.back().data());
        }
        PendingState::instance().replace({});
        return owed;
    }
    static Plan plan_for(const Kept& kept, const Ranks& of, RedOp redop, uint64_t elems) {
        return plan_of(kept, shape_of(of.ranks, of.per_node), redop, elems);
    }
    // Some parameters in the bucket of one plan, in another order in that of the other, by names
    // also in that of the model: where each element of the first is in the second.
    std::vector<size_t> give_parameters(Plan* before, Plan* then) {
        std::vector<ParameterRange> ranges;
        const uint64_t elems = before->signature.count;
        const bool names = random_() % 2 == 0;
        for (uint64_t at = 0; at < elems;) {
            const uint64_t count = std::min<uint64_t>(elems - at, 1 + random_() % 700);
            ranges.push_back({.offset = at,
                              .count = count,
                              .parameter = static_cast<uint32_t>(ranges.size()),
                              .name = {},
                              .key = names ? "p" + std::to_string(ranges.size()) : ""});
            at += count;
        }
        const auto bucket_of = [&](uint64_t model) {
            return std::make_shared<ParameterRanges>(ParameterRanges{ranges, 0, 0, model});
        };
        before->parameters = bucket_of(77);
        std::shuffle(ranges.begin(), ranges.end(), random_);
        std::vector<size_t> places(elems);
        uint64_t next = 0;
        for (ParameterRange& one : ranges) {
            std::iota(places.begin() + static_cast<ptrdiff_t>(one.offset),
                      places.begin() + static_cast<ptrdiff_t>(one.offset + one.count), next);
            one.offset = next;
            next += one.count;
            one.parameter = names ? static_cast<uint32_t>(next) : one.parameter;
        }
        then->parameters = bucket_of(names ? 78 : 77);
        return places;
    }
    std::mt19937 random_{test_seed()};
    std::vector<std::vector<std::byte>> loaded_;  // of each rank, what its tensor keeps
    const char* name_ = nullptr;                  // of the tensor, whose slot changes
    ConversionOptions options_{.flat_shards = true};
};

// For any ranks, nodes, policies before and after, and reductions: what the optimizer would still
// receive stays, but for a rounding of each of the atoms, and of what is stored.
TEST_F(Conserved, WhatIsOwedIsTheSameOnOtherRanksUnderOtherPolicies) {
    constexpr RedOp kRedOps[] = {RedOp::kSum, RedOp::kAvg, RedOp::kPreMulSum};
    const auto draw = [&](int least, int most) {
        return least + static_cast<int>(random_() % static_cast<unsigned>(most - least + 1));
    };
    const auto ranks_of = [&](bool nodes) {
        const int per_node = nodes ? draw(2, 4) : 1;
        return Ranks{nodes ? draw(2, 4) * per_node : draw(2, 9), per_node};
    };
    for (size_t job = 0; job < 3 * std::size(kKept); ++job) {
        const Kept& kept = kKept[job % std::size(kKept)];
        const Ranks from = ranks_of(kept.nodes), to = ranks_of(kept.nodes);
        // Policies that take the same calls, on the same nodes.
        const Kept* after = &kept;
        for (size_t i = 0; i < 20; ++i) {
            const Kept& other = kKept[random_() % std::size(kKept)];
            // Gathers of more ranks are no smaller than what NCCL sends.
            const bool fits =
                std::string(other.op) == kept.op && (!other.nodes || to.per_node > 1) &&
                (std::string(other.rule).find("gather") == std::string::npos || to.ranks < 14);
            after = fits ? &other : after;
        }
        RedOp redop = kRedOps[random_() % std::size(kRedOps)];
        const auto takes = [](const Kept& one, RedOp op) {
            return op != RedOp::kPreMulSum ||
                   (std::string(one.rule).find("powersgd") == std::string::npos &&
                    std::string(one.rule).find("linear_ae") == std::string::npos);
        };
        redop = takes(kept, redop) && takes(*after, redop) ? redop : RedOp::kAvg;
        const uint64_t elems = 1600 + random_() % 400;
        const int between = random_() % 3 == 0 ? draw(1, 16) : 0;
        SCOPED_TRACE(std::string(kept.rule) + kept.op + " " + redop_name(redop) + " of " +
                     std::to_string(from.ranks) + ", " + std::to_string(between) + " becomes " +
                     after->rule + "of " + std::to_string(to.ranks));
        Plan before = plan_for(kept, from, redop, elems);
        Plan then = plan_for(*after, to, redop, elems);
        std::vector<size_t> places;
        if (before.signature.op == Op::kAllReduce && before.residual.state_bytes == 0 &&
            then.residual.state_bytes == 0 && random_() % 2 == 0) {
            places = give_parameters(&before, &then);
        }
        name_ = random_() % 2 == 0 ? "layer.weight" : nullptr;
        options_.sums = static_cast<SumUse>(random_() % 3);
        const double per_sum = divided_by(redop, options_.sums, to.ranks) /
                               divided_by(redop, options_.sums, from.ranks);
        std::filesystem::remove_all(folder_.path());
        std::filesystem::create_directory(folder_.path());
        const Owed owed = save(from, before, elems);
        const Result<SavedJob> saved = SavedJob::open(folder_.path());
        ASSERT_TRUE(saved.ok()) << saved.status().message();
        EXPECT_EQ(saved.value().findings(), std::vector<std::string>());
        if (between > 0) {
            pass_through(between);
        }
        const Owed restored = load(to, then);
        // Stored by drawing between the two neighbours.
        const double unit = then.residual.type == ResidualType::kFloat32    ? 0x1p-24
                            : then.residual.type == ResidualType::kBfloat16 ? 0x1p-7
                                                                            : 1.02 / 127;
        double most_given = 0, most_sums = 0;
        for (size_t i = 0; i < owed.given.size(); ++i) {
            most_given = std::max(most_given, per_sum * std::abs(owed.given[i]));
            most_sums = std::max(most_sums, per_sum * std::abs(owed.sums[i]));
        }
        size_t wrong = 0;
        for (size_t i = 0; i < owed.given.size(); ++i) {
            const double given = per_sum * owed.given[i], sums = per_sum * owed.sums[i];
            const size_t place = i < places.size() ? places[i] : i;
            const bool here = place < restored.given.size();
            const double now = here ? restored.given[place] + restored.sums[place] : 0;
            // Int8 has a scale for a block; its largest is at most that of all elements.
            const double of = then.residual.type == ResidualType::kInt8
                                  ? most_given + most_sums
                                  : std::abs(given) + std::abs(sums);
            const double most = 0x1p-24 * (std::abs(given) + std::abs(sums)) + 1.01 * unit * of;
            wrong += std::abs(now - given - sums) > most ? 1 : 0;
        }
        EXPECT_EQ(wrong, 0u);
    }
}

TEST_F(Conserved, WhatIsOwedIsNotTakenForEstimatesAndItIsSaid) {
    const Ranks of{2};
    const Plan before = plan_for(kKept[0], of, RedOp::kSum, 1600),
               then = plan_for(kFollowed[0], of, RedOp::kSum, 1600);
    (void)save(of, before, 1600);
    std::vector<std::string> left_out;
    PendingState::instance().replace(converted_state(folder_.path(), 2, {}, &left_out).value());
    EXPECT_EQ(first_call(then, shape_of(2, 1), 1), ResidualOrigin::kMade);
    testing::internal::CaptureStderr();
    PendingState::instance().tell_missed(true);
    const std::string said = testing::internal::GetCapturedStderr();
    EXPECT_NE(said.find("loaded state: 1 tensors, "), std::string::npos) << said;
    EXPECT_NE(said.find("first allreduce f32 sum count 1600 ordinal 0 residuals: EF21 follows"),
              std::string::npos)
        << said;
    PendingState::instance().replace({});
}

// A byte of a file that is damaged: the heads are whole, and the tensor begins at zero, on each
// rank that reads it. Of a head nothing is taken.
TEST_F(Conserved, WhatIsDamagedIsFoundWhereItIsRead) {
    const Ranks of{2};
    const Plan plan = plan_for(kKept[0], of, RedOp::kSum, 60000);
    (void)save(of, plan, 60000);
    const std::string path = folder_.file("state.1");
    const std::string good = read_file(path);
    const auto damage = [&](size_t at) {
        std::string bad = good;
        bad[at] = static_cast<char>(bad[at] ^ 1);
        std::ofstream(path, std::ios::binary) << bad;
    };
    std::vector<std::string> left_out;
    damage(good.size() / 2);
    for (const int rank : {0, 2}) {
        PendingState::instance().replace(
            converted_state(folder_.path(), 3, {.own = rank}, &left_out).value());
        testing::internal::CaptureStderr();
        EXPECT_EQ(first_call(plan_for(kKept[0], {3}, RedOp::kSum, 60000), shape_of(3, 1), rank),
                  ResidualOrigin::kMade);
        EXPECT_NE(testing::internal::GetCapturedStderr().find("begins at zero: state file '" +
                                                              path + "' is damaged"),
                  std::string::npos);
    }
    for (const size_t at : {20ul, 70ul, 130ul, good.size() - 20, good.size() - 3}) {
        damage(at);
        EXPECT_FALSE(converted_state(folder_.path(), 3, {}, &left_out).ok()) << at;
    }
    PendingState::instance().replace({});
}

// Files that are whole and say of the sum that all follow not the same.
TEST_F(Conserved, EstimatesThatDifferAreFoundByTheRankThatCompares) {
    const Ranks of{2};
    (void)save(of, plan_for(kFollowed[0], of, RedOp::kSum, 1600), 1600);
    StateContent other = read_state(folder_.file("state.1")).value();
    const ResidualMap map = residual_map_of({other.held[1].get(), other.index.tensors[1].bytes},
                                            other.index.tensors[0].bytes)
                                .value();
    const ResidualMap::Run& sum = map.runs.back();  // that all follow
    write_run(map, other.held[0].get(), sum,
              std::vector<float>(static_cast<size_t>(sum.count), 9.0f));
    ASSERT_TRUE(write_state(folder_.file("state.1"), other.index, {}, [&](size_t i) {
                    return static_cast<const std::byte*>(other.held[i].get());
                }).ok());
    std::vector<std::string> left_out;
    for (const int rank : {0, 1, 2}) {
        const StateContent content =
            converted_state(folder_.path(), 3, {.own = rank}, &left_out).value();
        for (size_t i = 0; i < content.index.tensors.size(); ++i) {
            const bool differs =
                rank == 1 && content.index.tensors[i].kind == StateKind::kEstimateOfSum;
            std::vector<std::byte> bytes(content.index.tensors[i].bytes);
            EXPECT_EQ(content.read(i, 0, bytes)
                          .message()
                          .ends_with("rank 1 has another estimate of the sum than rank 0"),
                      differs);
        }
    }
}

// What EF21 follows: contributions average to what they were, of the sum all have the same, with
// what owners of sums kept where nobody keeps it now, and both ends of a block have the same of it.
TEST_F(Conserved, EstimatesFollowTheSameOnOtherRanks) {
    const auto at_of = [](const Plan& plan, const PlanShape& shape, int rank,
                          const std::vector<std::byte>& tensor, uint32_t which, auto use) {
        for (const ResidualMap::Run& run : residual_map(plan, shape, rank).runs) {
            for (int64_t i = 0; run.sums == which && i < run.count; ++i) {
                float value = 0;
                std::memcpy(&value, tensor.data() + (run.begin + i) * 4, sizeof value);
                use(run.begin + i, run.at + i, value);
            }
        }
    };
    for (size_t job = 0; job < 4 * std::size(kFollowed); ++job) {
        const Kept& kept = kFollowed[job % std::size(kFollowed)];
        const Kept& after = job % 4 == 3 ? kept : kFollowed[random_() % 3];
        const Ranks from{2 + static_cast<int>(random_() % 7)},
            to{2 + static_cast<int>(random_() % 7)};
        const RedOp redop = random_() % 2 == 0 ? RedOp::kSum : RedOp::kAvg;
        const uint64_t elems = 1600 + random_() % 400;
        SCOPED_TRACE(std::string(kept.rule) + redop_name(redop) + " of " +
                     std::to_string(from.ranks) + " becomes " + after.rule + "of " +
                     std::to_string(to.ranks));
        const Plan before = plan_for(kept, from, redop, elems);
        const Plan then = plan_for(after, to, redop, elems);
        std::filesystem::remove_all(folder_.path());
        std::filesystem::create_directory(folder_.path());
        const Owed owed = save(from, before, elems);
        if (job % 3 == 0) {
            pass_through(1 + static_cast<int>(random_() % 9));
        }
        loaded_.clear();
        const Owed restored = load(to, then);
        const PlanShape shape = shape_of(to.ranks, 1);
        size_t wrong = 0;
        const auto expect = [&](double value, double wanted, double of) {
            wrong += std::abs(value - wanted) > 0x1p-22 * of + 1e-30 ? 1 : 0;
        };
        const bool keeps_sums = std::string(after.rule).find("gather") == std::string::npos;
        for (size_t i = 0; i < std::min(owed.given.size(), restored.given.size()); ++i) {
            expect(restored.given[i], owed.given[i], std::abs(owed.given[i]));
            expect(restored.sums[i], keeps_sums ? owed.sums[i] : 0, std::abs(owed.sums[i]));
        }
        const auto block = static_cast<int64_t>(then.signature.count);
        for (int rank = 0; rank < to.ranks; ++rank) {
            const auto& own = loaded_[static_cast<size_t>(rank)];
            at_of(then, shape, rank, own, 3, [&](int64_t, int64_t at, float value) {
                const double more = keeps_sums ? 0 : owed.sums[static_cast<size_t>(at)];
                expect(value, followed(at) + more, 1 + std::abs(more));
            });
            at_of(then, shape, rank, own, 4, [&](int64_t begin, int64_t at, float value) {
                const auto source = static_cast<size_t>(
                    (begin - static_cast<int64_t>(then.residual.shared_estimate)) / block);
                float given = 0;
                std::memcpy(&given, loaded_[source].data() + at * 4, sizeof given);
                wrong += std::memcmp(&given, &value, sizeof value) != 0 ? 1 : 0;
            });
        }
        EXPECT_EQ(wrong, 0u);
    }
}

}  // namespace
}  // namespace slimwire::test
