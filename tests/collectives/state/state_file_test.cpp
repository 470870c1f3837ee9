// The file of saved state: what is written is read, and nothing else is taken for it.
#include "collectives/state/state_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <tuple>

#include "tests/support/ranks.h"

namespace slimwire::test {
namespace {

StateIndex example() {
    StateIndex index;
    index.config_hash = 0xC0FFEE;
    index.launcher_rank = 1;
    index.launcher_size = 4;
    index.step = 77;
    index.comms = {{11, 1, 4, {5, 6}, 9, 3, {2, 3, 6, 4}}, {12, 0, 2, {0, 0}, 0, 0, {}}};
    const CallSignature sum{Op::kAllReduce, DType::kFloat32, RedOp::kSum, 0, 1000};
    CallSignature parameters = sum;
    parameters.ranges_id = 3;
    index.tensors = {{{11, sum, 21, 0}, 31, 13},
                     {{11, sum, 21, 1}, 31, 8},
                     {{12, parameters, 22, 0}, 32, 1},
                     {{12, {Op::kRecv, DType::kBfloat16, RedOp::kNone, 1, 10}, 22, 0}, 33, 40},
                     {{11, sum, 21, 0}, 0, 24, StateKind{2}}};
    for (StateTensor& tensor : index.tensors) {
        tensor.loss_scale = 1024;
    }
    return index;
}
std::byte byte_of(size_t tensor, uint64_t at) {
    return static_cast<std::byte>(37 * tensor + 11 * at + 1);
}
Status read_example(size_t tensor, uint64_t offset, std::span<std::byte> out) {
    for (size_t i = 0; i < out.size(); ++i) {
        out[i] = byte_of(tensor, offset + i);
    }
    return {};
}
void put(const std::string& path, const std::string& bytes) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

class StateFile : public testing::Test {
  protected:
    TemporaryFolder folder_;
    const std::string path_ = folder_.file("state");
    size_t files() {
        return static_cast<size_t>(
            std::distance(std::filesystem::directory_iterator(folder_.path()), {}));
    }
};

TEST_F(StateFile, WhatWasWrittenIsRead) {
    const StateIndex index = example();
    ASSERT_TRUE(write_state(path_, index, read_example).ok());
    EXPECT_EQ(files(), 1u);
    // 64 + 2 * 56 + 5 * 80 + (16 + 8 + 8 + 40 + 24) + 5 * 8 + 8.
    EXPECT_EQ(std::filesystem::file_size(path_), 720u);
    const Result<StateContent> read = read_state(path_);
    ASSERT_TRUE(read.ok()) << read.status().message();
    const StateIndex& back = read.value().index;
    EXPECT_EQ(back.config_hash, index.config_hash);
    EXPECT_EQ(back.launcher_rank, 1);
    EXPECT_EQ(back.launcher_size, 4);
    EXPECT_EQ(back.step, 77u);
    ASSERT_EQ(back.comms.size(), 2u);
    const auto facts_of = [](const StateComm& comm) {
        return std::tuple(comm.key, comm.rank, comm.ranks, comm.drawn[0], comm.drawn[1],
                          comm.snapshot_id, comm.drawn_alike, comm.group.order());
    };
    EXPECT_EQ(facts_of(back.comms[0]), facts_of(index.comms[0]));
    ASSERT_EQ(back.tensors.size(), index.tensors.size());
    for (size_t i = 0; i < index.tensors.size(); ++i) {
        EXPECT_EQ(back.tensors[i].tensor.order(), index.tensors[i].tensor.order());
        EXPECT_EQ(back.tensors[i].shape, index.tensors[i].shape);
        EXPECT_EQ(back.tensors[i].kind, index.tensors[i].kind);
        EXPECT_EQ(back.tensors[i].loss_scale, 1024);
        ASSERT_EQ(back.tensors[i].bytes, index.tensors[i].bytes);
        for (uint64_t at = 0; at < index.tensors[i].bytes; ++at) {
            ASSERT_EQ(read.value().held[i][at], byte_of(i, at));
        }
    }
}

// FORMAT.md.
TEST_F(StateFile, TheBytesAreThoseOfTheDocument) {
    ASSERT_TRUE(write_state(path_, example(), read_example).ok());
    const std::string bytes = read_file(path_);
    const auto word = [&](size_t at, size_t size) {
        uint64_t value = 0;
        std::memcpy(&value, bytes.data() + at, size);
        return value;
    };
    EXPECT_EQ(bytes.substr(0, 8), "SLWSTATE");
    constexpr size_t kThird = 64 + 2 * 56 + 2 * 80;
    constexpr struct {
        size_t at, size;
        uint64_t value;
    } kWords[] = {{8, 4, 8},           {12, 4, 2},
                  {16, 4, 5},          {20, 4, 1},
                  {24, 4, 4},          {32, 8, 0xC0FFEE},
                  {40, 8, 77},         {48, 8, 720},
                  {64, 8, 11},         {80, 4, 5},
                  {88, 8, 9},          {96, 4, 3},
                  {100, 4, 2},         {104, 4, 3},
                  {108, 4, 6},         {112, 4, 4},
                  {kThird, 8, 12},     {kThird + 16, 8, 1000},
                  {kThird + 24, 8, 0}, {kThird + 40, 8, 1},
                  {kThird + 52, 4, 3}, {kThird + 60, 4, 0x00000700},
                  {kThird + 72, 8, 0}, {kThird + 2 * 80 + 60, 4, 0x02000700}};
    for (const auto& one : kWords) {
        EXPECT_EQ(word(one.at, one.size), one.value) << one.at;
    }
    EXPECT_EQ(std::bit_cast<double>(word(kThird + 64, 8)), 1024.0);
    // Of the third record, and of all.
    const auto bytes_of_third =
        std::as_bytes(std::span(bytes)).subspan(64 + 2 * 56 + 5 * 80 + 24, 8);
    EXPECT_EQ(word(720 - 8 - 3 * 8, 8), state_checksum(0, bytes_of_third));
    EXPECT_EQ(word(720 - 8, 8), 0x8c4664c93d49d5aau);
    // By the formula, of one word.
    const uint64_t one = 0x0807060504030201u;
    const uint64_t s = std::rotl(uint64_t{0x736c696d77697265u} ^ one, 29) * 0x9e3779b97f4a7c15u;
    EXPECT_EQ(state_checksum(0, std::as_bytes(std::span(&one, 1))), s ^ s >> 32);
}

TEST_F(StateFile, WhatIsMissingAndOwedAtAnotherStepIsRead) {
    for (const bool atoms : {false, true}) {
        StateIndex index = example();
        index.atoms = atoms;
        index.left_out = 7;
        index.tensors[1].owed_at = 75;
        index.tensors[2].kind = atoms ? StateKind::kOwed : StateKind::kResiduals;
        ASSERT_TRUE(write_state(path_, index, read_example).ok());
        const StateIndex back = read_state(path_).value().index;
        EXPECT_EQ(back.atoms, atoms);
        EXPECT_EQ(back.left_out, 7u);
        EXPECT_EQ(back.tensors[0].owed_at, 0u);
        EXPECT_EQ(back.tensors[1].owed_at, 75u);
        const std::string bytes = read_file(path_);
        EXPECT_EQ(bytes[28], atoms ? 15 : 14);
        EXPECT_EQ(bytes[64 + 2 * 56 + 80 + 72], 75);
    }
}

// With the checksums of FORMAT.md. Before version 7 communicators have 40 bytes, and pieces no
// checksums; files of 7 lie as today's, without names.
TEST_F(StateFile, FilesOfOlderVersionsAreRead) {
    for (const auto& [version, wrote] :
         {std::pair('\2', 0x6443c93d5ee316beu), std::pair('\3', 0x0f7628d7fc8b6854u),
          std::pair('\4', 0x1783dd1dfe56f95au), std::pair('\6', 0x80df1acf8ef30737u),
          std::pair('\7', 0xb75d7f58ac763ddau)}) {
        ASSERT_TRUE(write_state(path_, example(), read_example).ok());
        const bool old = version < 7;
        const size_t comm = old ? 40 : 56;
        std::string bytes = read_file(path_);
        if (old) {
            bytes = bytes.substr(0, 64 + 40) + bytes.substr(64 + 56, 40) +
                    bytes.substr(64 + 2 * 56, 5 * 80 + 96) + std::string(8, '\0');
            bytes[64 + 36] = '\0';  // no number of the communicator
        }
        bytes[8] = version;
        const uint64_t size = bytes.size();
        std::memcpy(bytes.data() + 48, &size, sizeof size);
        const auto all = std::as_bytes(std::span(bytes));
        uint64_t sum = state_checksum(0, all.first(56));
        std::memcpy(bytes.data() + 56, &sum, sizeof sum);
        std::vector<size_t> parts{comm, comm, 80, 80, 80, 80, 80};
        parts.insert(parts.end(), {16, 8, 8, 40, 24});
        size_t at = 64;
        for (size_t i = 0; i < parts.size(); ++i) {
            sum = old || i < 7 ? state_checksum(sum, all.subspan(at, parts[i])) : sum;
            at += parts[i];
        }
        sum = old ? sum : state_checksum(sum, all.subspan(at, 5 * 8));
        EXPECT_EQ(sum, wrote) << "as that version wrote it";
        std::memcpy(bytes.data() + size - 8, &sum, sizeof sum);
        put(path_, bytes);
        const Result<StateContent> read = read_state(path_);
        ASSERT_TRUE(read.ok()) << read.status().message();
        EXPECT_EQ(read.value().index.tensors.size(), 5u);
        EXPECT_EQ(read.value().index.comms[0].group.number, old ? 0u : 2u);
        EXPECT_EQ(StateReader::open(path_).value().checks_reads(), !old);
        bytes[bytes.size() - 30] ^= '\1';
        put(path_, bytes);
        EXPECT_FALSE(read_state(path_).ok());
    }
}

// Any part of it, and what is damaged elsewhere does not matter.
TEST_F(StateFile, WhatIsReadIsChecked) {
    StateIndex index = example();
    index.tensors[2].bytes = 3 * 16384 + 100;
    ASSERT_TRUE(write_state(path_, index, read_example).ok());
    std::string bytes = read_file(path_);
    const size_t begin = 64 + 2 * 56 + 5 * 80 + 24;
    bytes[begin + 16384 + 5] = static_cast<char>(bytes[begin + 16384 + 5] ^ 4);
    put(path_, bytes);
    const Result<StateReader> reader = StateReader::open(path_);
    ASSERT_TRUE(reader.ok()) << reader.status().message();
    for (const uint64_t at : {0, 7, 16000, 16383, 16384, 30000, 32767, 32768, 49000, 49251}) {
        for (const uint64_t size : {1, 2, 385, 16384, 20000}) {
            const uint64_t end = std::min<uint64_t>(at + size, index.tensors[2].bytes);
            std::vector<std::byte> part(end - at);
            const Status read = reader.value().read(2, at, part);
            ASSERT_EQ(read.ok(), end <= 16384 || at >= 32768) << at << " and " << size;
            for (size_t i = 0; read.ok() && i < part.size(); ++i) {
                ASSERT_EQ(part[i], byte_of(2, at + i));
            }
        }
    }
    std::byte past[20];
    EXPECT_FALSE(reader.value().read(2, index.tensors[2].bytes, past).ok());
    EXPECT_FALSE(reader.value().check().ok());
    EXPECT_FALSE(std::ranges::equal(reader.value().sums(0), reader.value().sums(1)));
}

// Of a job of many ranks, whose files are more than a process may have open.
TEST_F(StateFile, AFileThatIsClosedIsOpenedAgain) {
    ASSERT_TRUE(write_state(path_, example(), read_example).ok());
    const Result<StateReader> reader = StateReader::open(path_, false);
    ASSERT_TRUE(reader.ok());
    EXPECT_TRUE(reader.value().check().ok());
    std::byte part[5];
    ASSERT_TRUE(reader.value().read(4, 7, part).ok());
    EXPECT_EQ(part[4], byte_of(4, 11));
    ASSERT_TRUE(write_state(path_ + ".new", example(), read_example).ok());
    std::filesystem::rename(path_ + ".new", path_);
    EXPECT_TRUE(
        reader.value().read(4, 7, part).message().ends_with("became another while it was read"));
    std::filesystem::remove(path_);
    EXPECT_TRUE(reader.value().read(4, 7, part).message().find("cannot be opened") !=
                std::string::npos);
}

TEST_F(StateFile, AFileOfNoTensorsIsOne) {
    ASSERT_TRUE(write_state(path_, {}, read_example).ok());
    EXPECT_EQ(std::filesystem::file_size(path_), 72u);
    const Result<StateContent> read = read_state(path_);
    ASSERT_TRUE(read.ok());
    EXPECT_EQ(read.value().index.launcher_rank, -1);
    EXPECT_TRUE(read.value().index.tensors.empty());
}

TEST_F(StateFile, LargeTensorsGoPieceByPiece) {
    StateIndex index = example();
    index.tensors.resize(1);
    index.tensors[0].bytes = (20 << 20) + 5;
    size_t most = 0;
    ASSERT_TRUE(write_state(path_, index, [&](size_t tensor, uint64_t offset, auto out) {
                    most = std::max(most, out.size());
                    return read_example(tensor, offset, out);
                }).ok());
    EXPECT_LE(most, size_t{8 << 20});
    const Result<StateContent> read = read_state(path_);
    ASSERT_TRUE(read.ok()) << read.status().message();
    for (uint64_t at = 0; at < index.tensors[0].bytes; at += 997) {
        ASSERT_EQ(read.value().held[0][at], byte_of(0, at));
    }
}

// Every byte, with every kind of change.
TEST_F(StateFile, NoChangedByteIsOverlooked) {
    ASSERT_TRUE(write_state(path_, example(), read_example).ok());
    const std::string good = read_file(path_);
    ASSERT_EQ(good.size(), 720u);
    for (size_t at = 0; at < good.size(); ++at) {
        for (const int flip : {0x01, 0x80, 0xFF}) {
            std::string bad = good;
            bad[at] = static_cast<char>(bad[at] ^ flip);
            put(path_, bad);
            const Result<StateContent> read = read_state(path_);
            ASSERT_FALSE(read.ok()) << "byte " << at;
            EXPECT_EQ(read.status().code(), Code::kInvalidUsage);
            EXPECT_NE(read.status().message().find("'" + path_ + "'"), std::string::npos);
        }
    }
}

TEST_F(StateFile, CutShortAtAnyLengthOrLongerItIsRefused) {
    ASSERT_TRUE(write_state(path_, example(), read_example).ok());
    const std::string good = read_file(path_);
    for (size_t length = 0; length < good.size(); ++length) {
        put(path_, good.substr(0, length));
        ASSERT_FALSE(read_state(path_).ok()) << length;
    }
    put(path_, good + '\0');
    EXPECT_FALSE(read_state(path_).ok());
    put(path_, good);
    EXPECT_TRUE(read_state(path_).ok());
}

TEST_F(StateFile, WhatIsWrongIsSaid) {
    const auto why = [&] { return read_state(path_).status().message(); };
    EXPECT_NE(why().find("cannot be opened"), std::string::npos);
    EXPECT_EQ(read_state(path_).status().code(), Code::kNotFound);
    put(path_, std::string(500, 'x'));
    EXPECT_NE(why().find("begins otherwise"), std::string::npos);
    ASSERT_TRUE(write_state(path_, example(), read_example).ok());
    std::string bytes = read_file(path_);
    bytes[8] = 1;
    put(path_, bytes);
    EXPECT_NE(why().find("has version 1; this slimwire reads versions 2 to 8"), std::string::npos);
    bytes[8] = 8;
    put(path_, bytes.substr(0, 400));
    EXPECT_NE(why().find("has 400 bytes instead of 720"), std::string::npos);
    const std::string pipe = folder_.file("pipe");
    ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
    EXPECT_NE(read_state(pipe).status().message().find("not a regular file"), std::string::npos);
    EXPECT_FALSE(read_state(folder_.path()).ok());
}

// A file whose checksums are right, but which no slimwire wrote.
TEST_F(StateFile, ATensorThatIsThereTwiceIsRefused) {
    StateIndex index = example();
    index.tensors.push_back(index.tensors[0]);
    ASSERT_TRUE(write_state(path_, index, read_example).ok());
    EXPECT_NE(read_state(path_).status().message().find("do not fit"), std::string::npos);
    // What is owed is one record, shared or not; of progress there is one of each kind.
    index.tensors.back().kind = StateKind::kShared;
    ASSERT_TRUE(write_state(path_, index, read_example).ok());
    EXPECT_NE(read_state(path_).status().message().find("do not fit"), std::string::npos);
    index.tensors.back().kind = StateKind{4};
    ASSERT_TRUE(write_state(path_, index, read_example).ok());
    EXPECT_TRUE(read_state(path_).ok());
    // What all ranks must have alike is of a moment, which the second communicator does not know.
    index.tensors.back() = index.tensors[2];
    index.tensors.back().tensor.ordinal = 9;
    index.tensors.back().kind = StateKind::kShared;
    ASSERT_TRUE(write_state(path_, index, read_example).ok());
    EXPECT_NE(read_state(path_).status().message().find("a tensor of all ranks is of no moment"),
              std::string::npos);
    index.tensors.back().kind = static_cast<StateKind>(kStateKindCount);
    ASSERT_TRUE(write_state(path_, index, read_example).ok());
    EXPECT_NE(read_state(path_).status().message().find("of no kind"), std::string::npos);
}

TEST_F(StateFile, AFailureLeavesTheFileThatWasThere) {
    ASSERT_TRUE(write_state(path_, example(), read_example).ok());
    const std::string good = read_file(path_);
    const Status failed =
        write_state(path_, example(), [](size_t tensor, uint64_t offset, auto out) {
            return tensor == 2 ? Status(Code::kCudaError, "no more")
                               : read_example(tensor, offset, out);
        });
    EXPECT_EQ(failed.message(), "no more");
    EXPECT_EQ(read_file(path_), good);
    EXPECT_EQ(files(), 1u) << "the new one is gone";
    EXPECT_NE(write_state(folder_.file("no/folder"), example(), read_example)
                  .message()
                  .find("cannot be written: No such file"),
              std::string::npos);
    EXPECT_NE(write_state(folder_.path(), example(), read_example).message().find("regular"),
              std::string::npos);
    EXPECT_EQ(files(), 1u);
}

}  // namespace
}  // namespace slimwire::test
