// Where pages of the command line are written, which files it reads, and folders for a while.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "codecs/base/status.h"

namespace slimwire::cli {

// Refuses what is no regular file: it may have no end, or nobody who writes it.
Status check_input(const std::string& path);

// Refuses to write the page over one of `inputs` or over any file of records, as
// `--html slim-*.jsonl` without a name of its own would.
Status check_page_path(const std::string& path, const std::vector<std::string>& inputs);

// Writes `page` to `path` ("-": standard output) by way of a file beside it, so that an error
// leaves what was there. Anything but a regular file is written directly. Errors name the path.
Status write_page(const std::string& path, const std::string& page);

// A private folder under TMPDIR, or in memory where that fails, that goes away with its owner.
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
