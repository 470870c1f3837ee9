// Which ranges of a call the keys param, index and name of a rule take, and how they are written.
#include "collectives/policy/parameter_match.h"

#include <gtest/gtest.h>

#include <random>

#include "collectives/policy/policy.h"
#include "collectives/policy/policy_keys.h"
#include "tests/support/seed.h"

namespace slimwire {
namespace {

ParameterMatch match_of(const std::string& keys) {
    const auto policy =
        parse_policy("version = 1\n[[rule]]\nname = \"r\"\nmatch = { " + keys + " }\n", "p.toml");
    EXPECT_TRUE(policy.ok()) << policy.status().message();
    return policy.ok() ? policy.value().rules[0].match.parameters : ParameterMatch{};
}

// What ranks compare of it.
std::string canonical(const ParameterMatch& parameters) {
    Match match;
    match.parameters = parameters;
    return value_of(match_values(match)).canonical();
}

ParameterRange range_of(uint32_t parameter, uint8_t dimensions, std::string name = "") {
    return {.offset = 0,
            .count = 1,
            .parameter = parameter,
            .dimensions = dimensions,
            .name = std::move(name)};
}

std::string taken_dimensions(const std::string& keys) {
    const ParameterMatch match = match_of(keys);
    std::string taken;
    for (uint8_t d = 0; d < 20; ++d) {
        taken += match.matches(range_of(0, d)) ? std::to_string(d) + " " : "";
    }
    return taken;
}

TEST(ParameterMatch, dimensions) {
    EXPECT_EQ(taken_dimensions("param = \"1d\""), "1 ");
    EXPECT_EQ(taken_dimensions("param = [\"1d\", \"4d\"]"), "1 4 ");
    EXPECT_EQ(taken_dimensions("param = \"5d\""), "5 ");
    EXPECT_EQ(taken_dimensions("param = [\"2d\", \"4d+\"]"),
              "2 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 ");
    EXPECT_TRUE(match_of("op = \"allreduce\"").any());
    EXPECT_FALSE(match_of("param = \"1d+\"").any()) << "without dimensions is another";
    for (const char* bad : {"", "d", "1", "0d", "6d", "1d-", "1d++", "11d", "1D", " 1d"}) {
        EXPECT_EQ(parse_dimensions(bad), 0u) << bad;
    }
    EXPECT_EQ(dimensions_texts(parse_dimensions("3d+") | parse_dimensions("1d")),
              (std::vector<std::string>{"1d", "3d+"}));
}

TEST(ParameterMatch, indices) {
    const ParameterMatch match = match_of("index = [\"10-20\", 3, \"7\", 21, \"15-18\"]");
    std::string taken;
    for (uint32_t i = 0; i < 40; ++i) {
        taken += match.matches(range_of(i, 1)) ? std::to_string(i) + " " : "";
    }
    EXPECT_EQ(taken, "3 7 10 11 12 13 14 15 16 17 18 19 20 21 ");
    EXPECT_EQ(canonical(match), "{index=[1:3,1:7,5:10-21]}");
    EXPECT_EQ(match, match_of("index = [3, \"7-7\", \"10-21\"]"));
    const ParameterMatch top = match_of("index = [\"4294967295\", 4294967294]");
    EXPECT_TRUE(top.matches(range_of(~0u, 1)));
    EXPECT_FALSE(top.matches(range_of(0, 1)));
    const ParameterMatch open = match_of("index = [\"12-\", 3]");
    EXPECT_TRUE(open.matches(range_of(12, 1)) && open.matches(range_of(~0u, 1)));
    EXPECT_FALSE(open.matches(range_of(11, 1)));
    EXPECT_EQ(canonical(open), "{index=[1:3,3:12-]}");
    EXPECT_EQ(open, match_of("index = [3, \"12-4294967295\"]"));
    for (const char* bad : {"", "-", "1--", "-1", "3-2", "1-2-3", "4294967296", "1 - 2", "0x1"}) {
        EXPECT_FALSE(parse_indices(bad).has_value()) << bad;
    }
}

TEST(ParameterMatch, names) {
    const ParameterMatch match = match_of("name = [\"*.bias\", \"norm?.weight\"]");
    EXPECT_TRUE(match.matches(range_of(0, 1, "layer.3.bias")));
    EXPECT_TRUE(match.matches(range_of(0, 1, ".bias")));
    EXPECT_TRUE(match.matches(range_of(0, 1, "norm1.weight")));
    EXPECT_FALSE(match.matches(range_of(0, 1, "norm12.weight")));
    EXPECT_FALSE(match.matches(range_of(0, 1, "layer.3.bias2")));
    EXPECT_FALSE(match.matches(range_of(0, 1))) << "its name is not known";
    EXPECT_FALSE(match_of("name = \"*\"").matches(range_of(0, 1)));
    EXPECT_FALSE(match_of("name = \"*\"").any());
}

TEST(ParameterMatch, all_conditions_must_hold) {
    const ParameterMatch match = match_of("param = \"1d\", index = \"5-9\", name = \"*.bias\"");
    EXPECT_TRUE(match.matches(range_of(7, 1, "a.bias")));
    EXPECT_FALSE(match.matches(range_of(7, 2, "a.bias")));
    EXPECT_FALSE(match.matches(range_of(4, 1, "a.bias")));
    EXPECT_FALSE(match.matches(range_of(7, 1, "a.weight")));
    EXPECT_EQ(canonical(match), "{param=[2:1d],index=[3:5-9],name=[6:*.bias]}");
}

// What ranks compare: names of any characters cannot look like other conditions.
TEST(ParameterMatch, canonical_texts_differ) {
    EXPECT_NE(canonical(match_of("name = [\"a\", \"b\"]")),
              canonical(match_of("name = \"a,1:b\"")));
    EXPECT_EQ(canonical(match_of("name = [\"b\", \"a\", \"b\"]")),
              canonical(match_of("name = [\"a\", \"b\"]")));
    EXPECT_NE(canonical(match_of("index = 1")), canonical(match_of("param = \"1d\"")));
    EXPECT_EQ(canonical(match_of("op = \"allreduce\"")), "{}");
}

// Every split of the name between the characters of the pattern, tried one by one.
bool slow_match(std::string_view pattern, std::string_view name) {
    if (pattern.empty()) {
        return name.empty();
    }
    if (pattern[0] == '*') {
        for (size_t skip = 0; skip <= name.size(); ++skip) {
            if (slow_match(pattern.substr(1), name.substr(skip))) {
                return true;
            }
        }
        return false;
    }
    return !name.empty() && (pattern[0] == '?' || pattern[0] == name[0]) &&
           slow_match(pattern.substr(1), name.substr(1));
}

TEST(ParameterMatch, patterns_agree_with_trying_every_split) {
    const uint64_t seed = test_seed();
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    const auto text = [&](std::string_view letters, size_t most) {
        std::string out(random() % (most + 1), ' ');
        for (char& c : out) {
            c = letters[random() % letters.size()];
        }
        return out;
    };
    int matched = 0;
    for (int round = 0; round < 20000; ++round) {
        const std::string pattern = text("ab**?", 7), name = text("ab", 8);
        matched += slow_match(pattern, name) ? 1 : 0;
        ASSERT_EQ(name_matches(pattern, name), slow_match(pattern, name))
            << pattern << " and " << name;
    }
    EXPECT_GT(matched, 1000);
    // Many stars take no longer than the product of both lengths.
    const std::string stars(200, '*'), letters(20000, 'a');
    EXPECT_FALSE(name_matches(stars + "b" + stars, letters));
}

}  // namespace
}  // namespace slimwire
