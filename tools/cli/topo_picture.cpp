// The page of `slimwire topo --html`: the machine as an inline SVG and the table of ways. No
// script, no reference to anything outside, so that it can be mailed and opened anywhere.
#include <fmt/core.h>

#include <algorithm>
#include <map>

#include "tools/cli/html_text.h"
#include "tools/cli/topo.h"
#include "topology/link_speed.h"

namespace slimwire::cli {
namespace {

constexpr int kBox = 116, kGap = 14, kHigh = 46, kLevel = 96, kMargin = 24;

constexpr const char* kStyle =
    "body{font:14px/1.5 system-ui,sans-serif;margin:24px;color:#1b2733;background:#fff}"
    "h1{font-size:20px}h2{font-size:16px;margin-top:28px}.scroll{overflow-x:auto}"
    "svg text{font:12px system-ui,sans-serif;fill:#1b2733}svg .small{font-size:10px;fill:#516170}"
    "svg .wire{font-size:11px;paint-order:stroke;stroke:#fff;stroke-width:4px}"
    "table{border-collapse:collapse}td,th{padding:4px 8px;border:1px solid #dde3ea;"
    "text-align:center;white-space:nowrap}th{background:#f4f6f9;font-weight:600}"
    "li{margin:2px 0}.key span{display:inline-block;padding:2px 8px;margin:0 6px 6px 0}";

const char* color_of(DeviceKind kind) {
    switch (kind) {
        case DeviceKind::kCpu:
            return "#dbe7f5";
        case DeviceKind::kSwitch:
            return "#e9e4f5";
        case DeviceKind::kGpu:
            return "#d9f0dc";
        case DeviceKind::kNic:
            return "#fdeccb";
        case DeviceKind::kNvSwitch:
            return "#bfe5c5";
        case DeviceKind::kOther:
            return "#eeeeee";
    }
    return "#eeeeee";
}

// From near to far: green to red, told by its text, too.
const char* color_of(PathClass path_class) {
    switch (path_class) {
        case PathClass::kLocal:
        case PathClass::kNvLink:
            return "#c6ecca";
        case PathClass::kNvHop:
        case PathClass::kC2c:
            return "#dff3d2";
        case PathClass::kPix:
        case PathClass::kPxb:
        case PathClass::kPxn:
            return "#fbf3c4";
        case PathClass::kPhb:
            return "#fde2b8";
        case PathClass::kSys:
        case PathClass::kNet:
            return "#f9cfc4";
        case PathClass::kNone:
            return "#e4e4e4";
    }
    return "#e4e4e4";
}

class Picture {
  public:
    explicit Picture(const Topo& topo) : topo_(topo) {}

    std::string draw() {
        int x = kMargin;
        for (const int cpu : topo_.children(-1)) {
            x = place(cpu, x, 0) + kGap;
        }
        std::string lines, boxes;
        const int wide = std::max(x, 320) + kMargin;
        int deepest = 0;
        for (const auto& [device, at] : at_) {
            deepest = std::max(deepest, at.y);
        }
        const int row = kMargin + deepest + kHigh;
        int bottom = row;
        draw_processors(&lines);
        for (const auto& [device, at] : at_) {
            const Device& d = topo_.device(device);
            if (d.parent >= 0) {
                const Point& up = at_[d.parent];
                lines += line(up.x, kMargin + up.y + kHigh, at.x, kMargin + at.y, "#9aa8b6", 1.5);
                boxes += label((up.x + 3 * at.x) / 4, kMargin + at.y - 6,
                               d.up_gb_s < kLocalGbS ? gb_s_text(d.up_gb_s) : "");
            }
            boxes += box(device, at.x, kMargin + at.y, kBox);
        }
        bottom = std::max(bottom, draw_links(row, wide, &lines, &boxes));
        return fmt::format(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" role=\"img\" "
            "aria-label=\"tree of the machine\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} "
            "{1}\">{2}{3}</svg>",
            wide, bottom + kMargin, lines, boxes);
    }

  private:
    struct Point {
        int x = 0, y = 0;  // middle of the upper edge; y without the margin
    };

    // Places a device and all below it from x on; returns where the next may begin.
    int place(int device, int x, int y) {
        const std::vector<int> children = topo_.children(device);
        int next = x;
        for (const int child : children) {
            next = place(child, next, y + kLevel);
        }
        if (children.empty()) {
            at_[device] = {x + kBox / 2, y};
            return x + kBox + kGap;
        }
        at_[device] = {(at_[children.front()].x + at_[children.back()].x) / 2, y};
        return next;
    }

