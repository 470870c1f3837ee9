// Saved states whose bytes are written by hand, not by a plan: what becomes of windows of shards,
// of messages, and of shards that are alike. What is owed by plans: atoms_test.cpp.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <tuple>

#include "collectives/state/atoms.h"
#include "collectives/state/conversion.h"
#include "collectives/state/loaded_state.h"
#include "tests/support/ranks.h"

namespace slimwire::test {
namespace {

// Of a job with one communicator of all ranks, whose key is 100 plus the rank.
StateIndex index_of(int rank, int ranks) {
    StateIndex index;
    index.launcher_rank = rank;
    index.launcher_size = ranks;
    index.comms.push_back({100 + static_cast<uint64_t>(rank), rank, ranks, {}, 9, 0, {1}});
    return index;
}

class SavedJobs : public testing::Test {
  protected:
    void write(int rank, const StateIndex& index, const ReadResiduals& read) {
        ASSERT_TRUE(write_state(folder_.file("state." + std::to_string(rank)), index, read).ok());
    }
    TemporaryFolder folder_;
};

TEST(Atoms, WhatAFeatureKeepsIsOwedByNobody) {
    for (int i = 0; i < kStateKindCount; ++i) {
        const auto kind = static_cast<StateKind>(i);
        Atom atom;
        atom.key.kind = kind;
        EXPECT_FALSE(is_progress(kind) && (atom.waited() || atom.estimates())) << i;
    }
}

// Of reduce-scatters each rank has a sketch of its part, which add up; all else is alike.
TEST_F(SavedJobs, WindowsOfShardsGoOnAsTheSumOfTheirParts) {
    constexpr int kRanks = 3, kThen = 4;
    constexpr size_t kControl = 48, kCounts = 16, kCells = 2048;
    std::vector<float> wanted(kCells);
    const auto job = [&](Op op, bool alike) {
        std::fill(wanted.begin(), wanted.end(), 0.0f);
        for (int rank = 0; rank < kRanks; ++rank) {
            std::vector<std::byte> record(kControl + kCounts + kCells * sizeof(float));
            record[8] = static_cast<std::byte>(alike ? 5 : rank);
            record[kControl] = static_cast<std::byte>(3 - rank % 2);
            for (size_t i = 0; i < kCells; ++i) {
                const auto cell = static_cast<float>((static_cast<size_t>(rank) + 1) * i);
                std::memcpy(record.data() + kControl + kCounts + i * sizeof cell, &cell,
                            sizeof cell);
                wanted[i] += cell / static_cast<float>(kThen);
            }
            StateIndex index = index_of(rank, kRanks);
            CallSignature signature;
            signature.op = op;
            signature.count = 10;
            index.tensors.push_back(
                {{index.comms[0].key, signature, 6, 0}, 0, record.size(), StateKind{2}});
            write(rank, index, [&](size_t, uint64_t offset, auto out) {
                std::copy_n(record.data() + offset, out.size(), out.data());
                return Status();
            });
        }
        Result<SavedJob> saved = SavedJob::open(folder_.path());
        EXPECT_TRUE(saved.ok()) << saved.status().message();
        return std::move(saved).value();
    };
    EXPECT_NE(job(Op::kAllReduce, true).findings(), std::vector<std::string>());
    EXPECT_NE(job(Op::kReduceScatter, false).findings(), std::vector<std::string>());
    const SavedJob saved = job(Op::kReduceScatter, true);
    EXPECT_EQ(saved.findings(), std::vector<std::string>());
    for (const size_t piece : {size_t{8}, size_t{104}, size_t{16384}}) {
        std::vector<std::byte> all(saved.atoms()[0].bytes / kRanks);
        for (size_t at = 0; at < all.size(); at += piece) {
            const auto out = std::span(all).subspan(at, std::min(piece, all.size() - at));
            ASSERT_TRUE(saved.alike(saved.atoms()[0], at, out, kThen).ok());
        }
        std::vector<float> cells(kCells);
        std::memcpy(cells.data(), all.data() + kControl + kCounts, kCells * sizeof(float));
        EXPECT_EQ(cells, wanted);
        EXPECT_EQ(all[8], std::byte{5});
        EXPECT_EQ(all[kControl], std::byte{3});
    }
}

// Residuals of messages have no atoms: on as many ranks they stay their rank's, else they are left
// out by name, and the rest is whole without them.
TEST_F(SavedJobs, MessagesStayWithTheirRanks) {
    const auto signature = [](int peer) {
        CallSignature message{Op::kSend, DType::kFloat32, RedOp::kSum, 0, 6};
        message.root_or_peer = peer;
        return message;
    };
    for (int rank = 0; rank < 2; ++rank) {
        StateIndex index = index_of(rank, 2);
        const uint64_t key = index.comms.front().key;
        index.tensors.push_back({{key, signature(1 - rank), 6, 0}, 7, 24});
        index.tensors.push_back({{key, signature(1 - rank), 8, 0}, 0, 16, StateKind::kMessages});
        index.comms.push_back({200 + key, 0, 1, {}, 9, 0, 0});  // of some of the ranks
        index.tensors.push_back(
            {{200 + key, signature(1 - rank), 8, 0}, 0, 8, StateKind::kMessages});
        write(rank, index, [&](size_t, uint64_t, auto out) {
            std::fill(out.begin(), out.end(), std::byte(rank + 1));
            return Status();
        });
    }
    const Result<SavedJob> saved = SavedJob::open(folder_.path());
    ASSERT_TRUE(saved.ok());
    EXPECT_EQ(saved.value().findings(), std::vector<std::string>());
    std::vector<std::string> left_out;
    PendingState& pending = PendingState::instance();
    pending.replace(converted_state(folder_.path(), 2, {.own = 1}, &left_out).value());
    EXPECT_EQ(left_out, std::vector<std::string>());
    EXPECT_FALSE(pending.waits({100, signature(1), 6, 0}, nullptr)) << "another's";
    const PendingState::Loaded own = pending.take({101, signature(0), 6, 0}, 7, 24);
    ASSERT_NE(own.held, nullptr);
    EXPECT_EQ(own.held[23], std::byte(2));
    // Weights, too, under another policy: who takes them knows whether they are of its size.
    EXPECT_EQ(pending.comm(301).snapshot_id, 9u);
    for (const uint64_t key : {101, 301}) {
        const ProgressRecords weights = pending.take_progress(key);
        ASSERT_EQ(weights.size(), 1u) << key;
        EXPECT_EQ(weights.begin()->second[0], std::byte(2));
    }
    EXPECT_TRUE(pending.take_progress(100).empty()) << "another's";
    pending.replace(converted_state(folder_.path(), 3, {.own = 1}, &left_out).value());
    EXPECT_EQ(left_out,
              (std::vector<std::string>{
                  "2 atoms, first send f32 sum count 6 ordinal 0 residuals: of an older slimwire, "
                  "which does not say where residuals lie",
                  "4 atoms, first send f32 sum count 6 ordinal 0 messages: weights and counts of "
                  "messages are kept for as many ranks"}));
    EXPECT_TRUE(pending.take_progress(101).empty());
    pending.replace({});
}

// Shards of three layers that are alike, the last parameter of whose second was sent: by what is
// owed it might have less elements.
TEST_F(SavedJobs, ShardsThatAreAlikeAreNotTakenForEachOther) {
    constexpr uint64_t kElems = 6;
    CallSignature signature{Op::kReduceScatter, DType::kFloat32, RedOp::kSum, 0, kElems / 2};
    const ResidualMap map{
        .contributors = 2, .stored_elems = kElems, .elems = kElems, .runs = {{0, kElems, 0, 0, 0}}};
    const std::vector<std::byte> text = bytes_of(map);
    for (int rank = 0; rank < 2; ++rank) {
        StateIndex index = index_of(rank, 2);
        const uint64_t key = index.comms.front().key;
        for (uint32_t layer = 0; layer < 3; ++layer) {
            const LastingTensor name{key, signature, 6, layer};
            index.tensors.push_back({name, 0, kElems * sizeof(float)});
            index.tensors.push_back({name, 0, text.size(), StateKind::kMap});
        }
        write(rank, index, [&](size_t i, uint64_t, auto out) {
            std::vector<float> owed(kElems, static_cast<float>(i / 2 + 1));
            owed.back() = i / 2 == 1 ? 0.0f : owed.back();
            const auto bytes = std::as_bytes(std::span(owed));
            const auto from = i % 2 == 0 ? bytes : std::span(text);
            std::copy_n(from.begin(), out.size(), out.begin());
            return Status();
        });
    }
    std::vector<std::string> left_out;
    PendingState::instance().replace(
        converted_state(folder_.path(), 5, {.flat_shards = true}, &left_out).value());
    EXPECT_EQ(left_out, std::vector<std::string>());
    signature.count = 2;
    for (uint32_t layer = 0; layer < 3; ++layer) {
        const PendingState::Atoms atoms =
            PendingState::instance().take_atoms({atoms_key({1}), signature, 6, layer}, 5);
        ASSERT_GE(atoms.owed.bytes, 5 * sizeof(float));
        float first = 0;
        ASSERT_TRUE(atoms.owed.read(0, std::as_writable_bytes(std::span(&first, 1))).ok());
        EXPECT_EQ(first, 2.0f * static_cast<float>(layer + 1));
    }
    PendingState::instance().replace({});
}

// As FSDP2 and ZeRO-3 lay them out: of each rank its rows of the first parameter, of 10, and of the
// second, of 6, which is frozen. As many ranks have each element where it was; on others it would
// be another parameter's, unless the user says that shards are flat.
TEST_F(SavedJobs, ShardsOfEachParameterAreTakenByAsManyRanksOnly) {
    constexpr uint64_t kRanks = 4, kFirst = 3, kSecond = 2, kCount = kFirst + kSecond;
    constexpr uint64_t kElems = kRanks * kCount;
    std::vector<float> owed(kElems);
    for (uint64_t row = 0; row < 10; ++row) {
        owed[row / kFirst * kCount + row % kFirst] = static_cast<float>(row + 1);
    }
    const CallSignature signature{Op::kReduceScatter, DType::kFloat32, RedOp::kSum, 0, kCount};
    const ResidualMap map{.contributors = kRanks,
                          .stored_elems = kElems,
                          .elems = kElems,
                          .runs = {{0, kElems, 0, 0, 0}}};
    const std::vector<std::byte> text = bytes_of(map);
    for (int rank = 0; rank < static_cast<int>(kRanks); ++rank) {
        StateIndex index = index_of(rank, kRanks);
        const LastingTensor name{index.comms.front().key, signature, 6, 0};
        index.tensors.push_back({name, 0, kElems * sizeof(float)});
        index.tensors.push_back({name, 0, text.size(), StateKind::kMap});
        write(rank, index, [&](size_t i, uint64_t, auto out) {
            const auto from = i == 0 ? std::as_bytes(std::span(owed)) : std::span(text);
            std::copy_n(from.begin(), out.size(), out.begin());
            return Status();
        });
    }
    std::vector<std::string> left_out;
    const Result<StateContent> four =
        converted_state(folder_.path(), kRanks, {.own = 2}, &left_out);
    ASSERT_TRUE(four.ok());
    EXPECT_EQ(left_out, std::vector<std::string>());
    ASSERT_EQ(four.value().index.tensors.size(), 1u);
    std::vector<float> back(kElems);
    ASSERT_TRUE(four.value().read(0, 0, std::as_writable_bytes(std::span(back))).ok());
    for (float& one : back) {
        one /= kRanks;
    }
    EXPECT_EQ(back, owed);
    const Result<StateContent> two = converted_state(folder_.path(), 2, {}, &left_out);
    ASSERT_TRUE(two.ok());
    EXPECT_EQ(two.value().index.tensors.size(), 0u);
    ASSERT_EQ(left_out.size(), 1u);
    EXPECT_NE(left_out[0].find("reducescatter f32 sum count 5 ordinal 0 residuals: where shards of "
                               "other ranks have its elements is known of flat ones only "
                               "(shards=flat: FSDP1"),
              std::string::npos)
        << left_out[0];
    EXPECT_EQ(converted_state(folder_.path(), 2, {.flat_shards = true}, &left_out)
                  .value()
                  .index.tensors.size(),
              1u);
}

// Ranks of four that each share a model with every second one: of eight each has what its group
// owed, and nothing where that is of several moments, or groups would be others.
TEST_F(SavedJobs, GroupsGoOnWithMoreRanksEach) {
    const CallSignature sum{Op::kAllReduce, DType::kFloat32, RedOp::kSum, 0, 16};
    const std::vector<std::byte> map =
        bytes_of({.contributors = 2, .stored_elems = 16, .elems = 16, .runs = {{0, 16, 0, 0, 0}}});
    for (int rank = 0; rank < 4; ++rank) {
        const std::vector<float> owed(16, static_cast<float>(1 << rank));
        StateIndex index = index_of(rank, 4);
        const uint64_t key = 300 + static_cast<uint64_t>(rank), moment = rank == 3 ? 6 : 5;
        const std::vector<int> members{rank % 2, rank % 2 + 2};
        index.comms.push_back({key, rank / 2, 2, {7, 8}, moment, 0, group_of(members, 4)});
        index.tensors.push_back({{key, sum, 6, 0}, 0, 64, StateKind::kResiduals});
        index.tensors.push_back({{key, sum, 6, 0}, 0, map.size(), StateKind::kMap});
        write(rank, index, [&](size_t i, uint64_t offset, std::span<std::byte> out) {
            const auto all = i == 0 ? std::as_bytes(std::span(owed)) : std::span(map);
            std::copy_n(all.begin() + static_cast<ptrdiff_t>(offset), out.size(), out.begin());
            return Status();
        });
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
    void save(int ranks, int groups, bool together, bool bucket) {
        for (int rank = 0; rank < ranks; ++rank) {
            const RankGroup group = group_with(rank, ranks, groups, together);
            StateIndex index = index_of(rank, ranks);
            const uint64_t key = 300 + static_cast<uint64_t>(rank);
            const int size = ranks / groups;
            index.comms.push_back({key, 0, size, {}, 5, 0, group});
            std::vector<std::vector<std::byte>> records;
            ResidualMap map = bucket_of(group.groups);
            std::vector<float> store;
            const auto put = [&](uint32_t ordinal) {
                map.contributors = static_cast<uint32_t>(size);
                map.unit = 1.0 / size;
                map.stored_elems = map.elems = store.size();
                map.runs = {{0, static_cast<int64_t>(store.size()), 0, 0, 0}};
                const auto bytes = std::as_bytes(std::span(store));
                records.emplace_back(bytes.begin(), bytes.end());
                records.push_back(bytes_of(map));
                for (const StateKind kind : {StateKind::kResiduals, StateKind::kMap}) {
                    const std::vector<std::byte>& record =
                        records[records.size() - (kind == StateKind::kMap ? 1 : 2)];
                    index.tensors.push_back(
                        {{key, mean_of(store.size()), 6, ordinal}, 0, record.size(), kind});
                }
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
            write(rank, index, [&](size_t i, uint64_t offset, std::span<std::byte> out) {
                std::copy_n(records[i].begin() + static_cast<ptrdiff_t>(offset), out.size(),
                            out.begin());
                return Status();
            });
        }
    }
    // What a rank of the group gets of all tensors, one behind the other; of what it does not, -1.
    static std::vector<float> taken(const RankGroup& group, int ranks, bool bucket) {
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
    constexpr int kBefore = 8, kGroups = 2;
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

// An atom of one is as large as that says, in memory, too.
TEST(ResidualMaps, HaveTheirParametersAmongTheirElements) {
    ResidualMap map{.stored_elems = 10, .elems = 10, .model = 3};
    for (const auto& [at, count, fits] :
         {std::tuple(4, 6, true), std::tuple(4, 7, false), std::tuple(11, 1, false),
          std::tuple(-1, 2, false), std::tuple(3, 0, false)}) {
        map.parameters = {{0, 0, at, count}};
        EXPECT_EQ(residual_map_of(bytes_of(map), 40).ok(), fits) << at << " and " << count;
    }
}

}  // namespace
}  // namespace slimwire::test
