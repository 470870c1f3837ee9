// The LD_AUDIT helper: what it redirects, and all that it must leave alone. Which ways of binding
// it reaches is in hooks_test.cpp.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/support/has.h"
#include "tests/support/job.h"

namespace slimwire::test {
namespace {

namespace fs = std::filesystem;

const std::string kStub = SLIMWIRE_TEST_STUB "/libnccl.so.2";
const std::string kEmulator = SLIMWIRE_TEST_EMULATOR "/libnccl.so.2";

Job audited(Job job, const std::string& audit = SLIMWIRE_TEST_AUDIT) {
    job.environment["LD_AUDIT"] = audit;
    job.preload.clear();
#ifdef SLIMWIRE_TEST_SANITIZER_RUNTIME
    job.environment["LD_PRELOAD"] = SLIMWIRE_TEST_SANITIZER_RUNTIME;
#endif
    return job;
}

// What the program `opens` prints of these names and paths.
std::string opened(const std::vector<std::string>& names,
                   const Environment& environment = {},
                   const std::string& audit = SLIMWIRE_TEST_AUDIT) {
    std::vector<std::string> command = {SLIMWIRE_TEST_OPENS};
    command.insert(command.end(), names.begin(), names.end());
    Job job = audited(emulated_job(command, 1), audit);
    for (const auto& [name, value] : environment) {
        job.environment[name] = value;
    }
    const Ended end = run_ranks(job)[0];
    EXPECT_EQ(end.exit_code, 0) << end.out << end.err;
    return end.out + end.err;
}

TEST(Audit, OneFileUnderAllItsNamesIsSlimwire) {
    const TemporaryFolder folder;
    fs::create_symlink(kEmulator, folder.file("libnccl.so.2.28.9"));
    fs::create_symlink(kEmulator, folder.file("libnccl.so"));
    fs::create_symlink(kEmulator, folder.file("collectives.so"));
    const std::string line = "slimwire " + kEmulator + "\n";
    EXPECT_EQ(opened({"libnccl.so.2", kEmulator, folder.file("libnccl.so.2.28.9"),
                      folder.file("libnccl.so"), SLIMWIRE_TEST_EMULATOR "/./libnccl.so.2"}),
              line + line + line + line + line);
    EXPECT_EQ(opened({folder.file("libnccl.so"), "libnccl.so.2"}), line + line);
    EXPECT_EQ(opened({folder.file("collectives.so"), kEmulator}), line + line);
}

TEST(Audit, ABuildMayHaveASuffixInItsName) {
    const TemporaryFolder folder;
    const std::string mine = folder.file("libnccl-mine.so.2.30.4");
    fs::copy_file(kEmulator, mine);
    fs::create_symlink("libnccl-mine.so.2.30.4", folder.file("nccl-current.so"));
    const std::string line = "slimwire " + mine + "\n";
    EXPECT_EQ(opened({mine, folder.file("nccl-current.so")}), line + line);
    EXPECT_EQ(opened({folder.file("nccl-current.so")}), line);
}

// The first of them is warned about where its SONAME says that it is NCCL.
TEST(Audit, OtherNamesAreLeftAlone) {
    const TemporaryFolder folder;
    std::string expected;
    std::vector<std::string> files;
    for (const char* name : {"libnccl.so.1", "libnccl.so.20", "libnccl-net.so", "libnccl-net.so.2",
                             "libnccl_static.so", "libncclx.so.2", "my-libnccl.so.2"}) {
        fs::copy_file(kStub, folder.file(name));
        files.push_back(folder.file(name));
        expected += "nccl " + folder.file(name) + "\n";
    }
    const std::string &first = files.front(), &last = files.back();
    const std::string audit = "slimwire: audit: ",
                      warning =
                          " is NCCL by its SONAME alone and stays native; "
                          "SLIMWIRE_NCCL_LIBRARY may name it\n";
    EXPECT_EQ(opened(files), expected + audit + first + warning);
    EXPECT_EQ(opened({last, kEmulator}),
              "nccl " + last + "\nslimwire " + kEmulator + "\n" + audit + last + warning);
    EXPECT_EQ(opened({last, last}, {{"SLIMWIRE_NCCL_LIBRARY", last}}),
              "slimwire " + last + "\nslimwire " + last + "\n");
    EXPECT_EQ(opened({"libm.so.6", "/no/such/libnccl.so.2", "libnccl.so.2.99"}),
              "nccl \nnothing\nnothing\n");
}

TEST(Audit, ASecondNcclStaysWhatItIs) {
    const TemporaryFolder folder;
    fs::copy_file(kStub, folder.file("libnccl.so.2"));
    const std::string stub = "slimwire " + kStub + "\n";
    EXPECT_EQ(opened({kStub, folder.file("libnccl.so.2"), kStub}),
              stub + "nccl " + folder.file("libnccl.so.2") + "\n" + stub);
}

// Asking whether it is there, or in vain, is not having it.
TEST(Audit, TheFirstNcclIsTheFirstThatIsLoaded) {
    const TemporaryFolder cut;
    std::ofstream(cut.file("libnccl.so.2"), std::ios::binary) << read_file(kStub).substr(0, 64);
    const std::string stub = "slimwire " + kStub + "\n";
    EXPECT_EQ(opened({"asks:libnccl.so.2", "asks:" + kEmulator, kStub, "asks:libnccl.so.2"}),
              "nothing\nnothing\n" + stub + stub);
    EXPECT_EQ(opened({cut.file("libnccl.so.2"), kStub, kEmulator}),
              "nothing\n" + stub + "nccl " + kEmulator + "\n");
}

TEST(Audit, FilesThatTheLoaderPassesOverAreNotRedirected) {
    const TemporaryFolder foreign, text, folder;
    std::string bytes = read_file(kEmulator);
    bytes[18] = static_cast<char>(0xf3);  // e_machine: RISC-V
    bytes[19] = 0;
    std::ofstream(foreign.file("libnccl.so.2"), std::ios::binary) << bytes;
    std::ofstream(text.file("libnccl.so.2")) << "not a library";
    const std::string path = foreign.path() + ":" SLIMWIRE_TEST_EMULATOR;
    EXPECT_EQ(opened({"libnccl.so.2"}, {{"LD_LIBRARY_PATH", path}}),
              "slimwire " + kEmulator + "\n");
    EXPECT_EQ(opened({foreign.file("libnccl.so.2"), text.file("libnccl.so.2"), kEmulator}),
              "nothing\nnothing\nslimwire " + kEmulator + "\n");
}

TEST(Audit, TheRealLibraryMayBeNamed) {
    const Environment named{{"SLIMWIRE_NCCL_LIBRARY", kStub}};
    const std::string line = "slimwire " + kStub + "\n";
    EXPECT_EQ(opened({"libnccl.so.2", kEmulator, kStub}, named), line + line + line);
    const std::string wrong = opened({kEmulator}, {{"SLIMWIRE_NCCL_LIBRARY", "/no/libnccl.so.2"}});
    EXPECT_EQ(wrong, "nccl " + kEmulator +
                         "\nslimwire: audit: SLIMWIRE_NCCL_LIBRARY is no library of this machine: "
                         "/no/libnccl.so.2; NCCL is left as it is\n");
}

TEST(Audit, BesideADropinFolderOrAPreload) {
    const TemporaryFolder links, copies;
    make_dropin(copies.path(), kEmulator);
    fs::create_symlink(SLIMWIRE_TEST_DROPIN, links.file("libnccl.so.2"));
    fs::create_symlink(kEmulator, links.file("libnccl-real.so"));
    for (const std::string& folder : {links.path(), copies.path()}) {
        const std::string path = folder + ":" SLIMWIRE_TEST_EMULATOR;
        EXPECT_EQ(opened({"libnccl.so.2"}, {{"LD_LIBRARY_PATH", path}}),
                  "slimwire " + kEmulator + "\n");
    }
    const TemporaryFolder reports;
    Job job = slimwire_job({SLIMWIRE_TEST_REDUCE}, 2, reports.path());
    job.environment["SLIMWIRE_CODEC"] = "int4:block=64";
    job.environment["LD_AUDIT"] = SLIMWIRE_TEST_AUDIT;
    ASSERT_EQ(unless_all_exit(run_ranks(job)), "");
    EXPECT_EQ(sum_keys(read_reports(reports.path()), "calls", compressed), 10u);
}

// The preloaded slimwire opens NCCL itself when the program does not: the real one, not the
// drop-in.
TEST(Audit, ThePreloadOpensTheRealLibrary) {
#ifdef SLIMWIRE_TEST_SANITIZER_RUNTIME
    GTEST_SKIP() << "built with a sanitizer: its runtime calls the loader's dlopen in slimwire's "
                    "place, and the helper cannot see who asks";
#endif
    Job job = slimwire_job({SLIMWIRE_TEST_LOOKUP}, 1);
    job.environment["LD_AUDIT"] = SLIMWIRE_TEST_AUDIT;
    job.environment["LD_DEBUG"] = "libs";  // names what is initialised
    const auto ranks = run_ranks(job);
    ASSERT_EQ(unless_all_exit(ranks), "");
    EXPECT_HAS(ranks[0].err, "calling init: " + kEmulator);
    EXPECT_HAS_NOT(ranks[0].err, "/./libnccl.so.2");
}

// SLIMWIRE_NCCL_LIBRARY is the very path under which the loader knows the drop-in.
TEST(Audit, AJobWhoseRealLibraryIsNamedAsTheProgramNamesIt) {
#ifdef SLIMWIRE_TEST_SANITIZER_RUNTIME
    GTEST_SKIP() << "built with a sanitizer: its runtime calls the loader's dlopen in slimwire's "
                    "place, and the helper cannot see who asks";
#endif
    for (const char* named : {"", kEmulator.c_str()}) {
        const TemporaryFolder reports;
        Job job = audited(slimwire_job({SLIMWIRE_TEST_REDUCE}, 2, reports.path()));
        job.environment["SLIMWIRE_CODEC"] = "int4:block=64";
        job.environment["SLIMWIRE_NCCL_LIBRARY"] = named;
        ASSERT_EQ(unless_all_exit(run_ranks(job)), "") << named;
        EXPECT_EQ(sum_keys(read_reports(reports.path()), "calls", compressed), 10u);
    }
}

TEST(Audit, AMissingDropinIsOneLineAndNative) {
    const TemporaryFolder folder;
    const std::string alone = folder.file("libslimwire-audit.so");
    fs::copy_file(SLIMWIRE_TEST_AUDIT, alone);
    EXPECT_EQ(opened({"libnccl.so.2", kStub}, {}, alone),
              "nccl " + kEmulator + "\nnccl " + kStub + "\nslimwire: audit: there is no " +
                  folder.path() + "/dropin/libnccl.so.2; NCCL is left as it is\n");
    EXPECT_EQ(opened({"libm.so.6"}, {}, alone), "nccl \n");
}

TEST(Audit, ARelativePathOfTheHelperOutlivesAChangeOfFolder) {
    const std::string here = fs::path(SLIMWIRE_TEST_AUDIT).parent_path();
    Job job = audited(emulated_job({SLIMWIRE_TEST_OPENS, "cd:/", "libnccl.so.2"}, 1),
                      "./" + fs::path(SLIMWIRE_TEST_AUDIT).filename().string());
    job.working_folder = here;
    EXPECT_EQ(run_ranks(job)[0].out, "slimwire " + kEmulator + "\n");
}

}  // namespace
}  // namespace slimwire::test
