// Saved states whose bytes are written by hand, not by a plan: what becomes of windows of shards,
// of messages, and of shards that are alike. What is owed by plans: atoms_test.cpp.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <numeric>
#include <tuple>

#include "collectives/state/atoms.h"
#include "collectives/state/conversion.h"
#include "collectives/state/loaded_state.h"
#include "tests/collectives/state/saved_jobs.h"

namespace slimwire::test {
namespace {

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
            HandWritten state = state_of(rank, kRanks);
            state.add({state.index.comms[0].key, {.op = op, .count = 10}, 6, 0}, StateKind{2},
                      std::move(record));
            write(state);
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
        HandWritten state = state_of(rank, 2);
        const uint64_t key = state.index.comms.front().key;
        const auto bytes = [&](size_t count) { return std::vector(count, std::byte(rank + 1)); };
        state.add({key, signature(1 - rank), 6, 0}, StateKind::kResiduals, bytes(24), 7);
        state.add({key, signature(1 - rank), 8, 0}, StateKind::kMessages, bytes(16));
        state.index.comms.push_back({200 + key, 0, 1, {}, 9, 0, 0});  // of some of the ranks
        state.add({200 + key, signature(1 - rank), 8, 0}, StateKind::kMessages, bytes(8));
        write(state);
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
    EXPECT_EQ(left_out, (std::vector<std::string>{
                            "2 atoms, first send f32 sum count 6 ordinal 0 residuals: of an older "
                            "slimwire, which does not say where residuals lie",
                            "4 atoms, first send f32 sum count 6 ordinal 0 messages: weights and "
                            "counts of messages go on in groups of as many ranks"}));
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
    for (int rank = 0; rank < 2; ++rank) {
        HandWritten state = state_of(rank, 2);
        for (uint32_t layer = 0; layer < 3; ++layer) {
            std::vector<float> owed(kElems, static_cast<float>(layer + 1));
            owed.back() = layer == 1 ? 0.0f : owed.back();
            state.add({state.index.comms[0].key, signature, 6, layer}, owed, bytes_of(map));
        }
        write(state);
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
    for (int rank = 0; rank < static_cast<int>(kRanks); ++rank) {
        HandWritten state = state_of(rank, kRanks);
        state.add({state.index.comms[0].key, signature, 6, 0}, owed, bytes_of(map));
        write(state);
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
    EXPECT_NE(
        left_out[0].find("reducescatter f32 sum count 5 ordinal 0 residuals: where shards of other "
                         "ranks have its elements is known of flat ones only (shards=flat: FSDP1"),
        std::string::npos)
        << left_out[0];
    EXPECT_EQ(converted_state(folder_.path(), 2, {.flat_shards = true}, &left_out)
                  .value()
                  .index.tensors.size(),
              1u);
}

// A tensor that goes by its name, and atoms of the same one that wait: a file has no tensor twice.
TEST_F(SavedJobs, OfTwoThatHaveOneNameOneIsTaken) {
    const CallSignature sum{Op::kAllReduce, DType::kFloat32, RedOp::kSum, 0, 4};
    ResidualMap map{.contributors = 1, .stored_elems = 4, .elems = 4, .runs = {{0, 4, 0, 0, 0}}};
    map.names.push_back({"layer"});
    ResidualMap name;
    name.names.push_back({"layer"});
    HandWritten state = state_of(0, 1);
    const LastingTensor atom = named({atoms_key({1}), sum, 0, 0}, "layer");
    const std::vector<float> zeros(4);
    state.add({100, sum, 6, 0}, zeros, bytes_of(map));
    state.add(atom, StateKind::kOwed, as_record(zeros));
    state.add(atom, StateKind::kMap, bytes_of(name));
    write(state);
    std::vector<std::string> left_out;
    const StateContent content = converted_state(folder_.path(), 2, {}, &left_out).value();
    EXPECT_EQ(content.index.tensors.size(), 2u) << "what is owed, and its name";
    ASSERT_EQ(left_out.size(), 1u);
    EXPECT_NE(left_out[0].find("another tensor or parameter of its name"), std::string::npos);
}

// Megatron pads its shards to a multiple of the ranks and of 128: of 1000 elements two ranks have
// 512 each, three 384. ZeRO-2 pads to one of twice the ranks.
TEST_F(SavedJobs, ShardsThatArePaddedForSpeedAreFound) {
    const auto padded = [](uint64_t elems, uint64_t multiple) {
        return (elems + multiple - 1) / multiple * multiple;
    };
    for (const auto& [elems, line] :
         {std::pair(uint64_t{1000}, uint64_t{128}), std::pair(uint64_t{1001}, uint64_t{0})}) {
        const auto count_of = [&, elems = elems, line = line](uint64_t ranks) {
            return padded(elems, line != 0 ? std::lcm(ranks, line) : 2 * ranks) / ranks;
        };
        for (const auto& [before, now] : {std::pair(2, 3), std::pair(3, 2), std::pair(4, 3),
                                          std::pair(6, 4), std::pair(1, 5)}) {
            SCOPED_TRACE(std::to_string(elems) + " of " + std::to_string(before) + " ranks for " +
                         std::to_string(now));
            const auto ranks = static_cast<uint64_t>(before);
            const uint64_t all = count_of(ranks) * ranks;
            CallSignature signature{Op::kReduceScatter, DType::kFloat32, RedOp::kAvg, 0,
                                    count_of(ranks)};
            const std::vector<std::byte> map =
                bytes_of({.contributors = static_cast<uint32_t>(before),
                          .unit = 1.0 / before,
                          .stored_elems = all,
                          .elems = all,
                          .runs = {{0, static_cast<int64_t>(all), 0, 0, 0}}});
            std::vector<float> owed(all);
            std::iota(owed.begin(), owed.begin() + static_cast<ptrdiff_t>(elems), 1.0f);
            std::filesystem::remove_all(folder_.path());
            std::filesystem::create_directory(folder_.path());
            for (int rank = 0; rank < before; ++rank) {
                HandWritten state = state_of(rank, before);
                state.add({state.index.comms[0].key, signature, 6, 0}, owed, map);
                write(state);
            }
            std::vector<std::string> left_out;
            PendingState::instance().replace(
                converted_state(folder_.path(), now, {.flat_shards = true}, &left_out).value());
            signature.count = count_of(static_cast<uint64_t>(now));
            const PendingState::Atoms atoms =
                PendingState::instance().take_atoms({atoms_key({1}), signature, 6, 0}, now);
            ASSERT_GE(atoms.owed.bytes, elems * sizeof(float));
            ASSERT_LE(atoms.owed.bytes,
                      signature.count * sizeof(float) * static_cast<uint64_t>(now));
            std::vector<float> got(elems);
            ASSERT_TRUE(atoms.owed.read(0, std::as_writable_bytes(std::span(got))).ok());
            owed.resize(elems);
            EXPECT_EQ(got, owed);
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
