#include "tests/tools/cli_program.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <thread>
#include <utility>

#include "tools/cli/common/environment.h"

namespace slimwire::cli::test {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

void drain(int* fd, std::string* text) {
    std::array<char, 65536> buffer;
    const ssize_t n = ::read(*fd, buffer.data(), buffer.size());
    if (n > 0) {
        text->append(buffer.data(), static_cast<size_t>(n));
    } else if (n == 0 || errno != EINTR) {
        ::close(*fd);
        *fd = -1;
    }
}

}  // namespace

std::string ScratchFolder::write(const std::string& name,
                                 const std::string& content,
                                 int mode) const {
    const fs::path file = path_ / name;
    fs::create_directories(file.parent_path());
    std::ofstream(file, std::ios::binary) << content;
    ::chmod(file.c_str(), static_cast<mode_t>(mode));
    return file.string();
}

std::vector<std::string> lines_of(const std::string& text) {
    std::vector<std::string> lines;
    std::istringstream stream(text);
    for (std::string line; std::getline(stream, line);) {
        lines.push_back(line);
    }
    return lines;
}

std::vector<std::string> sorted(std::vector<std::string> lines) {
    std::sort(lines.begin(), lines.end());
    return lines;
}

Program::Program(const std::vector<std::string>& command,
                 const std::map<std::string, std::string>& environment,
                 const std::string& stdin_text) {
    const Environment outer = Environment::current();
    Environment variables = outer;
    for (const auto& [name, value] : outer.values()) {
        if (name.starts_with("SLIMWIRE_")) {
            variables.unset(name);
        }
    }
    for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"}) {
        variables.unset(name);
    }
    variables.set("SLIMWIRE_EMU_STRICT", "1");
    for (const auto& [name, value] : environment) {
        if (value.empty()) {
            variables.unset(name);
        } else {
            variables.set(name, value);
        }
    }
    std::vector<std::string> words = command;
    const std::vector<char*> arguments = pointers_to(&words), pointers = variables.pointers();

    int in[2];
    int out[2];
    int err[2];
    if (::pipe2(in, O_CLOEXEC) != 0 || ::pipe2(out, O_CLOEXEC) != 0 ||
        ::pipe2(err, O_CLOEXEC) != 0) {
        throw std::runtime_error("pipe");
    }
    pid_ = ::fork();
    if (pid_ == 0) {
        ::dup2(in[0], STDIN_FILENO);
        ::dup2(out[1], STDOUT_FILENO);
        ::dup2(err[1], STDERR_FILENO);
        ::execvpe(arguments[0], arguments.data(), pointers.data());
        ::_exit(99);
    }
    ::close(in[0]);
    ::close(out[1]);
    ::close(err[1]);
    (void)!::write(in[1], stdin_text.data(), stdin_text.size());
    ::close(in[1]);
    out_fd_ = out[0];
    err_fd_ = err[0];
}

Program::~Program() {
    if (pid_ > 0) {
        ::kill(pid_, SIGKILL);
        ::waitpid(pid_, nullptr, 0);
    }
    close_out();
    if (err_fd_ >= 0) {
        ::close(err_fd_);
    }
}

void Program::send(int signal) const {
    ::kill(pid_, signal);
}

void Program::close_out() {
    if (out_fd_ >= 0) {
        ::close(std::exchange(out_fd_, -1));
    }
}

bool Program::read_some(double seconds) {
    std::array<pollfd, 2> polled{{{out_fd_, POLLIN, 0}, {err_fd_, POLLIN, 0}}};
    if (::poll(polled.data(), polled.size(), static_cast<int>(seconds * 1000)) <= 0) {
        return false;
    }
    if (polled[0].revents != 0) {
        drain(&out_fd_, &out_);
    }
    if (polled[1].revents != 0) {
        drain(&err_fd_, &err_);
    }
    return true;
}

