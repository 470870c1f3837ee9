#include "tools/cli/state/convert.h"

#include <filesystem>

#include "tools/cli/common/exit_code.h"

namespace slimwire::cli {
namespace {

Status write(const Conversion& conversion, int ranks, const std::string& folder) {
    std::error_code error;
    std::filesystem::create_directories(folder, error);
    if (error || !std::filesystem::is_empty(folder, error) || error) {
        return {Code::kInvalidUsage, "--out '" + folder + "' " +
                                         (error ? error.message() : "is not empty") +
                                         "; accepted: a new or empty folder"};
    }
    const std::string first = folder + "/state.0";
    SLIMWIRE_TRY(write_state(first, conversion.index(), [&](size_t i, uint64_t offset, auto out) {
        return conversion.read(i, offset, out);
    }));
    for (int rank = 1; rank < ranks; ++rank) {
        const std::string path = folder + "/state." + std::to_string(rank);
        std::filesystem::create_hard_link(first, path, error);
        if (error && (std::filesystem::copy_file(first, path, error), error)) {
            return {Code::kSystemError, "'" + path + "': " + error.message()};
        }
    }
    return {};
}

}  // namespace

Status convert_state(const std::string& from,
                     int ranks,
                     const ConversionOptions& options,
                     const std::string& to) {
    SLIMWIRE_TRY_ASSIGN(const SavedJob job, SavedJob::open(from));
    Conversion conversion(job, ranks, options);
    SLIMWIRE_TRY(conversion.plan());
    for (const std::string& one : conversion.left_out()) {
        note("left out: " + one);
    }
    return write(conversion, ranks, to);
}

}  // namespace slimwire::cli
