#include "collectives/open_ranges.h"

#include <dlfcn.h>

#include <atomic>
#include <cstdlib>

#include "collectives/parameter_match.h"

namespace slimwire {
namespace {

std::atomic<OpenRangesFunction*> g_function{nullptr};
std::atomic<uint64_t> g_generation{1};  // of g_function
std::atomic<bool> g_given{false};       // by a test

void* opened_library() noexcept {
    if (void* const mapped = dlopen(kOpenRangesLibrary, RTLD_LAZY | RTLD_NOLOAD);
        mapped != nullptr) {
        return mapped;
    }
    // NVTX opens it at the program's first range, by this path.
    const char* const path = std::getenv("NVTX_INJECTION64_PATH");
    if (path == nullptr) {
        return nullptr;
    }
    const std::string_view whole(path);
    const size_t slash = whole.rfind('/');
    const std::string_view file = whole.substr(slash == std::string_view::npos ? 0 : slash + 1);
    return file == kOpenRangesLibrary ? dlopen(path, RTLD_LAZY) : nullptr;
}

const OpenRanges* ranges_of_thread() noexcept {
    OpenRangesFunction* const function = g_function.load(std::memory_order_acquire);
    return function != nullptr ? function() : nullptr;
}

}  // namespace

OpenRangesFunction* find_open_ranges() noexcept {
    OpenRangesFunction* found = g_function.load(std::memory_order_acquire);
    if (found != nullptr || g_given) {
        return found;
    }
    void* symbol = dlsym(RTLD_DEFAULT, kOpenRangesSymbol);
    if (symbol == nullptr) {
        void* const library = opened_library();
        symbol = library != nullptr ? dlsym(library, kOpenRangesSymbol) : nullptr;
    }
    (void)dlerror();  // the program's own look-ups did not fail
    found = reinterpret_cast<OpenRangesFunction*>(symbol);
    g_function.store(found, std::memory_order_release);
    g_generation.fetch_add(found != nullptr ? 1 : 0);
    return found;
}

void use_open_ranges(OpenRangesFunction* function) noexcept {
    g_given = true;
    g_function.store(function, std::memory_order_release);
    g_generation.fetch_add(1);
}

std::optional<uint32_t> open_range_bits(const std::vector<std::string>& patterns) {
    OpenRangesFunction* const function = g_function.load(std::memory_order_acquire);
    if (function == nullptr) {
        return std::nullopt;
    }
    const OpenRanges* const ranges = function();
    if (ranges == nullptr) {
        return 0;
    }
    if (ranges->lost != 0) {
        return std::nullopt;
    }
    struct Last {
        uint64_t generation = 0, changes = 0;
        uint32_t bits = 0;
    };
    static thread_local Last last;
    const uint64_t generation = g_generation.load(std::memory_order_relaxed);
    if (last.generation != generation || last.changes != ranges->changes) {
        uint32_t bits = 0;
        for (size_t i = 0; i < patterns.size(); ++i) {
            for (uint32_t range = 0; range < ranges->open; ++range) {
                bits |= name_matches(patterns[i], ranges->range[range].text) ? 1u << i : 0;
            }
        }
        last = {generation, ranges->changes, bits};
    }
    return last.bits;
}

std::string_view innermost_range() noexcept {
    const OpenRanges* const ranges = ranges_of_thread();
    return ranges == nullptr || ranges->open == 0 || ranges->lost != 0
               ? std::string_view()
               : std::string_view(ranges->range[ranges->open - 1].text);
}

std::string open_ranges_text() {
    const OpenRanges* const ranges = ranges_of_thread();
    std::string text;
    for (uint32_t i = 0; ranges != nullptr && i < ranges->open; ++i) {
        text += (i > 0 ? " > " : "") + std::string(ranges->range[i].text);
    }
    return text.empty() ? "no range" : text;
}

}  // namespace slimwire
