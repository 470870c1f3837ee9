// Starts the ranks of a job as a launcher would, waits for them a bounded time and hands back what
// they wrote and how they ended. For tests of whole programs (tests/e2e, tests/plugin,
// tests/tools). Rank i gets RANK, LOCAL_RANK = i, WORLD_SIZE, MASTER_ADDR, MASTER_PORT,
// SLIMWIRE_EMU_JOB, TEST_FOLDER (a folder of the job, for meeting.h) and SLIMWIRE_EMU_STRICT =
// calls, so that host code which touches device memory dies as it would beside a GPU, and so does
// a data call that may wait. No SLIMWIRE_* or LD_PRELOAD of the test's own environment is handed
// on. One thread at a time.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace slimwire::test {

using Environment = std::map<std::string, std::string>;

struct Job {
    std::vector<std::string> command;  // path and arguments
    int ranks = 1;
    Environment environment;             // for all ranks; wins over what is set here by default.
                                         // "runtime.KEY": of the policy (runtime_keys.h)
    std::map<int, Environment> of_rank;  // wins over `environment`
    // LD_PRELOAD of each rank, in this order; the sanitizer's runtime goes before it by itself.
    std::vector<std::string> preload;
    std::vector<int> without_preload;  // ranks that get none
    // Value of LD_LIBRARY_PATH.
    std::vector<std::string> library_path;
    std::string working_folder;  // empty: the test's own
    int limit_s = 60;            // all ranks are killed then
};

struct Ended {
    int exit_code = -1;    // 128 + signal when a signal ended it
    bool expired = false;  // killed because the time was up
    std::string out, err;  // all it wrote
    double seconds = 0;
};

// Data calls of the job may wait on the host, for the reason given.
void let_calls_wait(Job* job, const char* why);

// One entry a rank. Throws std::runtime_error when a process cannot be started.
std::vector<Ended> run_ranks(const Job& job);
// Jobs that wait most of their time, all at once; in their order.
std::vector<std::vector<Ended>> run_at_once(const std::vector<Job>& jobs);

// Whether every rank ended with `exit_code` and none was held up for want of an answer, and if not,
// a text for the test's failure message.
std::string unless_all_exit(const std::vector<Ended>& ranks, int exit_code = 0);

// A fresh folder, removed with its content at the end of the scope.
class TemporaryFolder {
  public:
    TemporaryFolder();
    ~TemporaryFolder();
    TemporaryFolder(const TemporaryFolder&) = delete;
    TemporaryFolder& operator=(const TemporaryFolder&) = delete;
    [[nodiscard]] const std::string& path() const noexcept { return path_; }
    [[nodiscard]] std::string file(const std::string& name) const { return path_ + "/" + name; }

  private:
    std::string path_;
};

// Content of a file; empty when it cannot be read.
std::string read_file(const std::string& path);

}  // namespace slimwire::test
