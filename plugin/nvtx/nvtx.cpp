// The opt-in libslimwire-nvtx.so, named by NVTX_INJECTION64_PATH: keeps for each thread which NVTX
// ranges are open, for rules with `range` and for traces. NVTX hands it every push and pop of the
// process; SLIMWIRE_NVTX_NEXT names another library of that kind (a profiler's), which then gets
// them as well, and to which everything else goes directly.
//
// Any thread, any time. A push takes no lock, and no memory but at a thread's first one; domains
// and registered strings are kept for ever. Uses libc alone.
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <atomic>

#include "collectives/open_ranges_abi.h"
#include "plugin/nvtx/protocol.h"

namespace {

using namespace slimwire;
using namespace slimwire::nvtx;

// What a handle stands for. Handles are the next library's, or else the node's own address.
struct Named {
    const void* handle;
    std::atomic<const char*> text;
    Named* next;
};

// Handles and their texts. Look-ups take no lock; nothing is ever taken out.
class Names {
  public:
    // `handle` null: the new node's address. Returns the handle; null without memory.
    const void* add(const void* handle, const char* text) {
        char* const copy = strdup(text);
        if (copy == nullptr) {
            return handle;
        }
        for (Named* named = first(handle); handle != nullptr && named != nullptr;
             named = named->next) {
            if (named->handle == handle) {  // of another one that is gone
                named->text.store(copy, std::memory_order_release);
                return handle;
            }
        }
        auto* const named = static_cast<Named*>(calloc(1, sizeof(Named)));
        if (named == nullptr) {
            free(copy);
            return handle;
        }
        named->handle = handle != nullptr ? handle : named;
        named->text.store(copy, std::memory_order_relaxed);
        std::atomic<Named*>& bucket = buckets_[bucket_of(named->handle)];
        named->next = bucket.load(std::memory_order_relaxed);
        while (!bucket.compare_exchange_weak(named->next, named, std::memory_order_release,
                                             std::memory_order_relaxed)) {
        }
        return named->handle;
    }
    // Null for an unknown one.
    const char* find(const void* handle) const {
        for (const Named* named = first(handle); named != nullptr; named = named->next) {
            if (named->handle == handle) {
                return named->text.load(std::memory_order_acquire);
            }
        }
        return nullptr;
    }

  private:
    static constexpr size_t kBuckets = 1024;
    static size_t bucket_of(const void* handle) {
        const auto bits = reinterpret_cast<uintptr_t>(handle);
        return (bits >> 4 ^ bits >> 14) % kBuckets;
    }
    Named* first(const void* handle) const {
        return buckets_[bucket_of(handle)].load(std::memory_order_acquire);
    }

    std::atomic<Named*> buckets_[kBuckets];
};

constinit Names g_domains, g_strings;

// What the next library put into the slots; null where it did not. Written once, under g_mutex,
// before any slot leads here.
Function g_next_core[kMostFunctions];
Function g_next_core2[kMostFunctions];
Initialize* g_next = nullptr;
bool g_started = false;
// A profiler may use NVTX itself while it is being started.
pthread_mutex_t g_mutex = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
pthread_key_t g_key;

thread_local OpenRanges* t_ranges = nullptr;

void thread_ends(void* ranges) {
    t_ranges = nullptr;
    free(ranges);
}

OpenRanges* ranges_of_thread() {
    if (t_ranges == nullptr) {
        t_ranges = static_cast<OpenRanges*>(calloc(1, sizeof(OpenRanges)));
        if (t_ranges != nullptr) {
            (void)pthread_setspecific(g_key, t_ranges);
        }
    }
    return t_ranges;
}

// Appends to a range's text as much as there is room for.
class Text {
  public:
    explicit Text(char* text) : text_(text) { text_[0] = 0; }
    void put(const char* more) {
        if (more != nullptr) {
            const size_t length = strnlen(more, kRangeTextBytes - 1 - used_);
            memcpy(text_ + used_, more, length);
            used_ += length;
            text_[used_] = 0;
        }
    }
    void put(char c) {
        const char text[2] = {c, 0};
        put(text);
    }
    // As UTF-8.
    void put_wide(const wchar_t* more) {
        for (; more != nullptr && *more != 0; ++more) {
            const auto code = static_cast<uint32_t>(*more);
            const auto tail = [&](int shift) {
                return static_cast<char>(0x80 | (code >> shift & 0x3F));
            };
            char bytes[5] = {};
            if (code < 0x80) {
                bytes[0] = static_cast<char>(code);
            } else if (code < 0x800) {
                bytes[0] = static_cast<char>(0xC0 | code >> 6);
                bytes[1] = tail(0);
            } else if (code < 0x10000) {
                bytes[0] = static_cast<char>(0xE0 | code >> 12);
                bytes[1] = tail(6);
                bytes[2] = tail(0);
            } else {
                bytes[0] = static_cast<char>(0xF0 | (code >> 18 & 7));
                bytes[1] = tail(12);
                bytes[2] = tail(6);
                bytes[3] = tail(0);
            }
            if (strlen(bytes) > kRangeTextBytes - 1 - used_) {
                return;
            }
            put(bytes);
        }
    }

