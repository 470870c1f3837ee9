// The opt-in dlsym: who is answered by slimwire, and that nobody else can tell it from libc's.
// Which ways of binding it reaches is in hooks_test.cpp.
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/support/job.h"

namespace slimwire::test {
namespace {

namespace fs = std::filesystem;

const std::string kEmulator = SLIMWIRE_TEST_EMULATOR "/libnccl.so.2";
const std::string kStub = SLIMWIRE_TEST_STUB "/libnccl.so.2";

Ended look_up(const std::string& nccl,
              const std::string& other,
              const std::vector<std::string>& preload,
              const Environment& environment = {}) {
    Job job = emulated_job({SLIMWIRE_TEST_LOOKUPS, nccl, other, SLIMWIRE_TEST_LOOKUPS_MODULE}, 1);
    job.preload = preload;
    job.environment = environment;
    return run_ranks(job)[0];
}

const std::vector<std::string> kBoth = {SLIMWIRE_TEST_DLSYM, SLIMWIRE_TEST_PRELOAD};
// 8 threads, 20 rounds, 2 functions that slimwire has.
const std::string kReplaced = "320 replaced\n", kNothing = "0 replaced\n";

TEST(Dlsym, AnswersAsLibcDoesButForTheRealNccl) {
    for (const std::string& nccl : {kEmulator, std::string("libnccl.so.2"), kStub}) {
        const Ended end = look_up(nccl, SLIMWIRE_TEST_NO_NCCL, kBoth);
        EXPECT_EQ(end.exit_code, 0) << end.err;
        EXPECT_EQ(end.out, kReplaced) << end.err;
    }
}

TEST(Dlsym, WithoutThePreloadItIsInert) {
    const Ended end = look_up(kEmulator, SLIMWIRE_TEST_NO_NCCL, {SLIMWIRE_TEST_DLSYM});
    EXPECT_EQ(end.exit_code, 0) << end.err;
    EXPECT_EQ(end.out, kNothing);
}

// Behind slimwire in LD_PRELOAD, or before it: the same.
TEST(Dlsym, OrderOfThePreloadsDoesNotMatter) {
    const Ended end =
        look_up(kEmulator, SLIMWIRE_TEST_NO_NCCL, {SLIMWIRE_TEST_PRELOAD, SLIMWIRE_TEST_DLSYM});
    EXPECT_EQ(end.exit_code, 0) << end.err;
    EXPECT_EQ(end.out, kReplaced);
}

TEST(Dlsym, ASecondNcclStaysWhatItIs) {
    // `other` is opened after the first and has its name.
    const TemporaryFolder folder;
    fs::copy_file(kStub, folder.file("libnccl.so.2"));
    const Ended end = look_up(kStub, folder.file("libnccl.so.2"), kBoth);
    EXPECT_EQ(end.exit_code, 0) << end.err;
    EXPECT_EQ(end.out, kReplaced);
}

TEST(Dlsym, OnlyTheNamedRealLibraryIsReplaced) {
    const Environment stub{{"SLIMWIRE_NCCL_LIBRARY", kStub}};
    Ended end = look_up(kEmulator, SLIMWIRE_TEST_NO_NCCL, kBoth, stub);
    EXPECT_EQ(end.exit_code, 0) << end.err;
    EXPECT_EQ(end.out, kNothing);
    end = look_up(kStub, SLIMWIRE_TEST_NO_NCCL, kBoth, stub);
    EXPECT_EQ(end.exit_code, 0) << end.err;
    EXPECT_EQ(end.out, kReplaced);
}

}  // namespace
}  // namespace slimwire::test
