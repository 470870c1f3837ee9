// Runs the command line as a user does and gives back what came out. For the cli_* tests; Linux.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/has.h"
#include "tests/support/ranks.h"

namespace slimwire::cli::test {

// A fresh folder, removed with its content.
class ScratchFolder {
  public:
    [[nodiscard]] const std::filesystem::path& path() const { return path_; }
    [[nodiscard]] std::string file(const std::string& name) const { return path_ / name; }
    // Writes a file, executable with `mode` 0755, and returns its path.
    std::string write(const std::string& name, const std::string& content, int mode = 0644) const;

  private:
    slimwire::test::TemporaryFolder folder_;
    std::filesystem::path path_ = folder_.path();
};

using slimwire::test::read_file;
[[nodiscard]] std::vector<std::string> lines_of(const std::string& text);
[[nodiscard]] std::vector<std::string> sorted(std::vector<std::string> lines);

struct Ended {
    int exit_code = -1;  // -1: a signal ended it
    int signal = 0;
    std::string out, err;
};

// A running program. The variables named in `environment` are set, empty values unset; SLIMWIRE_*
// variables of the test itself are not handed on. SLIMWIRE_EMU_STRICT = 1 unless named there.
class Program {
  public:
    Program(const std::vector<std::string>& command,
            const std::map<std::string, std::string>& environment = {},
            const std::string& stdin_text = "");
    ~Program();
    Program(const Program&) = delete;
    Program& operator=(const Program&) = delete;

    [[nodiscard]] pid_t pid() const { return pid_; }
    void send(int signal) const;
    // Closes our end of its stdout, as `| head` does.
    void close_out();
    // Reads until `text` stands on its stdout; false after 20 s.
    bool wait_for_out(const std::string& text);
    // Waits for its end and both streams; kills it after `limit_s`.
    Ended wait(double limit_s = 60);

  private:
    bool read_some(double seconds);

    pid_t pid_ = -1;
    int out_fd_ = -1, err_fd_ = -1;
    std::string out_, err_;
};

// `slimwire` of this build with these arguments.
[[nodiscard]] std::vector<std::string> slimwire_command(std::vector<std::string> arguments);
// Of this build's emulated CUDA and NCCL, for programs that `slimwire run` does not start.
[[nodiscard]] std::string emulator_folder();
Ended run_slimwire(const std::vector<std::string>& arguments,
                   const std::map<std::string, std::string>& environment = {},
                   const std::string& stdin_text = "");

// The same, which must end with success.
Ended succeed(const std::vector<std::string>& arguments,
              const std::map<std::string, std::string>& environment = {});
// What it prints with --json, a record a line.
[[nodiscard]] std::vector<nlohmann::json> records_of(
    std::vector<std::string> arguments, const std::map<std::string, std::string>& environment = {});
// Its only record.
[[nodiscard]] nlohmann::json record_of(const std::vector<std::string>& arguments,
                                       const std::map<std::string, std::string>& environment = {});
// It succeeds and prints all of `parts`.
void expect_prints(const std::vector<std::string>& arguments,
                   const std::vector<std::string>& parts,
                   const std::map<std::string, std::string>& environment = {});
// A record has these members with these values.
void expect_members(const nlohmann::json& record, const nlohmann::json& members);
// A line of a report or a trace: a record of this kind with these members.
[[nodiscard]] std::string record_line(const std::string& kind, nlohmann::json members);
// A way of a calibration: calls of 4 KiB to `largest` bytes take `fixed_us` and a nanosecond for
// each of their bytes on the wire, which are `wire` times as many.
[[nodiscard]] nlohmann::json calibrated_way(
    const char* codec, const char* algorithm, double fixed_us, double wire, double largest);
// All-reduces of the ranks of a node.
[[nodiscard]] std::string calibration_line(const char* dtype,
                                           int ranks,
                                           const nlohmann::json& ways);
// `words` and then `more`.
[[nodiscard]] std::vector<std::string> with(std::vector<std::string> words,
                                            const std::vector<std::string>& more);

// One line, from slimwire, that says it is an error.
void expect_one_error_line(const Ended& ended);
// `slimwire` with these arguments ends so and says all of `parts` on stderr, in one line of an
// error where it did not start (2, 125), with nothing on stdout then.
void expect_says(int exit_code,
                 const std::vector<std::string>& arguments,
                 const std::vector<std::string>& parts,
                 const std::map<std::string, std::string>& environment = {});

// Writes n.c, a library as NCCL whose version is VERSION, and p.c, a program that needs it, and
// runs the shell script in the folder.
void build_in(const ScratchFolder& folder, const std::string& script);

// What `slimwire doctor` says of a command in an environment.
struct Diagnosed {
    nlohmann::json json;
    int exit_code = -1;

    // Findings of a severity, a line each.
    [[nodiscard]] std::string of(const std::string& severity) const;
};
[[nodiscard]] Diagnosed doctor(const std::vector<std::string>& command,
                               const std::map<std::string, std::string>& environment = {});

// `slimwire` with these arguments ends with a failure that says so when its standard output is full
// and when it is closed.
void expect_lost_output_fails(const std::vector<std::string>& arguments);

// Whether a process with this number exists and is no zombie.
[[nodiscard]] bool alive(pid_t pid);
// Whether none of them lives, after at most 10 s.
[[nodiscard]] bool all_gone(const std::vector<pid_t>& pids);

}  // namespace slimwire::cli::test
