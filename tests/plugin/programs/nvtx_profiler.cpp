// A profiler's library, as far as NVTX goes: takes some of the functions and counts what reaches
// it. Its handles are its own, and a wrong one is counted as such.
#include <cstring>

#include "plugin/nvtx/protocol.h"

using namespace slimwire::nvtx;

namespace {

struct Seen {
    int starts = 0, pushes = 0, pops = 0, wrong_handles = 0, marks = 0;
} g_seen;
char g_domain[4], g_string[4];  // whose addresses are its handles

int push_a(const char*) {
    return 100 + g_seen.pushes++;
}
int pop() {
    return 200 + g_seen.pops++;
}
int domain_push_ex(const void* domain, const EventAttributes* event) {
    g_seen.wrong_handles += domain != g_domain ? 1 : 0;
    g_seen.wrong_handles += event->message_type == kRegistered && event->message != g_string;
    return 100 + g_seen.pushes++;
}
const void* create(const char* name) {
    return std::strcmp(name, "refused") == 0 ? nullptr : g_domain;
}
const void* string(const void* domain, const char*) {
    g_seen.wrong_handles += domain != g_domain ? 1 : 0;
    return g_string;
}
void mark(const char*) {
    ++g_seen.marks;
}

template <class F>
void put(Function** table, unsigned id, F* function) {
    *table[id] = reinterpret_cast<Function>(function);
}

}  // namespace

extern "C" {

__attribute__((visibility("default"))) int InitializeInjectionNvtx2(ExportTable* export_table) {
    const auto* callbacks = static_cast<const CallbacksTable*>(export_table(kCallbacksTable));
    Function** table = nullptr;
    unsigned size = 0;
    callbacks->module_functions(kCore, &table, &size);
    put(table, 2, mark);  // NVTX_CBID_CORE_MarkA
    put(table, kRangePushA, push_a);
    put(table, kRangePop, pop);
    callbacks->module_functions(kCore2, &table, &size);
    put(table, kDomainRangePushEx, domain_push_ex);
    put(table, kDomainCreateA, create);
    put(table, kDomainRegisterStringA, string);
    ++g_seen.starts;
    return 1;
}

__attribute__((visibility("default"))) const int* profiler_seen() {
    return &g_seen.starts;
}

}  // extern "C"
