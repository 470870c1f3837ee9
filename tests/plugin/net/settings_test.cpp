// The plugin's variables: defaults as documented, values converted, nonsense refused with the name.
#include "plugin/net/settings.h"
#include "tests/support/has.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

namespace slimwire::net {
namespace {

class NetSettings : public testing::Test {
  protected:
    void SetUp() override { clear(); }
    void TearDown() override { clear(); }
    static void clear() {
        for (const char* name : {"CODEC", "MIN_BYTES", "THREADS", "INNER", "LINK", "LINC"}) {
            unsetenv((std::string("SLIMWIRE_NET_") + name).c_str());
        }
        unsetenv("SLIMWIRE_MODE");
    }
    static void set(const char* name, const char* value) {
        setenv((std::string("SLIMWIRE_NET_") + name).c_str(), value, 1);
    }
    static void expect_refused(const char* name, const char* value, const char* part) {
        clear();
        set(name, value);
        const auto settings = read_engine_settings();
        ASSERT_FALSE(settings.ok()) << name << "=" << value;
        EXPECT_EQ(settings.status().code(), Code::kInvalidArgument);
        const std::string text = settings.status().message();
        EXPECT_HAS(text, std::string("SLIMWIRE_NET_") + name);
        EXPECT_HAS(text, part);
    }
};

TEST_F(NetSettings, DefaultsAreThoseOfTheStruct) {
    const auto read = read_engine_settings();
    ASSERT_TRUE(read.ok()) << read.status().message();
    const EngineSettings& settings = read.value();
    const EngineSettings wanted;
    EXPECT_EQ(settings.codec, wanted.codec);
    EXPECT_EQ(settings.min_bytes, wanted.min_bytes);
    EXPECT_EQ(settings.checksum, wanted.checksum);
    EXPECT_EQ(settings.inner, wanted.inner);
    EXPECT_EQ(settings.rate_bytes_per_s, wanted.rate_bytes_per_s);
    EXPECT_EQ(settings.latency_ns, wanted.latency_ns);
    EXPECT_GE(settings.threads, 1);
    EXPECT_LE(settings.threads, 4);
}

TEST_F(NetSettings, ValuesAreRead) {
    set("CODEC", "off,checksum");
    set("MIN_BYTES", "1MiB");
    set("THREADS", "7");
    set("INNER", "/lib/x.so");
    set("LINK", "10gbit,50us");
    const auto read = read_engine_settings();
    ASSERT_TRUE(read.ok()) << read.status().message();
    const EngineSettings& settings = read.value();
    EXPECT_FALSE(settings.codec);
    EXPECT_EQ(settings.min_bytes, 1u << 20);
    EXPECT_EQ(settings.threads, 7);
    EXPECT_TRUE(settings.checksum);
    EXPECT_EQ(settings.inner, "/lib/x.so");
    EXPECT_DOUBLE_EQ(settings.rate_bytes_per_s, 1.25e9);
    EXPECT_EQ(settings.latency_ns, 50'000u);
}

TEST_F(NetSettings, ALinkMayHaveARateAlone) {
    set("LINK", "1gbit");
    set("CODEC", "palette,checksum");
    const auto read = read_engine_settings();
    ASSERT_TRUE(read.ok()) << read.status().message();
    EXPECT_DOUBLE_EQ(read.value().rate_bytes_per_s, 1.25e8);
    EXPECT_EQ(read.value().latency_ns, 0u);
    EXPECT_TRUE(read.value().codec);
    EXPECT_TRUE(read.value().checksum);
}

TEST_F(NetSettings, NonsenseIsRefusedByName) {
    expect_refused("CODEC", "zip", "palette or off");
    expect_refused("CODEC", "palette,", "checksum");
    expect_refused("CODEC", "palette,checksums", "checksum");
    expect_refused("MIN_BYTES", "many", "accepted");
    expect_refused("THREADS", "0", "from 1 to 256");
    expect_refused("THREADS", "two", "whole number");
    expect_refused("LINK", "10gbps", "gbit");
    expect_refused("LINK", "0gbit", "gbit");
    expect_refused("LINK", "10gbit,50", "us");
    expect_refused("LINK", "10gbit,", "us");
    expect_refused("LINK", ",50us", "gbit");
    expect_refused("LINK", "1gbit,2000000s", "hour");
    expect_refused("LINC", "1gbit", "SLIMWIRE_NET_LINK");
}

TEST_F(NetSettings, AMisspeltModeIsRefused) {
    for (const char* mode : {"off", "Off", "record", "shadow", "on", ""}) {
        setenv("SLIMWIRE_MODE", mode, 1);
        EXPECT_TRUE(read_engine_settings().ok()) << mode;
    }
    setenv("SLIMWIRE_MODE", "of", 1);
    const std::string text = read_engine_settings().status().message();
    EXPECT_EQ(text, "SLIMWIRE_MODE: bad value 'of'; accepted: off, record, shadow, on");
}

}  // namespace
}  // namespace slimwire::net
