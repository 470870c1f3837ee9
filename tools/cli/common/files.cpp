#include "tools/cli/common/files.h"

#include <fmt/core.h>
#include <stdlib.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <utility>

#include "tools/cli/common/commands.h"

namespace slimwire::cli {
namespace {

Status written(std::ofstream file, const std::string& page, const std::string& path) {
    file.write(page.data(), static_cast<std::streamsize>(page.size()));
    file.close();
    if (!file) {
        return {Code::kNotFound,
                fmt::format("{} cannot be written: {}", path, std::strerror(errno))};
    }
    return {};
}

}  // namespace

Status check_input(const std::string& path) {
    std::error_code error;
    const std::filesystem::file_status status = std::filesystem::status(path, error);
    if (!std::filesystem::exists(status)) {
        return {Code::kNotFound, path + " cannot be read: " + std::strerror(ENOENT)};
    }
    return std::filesystem::is_regular_file(status)
               ? Status()
               : invalid(fmt::format(
                     "{} is {}; accepted: a file", path,
                     std::filesystem::is_directory(status) ? "a folder" : "no regular file"));
}

Status check_page_path(const std::string& path, const std::vector<std::string>& inputs) {
    std::error_code error;
    for (const std::string& input : inputs) {
        if (std::filesystem::equivalent(path, input, error)) {
            return invalid(
                fmt::format("--html {} is one of the files to read; accepted: --html OUT.html "
                            "FILES...",
                            path));
        }
    }
    char first = 0;
    if (std::filesystem::is_regular_file(path, error) &&
        std::ifstream(path, std::ios::binary).get(first) && first == '{') {
        return invalid(
            fmt::format("--html {} holds records, which the page would overwrite; accepted: "
                        "--html OUT.html FILES...",
                        path));
    }
    return {};
}

Status write_page(const std::string& path, const std::string& page) {
    if (path == "-") {
        fmt::print("{}", page);
        return {};
    }
    std::error_code error;
    const std::filesystem::file_status status = std::filesystem::status(path, error);
    if (std::filesystem::is_directory(status)) {
        return invalid(fmt::format("{} is a folder; accepted: a file", path));
    }
    const std::filesystem::path folder = std::filesystem::path(path).parent_path();
    if (!folder.empty() && !std::filesystem::is_directory(folder, error)) {
        return {Code::kNotFound,
                fmt::format("{} cannot be written: there is no folder {}", path, folder.string())};
    }
    if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status)) {
        return written(std::ofstream(path, std::ios::binary), page, path);
    }
    const std::string beside = fmt::format("{}.{}.part", path, ::getpid());
    Status done = written(std::ofstream(beside, std::ios::binary), page, path);
    if (done.ok()) {
        std::filesystem::rename(beside, path, error);
        if (error) {
            done = {Code::kNotFound,
                    fmt::format("{} cannot be written: {}", path, error.message())};
        }
    }
    if (!done.ok()) {
        std::filesystem::remove(beside, error);
    }
    return done;
}

namespace fs = std::filesystem;

Result<TemporaryFolder> TemporaryFolder::create() {
    std::error_code error;
    const fs::path base = fs::temp_directory_path(error);
    Status failed;
    // Containers with a root that nobody writes to have memory at least.
    for (const fs::path& folder : {error ? fs::path("/tmp") : base, fs::path("/dev/shm")}) {
        std::string pattern = (folder / "slimwire-XXXXXX").string();
        if (::mkdtemp(pattern.data()) != nullptr) {
            return TemporaryFolder(pattern);
        }
        failed = failed.ok() ? Status(Code::kSystemError,
                                      fmt::format("cannot make a folder {}: {}; set TMPDIR",
                                                  pattern, std::strerror(errno)))
                             : failed;
    }
    return failed;
}

TemporaryFolder::TemporaryFolder(TemporaryFolder&& other) noexcept
    : path_(std::exchange(other.path_, {})) {}

TemporaryFolder::~TemporaryFolder() {
    if (!path_.empty()) {
        std::error_code error;
        fs::remove_all(path_, error);
    }
}

Result<std::string> TemporaryFolder::write(const std::string& name,
                                           std::string_view content) const {
    const fs::path file = path_ / name;
    std::ofstream out(file, std::ios::binary);
    out << content;
    if (!out.flush()) {
        return Status(Code::kSystemError, fmt::format("cannot write {}", file.string()));
    }
    return file.string();
}

}  // namespace slimwire::cli
