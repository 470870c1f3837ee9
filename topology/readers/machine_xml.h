// Machines read from files: NCCL's topology XML (what NCCL_TOPO_DUMP_FILE writes, also RCCL's) and
// hwloc's XML (lstopo --of xml, version 2), first as elements with their positions, by pugixml:
// text, comments and a DOCTYPE are skipped; entities that a DOCTYPE declares are not replaced.
// Bounded in size and depth and fuzzed (tests/fuzz/topology_fuzz.cpp).
//
// Odd content is taken and noted in Machine::notes; what is no XML, or no such file, is an error
// with line and column. Pure.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "codecs/base/status.h"
#include "topology/machine/machine.h"

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

inline constexpr size_t kMaxDevices = 4096;
inline constexpr size_t kMaxEndpoints = 512;  // GPUs and NICs together
inline constexpr size_t kMaxCpus = 256;

// Which of the two it is, its root element tells: <system> or <topology>.
Result<Machine> read_machine_xml(std::string_view text);

Result<Machine> read_nccl_xml(const XmlElement& system);
Result<Machine> read_hwloc_xml(const XmlElement& topology);

}  // namespace slimwire
