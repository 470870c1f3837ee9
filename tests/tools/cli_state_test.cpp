// `slimwire state` on states of two ranks that are written here: what they hold, what is wrong with
// them, what differs, and what becomes of them on other ranks.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "collectives/state/atoms.h"
#include "tests/tools/cli_program.h"

namespace slimwire::cli::test {
namespace {

using Json = nlohmann::json;

// A tensor of a rank: what its contributions owe, and the chunk of sums that it owns.
struct Tensor {
    CallSignature signature;
    std::vector<float> owed;
    std::vector<float> sums = {};
    int64_t sums_at = 0;
    double unit = 1;
    uint32_t ordinal = 0;
    const char* name = nullptr;
};

class States : public ::testing::Test {
  protected:
    // Rank `rank` of two.
    void save(const std::string& folder,
              int rank,
              const std::vector<Tensor>& tensors,
              uint64_t counted = 5,
              uint64_t moment = 9) {
        std::filesystem::create_directories(folder_.path() / folder);
        StateIndex index;
        index.config_hash = 77;
        index.launcher_rank = rank;
        index.launcher_size = 2;
        index.step = 30;
        const uint64_t key = 100 + static_cast<uint64_t>(rank);
        index.comms.push_back({key, rank, 2, {3, 0}, moment, 3, 1});
        std::vector<std::vector<std::byte>> bytes;
        const auto add = [&](const Tensor& tensor, StateKind kind, std::span<const std::byte> of) {
            index.tensors.push_back(
                {{key, tensor.signature, 6, tensor.ordinal}, 0, of.size(), kind});
            bytes.emplace_back(of.begin(), of.end());
        };
        for (const Tensor& tensor : tensors) {
            std::vector<float> store = tensor.owed;
            store.insert(store.end(), tensor.sums.begin(), tensor.sums.end());
            add(tensor, StateKind::kResiduals, std::as_bytes(std::span(store)));
            const auto owed = static_cast<int64_t>(tensor.owed.size());
            ResidualMap map{.contributors = 2,
                            .unit = tensor.unit,
                            .stored_elems = store.size(),
                            .elems = tensor.owed.size(),
                            .runs = {{0, owed, 0, 0, 0}}};
            if (!tensor.sums.empty()) {
                map.runs.push_back(
                    {owed, static_cast<int64_t>(tensor.sums.size()), tensor.sums_at, 1, 0});
            }
            if (tensor.name != nullptr) {
                map.names.push_back({tensor.name});
            }
            add(tensor, StateKind::kMap, bytes_of(map));
        }
        add({{.count = 4}, {}}, StateKind{4}, std::as_bytes(std::span(&counted, 1)));
        const std::string path = (folder_.path() / folder / ("state." + std::to_string(rank)));
        ASSERT_TRUE(write_state(path, index, [&](size_t i, uint64_t offset, auto out) {
                        std::copy_n(bytes[i].begin() + static_cast<ptrdiff_t>(offset), out.size(),
                                    out.begin());
                        return Status();
                    }).ok());
    }
    void save_two(const std::string& folder) {
        save(folder, 0, {{.signature = kMean, .owed = {1, 2, 3, 4}, .sums = {8, 9}, .unit = 0.5}});
        save(folder, 1,
             {{.signature = kMean,
               .owed = {3, 2, 1, 0},
               .sums = {7, 6},
               .sums_at = 2,
               .unit = 0.5}});
    }
    // "@name" is a path in the test's folder.
    std::vector<std::string> words(std::vector<std::string> arguments) {
        arguments.insert(arguments.begin(), "state");
        for (std::string& argument : arguments) {
            if (argument[0] == '@') {
                argument = folder_.path() / argument.substr(1);
            }
        }
        return arguments;
    }
    Ended state(const std::vector<std::string>& arguments) {
        return run_slimwire(words(arguments));
    }
    // Ends with a failure that says `why`.
    void expect_failure(const std::vector<std::string>& arguments, const std::string& why) {
        expect_says(1, words(arguments), {why});
    }
    std::vector<float> floats_of(const StateContent& read, size_t i) {
        std::vector<float> values(read.index.tensors[i].bytes / sizeof(float));
        std::memcpy(values.data(), read.held[i].get(), values.size() * sizeof(float));
        return values;
    }
    std::string path(const std::string& name) { return folder_.path() / name; }

