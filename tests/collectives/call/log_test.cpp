// Log lines: form, level, once-only, where they go, and lines of several processes in one file.
#include "collectives/call/log.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "collectives/call/launcher.h"

namespace slimwire {
namespace {

std::vector<std::string> lines_of(const std::string& path) {
    std::ifstream file(path);
    std::vector<std::string> lines;
    for (std::string line; std::getline(file, line);) {
        lines.push_back(line);
    }
    return lines;
}

bool exists(const std::string& path) {
    struct stat info {};
    return ::stat(path.c_str(), &info) == 0;
}

class Log : public testing::Test {
  protected:
    void SetUp() override {
        path_ = testing::TempDir() + "slimwire_log_" + std::to_string(::getpid());
        ::unlink(path_.c_str());
    }
    void TearDown() override {
        log_configure(LogLevel::kWarn, "");
        ::unlink(path_.c_str());
    }
    std::string path_;
};

TEST_F(Log, line_has_program_level_and_text) {
    log_configure(LogLevel::kInfo, path_);
    log_line(LogLevel::kInfo, "rank 2 comm 1f: agreed");
    log_line(LogLevel::kError, "two\nlines\tin one");
    EXPECT_EQ(lines_of(path_), (std::vector<std::string>{"slimwire: info: rank 2 comm 1f: agreed",
                                                         "slimwire: error: two lines in one"}));
}

TEST_F(Log, what_a_line_cannot_hold_is_visible) {
    EXPECT_EQ(visible("bad value 'int8\r'\tof\nall\x1b[31m"),
              "bad value 'int8\\r' of all\\x1b[31m");
    EXPECT_EQ(visible("\x7f \xc2\x9b"
                      "31m \xc3\xa9 \xc2\xa0 \x9b \xc2"),
              "\\x7f \\x9b"
              "31m \xc3\xa9 \xc2\xa0 \x9b \xc2");
}

TEST_F(Log, level_filters) {
    log_configure(LogLevel::kWarn, path_);
    EXPECT_FALSE(log_enabled(LogLevel::kInfo));
    EXPECT_TRUE(log_enabled(LogLevel::kWarn));
    log_line(LogLevel::kInfo, "not this");
    log_line(LogLevel::kDebug, "nor this");
    log_line(LogLevel::kWarn, "this");
    EXPECT_EQ(lines_of(path_), (std::vector<std::string>{"slimwire: warn: this"}));
}

TEST_F(Log, file_is_not_opened_before_the_first_line) {
    log_configure(LogLevel::kWarn, path_);
    log_line(LogLevel::kInfo, "below the level");
    EXPECT_FALSE(exists(path_));
    log_line(LogLevel::kWarn, "first");
    EXPECT_TRUE(exists(path_));
}

TEST_F(Log, once_is_per_key) {
    log_configure(LogLevel::kWarn, path_);
    for (int i = 0; i < 3; ++i) {
        log_once(LogLevel::kWarn, "log_test.a", "first text " + std::to_string(i));
        log_once(LogLevel::kWarn, "log_test.b", "other");
    }
    EXPECT_EQ(lines_of(path_),
              (std::vector<std::string>{"slimwire: warn: first text 0", "slimwire: warn: other"}));
}

TEST_F(Log, a_line_below_the_level_does_not_use_up_its_once) {
    log_configure(LogLevel::kWarn, path_);
    log_once(LogLevel::kInfo, "log_test.c", "early");
    log_configure(LogLevel::kInfo, path_);
    log_once(LogLevel::kInfo, "log_test.c", "late");
    EXPECT_EQ(lines_of(path_), (std::vector<std::string>{"slimwire: info: late"}));
}

TEST_F(Log, default_is_stderr) {
    testing::internal::CaptureStderr();
    log_line(LogLevel::kWarn, "to stderr");
    EXPECT_EQ(testing::internal::GetCapturedStderr(), "slimwire: warn: to stderr\n");
}

TEST_F(Log, a_file_that_cannot_be_opened_falls_back_and_says_so_once) {
    testing::internal::CaptureStderr();
    log_configure(LogLevel::kWarn, "/nonexistent/dir/log");
    log_line(LogLevel::kWarn, "one");
    log_line(LogLevel::kWarn, "two");
    EXPECT_EQ(testing::internal::GetCapturedStderr(),
              "slimwire: warn: log file '/nonexistent/dir/log' cannot be opened: No such file or "
              "directory; logging to stderr\nslimwire: warn: one\nslimwire: warn: two\n");
}

TEST_F(Log, lines_of_several_processes_do_not_mix) {
    constexpr int kProcesses = 4;
    constexpr int kLines = 200;
    std::vector<pid_t> children;
    for (int p = 0; p < kProcesses; ++p) {
        const pid_t child = ::fork();
        if (child == 0) {
            log_configure(LogLevel::kWarn, path_);
            for (int i = 0; i < kLines; ++i) {
                log_line(LogLevel::kWarn, std::string(200, static_cast<char>('a' + p)));
            }
            ::_exit(0);
        }
        children.push_back(child);
    }
    for (const pid_t child : children) {
        int status = 0;
        ASSERT_EQ(::waitpid(child, &status, 0), child);
        ASSERT_EQ(status, 0);
    }
    const auto lines = lines_of(path_);
    EXPECT_EQ(lines.size(), static_cast<size_t>(kProcesses * kLines));
    for (const std::string& line : lines) {
        ASSERT_EQ(line, "slimwire: warn: " + std::string(200, line.back()));
    }
}

TEST_F(Log, pattern_expands_host_rank_and_process) {
    EXPECT_EQ(expand_pattern_for("/a/%h.%r.%p.%%.%q%", 3),
              "/a/" + host_name() + ".3." + std::to_string(::getpid()) + ".%.%q%");
    EXPECT_EQ(expand_pattern_for("%r", -1), "none");
}

// Inside of sbatch, all of mpirun's ranks have the batch script's Slurm rank.
TEST(Launcher, variables_of_slurm_count_last_and_no_number_is_absent) {
    static std::map<std::string, const char*> variables;
    const auto variable = [](const char* name) { return variables[name]; };
    EXPECT_EQ(launcher_rank(variable), std::nullopt);
    for (const auto& [name, value, rank] : {std::tuple("SLURM_PROCID", "0", 0),
                                            {"PMIX_RANK", "9", 9},
                                            {"PMI_RANK", "8", 8},
                                            {"OMPI_COMM_WORLD_RANK", "7", 7},
                                            {"RANK", "6", 6},
                                            {"RANK", "six", 7}}) {
        variables[name] = value;
        EXPECT_EQ(launcher_rank(variable), rank) << name;
    }
}

}  // namespace
}  // namespace slimwire
