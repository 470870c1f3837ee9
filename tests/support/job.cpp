#include "tests/support/job.h"

#include <filesystem>
#include <fstream>

namespace slimwire::test {

Job emulated_job(std::vector<std::string> command, int ranks) {
    Job job;
    job.command = std::move(command);
    job.ranks = ranks;
    job.library_path = {SLIMWIRE_TEST_EMULATOR};
    return job;
}

Job slimwire_job(std::vector<std::string> command, int ranks, const std::string& report_folder) {
    Job job = emulated_job(std::move(command), ranks);
    job.preload = {SLIMWIRE_TEST_PRELOAD};
    job.environment["runtime.summary"] = "0";
    if (!report_folder.empty()) {
        job.environment["SLIMWIRE_REPORT"] = report_folder + "/report.%r.%p";
    }
    return job;
}

void make_dropin(const std::string& folder, const std::string& real) {
    std::filesystem::copy_file(SLIMWIRE_TEST_DROPIN, folder + "/libnccl.so.2");
    std::filesystem::create_symlink(real, folder + "/libnccl-real.so");
}

void put_dropin_before(Job* job, const std::string& folder) {
    job->preload.clear();
    job->library_path.insert(job->library_path.begin(), folder);
}

std::vector<nlohmann::json> read_reports(const std::string& folder) {
    std::vector<nlohmann::json> records;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
        std::ifstream stream(entry.path());
        for (std::string line; std::getline(stream, line);) {
            records.push_back(nlohmann::json::parse(line));
        }
    }
    return records;
}

}  // namespace slimwire::test
