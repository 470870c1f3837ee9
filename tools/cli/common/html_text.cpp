#include "tools/cli/common/html_text.h"

#include <nlohmann/json.hpp>

#include "tools/cli/common/run_metadata.h"

namespace slimwire::cli {

std::string escaped(const std::string& text) {
    std::string result;
    for (const char c : nlohmann::json::parse(json_line(text)).get<std::string>()) {
        switch (c) {
            case '&':
                result += "&amp;";
                break;
            case '<':
                result += "&lt;";
                break;
            case '>':
                result += "&gt;";
                break;
            case '"':
                result += "&quot;";
                break;
            default:
                result += static_cast<unsigned char>(c) < ' ' || c == 0x7f ? ' ' : c;
        }
    }
    return result;
}

}  // namespace slimwire::cli
