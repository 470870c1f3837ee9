// Machine files as elements with their positions: NCCL's topology dumps and hwloc's exports, read
// by pugixml. Text, comments and a DOCTYPE are skipped; entities that a DOCTYPE declares are not
// replaced. Bounded in size and depth and fuzzed (tests/fuzz/topology_fuzz.cpp). Pure.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "codecs/base/status.h"

namespace slimwire {

struct XmlPosition {
    int line = 1;
    int column = 1;  // in bytes
};

struct XmlElement {
    std::string name;
    std::vector<std::pair<std::string, std::string>> attributes;  // name, value
    std::vector<XmlElement> children;
    XmlPosition at;  // of '<'

    // Empty when it has none; files of some vendors have empty attributes for "not known".
    [[nodiscard]] std::string_view get(std::string_view attribute) const noexcept;
};

inline constexpr size_t kMaxXmlBytes = 16u << 20;
inline constexpr int kMaxXmlDepth = 128;

// The root element. kInvalidArgument with the position of what is wrong.
Result<XmlElement> parse_xml(std::string_view text);

// "line 3, column 17: "
[[nodiscard]] std::string position_text(XmlPosition at);

}  // namespace slimwire