    static std::string line(int x1, int y1, int x2, int y2, const char* color, double width) {
        return fmt::format(
            "<path d=\"M{} {} L{} {}\" fill=\"none\" stroke=\"{}\" stroke-width=\"{}\"/>", x1, y1,
            x2, y2, color, width);
    }
    static std::string label(int x, int y, const std::string& text, const char* kind = "wire") {
        return text.empty()
                   ? ""
                   : fmt::format(
                         "<text class=\"{}\" x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
                         kind, x, y, escaped(text));
    }
    [[nodiscard]] std::string box(int device, int x, int y, int width) const {
        const Device& d = topo_.device(device);
        std::string second = d.bus_id;
        if (d.kind == DeviceKind::kCpu) {
            second = d.arch;
        } else if (d.kind == DeviceKind::kNic) {
            second = d.net_gbit_s() > 0 ? gb_s_text(d.net_gbit_s()) + " Gbit/s" : d.bus_id;
        } else if (d.kind == DeviceKind::kSwitch || d.kind == DeviceKind::kOther) {
            second = d.kind == DeviceKind::kSwitch ? "PCIe switch" : "PCI device";
        }
        const std::string name = d.kind == DeviceKind::kSwitch || d.kind == DeviceKind::kOther
                                     ? d.bus_id
                                     : topo_.machine.label(device).substr(
                                           0, topo_.machine.label(device).find(" of host"));
        return fmt::format(
            "<g><title>{}: {}</title><rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" rx=\"6\" "
            "fill=\"{}\" stroke=\"#8494a5\"/><text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</"
            "text>{}</g>",
            escaped(topo_.machine.label(device)), escaped(topo_.facts(device)), x - width / 2, y,
            width, kHigh, color_of(d.kind), x, y + 20, escaped(name),
            label(x, y + 36, second, "small"));
    }

    // Neighbours of one host, so that many do not make a net of lines.
    void draw_processors(std::string* lines) {
        const std::vector<int> cpus = topo_.children(-1);
        for (size_t i = 1; i < cpus.size(); ++i) {
            if (topo_.device(cpus[i]).host == topo_.device(cpus[i - 1]).host) {
                const int y = kMargin + kHigh / 2;
                *lines += line(at_[cpus[i - 1]].x, y, at_[cpus[i]].x, y, "#c46a4a", 3);
                *lines += label((at_[cpus[i - 1]].x + at_[cpus[i]].x) / 2, y - 5,
                                gb_s_text(std::min(cpu_link_gb_s(topo_.device(cpus[i - 1])),
                                                   cpu_link_gb_s(topo_.device(cpus[i])))));
            }
        }
    }

    // Below the tree: a bar for the NVSwitches, arcs between GPUs. Returns the lowest point.
    int draw_links(int row, int wide, std::string* lines, std::string* boxes) {
        const std::vector<int> switches = topo_.machine.of_kind(DeviceKind::kNvSwitch);
        int bottom = row;
        const int bar = row + 70;
        for (const DirectLink& link : topo_.machine.links) {
            const bool to_switch = topo_.device(link.b).kind == DeviceKind::kNvSwitch;
            const std::string text = fmt::format("{} x{}, {} GB/s", link_kind_name(link.kind),
                                                 link.count, gb_s_text(link.gb_s));
            const Point& a = at_[link.a];
            const int from = kMargin + a.y + kHigh;
            if (to_switch) {
                *lines += line(a.x, from, a.x, bar, "#3c9a4d", 3);
                *boxes += label(a.x, bar - 26, fmt::format("x{}", link.count));
                *boxes += label(a.x, bar - 12, gb_s_text(link.gb_s));
            } else if (link.kind == LinkKind::kNvLink || link.kind == LinkKind::kXgmi) {
                const Point& b = at_[link.b];
                const int to = kMargin + b.y + kHigh;
                const int depth = std::min(40 + std::abs(a.x - b.x) / 8, 220);
                const int low = std::max(from, to) + depth;
                *lines += fmt::format(
                    "<path d=\"M{0} {1} C{0} {2} {3} {2} {3} {4}\" fill=\"none\" "
                    "stroke=\"#3c9a4d\" stroke-width=\"{5}\" opacity=\"0.75\"><title>{6} - {7}: "
                    "{8}</title></path>",
                    a.x, from, low, b.x, to, std::min(1 + link.count, 8),
                    escaped(topo_.machine.label(link.a)), escaped(topo_.machine.label(link.b)),
                    escaped(text));
                bottom = std::max(bottom, low);
            }
        }
        if (!switches.empty()) {
            *boxes += box(switches.front(), wide / 2, bar, wide - 2 * kMargin);
            bottom = std::max(bottom, bar + kHigh);
        }
        return bottom;
    }

