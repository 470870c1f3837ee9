// libslimwire-nvtx.so by itself: which ranges a thread has open, by every way of opening one, and
// that a profiler behind it gets all of it. Run once with one (SLIMWIRE_NVTX_NEXT) and once
// without, because that counts from the first range of the process on.
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "collectives/open_ranges.h"
#include "tests/support/nvtx_module.h"
#ifdef SLIMWIRE_TEST_NVTX_HEADERS
#include <nvtx3/nvToolsExt.h>
#endif

namespace slimwire {
namespace {

#ifndef SLIMWIRE_TEST_NVTX_HEADERS
constexpr char kNoHeaders[] =
    "needs NVIDIA's header nvtx3/nvToolsExt.h, which the CUDA toolkit brings; looked for in the "
    "toolkit's include folder and in /usr/include when this was configured";
#endif

using Nvtx = test::NvtxModule<0>;

const OpenRanges* open_ranges() {
    OpenRangesFunction* const function = find_open_ranges();
    return function != nullptr ? function() : nullptr;
}

TEST(Nvtx, RangesOfAThread) {
    ASSERT_NE(find_open_ranges(), nullptr);
    EXPECT_EQ(open_ranges(), nullptr) << "none was ever open";
    EXPECT_EQ(open_range_bits({"*"}), 0u);
    EXPECT_EQ(Nvtx::push("forward"), 0);
    EXPECT_EQ(Nvtx::push(L"Schicht \u00e4\u20ac\U0001F600"), 1);
    EXPECT_EQ(open_ranges_text(), "forward > Schicht \u00e4\u20ac\U0001F600");
    EXPECT_EQ(Nvtx::push(Nvtx::event(nvtx::kAscii, "inner")), 2);
    EXPECT_EQ(innermost_range(), "inner");
    EXPECT_EQ(open_range_bits({"forw*", "inner", "outer"}), 3u);
    std::thread([] {
        EXPECT_EQ(open_ranges_text(), "no range") << "of another thread";
        EXPECT_EQ(Nvtx::push("elsewhere"), 0);
        EXPECT_EQ(open_ranges_text(), "elsewhere");
    }).join();
    EXPECT_EQ(Nvtx::pop(), 2);
    EXPECT_EQ(Nvtx::pop(), 1);
    EXPECT_EQ(open_ranges_text(), "forward");
    EXPECT_EQ(Nvtx::pop(), 0);
    EXPECT_EQ(open_ranges_text(), "no range");
    EXPECT_EQ(Nvtx::pop(), -1) << "one too many";
    EXPECT_EQ(Nvtx::push(static_cast<const char*>(nullptr)), 0);
    EXPECT_EQ(Nvtx::push(Nvtx::event(static_cast<nvtx::MessageType>(0), nullptr)), 1);
    EXPECT_EQ(open_ranges()->open, 2u) << "without names, but open";
    Nvtx::pop();
    Nvtx::pop();
}

TEST(Nvtx, DomainsHaveStacksOfTheirOwn) {
    const void* const data = Nvtx::domain("data");
    const void* const model = Nvtx::domain(L"model");
    ASSERT_NE(data, nullptr);
    ASSERT_NE(model, data);
    const void* const load = Nvtx::registered(data, "load");
    const void* const save = Nvtx::registered(data, L"save");
    ASSERT_NE(load, save);
    EXPECT_EQ(Nvtx::push("step"), 0);
    EXPECT_EQ(Nvtx::push(data, Nvtx::event(nvtx::kRegistered, load)), 0);
    EXPECT_EQ(Nvtx::push(model, Nvtx::event(nvtx::kUnicode, L"layer")), 0);
    EXPECT_EQ(Nvtx::push(data, Nvtx::event(nvtx::kRegistered, save)), 1);
    EXPECT_EQ(open_ranges_text(), "step > data/load > model/layer > data/save");
    EXPECT_EQ(Nvtx::pop(model), 0);
    EXPECT_EQ(Nvtx::pop(model), -1);
    EXPECT_EQ(open_ranges_text(), "step > data/load > data/save");
    EXPECT_EQ(Nvtx::pop(), 0);
    EXPECT_EQ(Nvtx::pop(data), 1);
    EXPECT_EQ(open_ranges_text(), "data/load");
    EXPECT_EQ(Nvtx::pop(data), 0);
}

TEST(Nvtx, WhatIsTooLongIsCut) {
    const std::string name(300, 'x');
    Nvtx::push(name.c_str());
    EXPECT_EQ(innermost_range(), name.substr(0, kRangeTextBytes - 1));
    Nvtx::pop();
    const std::wstring wide = std::wstring(kRangeTextBytes - 2, L'y') + L"\u00e4z";
    Nvtx::push(wide.c_str());
    EXPECT_EQ(innermost_range(), std::string(kRangeTextBytes - 2, 'y')) << "no half character";
    Nvtx::pop();
}

TEST(Nvtx, TooManyAreNotKnownUntilAllAreClosed) {
    constexpr int kOpen = static_cast<int>(kMostOpenRanges) + 5;
    for (int i = 0; i < kOpen; ++i) {
        EXPECT_EQ(Nvtx::push("deep"), i);
        EXPECT_EQ(open_range_bits({"deep"}).has_value(), i < static_cast<int>(kMostOpenRanges));
    }
    for (int i = kOpen - 1; i > 0; --i) {
        EXPECT_EQ(Nvtx::pop(), i);
        EXPECT_FALSE(open_range_bits({"deep"}).has_value()) << i;
        EXPECT_EQ(innermost_range(), "");
    }
    EXPECT_EQ(Nvtx::pop(), 0);
    EXPECT_EQ(open_range_bits({"deep"}), 0u);
    Nvtx::push("again");
    EXPECT_EQ(open_range_bits({"deep", "again"}), 2u);
    Nvtx::pop();
}

TEST(Nvtx, EachModuleOfTheProcessIsHeard) {
    using Other = test::NvtxModule<1>;
    Nvtx::push("one");
    EXPECT_EQ(Other::push("other"), 1);
    EXPECT_EQ(open_ranges_text(), "one > other");
    Other::pop();
    Nvtx::pop();
}

TEST(Nvtx, AProfilerGetsAllOfIt) {
    ASSERT_NE(find_open_ranges(), nullptr);
    EXPECT_EQ(Nvtx::push("first"), 100) << "the answer is the profiler's";
    EXPECT_EQ(Nvtx::push(L"second"), 1) << "which has no such function";
    const void* const domain = Nvtx::domain("data");
    EXPECT_EQ(Nvtx::domain("refused"), nullptr);
    const void* const text = Nvtx::registered(domain, "third");
    EXPECT_EQ(Nvtx::push(domain, Nvtx::event(nvtx::kRegistered, text)), 101);
    EXPECT_EQ(open_ranges_text(), "first > second > data/third");
    EXPECT_EQ(Nvtx::pop(), 200);
    EXPECT_EQ(open_ranges_text(), "first > data/third");
    EXPECT_EQ(test::NvtxModule<1>::push("fourth"), 102);
    Nvtx::mark("what is not of ranges goes to it directly");
    void* const profiler = dlopen(std::getenv("SLIMWIRE_NVTX_NEXT"), RTLD_LAZY | RTLD_NOLOAD);
    ASSERT_NE(profiler, nullptr);
    const int* const seen = reinterpret_cast<const int* (*)()>(dlsym(profiler, "profiler_seen"))();
    // Starts (a module each), pushes, pops, wrong handles, marks.
    EXPECT_EQ(std::vector<int>(seen, seen + 5), (std::vector<int>{2, 3, 1, 0, 1}));
}

TEST(Nvtx, LayoutIsThatOfTheHeaders) {
#ifdef SLIMWIRE_TEST_NVTX_HEADERS
    using nvtx::EventAttributes;
    EXPECT_EQ(sizeof(EventAttributes), sizeof(nvtxEventAttributes_t));
    EXPECT_EQ(offsetof(EventAttributes, message_type),
              offsetof(nvtxEventAttributes_t, messageType));
    EXPECT_EQ(offsetof(EventAttributes, message), offsetof(nvtxEventAttributes_t, message));
    EXPECT_EQ(int{nvtx::kRegistered}, int{NVTX_MESSAGE_TYPE_REGISTERED});
    EXPECT_EQ(int{nvtx::kUnicode}, int{NVTX_MESSAGE_TYPE_UNICODE});
    EXPECT_EQ(int{nvtx::kCore2}, int{NVTX_CB_MODULE_CORE2});
    EXPECT_EQ(int{nvtx::kRangePushEx}, int{NVTX_CBID_CORE_RangePushEx});
    EXPECT_EQ(int{nvtx::kRangePop}, int{NVTX_CBID_CORE_RangePop});
    EXPECT_EQ(int{nvtx::kDomainRangePushEx}, int{NVTX_CBID_CORE2_DomainRangePushEx});
    EXPECT_EQ(int{nvtx::kDomainRangePop}, int{NVTX_CBID_CORE2_DomainRangePop});
    EXPECT_EQ(int{nvtx::kDomainRegisterStringA}, int{NVTX_CBID_CORE2_DomainRegisterStringA});
    EXPECT_EQ(int{nvtx::kDomainCreateW}, int{NVTX_CBID_CORE2_DomainCreateW});
    EXPECT_EQ(sizeof(nvtx::CallbacksTable), sizeof(NvtxExportTableCallbacks));
    EXPECT_EQ(uint32_t{NVTX_ETID_CALLBACKS}, nvtx::kCallbacksTable);
#else
    GTEST_SKIP() << kNoHeaders;
#endif
}

// NVTX itself, as a program has it that includes its headers.
TEST(Nvtx, HearsTheHeadersOwn) {
#ifdef SLIMWIRE_TEST_NVTX_HEADERS
    EXPECT_EQ(nvtxRangePushA("step"), 0);
    const nvtxDomainHandle_t domain = nvtxDomainCreateA("data");
    nvtxEventAttributes_t event{};
    event.version = NVTX_VERSION;
    event.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
    event.messageType = NVTX_MESSAGE_TYPE_REGISTERED;
    event.message.registered = nvtxDomainRegisterStringA(domain, "load");
    EXPECT_EQ(nvtxDomainRangePushEx(domain, &event), 0);
    nvtxMarkA("nothing");
    const nvtxRangeId_t other = nvtxRangeStartA("not nested");
    EXPECT_EQ(open_ranges_text(), "step > data/load");
    nvtxRangeEnd(other);
    EXPECT_EQ(nvtxRangePop(), 0);
    EXPECT_EQ(nvtxDomainRangePop(domain), 0);
    EXPECT_EQ(open_ranges_text(), "no range");
#else
    GTEST_SKIP() << kNoHeaders;
#endif
}

}  // namespace
}  // namespace slimwire
