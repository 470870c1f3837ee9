#include "tools/cli/report/record_files.h"

#include <fmt/core.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <exception>
#include <fstream>
#include <set>
#include <string_view>
#include <utility>

#include "collectives/call/log.h"
#include "tools/cli/common/commands.h"

namespace slimwire::cli {
namespace {

// Makes texts visible, which tables show as they are; of what is never below zero it throws.
void judge(Record* record, std::string_view name = {}, int depth = 0) {
    constexpr int kDeepest = 16;
    constexpr double kLongestUs = 1e15;
    if (record->is_structured()) {
        if (depth == kDeepest) {
            throw std::runtime_error("not a record: lists in lists");
        }
        for (auto& [member, value] : record->items()) {
            judge(&value, record->is_object() ? std::string_view(member) : name, depth + 1);
        }
    } else if (auto* const text = record->get_ptr<std::string*>(); text != nullptr) {
        *text = visible(*text);
    } else if (record->is_number() && name.ends_with("_us") &&
               (*record > kLongestUs || *record < (name == "at_us" ? -kLongestUs : 0))) {
        throw MemberError(record, record->dump() + "; accepted: a time from 0");
    } else if (record->is_number() && *record < 0 &&
               (name.ends_with("_square") || name.ends_with("_percent") ||
                name.ends_with("_error") || name.ends_with("_bits"))) {
        throw MemberError(record, record->dump() + "; accepted: a number from 0");
    }
}

// "accordion.0.slot", of the member there; empty where it is another record's.
std::string name_of(const Record& record, const void* at) {
    for (const auto& [member, value] : record.items()) {
        if (&value == at) {
            return member;
        }
        const std::string inside = value.is_structured() ? name_of(value, at) : "";
        if (!inside.empty()) {
            return member + "." + inside;
        }
    }
    return {};
}

// Whether a last line that is no JSON may be a record that was cut off: a file of another kind has
// no line of ours in front of it and begins otherwise.
bool is_cut_off(std::string_view last_line, int number) noexcept {
    constexpr std::string_view kBegin = "{\"v\":1";
    return number > 1 || last_line.substr(0, kBegin.size()) == kBegin.substr(0, last_line.size());
}

}  // namespace

Result<std::vector<std::string>> distinct_files(const std::vector<std::string>& files,
                                                std::vector<std::string>* notes) {
    std::vector<std::string> distinct;
    std::set<std::pair<dev_t, ino_t>> known;
    for (const std::string& path : files) {
        struct stat found {};
        const bool there = ::stat(path.c_str(), &found) == 0;
        if (there && !S_ISREG(found.st_mode)) {
            return invalid(fmt::format("{}: {}; accepted: a regular file", path,
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

Status read_records(const std::string& path,
                    std::vector<std::string>* notes,
                    const std::function<Status(const Record& record)>& take) {
    std::ifstream file(path, std::ios::binary);
    if (!file) {
        return {Code::kNotFound, fmt::format("{}: cannot read: {}", path, std::strerror(errno))};
    }
    int number = 0;
    for (std::string line; std::getline(file, line);) {
        std::string where = fmt::format("{}:{}: ", path, ++number);
        if (line.find_first_not_of(" \t\r") == std::string::npos) {
            continue;
        }
        Record record = Record::parse(line, nullptr, false);
        if (!record.is_object()) {
            if (file.eof() && is_cut_off(line, number)) {
                notes->push_back(where + "cut off last line left out");
                return {};
            }
            return invalid(where +
                           "not a record: expected one JSON object a line, as slimwire writes");
        }
        if (const Record version = record.value("v", Record()); version != 1) {
            return {Code::kUnsupported, fmt::format("{}format version {}; this slimwire reads 1",
                                                    where, version.dump())};
        }
        try {
            judge(&record);
            if (const Status taken = take(record); !taken.ok()) {
                return {taken.code(), where + taken.message()};
            }
        } catch (const MemberError& error) {
            return invalid(
                fmt::format("{}'{}' is {}", where, name_of(record, error.at), error.what()));
        } catch (const Record::type_error&) {
            return invalid(where +
                           "a member is of another kind; accepted: records as slimwire writes");
        } catch (const std::exception& error) {
            const std::string_view what = error.what();  // "[json.exception.out_of_range.403] key"
            const size_t text = what.starts_with("[json") ? what.find(' ') + 1 : 0;
            return invalid(where.append(what.substr(text)));
        }
    }
    if (number == 0) {
        notes->push_back(path + ": empty");
    }
    return {};
}

}  // namespace slimwire::cli
