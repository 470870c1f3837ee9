// A private folder under TMPDIR, or in memory where that fails, that goes away with its owner.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "codecs/base/status.h"

namespace slimwire::cli {

class TemporaryFolder {
  public:
    static Result<TemporaryFolder> create();
    TemporaryFolder(TemporaryFolder&& other) noexcept;
    TemporaryFolder(const TemporaryFolder&) = delete;
    TemporaryFolder& operator=(const TemporaryFolder&) = delete;
    TemporaryFolder& operator=(TemporaryFolder&&) = delete;
    ~TemporaryFolder();

    [[nodiscard]] const std::filesystem::path& path() const { return path_; }
    // Writes a file and returns its path.
    Result<std::string> write(const std::string& name, std::string_view content) const;

  private:
    explicit TemporaryFolder(std::filesystem::path path) : path_(std::move(path)) {}
    std::filesystem::path path_;  // empty: moved away
};

}  // namespace slimwire::cli
