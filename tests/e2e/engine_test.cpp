// Rules that ask for parameters under the calls of a DeepSpeed engine: all ranks know at the same
// call what it carries, or the job would not come to its end (programs/engine.cpp).
#include <gtest/gtest.h>

#include <fstream>

#include "tests/support/job.h"

namespace slimwire::test {
namespace {

constexpr char kByIndex[] = "index = [1, 4]";
constexpr char kByShape[] = "param = \"1d\"";

std::string outputs(const std::string& way,
                    const std::string& asked,
                    const char* steps = "5",
                    std::string* log = nullptr) {
    const TemporaryFolder folder;
    std::ofstream(folder.file("policy.toml"))
        << "version = 1\n[[rule]]\nname = \"vectors\"\nmatch = { op = \"allreduce\", " << asked
        << " }\ncodec = \"native\"\n[[rule]]\nname = \"weights\"\nmatch = { op = \"allreduce\" }\n"
           "codec = \"int4\"\n";
    Job job = slimwire_job({SLIMWIRE_TEST_ENGINE, way, steps}, 3, folder.path());
    job.environment["SLIMWIRE_POLICY"] = folder.file("policy.toml");
    const auto ranks = run_ranks(job);
    EXPECT_EQ(unless_all_exit(ranks), "");
    for (const auto& other : ranks) {
        EXPECT_EQ(other.out, ranks[0].out) << "ranks differ";
    }
    if (log != nullptr) {
        *log = ranks[0].err;
    }
    return ranks[0].out;
}

// Parts are known once they came twice.
constexpr char kKnown[] =
    "step 1: native native native\nstep 2: native native native\nstep 3: parts coded parts\n"
    "step 4: parts coded parts\nstep 5: parts coded parts\n";
constexpr char kUnknown[] =
    "step 1: native native native\nstep 2: native native native\nstep 3: native native native\n"
    "step 4: native native native\nstep 5: native native native\n";

TEST(Engine, IndicesAreKnown) {
    EXPECT_EQ(outputs("plain", kByIndex), kKnown);
}

// Two steps after that, in which the ranks compare what they were told.
constexpr char kKnownFromTheProgram[] =
    "step 1: native native native\nstep 2: native native native\nstep 3: native native native\n"
    "step 4: native native native\nstep 5: parts coded parts\nstep 6: parts coded parts\n";

TEST(Engine, ShapesAreKnownWhereTheProgramToldThem) {
    EXPECT_EQ(outputs("plain", kByShape), kUnknown);
    EXPECT_EQ(outputs("registered", kByShape, "6"), kKnownFromTheProgram);
    EXPECT_EQ(outputs("registered", "name = [\"p1\", \"p4\"]", "6"), kKnownFromTheProgram);
}

TEST(Engine, WhatIsToldAfterTheFirstGradientsIsNotUsedAndSaysSo) {
    std::string log;
    EXPECT_EQ(outputs("late", kByShape, "5", &log), kUnknown);
    const size_t said = log.find("parameters were registered, or others than before, after");
    EXPECT_NE(said, std::string::npos) << log;
    EXPECT_EQ(log.find("parameters were registered", said + 1), std::string::npos) << "once";
    (void)outputs("registered", kByShape, "5", &log);
    EXPECT_EQ(log.find("parameters were registered"), std::string::npos) << log;
}

// Plans that one rank alone makes from it would wait for the others for ever.
TEST(Engine, WhatOneRankAloneWasToldIsNotUsed) {
    constexpr char kByName[] = "name = [\"p1\", \"p4\"]";
    EXPECT_EQ(outputs("registered_on_one", kByShape), kUnknown);
    EXPECT_EQ(outputs("registered_on_one", kByName), kUnknown);
    EXPECT_EQ(outputs("plain", kByName),
              "step 1: native native native\nstep 2: native native native\nstep 3: native native "
              "native\nstep 4: native native native\nstep 5: coded coded coded\n")
        << "no rank was told any name";
}

TEST(Engine, OnePartSaysNothingOfItsOrder) {
    EXPECT_EQ(outputs("whole", kByIndex),
              "step 1: native\nstep 2: native\nstep 3: native\nstep 4: native\nstep 5: native\n");
}

}  // namespace
}  // namespace slimwire::test
