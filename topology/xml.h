// A small strict reader of XML for files that describe machines: NCCL's topology dumps and hwloc's
// exports. Elements and attributes are kept with their position, text is skipped. Its own and no
// library's, because the library that is preloaded into strangers' processes may need nothing
// beside libc; bounded in size, depth and counts, and fuzzed (tests/fuzz/topology_fuzz.cpp).
//
// Taken: declaration, comments, processing instructions, a DOCTYPE without declarations of its own,
// CDATA, character references and the five entities. Everything else that XML forbids is an error:
// "line 3, column 17: ...". Pure.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "codecs/base/status.h"

namespace slimwire {

struct XmlPosition {
    int line = 1;
    int column = 1;  // in bytes
};

struct XmlAttribute {
    std::string name;
    std::string value;  // references resolved
    XmlPosition at;     // of the name
};

struct XmlElement {
    std::string name;
    std::vector<XmlAttribute> attributes;
    std::vector<XmlElement> children;
    XmlPosition at;  // of '<'

    // Null when it has none of that name.
    [[nodiscard]] const XmlAttribute* find(std::string_view attribute) const noexcept;
    // Empty when it has none; files of some vendors have empty attributes for "not known".
    [[nodiscard]] std::string_view get(std::string_view attribute) const noexcept;
};

inline constexpr size_t kMaxXmlBytes = 64u << 20;
inline constexpr int kMaxXmlDepth = 128;
inline constexpr int kMaxXmlElements = 1 << 20;
inline constexpr int kMaxXmlAttributes = 128;  // of one element

// The root element. kInvalidArgument with the position of what is wrong.
Result<XmlElement> parse_xml(std::string_view text);

// "line 3, column 17: "
[[nodiscard]] std::string position_text(XmlPosition at);

}  // namespace slimwire
