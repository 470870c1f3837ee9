// Jobs of PyTorch on the emulator, for the tests of this folder, and the one place that says why
// they are skipped.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/support/job.h"

namespace slimwire::test {

// Two ranks or more of a Python program of this folder: `words` are its name and arguments. A job
// has the backend's library in its environment and one thread a rank.
Job torch_job(const std::vector<std::string>& words, int ranks);
// The same with libslimwire.so preloaded, `environment` added, reports in `report_folder`.
Job torch_slimwire_job(const std::vector<std::string>& words,
                       int ranks,
                       const std::string& report_folder,
                       const Environment& environment);

// What each rank printed, a JSON object a line.
std::vector<std::vector<nlohmann::json>> lines_of(const std::vector<Ended>& ranks);

// Why PyTorch cannot run here; empty when it can.
std::string torch_missing();

class TorchTest : public ::testing::Test {
  protected:
    void SetUp() override {
        if (const std::string why = torch_missing(); !why.empty()) {
            GTEST_SKIP() << why;
        }
    }
};

// Ranks are forks of one process that has PyTorch under the preload: one import for all of them, a
// second each. Tests of how slimwire comes into a process do without.
class ForkedTorchTest : public TorchTest {
  public:
    static std::vector<Ended> run_forked(Job job);

  protected:
    static void SetUpTestSuite();
    static void TearDownTestSuite();
};

}  // namespace slimwire::test
