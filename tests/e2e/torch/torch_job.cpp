#include "tests/e2e/torch/torch_job.h"

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
             "import importlib.util as util\n"
             "found = util.find_spec('torch')\n"
             "if found is None: raise SystemExit('PyTorch is not installed for ' "
             "'" SLIMWIRE_TEST_PYTHON " (Debian: python3-torch)')\n"
             "names = {}\n"
             "exec(open(found.submodule_search_locations[0] + '/version.py').read(), names)\n"
             "version = str(names['__version__'])\n"
             "if not version.startswith('1.13.'): raise SystemExit(\n"
             "    'the backend of these tests is for PyTorch 1.13, not ' + version)\n"},
            1))[0];
        return probe.exit_code == 0 ? std::string() : probe.err;
    }();
    return missing;
}

}  // namespace slimwire::test
