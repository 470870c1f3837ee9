#include "tools/cli/common/html_text.h"

#include <cstddef>

namespace slimwire::cli {
namespace {

// Bytes of the well-formed character at `at`; 0: it is none.
size_t character(const std::string& text, size_t at) {
    const auto byte = [&](size_t i) {
        return at + i < text.size() ? static_cast<unsigned char>(text[at + i]) : 0u;
    };
    const unsigned first = byte(0);
    if (first < 0x80) {
        return 1;
    }
    const size_t length = first >= 0xc2 && first < 0xe0   ? 2
                          : first >= 0xe0 && first < 0xf0 ? 3
                          : first >= 0xf0 && first < 0xf5 ? 4
                                                          : 0;
    for (size_t i = 1; i < length; ++i) {
        if ((byte(i) & 0xc0) != 0x80) {
            return 0;
        }
    }
    const unsigned second = byte(1);
    const bool shortest = first == 0xe0   ? second >= 0xa0
                          : first == 0xed ? second < 0xa0
                          : first == 0xf0 ? second >= 0x90
                          : first == 0xf4 ? second < 0x90
                                          : true;
    return shortest ? length : 0;
}

}  // namespace

std::string escaped(const std::string& text) {
    std::string result;
    for (size_t at = 0; at < text.size();) {
        const size_t length = character(text, at);
        if (length != 1) {
            result += length == 0 ? "?" : text.substr(at, length);
            at += length == 0 ? 1 : length;
            continue;
        }
        const char c = text[at++];
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
