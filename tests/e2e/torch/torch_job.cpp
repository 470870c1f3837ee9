#include "tests/e2e/torch/torch_job.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>
#include <future>
#include <memory>
#include <sstream>

namespace slimwire::test {
namespace {

void complete(Job* job) {
    job->environment["TEST_TORCH_SHIM"] = SLIMWIRE_TEST_TORCH_SHIM;
    job->environment["OMP_NUM_THREADS"] = "1";
    job->limit_s = 150;
}

std::vector<std::string> python(const std::vector<std::string>& words) {
    std::vector<std::string> command = {SLIMWIRE_TEST_PYTHON, "-B",
                                        SLIMWIRE_TEST_TORCH_FOLDER "/" + words.at(0)};
    command.insert(command.end(), words.begin() + 1, words.end());
    return command;
}

// It ends when the socket does that this process keeps.
struct Forks {
    const TemporaryFolder folder;
    const std::string path = folder.file("forks");
    std::future<std::vector<Ended>> server;
    int keeper = -1;
};
std::unique_ptr<Forks> forks;

}  // namespace

Job torch_job(const std::vector<std::string>& words, int ranks) {
    Job job = emulated_job(python(words), ranks);
    complete(&job);
    return job;
}

Job torch_slimwire_job(const std::vector<std::string>& words,
                       int ranks,
                       const std::string& report_folder,
                       const Environment& environment) {
    Job job = slimwire_job(python(words), ranks, report_folder);
    complete(&job);
    job.environment.insert(environment.begin(), environment.end());
    return job;
}

std::vector<std::vector<nlohmann::json>> lines_of(const std::vector<Ended>& ranks) {
    std::vector<std::vector<nlohmann::json>> lines(ranks.size());
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
        std::istringstream stream(ranks[rank].out);
        for (std::string line; std::getline(stream, line);) {
            lines[rank].push_back(nlohmann::json::parse(line));
        }
    }
    return lines;
}

std::string torch_missing() {
#ifdef SLIMWIRE_TEST_SANITIZER_RUNTIME
    return "PyTorch is not run under a sanitizer, whose findings there are not ours";
#endif
    // Reads the version without the seconds that an import takes.
    static const std::string missing = [] {
        const Ended probe = run_ranks(emulated_job(
            {SLIMWIRE_TEST_PYTHON, "-c",
             "import importlib.metadata as data\n"
             "try: version = data.version('torch')\n"
             "except data.PackageNotFoundError: raise SystemExit(\n"
             "    'PyTorch is not installed for ' '" SLIMWIRE_TEST_PYTHON
             " (Debian: python3-torch)')\n"
             "if not version.startswith('1.13.'): raise SystemExit(\n"
             "    'the backend of these tests is for PyTorch 1.13, not ' + version)\n"},
            1))[0];
        return probe.exit_code == 0 ? std::string() : probe.err;
    }();
    return missing;
}

void ForkedTorchTest::SetUpTestSuite() {
    if (!torch_missing().empty()) {
        return;
    }
    forks = std::make_unique<Forks>();
    Job job = slimwire_job(python({"forked.py", "--serve"}), 1, {});
    complete(&job);
    job.environment["TEST_FORKS"] = forks->path;
    job.limit_s = 230;
    forks->server = std::async(std::launch::async, run_ranks, job);
    sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
    forks->path.copy(address.sun_path, sizeof address.sun_path - 1);
    forks->keeper = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    while (connect(forks->keeper, reinterpret_cast<const sockaddr*>(&address), sizeof address) !=
           0) {
        ASSERT_EQ(forks->server.wait_for(std::chrono::milliseconds(10)),
                  std::future_status::timeout)
            << unless_all_exit(forks->server.get());
    }
}

void ForkedTorchTest::TearDownTestSuite() {
    if (forks != nullptr) {
        close(forks->keeper);
        if (forks->server.valid()) {
            EXPECT_EQ(unless_all_exit(forks->server.get()), "");
        }
        forks.reset();
    }
}

std::vector<Ended> ForkedTorchTest::run_forked(Job job) {
    job.command.insert(job.command.begin() + 2, SLIMWIRE_TEST_TORCH_FOLDER "/forked.py");
    job.environment["TEST_FORKS"] = forks->path;
    return run_ranks(job);
}

}  // namespace slimwire::test