bool Program::wait_for_out(const std::string& text) {
    const Clock::time_point end = Clock::now() + std::chrono::seconds(20);
    while (out_.find(text) == std::string::npos && out_fd_ >= 0 && Clock::now() < end) {
        (void)read_some(0.1);
    }
    return out_.find(text) != std::string::npos;
}

Ended Program::wait(double limit_s) {
    const Clock::time_point end = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                                     std::chrono::duration<double>(limit_s));
    while ((out_fd_ >= 0 || err_fd_ >= 0) && Clock::now() < end) {
        (void)read_some(0.1);
    }
    Ended ended;
    int status = 0;
    while (::waitpid(pid_, &status, WNOHANG) == 0) {
        if (Clock::now() >= end) {
            ::kill(pid_, SIGKILL);
            err_ += "\n(killed by the test: it took too long)\n";
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    pid_ = -1;
    if (WIFEXITED(status)) {
        ended.exit_code = WEXITSTATUS(status);
    } else {
        ended.signal = WTERMSIG(status);
    }
    ended.out = out_;
    ended.err = err_;
    return ended;
}

std::vector<std::string> slimwire_command(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), SLIMWIRE_EXECUTABLE);
    return arguments;
}

std::string emulator_folder() {
    return std::filesystem::path(SLIMWIRE_EXECUTABLE).parent_path() / "emulator";
}

Ended run_slimwire(const std::vector<std::string>& arguments,
                   const std::map<std::string, std::string>& environment,
                   const std::string& stdin_text) {
    return Program(slimwire_command(arguments), environment, stdin_text).wait();
}

Ended succeed(const std::vector<std::string>& arguments,
              const std::map<std::string, std::string>& environment) {
    Ended ended = run_slimwire(arguments, environment);
    EXPECT_EQ(ended.exit_code, 0) << testing::PrintToString(arguments) << ended.err;
    return ended;
}

std::vector<nlohmann::json> records_of(std::vector<std::string> arguments,
                                       const std::map<std::string, std::string>& environment) {
    arguments.emplace_back("--json");
    std::vector<nlohmann::json> records;
    for (const std::string& line : lines_of(succeed(arguments, environment).out)) {
        records.push_back(nlohmann::json::parse(line, nullptr, false));
        EXPECT_TRUE(records.back().is_object()) << line;
    }
    return records;
}

nlohmann::json record_of(const std::vector<std::string>& arguments,
                         const std::map<std::string, std::string>& environment) {
    const std::vector<nlohmann::json> records = records_of(arguments, environment);
    EXPECT_EQ(records.size(), 1u) << testing::PrintToString(arguments);
    return records.empty() ? nlohmann::json::object() : records.front();
}

void expect_prints(const std::vector<std::string>& arguments,
                   const std::vector<std::string>& parts,
                   const std::map<std::string, std::string>& environment) {
    SCOPED_TRACE(testing::PrintToString(arguments));
    const Ended ended = succeed(arguments, environment);
    for (const std::string& part : parts) {
        EXPECT_HAS(ended.out, part);
    }
}

void expect_members(const nlohmann::json& record, const nlohmann::json& members) {
    for (const auto& [name, value] : members.items()) {
        EXPECT_EQ(record.value(name, nlohmann::json("absent")), value) << name << " of " << record;
    }
}

std::string record_line(const std::string& kind, nlohmann::json members) {
    members.update({{"v", 1}, {"record", kind}});
    return members.dump() + "\n";
}

nlohmann::json calibrated_way(
    const char* codec, const char* algorithm, double fixed_us, double wire, double largest) {
    nlohmann::json samples = nlohmann::json::array();
    for (double bytes = 4096; bytes <= largest; bytes *= 4) {
        samples.push_back({{"bytes", bytes},
                           {"wire_bytes", wire * bytes},
                           {"seconds", fixed_us * 1e-6 + wire * bytes * 1e-9}});
    }
    return {{"codec", codec}, {"algorithm", algorithm}, {"samples", samples}};
}

