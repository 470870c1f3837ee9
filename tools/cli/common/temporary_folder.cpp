#include "tools/cli/common/temporary_folder.h"

#include <fmt/core.h>
#include <stdlib.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <system_error>
#include <utility>

namespace slimwire::cli {

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
