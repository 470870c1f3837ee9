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
    std::string pattern = ((error ? fs::path("/tmp") : base) / "slimwire-XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr) {
        return Status(Code::kSystemError, fmt::format("cannot make a folder {}: {}; set TMPDIR",
                                                      pattern, std::strerror(errno)));
    }
    return TemporaryFolder(pattern);
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
