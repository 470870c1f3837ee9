#include "topology/readers/machine_xml.h"

#include <pugixml.hpp>

#include <algorithm>
#include <string>

namespace slimwire {
namespace {

// Positions of ascending offsets, which is how the elements of a file are visited.
class PositionFinder {
  public:
    explicit PositionFinder(std::string_view text) : text_(text) {}

    XmlPosition find(size_t offset) {
        for (offset = std::min(offset, text_.size()); next_ < offset; ++next_) {
            if (text_[next_] == '\n') {
                ++at_.line;
                at_.column = 1;
            } else {
                ++at_.column;
            }
        }
        return at_;
    }

  private:
    std::string_view text_;
    size_t next_ = 0;
    XmlPosition at_;
};

Status error_at(XmlPosition at, const std::string& what) {
    return {Code::kInvalidArgument, position_text(at) + what};
}

XmlPosition position_of(const pugi::xml_node& node, PositionFinder* positions) {
    return positions->find(static_cast<size_t>(node.offset_debug() - 1));  // its name's offset
}

Status copy_element(const pugi::xml_node& node,
                    int depth,
                    PositionFinder* positions,
                    XmlElement* element) {
    element->at = position_of(node, positions);
    if (depth > kMaxXmlDepth) {
        return error_at(element->at,
                        "elements are nested deeper than " + std::to_string(kMaxXmlDepth));
    }
    element->name = node.name();
    for (const pugi::xml_attribute& attribute : node.attributes()) {
        std::string& value =
            element->attributes.emplace_back(attribute.name(), attribute.value()).second;
        // As XML has it of a line's end; others would move a terminal's cursor.
        std::replace_if(
            value.begin(), value.end(), [](unsigned char c) { return c < ' ' || c == 0x7f; }, ' ');
    }
    for (const pugi::xml_node& child : node.children()) {
        if (child.type() == pugi::node_element) {  // text is a node, too
            SLIMWIRE_TRY(
                copy_element(child, depth + 1, positions, &element->children.emplace_back()));
        }
    }
    return {};
}

}  // namespace

std::string_view XmlElement::get(std::string_view attribute) const noexcept {
    for (const auto& [known, value] : attributes) {
        if (known == attribute) {
            return value;
        }
    }
    return {};
}

std::string position_text(XmlPosition at) {
    return "line " + std::to_string(at.line) + ", column " + std::to_string(at.column) + ": ";
}

Result<XmlElement> parse_xml(std::string_view text) {
    if (text.size() > kMaxXmlBytes) {
        return Status(Code::kInvalidArgument,
                      "the file has " + std::to_string(text.size()) +
                          " bytes; accepted: " + std::to_string(kMaxXmlBytes) + " or less");
    }
    PositionFinder positions(text);
    if (const size_t zero = text.find('\0'); zero != std::string_view::npos) {
        return error_at(positions.find(zero),
                        text.starts_with("\xff\xfe") || text.starts_with("\xfe\xff")
                            ? "UTF-16, as some editors and shells write it; accepted: UTF-8"
                            : "a zero byte; accepted: text");
    }
    pugi::xml_document document;
    const pugi::xml_parse_result parsed = document.load_buffer(
        text.data(), text.size(), pugi::parse_minimal | pugi::parse_escapes, pugi::encoding_utf8);
    if (parsed.status == pugi::status_no_document_element) {
        return error_at({}, "there is no element; accepted: <system> (NCCL) or <topology> (hwloc)");
    }
    if (!parsed) {
        return error_at(positions.find(static_cast<size_t>(parsed.offset)),
                        std::string(parsed.description()) + "; accepted: well-formed XML");
    }
    XmlElement root;
    SLIMWIRE_TRY(copy_element(document.first_child(), 1, &positions, &root));
    if (const pugi::xml_node second = document.first_child().next_sibling()) {
        return error_at(position_of(second, &positions),
                        "a second element beside the root; accepted: one root element");
    }
    return root;
}

Result<Machine> read_machine_xml(std::string_view text) {
    SLIMWIRE_TRY_ASSIGN(const XmlElement root, parse_xml(text));
    Result<Machine> machine =
        root.name == "system" ? read_nccl_xml(root)
        : root.name == "topology"
            ? read_hwloc_xml(root)
            : Result<Machine>(Status(Code::kInvalidArgument,
                                     position_text(root.at) + "the root element is <" + root.name +
                                         ">; accepted: <system> (NCCL), <topology> (hwloc)"));
    if (!machine.ok()) {
        return machine.status();
    }
    const size_t devices = machine.value().devices.size();
    const size_t endpoints = machine.value().gpus().size() + machine.value().nics().size();
    const size_t cpus = machine.value().of_kind(DeviceKind::kCpu).size();
    if (devices > kMaxDevices || endpoints > kMaxEndpoints || cpus > kMaxCpus) {
        return Status(Code::kInvalidArgument,
                      std::to_string(devices) + " devices, of these " + std::to_string(endpoints) +
                          " GPUs and NICs and " + std::to_string(cpus) +
                          " processors; accepted: " + std::to_string(kMaxDevices) + ", " +
                          std::to_string(kMaxEndpoints) + " and " + std::to_string(kMaxCpus));
    }
    return machine;
}

}  // namespace slimwire