  private:
    char* text_;
    size_t used_ = 0;
};

int32_t level_of(const OpenRanges& ranges, const void* domain) {
    int32_t level = static_cast<int32_t>(ranges.beyond) - 1;
    for (uint32_t i = 0; i < ranges.open; ++i) {
        level += ranges.range[i].domain == domain ? 1 : 0;
    }
    return level;
}

// Opens a range, whose name name(Text*) writes; its level among those of the domain, from 0.
template <class Name>
int push(const void* domain, const Name& name) {
    OpenRanges* const ranges = ranges_of_thread();
    if (ranges == nullptr) {
        return -1;
    }
    ++ranges->changes;
    if (ranges->open == kMostOpenRanges) {
        ++ranges->beyond;
        ranges->lost = 1;
        return level_of(*ranges, domain);
    }
    OpenRange& range = ranges->range[ranges->open++];
    range.domain = domain;
    Text text(range.text);
    if (domain != nullptr) {
        const char* const prefix = g_domains.find(domain);
        text.put(prefix != nullptr ? prefix : "?");
        text.put('/');
    }
    name(&text);
    return level_of(*ranges, domain);
}

// Closes the domain's innermost range; the level it had.
int pop(const void* domain) {
    OpenRanges* const ranges = t_ranges;
    if (ranges == nullptr || ranges->open == 0) {
        return -1;
    }
    const int level = level_of(*ranges, domain);
    if (ranges->beyond > 0) {
        --ranges->beyond;
        ++ranges->changes;
        return level;
    }
    uint32_t at = ranges->open;
    while (at > 0 && ranges->range[at - 1].domain != domain) {
        --at;
    }
    // One too many, unless it was lost whose it is.
    if (at == 0 && ranges->lost == 0) {
        return -1;
    }
    at = at == 0 ? ranges->open : at;
    memmove(&ranges->range[at - 1], &ranges->range[at],
            (ranges->open - at) * sizeof ranges->range[0]);
    ++ranges->changes;
    if (--ranges->open == 0) {
        ranges->lost = 0;
    }
    return level;
}

int push_attributes(const void* domain, const EventAttributes* event) {
    return push(domain, [event](Text* text) {
        if (event == nullptr) {
            return;
        }
        switch (event->message_type) {
            case kAscii:
                text->put(static_cast<const char*>(event->message));
                break;
            case kUnicode:
                text->put_wide(static_cast<const wchar_t*>(event->message));
                break;
            case kRegistered:
                text->put(g_strings.find(event->message));
                break;
            default:
                break;
        }
    });
}

// The next library's answer, or without one ours.
template <class Result, class... Parameters, class... Arguments>
Result then(Function next, Result (*)(Parameters...), Result ours, Arguments... arguments) {
    using Typed = Result(Parameters...);
    return next == nullptr ? ours : reinterpret_cast<Typed*>(next)(arguments...);
}

int range_push_ex(const EventAttributes* event) {
    const int level = push_attributes(nullptr, event);
    return then(g_next_core[kRangePushEx], range_push_ex, level, event);
}
int range_push_a(const char* message) {
    const int level = push(nullptr, [message](Text* text) { text->put(message); });
    return then(g_next_core[kRangePushA], range_push_a, level, message);
}
int range_push_w(const wchar_t* message) {
    const int level = push(nullptr, [message](Text* text) { text->put_wide(message); });
    return then(g_next_core[kRangePushW], range_push_w, level, message);
}
int range_pop() {
    const int level = pop(nullptr);
    return then(g_next_core[kRangePop], range_pop, level);
}
int domain_range_push_ex(const void* domain, const EventAttributes* event) {
    const int level = push_attributes(domain, event);
    return then(g_next_core2[kDomainRangePushEx], domain_range_push_ex, level, domain, event);
}
int domain_range_pop(const void* domain) {
    const int level = pop(domain);
    return then(g_next_core2[kDomainRangePop], domain_range_pop, level, domain);
}

// Makes a handle, or takes the next library's for what it made; what that refuses has none.
template <class Make, class Name, class... Parameters>
const void* make_named(
    Names* names, Function next, Make* make, const Name* name, Parameters... parameters) {
    const void* const none = nullptr;
    const void* const handle = then(next, make, none, parameters...);
    if (next != nullptr && handle == nullptr) {
        return nullptr;
    }
    char text[kRangeTextBytes];
    Text kept(text);
    if constexpr (sizeof(Name) == 1) {
        kept.put(name);
    } else {
        kept.put_wide(name);
    }
    return names->add(handle, text);
}

const void* domain_create_a(const char* name) {
    return make_named(&g_domains, g_next_core2[kDomainCreateA], domain_create_a, name, name);
}
const void* domain_create_w(const wchar_t* name) {
    return make_named(&g_domains, g_next_core2[kDomainCreateW], domain_create_w, name, name);
}
const void* register_string_a(const void* domain, const char* text) {
    return make_named(&g_strings, g_next_core2[kDomainRegisterStringA], register_string_a, text,
                      domain, text);
}
const void* register_string_w(const void* domain, const wchar_t* text) {
    return make_named(&g_strings, g_next_core2[kDomainRegisterStringW], register_string_w, text,
                      domain, text);
}

struct Listened {
    unsigned id;
    Function ours;
};
template <class F>
Function any(F* function) {
    return reinterpret_cast<Function>(function);
}
const Listened kListenedCore[] = {{kRangePushEx, any(range_push_ex)},
                                  {kRangePushA, any(range_push_a)},
                                  {kRangePushW, any(range_push_w)},
                                  {kRangePop, any(range_pop)}};
const Listened kListenedCore2[] = {{kDomainRangePushEx, any(domain_range_push_ex)},
                                   {kDomainRangePop, any(domain_range_pop)},
                                   {kDomainRegisterStringA, any(register_string_a)},
                                   {kDomainRegisterStringW, any(register_string_w)},
                                   {kDomainCreateA, any(domain_create_a)},
                                   {kDomainCreateW, any(domain_create_w)}};

// The slots of one module of NVTX's tables in one program or library that uses it.
struct Slots {
    Function** table = nullptr;
    unsigned size = 0;
    Function before[kMostFunctions] = {};

