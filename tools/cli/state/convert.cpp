#include "tools/cli/state/convert.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include "tools/cli/common/exit_code.h"

namespace slimwire::cli {
namespace {

Status make_folder(const std::string& folder) {
    std::error_code error;
    std::filesystem::create_directories(folder, error);
    if (error || !std::filesystem::is_empty(folder, error) || error) {
        return {Code::kInvalidUsage, "--out '" + folder + "' " +
                                         (error ? error.message() : "is not empty") +
                                         "; accepted: a new or empty folder"};
    }
    return {};
}

Status link(const std::string& file, const std::string& path) {
    std::error_code error;
    std::filesystem::create_hard_link(file, path, error);
    if (error && (std::filesystem::copy_file(file, path, error), error)) {
        return {Code::kSystemError, "'" + path + "': " + error.message()};
    }
    return {};
}

}  // namespace

Status convert_state(const std::string& from,
                     int ranks,
                     ConversionOptions options,
                     const std::string& to) {
    SLIMWIRE_TRY_ASSIGN(const SavedJob job, SavedJob::open(from));
    const auto of_groups = [](const StateComm& comm) { return comm.group.of_some(); };
    const bool groups =
        std::any_of(job.files().begin(), job.files().end(), [&](const StateReader& file) {
            const std::vector<StateComm>& comms = file.index().comms;
            return std::any_of(comms.begin(), comms.end(), of_groups);
        });
    std::set<std::string> noted;
    for (int rank = 0; rank < ranks; ++rank) {
        const std::string path = to + "/state." + std::to_string(rank);
        if (rank > 0 && !groups) {
            SLIMWIRE_TRY(link(to + "/state.0", path));
            continue;
        }
        options.own = groups ? rank : -1;
        options.heads = rank > 0;  // which has read all
        Conversion conversion(job, ranks, options);
        SLIMWIRE_TRY(conversion.plan());
        for (const std::string& one : conversion.left_out()) {
            if (noted.insert(one).second) {
                note("left out: " + one);
            }
        }
        if (rank == 0) {
            SLIMWIRE_TRY(make_folder(to));
        }
        SLIMWIRE_TRY(write_state(path, conversion.index(), [&](size_t i, uint64_t at, auto out) {
            return conversion.read(i, at, out);
        }));
    }
    return {};
}

}  // namespace slimwire::cli
