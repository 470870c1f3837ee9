// Fuzz target: machine files. Any bytes are a machine or an error with a place; a machine's ways,
// places and communicator hold together. An input is a file, or, when its first byte is even,
// tokens of such files drawn by its bytes, so that random inputs get past the reader of XML.
#include <array>
#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>

#include "tests/fuzz/reader.h"
#include "topology/machine/comm_links.h"
#include "topology/readers/machine_xml.h"

namespace {

using namespace slimwire;

constexpr std::array<std::string_view, 40> kTokens = {
    "<system version=\"1\">",
    "<system version=\"2\">",
    "</system>",
    "<cpu numaid=\"0\" arch=\"x86_64\" vendor=\"AuthenticAMD\">",
    "<cpu numaid=\"1\" host_hash=\"0x2\">",
    "</cpu>",
    "<pci busid=\"0000:01:00.0\" class=\"0x060400\">",
    "<pci busid=\"0000:02:00.0\" class=\"0x030200\" link_speed=\"16 GT/s\" link_width=\"16\">",
    "<pci busid=\"0000:03:00.0\" class=\"0x030200\"/>",
    "<pci busid=\"0000:04:00.0\" class=\"0x020000\">",
    "<pci/>",
    "</pci>",
    "<gpu dev=\"0\" sm=\"80\">",
    "<gpu dev=\"1\" sm=\"90\" rank=\"1\">",
    "<gpu/>",
    "</gpu>",
    "<nic>",
    "</nic>",
    "<net name=\"a\" speed=\"100000\" gdr=\"1\"/>",
    "<nvlink target=\"0000:02:00.0\" count=\"2\" tclass=\"0x030200\"/>",
    "<nvlink target=\"0000:03:00.0\" count=\"1\"/>",
    "<nvlink target=\"fffffff:ff:ff.0\" count=\"18\" tclass=\"0x068000\"/>",
    "<nvlink target=\"0000:00:00.0\" tclass=\"0x060400\"/>",
    "<xgmi target=\"0000:02:00.0\" count=\"\"/>",
    "<c2c bw=\"1000\" count=\"2\"/>",
    "<pcilink target=\"0000:01:00.0\"/>",
    "<topology version=\"2.0\">",
    "</topology>",
    "<object type=\"Machine\" nodeset=\"0x00000003\">",
    "<object type=\"Package\">",
    "<object type=\"NUMANode\" os_index=\"1\"/>",
    "<object type=\"Bridge\" bridge_type=\"1-1\" pci_busid=\"0000:05:00.0\">",
    "<object type=\"PCIDev\" pci_busid=\"0000:06:00.0\" pci_type=\"0302 [10de:1db4] a1\">",
    "<object type=\"PCIDev\" pci_busid=\"0000:07:00.0\" pci_type=\"0200 [8086:1db4] a1\">",
    "<object type=\"OSDev\" name=\"e\" osdev_type=\"2\"/>",
    "</object>",
    "<info name=\"CPUVendor\" value=\"GenuineIntel\"/>",
    "<!-- -->",
    "&amp;",
    "\" ",
};

// Tags that close what is open come by themselves often enough: byte 0 of a token closes.
std::string script(Reader reader) {
    std::string text;
    std::string open[64];
    size_t depth = 0;
    const auto close = [&text, &open, &depth] {
        if (depth > 0) {
            text += "</" + open[--depth] + ">";
        }
    };
    while (!reader.empty()) {
        const uint8_t choice = reader.byte();
        if (choice >= 200 && depth > 0) {
            close();
            continue;
        }
        const std::string_view token = kTokens[choice % kTokens.size()];
        const bool wild = choice % 16 == 15;
        if (token.substr(0, 2) == "</" && !wild) {
            continue;
        }
        text += token;
        if (token[0] == '<' && token[1] != '/' && token[1] != '!' &&
            token[token.size() - 2] != '/' && depth < 64) {
            open[depth++] = std::string(token.substr(1, token.find_first_of(" >") - 1));
        }
    }
    while (depth > 0) {
        close();
    }
    return text;
}

void check_machine(const Machine& machine) {
    const auto count = static_cast<int>(machine.devices.size());
    for (int i = 0; i < count; ++i) {
        const Device& device = machine.devices[static_cast<size_t>(i)];
        if (device.parent >= i || device.host < 0 ||
            device.host >= static_cast<int>(machine.hosts.size())) {
            finding("a device stands before its parent or has no host");
        }
        if (!std::isfinite(device.up_gb_s) || (device.parent >= 0 && device.up_gb_s <= 0)) {
            finding("a device's link has no bandwidth");
        }
        if (machine.label(i).empty()) {
            finding("a device has no name");
        }
    }
    for (const DirectLink& link : machine.links) {
        if (link.a < 0 || link.b < 0 || link.a >= count || link.b >= count || link.a == link.b ||
            link.gb_s <= 0) {
            finding("a link leads nowhere");
        }
    }
    const PathTable paths(machine);
    const Places places = find_places(machine, paths);
    for (const GpuPlace& a : places.gpus) {
        for (const GpuPlace& b : places.gpus) {
            const Path there = gpu_path(paths, a, b);
            const Path back = gpu_path(paths, b, a);
            if (there.path_class != back.path_class || there.gb_s != back.gb_s) {
                finding("a way differs from its way back");
            }
            if ((there.path_class == PathClass::kNone) != (there.gb_s == 0)) {
                finding("a way without bandwidth, or none with it");
            }
        }
    }
    std::vector<RankPlace> ranks;
    for (size_t i = 0; i < places.gpus.size(); ++i) {
        ranks.push_back(rank_place(machine, places, i, 7 + i % 3));
    }
    if (!ranks.empty() && !make_comm_links(ranks).ok()) {
        finding("a communicator of the machine's GPUs has no links");
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    if (size == 0) {
        return 0;
    }
    const std::string text = data[0] % 2 == 0
                                 ? script(Reader(data + 1, size - 1))
                                 : std::string(reinterpret_cast<const char*>(data), size);
    const Result<Machine> machine = read_machine_xml(text);
    if (machine.ok()) {
        check_machine(machine.value());
    } else if (machine.status().message().find("line ") != 0 &&
               machine.status().message().find("accepted: ") == std::string::npos) {
        finding("an error says neither where nor what is accepted: " + machine.status().message());
    }
    return 0;
}