    Slots(const CallbacksTable& callbacks, int module) {
        if (callbacks.module_functions(module, &table, &size) == 0 || table == nullptr) {
            size = 0;
        }
        size = size < kMostFunctions ? size : kMostFunctions;
        for (unsigned id = 1; id < size; ++id) {
            before[id] = table[id] != nullptr ? *table[id] : nullptr;
        }
    }
    // Of the next library; null where it left the slot alone.
    Function next(unsigned id) const { return *table[id] == before[id] ? nullptr : *table[id]; }

    template <size_t kCount>
    bool fits(const Listened (&listened)[kCount], const Function* nexts) const {
        for (const Listened& one : listened) {
            if (one.id >= size || table[one.id] == nullptr || next(one.id) != nexts[one.id]) {
                return false;
            }
        }
        return true;
    }
    template <size_t kCount>
    void keep(const Listened (&listened)[kCount], Function* nexts) const {
        for (const Listened& one : listened) {
            if (one.id < size && table[one.id] != nullptr) {
                nexts[one.id] = next(one.id);
            }
        }
    }
    template <size_t kCount>
    void take(const Listened (&listened)[kCount]) const {
        for (const Listened& one : listened) {
            *table[one.id] = one.ours;
        }
    }
};

void say(const char* what, const char* why) {
    char line[1024];
    const int length = snprintf(line, sizeof line, "slimwire nvtx: SLIMWIRE_NVTX_NEXT %s: %s\n",
                                what, why != nullptr ? why : "?");
    if (length > 0) {
        (void)!fwrite(line, 1, strlen(line), stderr);
    }
}

extern "C" int InitializeInjectionNvtx2(ExportTable* export_table);

// A profiler's library, which is opened once and never closed.
void find_next() {
    const char* const path = getenv("SLIMWIRE_NVTX_NEXT");
    if (path == nullptr || *path == 0) {
        return;
    }
    void* const library = dlopen(path, RTLD_LAZY);
    if (library == nullptr) {
        return say("cannot be opened", dlerror());
    }
    auto* const found = reinterpret_cast<Initialize*>(dlsym(library, "InitializeInjectionNvtx2"));
    if (found == nullptr) {
        return say("is no library that listens to NVTX", path);
    }
    if (found == &InitializeInjectionNvtx2) {
        return say("is this library itself", path);
    }
    g_next = found;
}

}  // namespace

extern "C" {

[[gnu::visibility("default")]] const OpenRanges* slimwireOpenRanges_v1() {
    return t_ranges;
}

// Once for each program and library that NVTX is compiled into.
[[gnu::visibility("default")]] int InitializeInjectionNvtx2(ExportTable* export_table) {
    const auto* const callbacks =
        export_table != nullptr ? static_cast<const CallbacksTable*>(export_table(kCallbacksTable))
                                : nullptr;
    if (callbacks == nullptr || callbacks->struct_size < sizeof(CallbacksTable)) {
        return 0;
    }
    pthread_mutex_lock(&g_mutex);
    const bool first = !g_started;
    if (first) {
        g_started = pthread_key_create(&g_key, thread_ends) == 0;
        find_next();
    }
    int listens = g_started ? 1 : 0;
    const Slots core(*callbacks, kCore);
    const Slots core2(*callbacks, kCore2);
    const int next_listens = g_next != nullptr ? g_next(export_table) : 0;
    if (first) {
        core.keep(kListenedCore, g_next_core);
        core2.keep(kListenedCore2, g_next_core2);
    }
    // Of a module whose profiler has other functions than those known, ranges stay the profiler's
    // alone.
    if (listens != 0 && core.fits(kListenedCore, g_next_core) &&
        core2.fits(kListenedCore2, g_next_core2)) {
        core.take(kListenedCore);
        core2.take(kListenedCore2);
    } else {
        listens = next_listens;
    }
    pthread_mutex_unlock(&g_mutex);
    return listens;
}

}  // extern "C"
