// Saved states of communicators of some of the ranks, and what becomes of them in other groups.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <map>
#include <set>
#include <tuple>

#include "collectives/state/atoms.h"
#include "collectives/state/conversion.h"
#include "collectives/state/loaded_state.h"
#include "tests/collectives/state/saved_jobs.h"

namespace slimwire::test {
namespace {

// Of each rank of a grid, stages slowest and parts of a layer fastest, what its pipeline and its
// tensor parallel group learned: with other numbers of copies each group goes on with what one of
// the same place learned, all of its ranks with the same one's.
TEST_F(SavedJobs, GroupsOfOtherCopiesGoOnWithWhatTheyLearned) {
    struct Place {
        int stage, copy, part;
    };
    constexpr int kParts = 2;
    const auto place_of = [](int rank, int copies) {
        return Place{rank / (kParts * copies), rank / kParts % copies, rank % kParts};
    };
    // The pipeline, and the parts of a layer.
    const auto groups_of = [&](int rank, int ranks, int copies) {
        std::vector<int> members[2];
        const Place own = place_of(rank, copies);
        for (int other = 0; other < ranks; ++other) {
            const Place its = place_of(other, copies);
            if (its.copy == own.copy && its.part == own.part) {
                members[0].push_back(other);
            }
            if (its.copy == own.copy && its.stage == own.stage) {
                members[1].push_back(other);
            }
        }
        std::vector<RankGroup> groups{group_of(members[0], ranks), group_of(members[1], ranks)};
        groups[1].number = 2;
        return groups;
    };
    const auto key_of = [](const RankGroup& group) { return 500 + atoms_key(group) % 1000; };
    PendingState& pending = PendingState::instance();
    for (const auto& [stages, copies, then] :
         {std::tuple(2, 2, 4), std::tuple(2, 4, 2), std::tuple(3, 2, 3), std::tuple(2, 1, 2)}) {
        SCOPED_TRACE(std::to_string(stages) + " stages, copies " + std::to_string(copies) +
                     " become " + std::to_string(then));
        const int before = stages * copies * kParts, now = stages * then * kParts;
        std::filesystem::remove_all(folder_.path());
        std::filesystem::create_directory(folder_.path());
        for (int rank = 0; rank < before; ++rank) {
            HandWritten state = state_of(rank, before);
            for (const RankGroup& group : groups_of(rank, before, copies)) {
                const uint64_t key = key_of(group);
                state.index.comms.push_back(
                    {key, rank, kParts, {3, 4}, 90 + group.index, 0, group});
                for (const uint64_t path : {uint64_t{8}, kAveragedCodes}) {
                    state.add({key, {.root_or_peer = 1}, path, 0}, StateKind::kMessages,
                              std::vector(8, std::byte(rank)));
                }
            }
            write(state);
        }
        std::map<uint64_t, std::set<int>> sources;  // of each group, the copies
        for (int rank = 0; rank < now; ++rank) {
            std::vector<std::string> left_out;
            pending.replace(converted_state(folder_.path(), now, {.own = rank}, &left_out).value());
            EXPECT_EQ(left_out, std::vector<std::string>());
            const Place own = place_of(rank, then);
            for (const RankGroup& group : groups_of(rank, now, then)) {
                const ProgressRecords got = pending.take_progress(atoms_key(group));
                ASSERT_EQ(got.size(), 1u) << rank << " in group " << group.index;
                EXPECT_EQ(got.begin()->first.first.path, 8u);
                const Place from = place_of(static_cast<int>(got.begin()->second[0]), copies);
                EXPECT_EQ(from.stage, own.stage) << rank;
                EXPECT_EQ(from.part, own.part) << rank;
                EXPECT_EQ(pending.comm(atoms_key(group)).drawn[1], 4u);
                sources[atoms_key(group)].insert(from.copy);
                sources[pending.comm(atoms_key(group)).snapshot_id ^ atoms_key(group)].insert(0);
            }
        }
        for (const auto& [group, from] : sources) {
            EXPECT_EQ(from.size(), 1u);
        }
        EXPECT_EQ(sources.size(), 2u * static_cast<size_t>(now / stages + now / kParts));
    }
    pending.replace({});
}

// Ranks of four that each share a model with every second one: of eight each has what its group
// owed, and nothing where that is of several moments, or groups would be others.
TEST_F(SavedJobs, GroupsGoOnWithMoreRanksEach) {
    const CallSignature sum{Op::kAllReduce, DType::kFloat32, RedOp::kSum, 0, 16};
    const std::vector<std::byte> map =
        bytes_of({.contributors = 2, .stored_elems = 16, .elems = 16, .runs = {{0, 16, 0, 0, 0}}});
    for (int rank = 0; rank < 4; ++rank) {
        HandWritten state = state_of(rank, 4);
        const uint64_t key = 300 + static_cast<uint64_t>(rank), moment = rank == 3 ? 6 : 5;
        const std::vector<int> members{rank % 2, rank % 2 + 2};
        state.index.comms.push_back({key, rank / 2, 2, {7, 8}, moment, 0, group_of(members, 4)});
        state.add({key, sum, 6, 0}, std::vector<float>(16, static_cast<float>(1 << rank)), map);
        write(state);
    }
    for (const auto& [ranks, own] :
         {std::pair(8, 6), std::pair(8, 5), std::pair(3, 0), std::pair(8, -1)}) {
        std::vector<std::string> left_out;
        const StateContent content =
            converted_state(folder_.path(), ranks, {.own = own}, &left_out).value();
        const bool taken = ranks == 8 && own == 6;
        ASSERT_EQ(content.index.tensors.size(), taken ? 1u : 0u) << ranks << " and " << own;
        EXPECT_EQ(content.index.comms.size(), ranks == 8 && own >= 0 ? 2u : 1u);
        EXPECT_EQ(left_out.size(), taken ? 0u : 1u);
        if (taken) {
            const RankGroup group = group_of(std::vector<int>{0, 2, 4, 6}, 8);
            EXPECT_EQ(content.index.tensors[0].tensor.comm, atoms_key(group));
            EXPECT_EQ(content.index.comms[1].key, atoms_key(group));
            EXPECT_EQ(content.index.comms[1].ranks, 4);
            std::vector<float> owed(16);
            ASSERT_TRUE(content.read(0, 0, std::as_writable_bytes(std::span(owed))).ok());
            EXPECT_EQ(owed, std::vector<float>(16, 1 + 4));
        } else {
            EXPECT_NE(left_out[0].find(own == 5 ? "its ranks' parts do not fit each other"
                                                : "of a communicator of some of the ranks only"),
                      std::string::npos)
                << left_out[0];
        }
    }
}

// Tensor parallel ranks: each group has a part of two matrices, cut along rows and along columns,
// of a third it is not told, and all of a vector. `bucket`: those are parameters of one message.
class SharedTensors : public SavedJobs {
  protected:
    static constexpr int kBefore = 8, kGroups = 2;
    static constexpr uint64_t kWhole = 24, kColumns = 12, kVector = 5;
    struct Tensor {
        const char* name;
        uint32_t pieces;
    };
    static constexpr Tensor kTensors[] = {{"rows", 1},
                                          {"columns", kWhole / kColumns},
                                          {"vector", ResidualMap::kReplicated},
                                          {"secret", 0}};
    static uint64_t count_of(size_t tensor, uint64_t groups) {
        return tensor == 2 ? kVector : kWhole / groups;
    }
    // Where the element of a part is in the whole.
    static uint64_t place_of(size_t tensor, uint64_t at, const RankGroup& group) {
        const uint64_t block = kColumns / group.groups;
        return tensor == 2   ? at
               : tensor == 1 ? at / block * kColumns + group.index * block + at % block
                             : group.index * (kWhole / group.groups) + at;
    }
    static CallSignature mean_of(uint64_t count) {
        return {Op::kAllReduce, DType::kFloat32, RedOp::kAvg, 0, count};
    }
    // The parts of all tensors, one behind the other, as one message has them.
    static ResidualMap bucket_of(uint64_t groups) {
        ResidualMap map{.model = 3 + groups};
        for (uint32_t i = 0; i < std::size(kTensors); ++i) {
            const auto count = static_cast<int64_t>(count_of(i, groups));
            map.parameters.push_back({i, 2, static_cast<int64_t>(map.elems), count});
            map.names.push_back({kTensors[i].name, kTensors[i].pieces});
            map.elems += static_cast<uint64_t>(count);
        }
        return map;
    }
    static RankGroup group_with(int rank, int ranks, int groups, bool together) {
        std::vector<int> members;
        for (int other = 0; other < ranks; ++other) {
            const int size = ranks / groups;
            if (together ? other / size == rank / size : other % groups == rank % groups) {
                members.push_back(other);
            }
        }
        return group_of(members, ranks);
    }
    // What is kept: residuals, EF21's estimates, of the sum kMore more, or kFactors bytes and
    // behind them residuals.
    enum class Keeps { kResiduals, kEstimates, kFactors };
    static constexpr float kMore = 0.25f;
    static constexpr uint64_t kFactors = 16;
    Keeps keeps_ = Keeps::kResiduals;
    void save(int ranks, int groups, bool together, bool bucket) {
        for (int rank = 0; rank < ranks; ++rank) {
            const RankGroup group = group_with(rank, ranks, groups, together);
            HandWritten state = state_of(rank, ranks);
            const uint64_t key = 300 + static_cast<uint64_t>(rank);
            const int size = ranks / groups;
            state.index.comms.push_back({key, 0, size, {}, 5, 0, group});
            ResidualMap map = bucket_of(group.groups);
            std::vector<float> store;
            const auto put = [&](uint32_t ordinal) {
                map.contributors = static_cast<uint32_t>(size);
                map.unit = 1.0 / size;
                map.stored_elems = map.elems = store.size();
                const auto count = static_cast<int64_t>(store.size());
                map.runs = {{0, count, 0, 0, 0}};
                if (keeps_ == Keeps::kEstimates) {
                    map.runs.push_back({count, count, 0, 3, 0});
                    map.stored_elems += map.elems;
                    for (int64_t i = 0; i < count; ++i) {
                        store.push_back(store[static_cast<size_t>(i)] + kMore);
                    }
                }
                map.state_bytes = keeps_ == Keeps::kFactors ? kFactors : 0;
                std::vector<std::byte> record = as_record(store);
                record.insert(record.begin(), map.state_bytes, std::byte{});
                const LastingTensor tensor{key, mean_of(map.elems), 6, ordinal};
                state.add(tensor,
                          keeps_ == Keeps::kResiduals ? StateKind::kResiduals : StateKind::kShared,
                          std::move(record));
                state.add(tensor, StateKind::kMap, bytes_of(map));
                store.clear();
            };
            for (uint32_t i = 0; i < std::size(kTensors); ++i) {
                for (uint64_t at = 0; at < count_of(i, group.groups); ++at) {
                    const auto of = static_cast<float>(place_of(i, at, group));
                    store.push_back(of + 1 + (i == 2 ? static_cast<float>(group.index) : 0));
                }
                if (!bucket) {
                    map = {.names = {{kTensors[i].name, kTensors[i].pieces}}};
                    put(i);
                }
            }
            if (bucket) {
                put(0);
            }
            write(state);
        }
    }
    // What a rank of the group gets of all tensors, one behind the other; of what it does not, -1.
    std::vector<float> taken(const RankGroup& group, int ranks, bool bucket) const {
        PendingState& pending = PendingState::instance();
        const ResidualMap map = bucket_of(group.groups);
        std::vector<float> all;
        const auto take = [&](const LastingTensor& tensor, const ResidualMap* of, uint64_t count) {
            EXPECT_TRUE(pending.take_apart(tensor, of, group).ok());
            LastingTensor atom = tensor;
            atom.comm = atoms_key(group);
            const PendingState::Atoms atoms = pending.take_atoms(atom, ranks, of, group);
            std::vector<float> values(count, -1.0f);
            if (atoms.owed.bytes > 0) {
                EXPECT_EQ(atoms.owed.bytes, count * sizeof(float));
                EXPECT_TRUE(atoms.owed.read(0, std::as_writable_bytes(std::span(values))).ok());
                EXPECT_EQ(atoms.estimates, keeps_ == Keeps::kEstimates);
                EXPECT_EQ(atoms.of_sum.bytes, atoms.estimates ? atoms.owed.bytes : 0);
                EXPECT_EQ(atoms.alike.bytes,
                          keeps_ == Keeps::kFactors && group.groups == kGroups ? kFactors : 0);
                std::vector<float> sums(atoms.of_sum.bytes / sizeof(float));
                EXPECT_TRUE(sums.empty() ||
                            atoms.of_sum.read(0, std::as_writable_bytes(std::span(sums))).ok());
                for (size_t i = 0; i < sums.size(); ++i) {
                    EXPECT_EQ(sums[i], values[i] == 0 ? 0 : values[i] + kMore);
                }
            } else {
                pending.began_at_zero(tensor);
            }
            pending.began_at_zero({}, atoms.missing);
            all.insert(all.end(), values.begin(), values.end());
        };
        const LastingTensor own{700, mean_of(map.elems), 6, 0};
        if (bucket) {
            take(own, &map, map.elems);
        }
        for (size_t i = 0; !bucket && i < std::size(kTensors); ++i) {
            const uint64_t count = count_of(i, group.groups);
            take(pending.key_of({700, mean_of(count), 6, 9}, kTensors[i].name, false), nullptr,
                 count);
        }
        return all;
    }
    // `groups` of them before: a vector is owed what they are owed on average.
    static std::vector<float> wanted(const RankGroup& group, int before, bool bucket) {
        std::vector<float> all;
        for (size_t i = 0; i < std::size(kTensors); ++i) {
            for (uint64_t at = 0; at < count_of(i, group.groups); ++at) {
                const float more = i == 2 ? static_cast<float>(before - 1) / 2 : 0;
                const bool told = kTensors[i].pieces != 0;
                all.push_back(told ? static_cast<float>(place_of(i, at, group)) + 1 + more
                                   : (bucket ? 0.0f : -1.0f));
            }
        }
        return all;
    }
};

TEST_F(SharedTensors, GoToOtherGroups) {
    for (const bool bucket : {false, true}) {
        for (const auto& [ranks, groups] :
             {std::pair(8, 4), std::pair(16, 4), std::pair(6, 3), std::pair(3, 1)}) {
            for (const int way : {0, 1, 2}) {  // the ranks of a group follow one another; by files
                SCOPED_TRACE(std::to_string(ranks) + " in " + std::to_string(groups) +
                             (bucket ? ", a bucket, " : ", ") + std::to_string(way));
                save(kBefore, kGroups, way == 1, bucket);
                for (int rank = 0; rank < ranks; ++rank) {
                    const auto by_atoms = [&, own = rank, to = ranks]() -> Result<StateContent> {
                        std::vector<std::string> left_out;
                        return converted_state(folder_.path(), to, {.own = own}, &left_out);
                    };
                    StateContent content = by_atoms().value();
                    if (ranks == kBefore) {
                        content = read_state(folder_.file("state." + std::to_string(rank))).value();
                        content.by_atoms = by_atoms;
                    }
                    if (way == 2 && ranks != kBefore) {  // what no call took, and waits yet
                        ASSERT_TRUE(
                            write_state(folder_.file("again"), content.index,
                                        [&](size_t i, uint64_t offset, std::span<std::byte> out) {
                                            return content.held[i] == nullptr
                                                       ? content.read(i, offset, out)
                                                       : (std::copy_n(
                                                              content.held[i].get() + offset,
                                                              out.size(), out.begin()),
                                                          Status());
                                        })
                                .ok());
                        content = read_state(folder_.file("again")).value();
                        std::filesystem::remove(folder_.file("again"));
                    }
                    PendingState::instance().replace(std::move(content));
                    const RankGroup group = group_with(rank, ranks, groups, way == 1);
                    EXPECT_EQ(taken(group, ranks / groups, bucket), wanted(group, kGroups, bucket))
                        << rank;
                    testing::internal::CaptureStderr();
                    PendingState::instance().tell_missed(true);
                    const std::string said = testing::internal::GetCapturedStderr();
                    const std::string why =
                        bucket && ranks == kBefore ? "is not known" : "slimwire_split_parameter";
                    EXPECT_EQ(said.find(why) != std::string::npos, ranks % kGroups == 0) << said;
                }
            }
        }
    }
    PendingState::instance().replace({});
}

// EF21 follows in other groups what it followed; what is owed beside factors goes there, and these
// begin anew, but in groups that are as they were.
TEST_F(SharedTensors, TakeEstimatesAndWhatIsOwedBesideFactors) {
    for (const auto& [keeps, bucket, ranks, groups] :
         {std::tuple(Keeps::kEstimates, false, 16, 4), std::tuple(Keeps::kEstimates, true, 6, 3),
          std::tuple(Keeps::kEstimates, true, 16, 4), std::tuple(Keeps::kFactors, false, 16, 4),
          std::tuple(Keeps::kFactors, false, 16, 2)}) {
        SCOPED_TRACE(std::to_string(static_cast<int>(keeps)) + (bucket ? " bucket " : " ") +
                     std::to_string(ranks) + " in " + std::to_string(groups));
        keeps_ = keeps;
        save(kBefore, kGroups, false, bucket);
        std::set<uint64_t> moments;
        for (int rank = 0; rank < ranks; ++rank) {
            std::vector<std::string> left_out;
            PendingState::instance().replace(
                converted_state(folder_.path(), ranks, {.own = rank}, &left_out).value());
            const RankGroup group = group_with(rank, ranks, groups, false);
            std::vector<float> expected = wanted(group, kGroups, bucket);
            const std::vector<float> got = taken(group, ranks / groups, bucket);
            if (groups == kGroups) {  // which have the one that nothing is told of, too
                std::copy(got.end() - count_of(3, group.groups), got.end(),
                          expected.end() - count_of(3, group.groups));
            }
            EXPECT_EQ(got, expected) << rank;
            moments.insert(PendingState::instance().comm(kWholeTensors).snapshot_id);
        }
        EXPECT_EQ(moments.size(), 1u);
        EXPECT_FALSE(moments.contains(0));
    }
    PendingState::instance().replace({});
}

}  // namespace
}  // namespace slimwire::test