std::string calibration_line(const char* dtype, int ranks, const nlohmann::json& ways) {
    return record_line("calibration", {{"op", "all_reduce"},
                                       {"dtype", dtype},
                                       {"ranks", ranks},
                                       {"nodes", 1},
                                       {"nominal_gb_s", 0},
                                       {"ways", ways}});
}

std::vector<std::string> with(std::vector<std::string> words,
                              const std::vector<std::string>& more) {
    words.insert(words.end(), more.begin(), more.end());
    return words;
}

void expect_one_error_line(const Ended& ended) {
    const std::vector<std::string> lines = lines_of(ended.err);
    ASSERT_EQ(lines.size(), 1u) << ended.err;
    EXPECT_EQ(lines[0].rfind("slimwire: error: ", 0), 0u);
}

void expect_says(int exit_code,
                 const std::vector<std::string>& arguments,
                 const std::vector<std::string>& parts,
                 const std::map<std::string, std::string>& environment) {
    SCOPED_TRACE(::testing::PrintToString(arguments));
    const Ended ended = run_slimwire(arguments, environment);
    EXPECT_EQ(ended.exit_code, exit_code) << ended.err;
    if (exit_code == 2 || exit_code == 125) {
        expect_one_error_line(ended);
        EXPECT_EQ(ended.out, "");
    }
    for (const std::string& part : parts) {
        EXPECT_HAS(ended.err, part);
    }
}

void build_in(const ScratchFolder& folder, const std::string& script) {
    folder.write("n.c",
                 "#ifndef VERSION\n#define VERSION 22604\n#endif\n"
                 "int ncclAllReduce(void) { return 0; }\n"
                 "int ncclGetVersion(int* v) { *v = VERSION; return 0; }\n");
    folder.write("p.c", "int ncclAllReduce(void); int main(void) { return ncclAllReduce(); }\n");
    const Ended ended =
        Program({"sh", "-ec", "cd " + folder.path().string() + "\n" + script}).wait(120);
    ASSERT_EQ(ended.exit_code, 0) << script << "\n" << ended.err;
}

std::string Diagnosed::of(const std::string& severity) const {
    std::string text;
    for (const nlohmann::json& finding : json.at("findings")) {
        text += finding["severity"] == severity ? finding["text"].get<std::string>() + "\n" : "";
    }
    return text;
}

Diagnosed doctor(const std::vector<std::string>& command,
                 const std::map<std::string, std::string>& environment) {
    const Ended ended = run_slimwire(with({"doctor", "--json", "--"}, command), environment);
    EXPECT_EQ(lines_of(ended.out).size(), 1u) << ended.out << ended.err;
    return {nlohmann::json::parse(ended.out), ended.exit_code};
}

void expect_lost_output_fails(const std::vector<std::string>& arguments) {
    for (const std::string redirection : {">/dev/full", ">&-"}) {
        const Ended ended = Program(with({"/bin/sh", "-c", "exec \"$0\" \"$@\" " + redirection},
                                         slimwire_command(arguments)))
                                .wait();
        EXPECT_GT(ended.exit_code, 0) << testing::PrintToString(arguments) << redirection;
        EXPECT_HAS(ended.err, "slimwire: error: standard output: ");
        EXPECT_HAS(ended.err, "what was printed is not complete");
        EXPECT_HAS_NOT(ended.err, "a directory");  // the errno of something else
    }
}

bool alive(pid_t pid) {
    std::ifstream stat("/proc/" + std::to_string(pid) + "/stat");
    std::string text;
    std::getline(stat, text);
    const size_t paren = text.rfind(')');
    return paren != std::string::npos && paren + 2 < text.size() && text[paren + 2] != 'Z';
}

bool all_gone(const std::vector<pid_t>& pids) {
    for (int i = 0; i < 1000; ++i) {
        if (std::none_of(pids.begin(), pids.end(), alive)) {
            return true;
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return false;
}

}  // namespace slimwire::cli::test
