// What another part of the process than the communicators adds to its report file and its summary:
// the NCCL net plugin, in the same process but in a library of its own.
//
// libnccl-net-slimwire.so exports the function below. libslimwire.so and the drop-in ask it
// (report_plugin.cpp), and the plugin then leaves the file and the summary to them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace slimwire {

// Thread contract: as Reporter's members, which call it; nothing waits.
class ReportSource {
  public:
    virtual ~ReportSource() = default;
    // Called by threads that are inside an NCCL call, or end the process; never by the reporter's
    // own, which may not wait for the dynamic loader.
    virtual void look() noexcept {}
    // A number that changes with every counter; 0 while there is nothing to show.
    virtual uint64_t mark() noexcept = 0;
    // Whole lines, below those of the communicators.
    virtual std::string records() = 0;
    // A line of the summary, without its end; empty when nothing was done.
    virtual std::string summary() = 0;
};

// --- The plugin's function

inline constexpr char kNetPluginLibrary[] = "libnccl-net-slimwire.so";  // its SONAME
inline constexpr char kNetReportSymbol[] = "slimwireNetReport_v1";

enum NetReportWhat : int { kNetReportMark = 0, kNetReportRecords = 1, kNetReportSummary = 2 };
// Gets text that is valid during the call; throws nothing.
using NetReportTake = void (*)(void* context, const char* text, size_t bytes);
// Returns the mark, as ReportSource::mark(). Calls `take` once with what was asked for, not for the
// mark alone; not at all when memory is short or there is nothing. Any thread. Who asks for the
// mark or the records writes them, who asks for the summary prints it: the plugin does not any
// more.
using NetReportFunction = uint64_t (*)(int what, NetReportTake take, void* context);

// The net plugin of this process, once NCCL has loaded it.
std::unique_ptr<ReportSource> make_plugin_source();

}  // namespace slimwire
