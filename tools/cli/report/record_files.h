// The files that reports and traces are read from.
#pragma once

#include <fmt/core.h>
#include <sys/stat.h>

#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "codecs/base/status.h"

namespace slimwire::cli {

// Whether a last line that is no JSON may be a record that was cut off: a file of another kind has
// no line of ours in front of it and begins otherwise.
inline bool is_cut_off(std::string_view last_line, int number) noexcept {
    constexpr std::string_view kBegin = "{\"v\":1";
    return number > 1 || last_line.substr(0, kBegin.size()) == kBegin.substr(0, last_line.size());
}

// Those of `files` that are others than the ones before them; a note of each that is not. What is
// no regular file is an error: it may have no end, and is looked into before it is read.
inline Result<std::vector<std::string>> distinct_files(const std::vector<std::string>& files,
                                                       std::vector<std::string>* notes) {
    std::vector<std::string> distinct;
    std::set<std::pair<dev_t, ino_t>> known;
    for (const std::string& path : files) {
        struct stat found {};
        const bool there = ::stat(path.c_str(), &found) == 0;
        if (there && !S_ISREG(found.st_mode)) {
            return Status(Code::kInvalidArgument,
                          fmt::format("{}: {}; accepted: a regular file", path,
                                      S_ISDIR(found.st_mode) ? "a folder" : "not a regular file"));
        }
        if (there && !known.emplace(found.st_dev, found.st_ino).second) {
            notes->push_back(fmt::format("{}: the same file as another one, read once", path));
        } else {
            distinct.push_back(path);
        }
    }
    return distinct;
}

}  // namespace slimwire::cli
