// Machines read from files: NCCL's topology XML (what NCCL_TOPO_DUMP_FILE writes and NCCL_TOPO_FILE
// reads; also RCCL's and others' dialects of it) and hwloc's XML (lstopo --of xml, versions 1 and
// 2).
//
// Odd content is taken and noted in Machine::notes; what is no XML, or no such file, is an error
// with line and column. Pure.
#pragma once

#include <string_view>

#include "codecs/base/status.h"
#include "topology/machine/machine.h"
#include "topology/readers/xml.h"

namespace slimwire {

inline constexpr size_t kMaxDevices = 4096;
inline constexpr size_t kMaxEndpoints = 512;  // GPUs and NICs together
inline constexpr size_t kMaxCpus = 256;

// Which of the two it is, its root element tells: <system> or <topology>.
Result<Machine> read_machine_xml(std::string_view text);

Result<Machine> read_nccl_xml(const XmlElement& system);
Result<Machine> read_hwloc_xml(const XmlElement& topology);

}  // namespace slimwire