    const CallSignature kMean{Op::kAllReduce, DType::kFloat32, RedOp::kAvg, 0, 4};
    const CallSignature kShards{Op::kReduceScatter, DType::kFloat32, RedOp::kSum, 0, 3};
    ScratchFolder folder_;
};

TEST_F(States, ShowNamesTheAtomsAndWhatIsOwed) {
    save_two("a");
    expect_prints(words({"show", "@a"}),
                  {"in 2 files of 2 ranks, step 30, policy 000000000000004d\n",
                   "residuals         2       48 B          4      15.17\n", "average_every"});
    const std::vector<Json> lines = records_of(words({"show", "@a"}));
    ASSERT_EQ(lines.size(), 3u);
    EXPECT_EQ(lines[0]["step"], 30);
    expect_members(lines[1], {{"comm", "world 1"}, {"elems", 4}, {"owed_norm", 4.0}});
    EXPECT_NEAR(lines[1]["sums_norm"].get<double>(), std::sqrt(64 + 81 + 49 + 36), 1e-9);
}

// By the name that all ranks gave it.
TEST_F(States, TensorsAreShownAndComparedByTheirNames) {
    for (const char* folder : {"a", "b"}) {
        const bool moved = folder[0] == 'b';
        for (const int rank : {0, 1}) {
            save(folder, rank,
                 {{.signature = kMean,
                   .owed = {1, 2, 3, 4},
                   .ordinal = moved ? 1u : 0u,
                   .name = "w"},
                  {.signature = kMean, .owed = {5, 6, 7, 8}, .ordinal = moved ? 0u : 1u}});
        }
    }
    EXPECT_HAS(state({"show", "@a"}).out, "  w\n");
    EXPECT_EQ(records_of(words({"show", "@b"})).at(1)["name"], "w");
    const Ended ended = state({"diff", "@a", "@b"});
    EXPECT_HAS_NOT(ended.out, "'w'");
    EXPECT_HAS(ended.out, "ordinal 1 residuals: only in the first\n");
}

TEST_F(States, OutputIsJsonWhateverAFolderIsCalledAndArrives) {
    save_two("caf\xe9");
    save_two("b");
    save("b", 0, {{.signature = kMean, .owed = {1, 2, 3, 5}, .sums = {8, 9}, .unit = 0.5}});
    for (const std::vector<std::string>& words :
         {std::vector<std::string>{"state", "show", path("caf\xe9"), "--json"},
          {"state", "check", path("caf\xe9"), "--json"},
          {"state", "diff", path("caf\xe9"), path("b"), "--json"}}) {
        const Ended ended = run_slimwire(words);
        EXPECT_EQ(ended.exit_code, words[1] == "diff" ? 1 : 0) << words[1] << ended.err;
        EXPECT_FALSE(lines_of(ended.out).empty()) << words[1];
        for (const std::string& line : lines_of(ended.out)) {
            EXPECT_TRUE(Json::accept(line)) << words[1] << ": " << line;
        }
        expect_lost_output_fails({words.begin(), words.end() - 1});
    }
}

TEST_F(States, CheckSaysWhatIsWrong) {
    save_two("a");
    EXPECT_EQ(state({"check", "@a"}).exit_code, 0);
    EXPECT_EQ(record_of(words({"check", "@a"}))["ok"], true);
    const auto expect = [&](const std::string& folder, const std::string& why) {
        expect_failure({"check", "@" + folder}, why);
    };
    expect("nothing", "cannot be opened");
    std::filesystem::create_directories(path("empty"));
    expect("empty", "has no saved state");
    std::filesystem::copy(path("a"), path("b"));
    std::filesystem::remove(path("b/state.1"));
    expect("b", "there is no file of rank 1 of 2");
    std::filesystem::copy(path("a/state.0"), path("b/again"));
    expect("b", "is of rank 0, as another file is");
    std::filesystem::remove(path("b/again"));
    save("b", 1, {}, 6);
    expect("b", "avg count 4 ordinal 0 residuals: a rank lacks its part");
    expect("b", "average_every: rank 1 has other bytes than rank 0");
    save("b", 1, {}, 5, 8);
    expect("b", "was saved at another moment than");
    EXPECT_HAS(state({"show", "@b"}).err, "was saved at another moment than");
    EXPECT_HAS(state({"diff", "@a", "@b"}).err, "was saved at another moment than");
    EXPECT_EQ(state({"show", "@b/state.1"}).err, "") << "a file lacks the others";
    std::filesystem::copy(path("a/state.1"), path("b/state.1"),
                          std::filesystem::copy_options::overwrite_existing);
    std::filesystem::resize_file(path("b/state.1"), 200);
    expect("b", "cut short or damaged");
    std::filesystem::resize_file(path("b/state.1"), 0);
    expect("b", "b/state.1' is no saved state: it does not begin as one");
    const std::string stray = "b/state.1' is no saved state: it does not begin as one";
    EXPECT_HAS(state({"show", "@b"}).err, stray);
    EXPECT_HAS(state({"diff", "@b", "@a"}).err, stray);
}

// A rank that was killed as it wrote its file anew leaves a part of it; the older one is whole.
TEST_F(States, WhatAKilledProcessLeftIsNoState) {
    save_two("a");
    const std::string left = path("a/state.0.1234.tmp");
    for (const uintmax_t cut : {0, 200}) {
        std::filesystem::copy_file(path("a/state.0"), left,
                                   std::filesystem::copy_options::overwrite_existing);
        std::filesystem::resize_file(left, std::filesystem::file_size(left) - cut);
        EXPECT_EQ(state({"check", "@a"}).exit_code, 0) << cut;
        EXPECT_HAS(state({"show", "@a"}).out, "in 2 files of 2 ranks");
    }
    EXPECT_EQ(state({"convert", "@a", "--ranks", "3", "--out", "@c"}).exit_code, 0);
}

TEST_F(States, AFolderOfSavingsNamesThem) {
    save_two("s/step-2.run-1.of-2");
    save_two("s/step-4.run-1.of-2");
    save("s/step-6.run-1.of-2", 0, {});
    save_two("one/step-2.run-1.of-2");
    expect_failure({"show", "@one"},
                   "no saved state of its own, and a saving: step-2.run-1.of-2; accepted: ");
    expect_failure({"show", "@s"},
                   "savings of several moments: step-6.run-1.of-2 (incomplete), step-4.run-1.of-2, "
                   "step-2.run-1.of-2; accepted: the newest complete one, '" +
                       path("s") + "/step-4.run-1.of-2'");
    EXPECT_EQ(state({"show", "@s/step-4.run-1.of-2"}).exit_code, 0);
}

TEST_F(States, DiffNamesWhatIsNotAlike) {
    save_two("a");
    save_two("b");
    EXPECT_EQ(state({"diff", "@a", "@b"}).exit_code, 0);
    save("b", 1, {{.signature = kMean, .owed = {3, 2, 1, 2}, .unit = 0.5}}, 6);
    const Ended ended = state({"diff", "@a", "@b"});
    EXPECT_EQ(ended.exit_code, 1);
    EXPECT_HAS(ended.out, "residuals: differs by 0.45 of its norm, 7 at most\n");
    EXPECT_HAS(ended.out, "average_every: differs\n");
    save("b", 0, {}, 6);
    EXPECT_HAS(state({"diff", "@a", "@b"}).out, "average_every: differs\n");
    for (const int rank : {0, 1}) {
        save("none", rank, {{.signature = kMean, .owed = {0, 0, 0, 0}}});
        save("some", rank, {{.signature = kMean, .owed = {0, 1, 0, 0}}});
    }
    EXPECT_HAS(state({"diff", "@none", "@some"}).out,
               "residuals: differs by all that is owed, 2 at most\n");
}

// As much is owed by all ranks together, or no number is owed: the bytes decide.
TEST_F(States, DiffComparesTheBytesToo) {
    const auto write = [&](const std::string& folder, float of_first, float of_second) {
        for (const int rank : {0, 1}) {
            save(folder, rank,
                 {{.signature = kMean, .owed = {1, rank == 0 ? of_first : of_second, 3, 4}}});
        }
    };
    write("a", 2, 5);
    write("b", 5, 2);
    write("c", std::nanf(""), 5);
    for (const char* other : {"@b", "@c"}) {
        const Ended ended = state({"diff", "@a", other});
        EXPECT_EQ(ended.exit_code, 1);
        EXPECT_HAS(ended.out, "allreduce f32 avg count 4 ordinal 0 residuals: differs\n");
    }
    EXPECT_EQ(state({"diff", "@c", "@c"}).exit_code, 0);
}

// What becomes of the bytes: tests/collectives/state.
TEST_F(States, ConvertKeepsWhatIsOwed) {
    save_two("a");
    succeed(words({"convert", "@a", "--ranks", "3", "--out", "@c"}));
    succeed(words({"check", "@c"}));
    const StateContent read = read_state(path("c/state.2")).value();
    EXPECT_EQ(read.index.launcher_size, 3);
    ASSERT_EQ(read.index.tensors.size(), 3u);
    EXPECT_EQ(floats_of(read, 0), (std::vector<float>{2, 2, 2, 2}));
    EXPECT_EQ(floats_of(read, 1), (std::vector<float>{8, 9, 7, 6}));
    EXPECT_EQ(read.index.tensors[2].kind, StateKind{4});
    expect_failure({"convert", "@a", "--ranks", "3", "--out", "@c"}, "is not empty");
}

// Shards have as much padding as their ranks need: two tensors of 5 and 6 elements, of three a
// rank.
TEST_F(States, ConvertTakesShardsThatAreFlat) {
    for (const int rank : {0, 1}) {
        save("a", rank,
             {{.signature = kShards, .owed = {1, 1, 1, 1, 1, 0}},
              {.signature = kShards, .owed = {1, 2, 3, 4, 5, 6}, .ordinal = 1}});
    }
    expect_says(1, words({"convert", "@a", "--ranks", "5", "--out", "@c"}),
                {"reducescatter f32 sum count 3 ordinal 0 residuals: where shards of",
                 "; --shards flat takes it; --drop leaves such atoms out"});
    // Sums that the program divides are of as many ranks then.
    std::vector<float> owed;
    for (const std::vector<std::string>& sums : {std::vector<std::string>{}, {"--sums", "mean"}}) {
        const std::string to = sums.empty() ? "@plain" : "@mean";
        succeed(
            with(words({"convert", "@a", "--ranks", "4", "--out", to, "--shards", "flat"}), sums));
        const StateContent read = read_state(path(to.substr(1) + "/state.0")).value();
        ASSERT_EQ(read.index.tensors.size(), 3u);
        EXPECT_EQ(read.index.tensors[0].tensor.signature.count, 2u);
        owed.push_back(floats_of(read, 0)[0]);
    }
    EXPECT_EQ(owed[1], 2 * owed[0]);
}

// Whose file has all that it says, but not all that the rank kept.
TEST_F(States, AStateThatLacksTensorsIsNotWhole) {
    StateIndex index;
    index.launcher_rank = 0;
    index.launcher_size = 1;
    index.left_out = 3;
    std::filesystem::create_directories(path("a"));
    ASSERT_TRUE(write_state(path("a/state.0"), index, {}).ok());
    expect_failure({"check", "@a"},
                   "it lacks the residuals of 3 tensors that are told apart by their");
    EXPECT_HAS(state({"show", "@a"}).err, "lacks the residuals of 3 tensors");
    EXPECT_EQ(record_of(words({"show", "@a"}))["left_out"], 3);
    succeed(words({"convert", "@a", "--ranks", "2", "--out", "@c"}));
    expect_failure({"check", "@c"}, "it lacks the residuals of 3 tensors");  // still
}

// Of four ranks every second one is of a group; of eight each has a file with what its own owes.
TEST_F(States, ConvertTakesGroupsOfRanks) {
    std::filesystem::create_directories(path("a"));
    const std::vector<std::byte> map = slimwire::bytes_of(
        {.contributors = 2, .stored_elems = 4, .elems = 4, .runs = {{0, 4, 0, 0, 0}}});
    for (int rank = 0; rank < 4; ++rank) {
        const std::vector<float> owed(4, static_cast<float>(1 << rank));
        StateIndex index;
        index.launcher_rank = rank;
        index.launcher_size = 4;
        const uint64_t key = 300 + static_cast<uint64_t>(rank);
        index.comms.push_back(
            {key, rank / 2, 2, {}, 5, 0, group_of(std::vector<int>{rank % 2, rank % 2 + 2}, 4)});
        index.tensors.push_back({{key, kMean, 6, 0}, 0, 16, StateKind::kResiduals});
        index.tensors.push_back({{key, kMean, 6, 0}, 0, map.size(), StateKind::kMap});
        ASSERT_TRUE(write_state(path("a/state." + std::to_string(rank)), index,
                                [&](size_t i, uint64_t offset, std::span<std::byte> out) {
                                    const auto all =
                                        i == 0 ? std::as_bytes(std::span(owed)) : std::span(map);
                                    std::copy_n(all.begin() + static_cast<ptrdiff_t>(offset),
                                                out.size(), out.begin());
                                    return Status();
                                })
                        .ok());
    }
    ASSERT_EQ(state({"convert", "@a", "--ranks", "8", "--out", "@b"}).exit_code, 0);
    EXPECT_EQ(state({"check", "@b"}).exit_code, 0);
    for (const auto& [rank, wanted] : {std::pair(6, 1.0f + 4.0f), std::pair(5, 2.0f + 8.0f)}) {
        const StateContent own = read_state(path("b/state." + std::to_string(rank))).value();
        ASSERT_EQ(own.index.tensors.size(), 1u);
        EXPECT_EQ(floats_of(own, 0)[0], wanted);
    }
    EXPECT_EQ(state({"convert", "@a", "--ranks", "3", "--out", "@c"}).exit_code, 1);
}

TEST_F(States, ConvertNamesWhatItCannotTake) {
    StateIndex index;
    index.config_hash = 77;
    index.launcher_rank = 0;
    index.launcher_size = 1;
    index.step = 30;
    index.comms.push_back({100, 0, 1, {}, 9, 0, 0});
    index.tensors.push_back({{100, kMean, 6, 0}, 0, 16});
    std::filesystem::create_directories(path("a"));
    ASSERT_TRUE(write_state(path("a/one"), index, [](size_t, uint64_t, auto out) {
                    std::fill(out.begin(), out.end(), std::byte{});
                    return Status();
                }).ok());
    expect_failure({"convert", "@a", "--ranks", "2", "--out", "@c"},
                   "allreduce f32 avg count 4 ordinal 0 residuals: of a communicator of some");
    EXPECT_FALSE(std::filesystem::exists(path("c")));
    expect_says(0, words({"convert", "@a", "--ranks", "2", "--out", "@c", "--drop"}),
                {"left out: allreduce"});
}

}  // namespace
}  // namespace slimwire::cli::test
