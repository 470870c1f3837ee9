// The net plugin's records, asked for by what intercepts NCCL in the same process.
#include <dlfcn.h>

#include <atomic>
#include <new>

#include "collectives/observe/report_source.h"

namespace slimwire {
namespace {

// `context` is a string; it stays empty when memory is short.
void take_text(void* context, const char* text, size_t bytes) noexcept {
    try {
        static_cast<std::string*>(context)->assign(text, bytes);
    } catch (const std::bad_alloc&) {
    }
}

class PluginSource final : public ReportSource {
  public:
    // The handle is kept: the plugin is never unloaded.
    void look() noexcept override {
        if (function_.load(std::memory_order_acquire) != nullptr) {
            return;
        }
        if (void* const plugin = dlopen(kNetPluginLibrary, RTLD_NOW | RTLD_NOLOAD)) {
            function_.store(reinterpret_cast<NetReportFunction>(dlsym(plugin, kNetReportSymbol)),
                            std::memory_order_release);
        }
    }
    uint64_t mark() noexcept override {
        const NetReportFunction function = function_.load(std::memory_order_acquire);
        return function != nullptr ? function(kNetReportMark, nullptr, nullptr) : 0;
    }
    std::string records() override { return text(kNetReportRecords); }
    std::string summary() override { return text(kNetReportSummary); }

  private:
    std::string text(NetReportWhat what) const {
        std::string got;
        if (const NetReportFunction function = function_.load(std::memory_order_acquire)) {
            (void)function(what, take_text, &got);
        }
        return got;
    }

    std::atomic<NetReportFunction> function_{nullptr};
};

}  // namespace

std::unique_ptr<ReportSource> make_plugin_source() {
    return std::make_unique<PluginSource>();
}

}  // namespace slimwire
