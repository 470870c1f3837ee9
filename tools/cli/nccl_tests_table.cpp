#include "tools/cli/nccl_tests_table.h"

#include <fmt/core.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdlib>

#include "tools/cli/environment.h"

namespace slimwire::cli {
namespace {

Status bad_line(int line, std::string_view what) {
    return {Code::kInvalidArgument, fmt::format("line {} of the table: {}", line, what)};
}

template <class T>
bool whole(const std::string& text, T* value) {
    const char* const end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, *value);
    return error == std::errc() && stop == end;
}

bool real(const std::string& text, double* value) {
    char* end = nullptr;
    *value = std::strtod(text.c_str(), &end);
    return !text.empty() && *end == '\0';
}

// Fills the member that the column `name` stands for; columns we do not know are passed over.
bool read_field(const std::string& name,
                const std::string& text,
                NcclTestsRow* row,
                NcclTestsTiming* timing) {
    if (name == "size") {
        return whole(text, &row->bytes);
    }
    if (name == "count") {
        return whole(text, &row->count);
    }
    if (name == "type") {
        row->type = text;
    } else if (name == "redop") {
        row->redop = text;
    } else if (name == "root") {
        return whole(text, &row->root);
    } else if (name == "time") {
        return real(text, &timing->time_us);
    } else if (name == "algbw") {
        return real(text, &timing->algorithm_gbps);
    } else if (name == "busbw") {
        return real(text, &timing->bus_gbps);
    } else if ((name == "#wrong" || name == "error") && text != "N/A") {
        double wrong = 0;  // a float error in old releases; anything but 0 is wrong
        if (!real(text, &wrong)) {
            return false;
        }
        timing->wrong = wrong > 0 && wrong < 1 ? 1 : static_cast<uint64_t>(wrong);
    }
    return true;
}

}  // namespace

Result<NcclTestsTable> parse_nccl_tests(std::string_view output) {
    NcclTestsTable table;
    std::vector<std::string> columns;
    int number = 0;
    for (const std::string& line : split_list(output, "\n")) {
        ++number;
        std::vector<std::string> fields = split_list(line, " \t\r");
        if (fields.empty()) {
            continue;
        }
        if (fields[0] == "#") {
            if (fields.size() > 3 && fields[1] == "size" && fields[2] == "count") {
                columns.assign(fields.begin() + 1, fields.end());
            } else if (fields.size() > 2 && fields[1] == "Rank") {
                ++table.ranks;
                table.emulated =
                    table.emulated || line.find("slimwire emulated device") != std::string::npos;
            } else if (line.find("Avg bus bandwidth") != std::string::npos) {
                double value = 0;
                if (real(fields.back(), &value)) {
                    table.average_bus_gbps = value;
                }
            }
            continue;
        }
        // Programs and libraries print other lines too; a row begins with a number.
        if (columns.empty() || std::isdigit(static_cast<unsigned char>(fields[0][0])) == 0) {
            continue;
        }
        const auto redop = static_cast<size_t>(std::find(columns.begin(), columns.end(), "redop") -
                                               columns.begin());
        int root = 0;  // stands where the redop would, when that is blank
        if (fields.size() + 1 == columns.size() && redop < fields.size() &&
            whole(fields[redop], &root)) {
            fields.insert(fields.begin() + static_cast<std::ptrdiff_t>(redop), "none");
        }
        if (fields.size() < columns.size()) {
            return bad_line(number, fmt::format("{} fields under {} columns: {}", fields.size(),
                                                columns.size(), line));
        }
        NcclTestsRow row;
        bool second = false;  // columns repeat for the in-place half
        for (size_t i = 0, times = 0; i < columns.size(); ++i) {
            times += columns[i] == "time" ? 1 : 0;
            second = times > 1;
            if (!read_field(columns[i], fields[i], &row,
                            second ? &row.in_place : &row.out_of_place)) {
                return bad_line(number, fmt::format("'{}' in column {}", fields[i], columns[i]));
            }
        }
        table.rows.push_back(std::move(row));
    }
    if (columns.empty()) {
        return Status(Code::kNotFound, "printed no nccl-tests table");
    }
    if (table.rows.empty()) {
        return Status(Code::kNotFound, "printed a table without a row");
    }
    return table;
}

}  // namespace slimwire::cli
