#include "collectives/identity/tensor_names.h"

#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

namespace slimwire {
namespace {

const void* at(uintptr_t address) {
    return reinterpret_cast<const void*>(address);
}

TEST(TensorNames, AddressesInsideCarryTheName) {
    TensorNames names;
    EXPECT_EQ(names.find(at(0x1000)), nullptr);
    ASSERT_TRUE(names.add(at(0x1000), 0x100, "a").ok());
    ASSERT_TRUE(names.add(at(0x1100), 1, "b").ok());
    EXPECT_EQ(names.find(at(0xFFF)), nullptr);
    EXPECT_STREQ(names.find(at(0x1000)), "a");
    EXPECT_STREQ(names.find(at(0x10FF)), "a");
    EXPECT_STREQ(names.find(at(0x1100)), "b");
    EXPECT_EQ(names.find(at(0x1101)), nullptr);
    EXPECT_FALSE(names.forget(at(0x1001)));
    EXPECT_TRUE(names.forget(at(0x1000)));
    EXPECT_FALSE(names.forget(at(0x1000)));
    EXPECT_EQ(names.find(at(0x1000)), nullptr);
    EXPECT_STREQ(names.find(at(0x1100)), "b");
}

TEST(TensorNames, ANewNameTakesTheMemoryOfOlderOnes) {
    TensorNames names;
    for (uintptr_t i = 0; i < 4; ++i) {
        ASSERT_TRUE(names.add(at(0x1000 + 0x100 * i), 0x100, std::to_string(i).c_str()).ok());
    }
    ASSERT_TRUE(names.add(at(0x1180), 0x100, "new").ok());
    EXPECT_STREQ(names.find(at(0x1000)), "0");
    EXPECT_EQ(names.find(at(0x1100)), nullptr);
    EXPECT_STREQ(names.find(at(0x1180)), "new");
    EXPECT_EQ(names.find(at(0x1280)), nullptr);
    EXPECT_STREQ(names.find(at(0x1300)), "3");
    ASSERT_TRUE(names.add(at(0x1180), 0x10, "again").ok());
    EXPECT_STREQ(names.find(at(0x1180)), "again");
    EXPECT_EQ(names.find(at(0x1190)), nullptr);
}

TEST(TensorNames, OfACallItIsTheResultsElseWhatIsSent) {
    TensorNames names;
    CollectiveCall call;
    call.send = at(0x1000);
    EXPECT_EQ(names.find(call), nullptr);
    ASSERT_TRUE(names.add(at(0x1000), 8, "sent").ok());
    EXPECT_STREQ(names.find(call), "sent");
    call.recv = reinterpret_cast<void*>(uintptr_t{0x2000});
    EXPECT_STREQ(names.find(call), "sent");
    ASSERT_TRUE(names.add(at(0x2000), 8, "result").ok());
    EXPECT_STREQ(names.find(call), "result");
    call.send = nullptr;
    EXPECT_STREQ(names.find(call), "result");
}

TEST(TensorNames, WhatCannotBeChangesNothing) {
    TensorNames names;
    ASSERT_TRUE(names.add(at(0x1000), 8, "kept").ok());
    const std::string longest(255, 'x');
    for (const std::string& bad :
         {std::string(), longest + 'x', std::string("a\"b"), std::string("a\\b"),
          std::string("a\nb"), std::string("\xC3\xA9")}) {
        EXPECT_EQ(names.add(at(0x1000), 8, bad.c_str()).code(), Code::kInvalidArgument) << bad;
    }
    EXPECT_FALSE(names.add(at(0x1000), 8, nullptr).ok());
    EXPECT_FALSE(names.add(nullptr, 8, "a").ok());
    EXPECT_FALSE(names.add(at(0x1000), 0, "a").ok());
    EXPECT_FALSE(names.add(at(0x1000), ~uint64_t{0}, "a").ok());
    EXPECT_STREQ(names.find(at(0x1000)), "kept");
    EXPECT_TRUE(names.add(at(0x1000), 8, longest.c_str()).ok());
    EXPECT_EQ(names.find(at(0x1000)), longest);
}

TEST(TensorNames, TheNumberOfDifferentNamesIsBounded) {
    TensorNames names;
    for (size_t i = 0; i < kMostNames; ++i) {
        ASSERT_TRUE(names.add(at(0x1000), 8, std::to_string(i).c_str()).ok());
    }
    EXPECT_EQ(names.add(at(0x2000), 8, "one more").code(), Code::kOutOfMemory);
    EXPECT_TRUE(names.add(at(0x2000), 8, "17").ok());
    EXPECT_STREQ(names.find(at(0x1000)), std::to_string(kMostNames - 1).c_str());
}

TEST(TensorNames, ThreadsSeeEveryChangeThatCameBeforeTheirQuestion) {
    TensorNames names;
    std::atomic<int> told{0};
    std::atomic<bool> wrong{false};
    std::vector<std::thread> askers;
    for (int i = 0; i < 3; ++i) {
        askers.emplace_back([&] {
            for (int last = 0; last < 2000;) {
                const int before = told.load();
                const char* name = names.find(at(0x5000));
                const int number = name == nullptr ? 0 : std::atoi(name);
                wrong = wrong || number < before || number < last;
                last = number;
            }
        });
    }
    for (int i = 1; i <= 2000; ++i) {
        ASSERT_TRUE(names.add(at(0x5000), 8, std::to_string(i).c_str()).ok());
        told = i;
    }
    for (std::thread& asker : askers) {
        asker.join();
    }
    EXPECT_FALSE(wrong);
}

}  // namespace
}  // namespace slimwire