    const Topo& topo_;
    std::map<int, Point> at_;
};

std::string way_cell(const Path& way, bool self) {
    return self ? std::string("<td>-</td>")
                : fmt::format("<td style=\"background:{}\">{}{}</td>", color_of(way.path_class),
                              path_class_name(way.path_class),
                              way.path_class == PathClass::kLocal || way.gb_s == 0
                                  ? ""
                                  : " " + gb_s_text(way.gb_s));
}

std::string ways_table(const Topo& topo) {
    std::string text = "<table><tr><th></th>";
    const std::vector<int> nics = topo.machine.nics();
    for (const GpuPlace& place : topo.places.gpus) {
        text += "<th>" + escaped(topo.machine.label(place.gpu)) + "</th>";
    }
    for (const int nic : nics) {
        text += "<th>" + escaped(topo.machine.label(nic)) + "</th>";
    }
    text += "</tr>";
    for (const GpuPlace& row : topo.places.gpus) {
        text += "<tr><th>" + escaped(topo.machine.label(row.gpu)) + "</th>";
        for (const GpuPlace& column : topo.places.gpus) {
            text += way_cell(gpu_path(topo.paths, row, column), row.gpu == column.gpu);
        }
        for (const int nic : nics) {
            text += way_cell(topo.paths.between(row.gpu, nic), false);
        }
        text += "</tr>\n";
    }
    return text + "</table>";
}

std::string list(const char* title, const std::vector<std::string>& lines) {
    std::string text;
    for (const std::string& line : lines) {
        text += "<li>" + escaped(line) + "</li>";
    }
    return text.empty() ? text : fmt::format("<h2>{}</h2><ul>{}</ul>", title, text);
}

}  // namespace

std::string topo_html(const Topo& topo) {
    std::string text = fmt::format(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"/><title>slimwire topo: "
        "{}</title><style>{}</style></head>\n<body><h1>{}</h1><p>{}</p>",
        escaped(topo.machine.source), kStyle, escaped(topo.machine.source),
        escaped(topo.summary()));
    if (!topo.communicator().empty()) {
        text += "<p>" + escaped(topo.communicator()) + "</p>";
    }
    for (const TopoComm& comm : topo.comms) {
        text += fmt::format("<p>Communicator {}{}{}</p><ul>", escaped(comm.name),
                            comm.links.empty() ? "" : ": ", escaped(comm.links));
        for (const std::string& line : comm_lines(comm)) {
            text += "<li>" + escaped(line) + "</li>";
        }
        text += "</ul>";
    }
    text += "\n<div class=\"scroll\">" + Picture(topo).draw() +
            "</div>\n<p>Figures are GB/s of one direction: at a box, of the link above it; red, "
            "between processors; green, NVLink or xGMI.</p>\n";
    if (!topo.places.gpus.empty()) {
        text += "<h2>Ways, class and GB/s</h2><p class=\"key\">";
        const std::pair<PathClass, const char*> keys[] = {
            {PathClass::kNvLink, "NVL: NVLink or xGMI"},
            {PathClass::kNvHop, "NVB: by another GPU"},
            {PathClass::kPix, "PIX, PXB: PCIe switches; PXN: by another GPU's NVLink"},
            {PathClass::kPhb, "PHB: through a processor"},
            {PathClass::kSys, "SYS: between processors; NET: between hosts"}};
        for (const auto& [path_class, meaning] : keys) {
            text += fmt::format("<span style=\"background:{}\">{}</span>", color_of(path_class),
                                escaped(meaning));
        }
        text += "</p>\n<div class=\"scroll\">" + ways_table(topo) + "</div>\n";
    }
    text += list("Sources", topo.log) + list("Notes", topo.machine.notes);
    return text + "</body></html>\n";
}

}  // namespace slimwire::cli
