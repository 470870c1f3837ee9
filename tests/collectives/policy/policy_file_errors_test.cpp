// What is wrong around the rules of a policy's file, and in how it is read, ends in one line as
// what is wrong in a rule does (policy_errors_test.cpp).
#include <gtest/gtest.h>

#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <random>

#include "tests/collectives/policy_error.h"
#include "tests/support/seed.h"

namespace slimwire {
namespace {

TEST(PolicyFileErrors, the_file_around_the_rules) {
    const Case kCases[] = {
        {"", "p.toml:1:1: missing key 'version'; accepted: version = 1"},
        {"version = 2\n", "p.toml:1:11: unknown version 2; accepted: 1"},
        {"version = \"1\"\n", "p.toml:1:11: 'version' is a string; accepted: 1"},
        {"version = 1\nrules = []\n",
         "p.toml:2:1: unknown key 'rules' of the file (did you mean 'rule'?); accepted: version, "
         "defaults, rule, runtime"},
        {"version = 1\n[rule]\nname = \"a\"\n",
         "p.toml:2:1: 'rule' is a table; accepted: an array of tables: [[rule]]"},
        {"version = 1\nrule = [1]\n",
         "p.toml:2:9: 'rule' is an integer; accepted: an array of tables: [[rule]]"},
        {"version = 1\ndefaults = 1\n",
         "p.toml:2:12: 'defaults' is an integer; accepted: a table: [defaults]"},
        {"version = 1\n[defaults]\nmatch = {}\n",
         "p.toml:3:1: [defaults]: unknown key 'match' of [defaults]; accepted: codec, algorithm, "
         "error_feedback, start_step, min_bytes, intra_codec, ef, residual"},
        {"version = 1\n[defaults]\nresidual = \"int8\"\n[[rule]]\nname = \"a\"\ncodec = "
         "\"int4\"\nef = \"ef21\"\n",
         "p.toml:4:1: rule 'a': 'residual' with ef21, whose estimates must not be rounded; "
         "accepted: residual = \"fp32\", or no 'residual'"},
        {"version = 1\n[defaults]\nintra_codec = \"powersgd\"\n[[rule]]\nname = \"a\"\ncodec = "
         "\"int4\"\n[[rule]]\nname = \"b\"\ncodec = \"native\"\n",
         "p.toml:4:1: rule 'a': intra_codec 'powersgd', which is for whole messages; accepted: any "
         "other codec"},
        {"version = 1\n[defaults]\nintra_codec = \"topk:pair=mask\"\n[[rule]]\nname = \"a\"\n"
         "codec = \"int4\"\n",
         "p.toml:4:1: rule 'a': intra_codec 'topk:pair=mask' with pair=mask, which is for "
         "messages; accepted: pair=none"},
        {"version = 1\n[defaults]\nalgorithm = \"gather\"\n[[rule]]\nname = \"a\"\ncodec = "
         "\"powersgd\"\n",
         "p.toml:4:1: rule 'a': algorithm 'gather' with codec 'powersgd'; accepted: auto, "
         "low_rank"},
        {"version = 1\n[[rule]]\ncodec = \"int8\"\n",
         "p.toml:2:1: rule 1: missing key 'name'; accepted: 1 to 64 letters, digits, '_', '-', "
         "'.'"},
        {"version = 1\n[[rule]]\nname = \"a,b\"\n",
         "p.toml:3:8: rule 1: bad value 'a,b' of 'name'; accepted: 1 to 64 letters, digits, '_', "
         "'-', '.'"},
        {"version = 1\n[[rule]]\nname = \"env\"\n",
         "p.toml:3:8: rule 1: the name 'env' belongs to the rule that SLIMWIRE_CODEC makes; "
         "accepted: any other name"},
        {"version = 1\n[[rule]]\nname = \"a\"\n[[rule]]\nname = \"a\"\n",
         "p.toml:5:8: rule 2: duplicate name 'a', first used by the rule in line 2; accepted: "
         "unique names"},
    };
    for (const Case& c : kCases) {
        EXPECT_EQ(error_of(c.text), c.expected);
    }
}

TEST(PolicyFileErrors, malformed_toml_names_line_and_column) {
    const std::string message = error_of("version = 1\n[[rule]\nname = \"a\"\n");
    EXPECT_EQ(message.rfind("p.toml:2:", 0), 0u) << message;
    EXPECT_EQ(error_of("version = 1\nversion = 1\n").rfind("p.toml:2:", 0), 0u);
}

TEST(PolicyFileErrors, several_findings_make_one_line) {
    const std::string message =
        error_of("[[rule]]\nname = \"a\"\ncodek = 1\nalgorithm = 3\nef = 4\nstart_step = \"x\"\n");
    EXPECT_NE(message.find("p.toml:1:1: missing key 'version'"), std::string::npos) << message;
    EXPECT_NE(message.find("p.toml:3:1: rule 'a': unknown key 'codek'"), std::string::npos);
    EXPECT_NE(message.find("; and 2 more"), std::string::npos) << message;
}

TEST(PolicyFileErrors, values_without_quotes) {
    constexpr char kHead[] = "version = 1\n[[rule]]\nname = \"a\"\n";
    const std::pair<std::string, std::string> kCases[] = {
        {"codec = int4", "int4"},
        {"codec = int8:block=64  # as it was", "int8:block=64"},
        {"codec = topk:fraction=0.01", "topk:fraction=0.01"},
        {"codec = native\r\nmin_bytes = 7", "native"},
        {"match = { op = allreduce }", "allreduce"},
        {"match = { op = [\"reduce\", allreduce] }", "allreduce"},
        {"error_feedback=ef14", "ef14"},
        {"min_bytes = 64KiB", "64KiB"},
        {"match = { op = \"reduce\", bytes = 1MiB.. }", "1MiB.."},
        {"codec = 8bit", "8bit"}};
    for (const auto& [line, word] : kCases) {
        const std::string message = error_of(kHead + line + "\n");
        EXPECT_EQ(message.substr(0, 9), "p.toml:4:") << message;
        const std::string text = "'" + word + "' is a text and has no quotes; accepted: \"" + word;
        EXPECT_NE(message.find(text + "\""), std::string::npos) << message;
    }
    // Other faults keep the parser's words.
    for (const char* line : {"codec = \"int4", "codec = 1.2.3", "codec == \"int4\"", "codec", "[a",
                             "[[rule]", " [[ rule ]", "min_bytes = 0x", "min_bytes = 1e"}) {
        const std::string message = error_of(kHead + std::string(line) + "\n");
        EXPECT_EQ(message.find("no quotes"), std::string::npos) << message;
    }
}

TEST(PolicyFileErrors, another_encoding) {
    EXPECT_EQ(
        error_of(std::string("\xff\xfev\0e\0", 6)),
        "p.toml:1:1: the file is UTF-16, as some editors and shells write it; accepted: UTF-8");
}

TEST(PolicyFileErrors, quotes_that_are_none_or_do_not_end) {
    constexpr char kHead[] = "version = 1\n[[rule]]\nname = \"a\"\n";
    EXPECT_EQ(error_of(std::string(kHead) + "codec = \u201cint4\u201d\n"),
              "p.toml:4:9: quotes of a word processor, \u201c; accepted: \" or '");
    for (const char* line : {"codec = \"int4", "codec = 'int4\r"}) {
        EXPECT_EQ(error_of(kHead + std::string(line) + "\nmin_bytes = 7\n"),
                  "p.toml:4:14: a text that does not end in its line; accepted: a closing quote");
    }
    EXPECT_EQ(error_of(std::string(kHead) + "codec = \"\x1b[1mint4\"\n"),
              "p.toml:4:10: a control character in a text; accepted: as \\u001b");
}

TEST(PolicyFileErrors, a_key_that_is_there_twice) {
    for (const char* line : {"match = { op = \"allreduce\", op = \"reduce\" }",
                             "codec = \"int4\"\ncodec = \"int8\""}) {
        const std::string message =
            error_of("version = 1\n[[rule]]\nname = \"a\"\n" + std::string(line) + "\n");
        EXPECT_EQ(message.find("no quotes"), std::string::npos) << message;
        EXPECT_NE(message.find("cannot redefine existing string '"), std::string::npos) << message;
        EXPECT_NE(message.find("; accepted: each key once"), std::string::npos) << message;
    }
}

TEST(PolicyFileErrors, more_rules_than_a_call_should_be_compared_with) {
    std::string text = "version = 1\n";
    for (int i = 0; i <= 1000; ++i) {
        text += "[[rule]]\nname = \"r" + std::to_string(i) + "\"\ncodec = \"int8\"\n";
    }
    EXPECT_EQ(error_of(text),
              "p.toml:2:1: 1001 rules, which each new kind of call is compared with in turn; "
              "accepted: at most 1000");
}

TEST(PolicyFileErrors, control_characters_are_shown_as_escapes) {
    const std::string message =
        error_of("version = 1\n[[rule]]\nname = \"a\"\ncodec = \"\\nt4\"\n");
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    EXPECT_NE(message.find("bad value '\\x0at4' of 'codec'"), std::string::npos) << message;
}

TEST(PolicyFileErrors, a_file_that_cannot_be_read) {
    const auto missing = load_policy_file("/nonexistent/p.toml");
    ASSERT_FALSE(missing.ok());
    EXPECT_EQ(missing.status().code(), Code::kNotFound);
    EXPECT_EQ(missing.status().message(),
              "policy file '/nonexistent/p.toml' cannot be read: No such file or directory; "
              "accepted: the path of a readable TOML file");
    const auto directory = load_policy_file("/tmp");
    ASSERT_FALSE(directory.ok());
    EXPECT_NE(directory.status().message().find("'/tmp' cannot be read: Is a directory"),
              std::string::npos)
        << directory.status().message();
}

TEST(PolicyFileErrors, files_without_end_and_too_large_ones) {
    const std::string path = testing::TempDir() + "slimwire_policy_" + std::to_string(::getpid());
    const auto expect = [](const std::string& file, const std::string& why) {
        const auto policy = load_policy_file(file);
        ASSERT_FALSE(policy.ok()) << file;
        EXPECT_EQ(policy.status().message(), "policy file '" + file + "' cannot be read: " + why +
                                                 "; accepted: the path of a readable TOML file");
    };
    expect("/dev/zero", "it is no regular file");
    ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
    expect(path, "it is no regular file");
    ::unlink(path.c_str());
    std::ofstream(path) << "version = 1\n#" << std::string(1 << 20, '.') << "\n";
    expect(path, "it has more than 1048576 bytes");
    ::unlink(path.c_str());
}

TEST(PolicyFileErrors, a_file_is_named_as_it_was_given) {
    const std::string path = testing::TempDir() + "slimwire_policy_" + std::to_string(::getpid());
    std::ofstream(path) << "version = 3\n";
    const auto policy = load_policy_file(path);
    ::unlink(path.c_str());
    ASSERT_FALSE(policy.ok());
    EXPECT_EQ(policy.status().message(), path + ":1:11: unknown version 3; accepted: 1");
}

// Bytes changed, dropped, doubled or inserted anywhere: a policy or one line that says where.
TEST(PolicyFileErrors, damaged_files_give_a_policy_or_a_place) {
    const std::string whole =
        "version = 1\n[defaults]\nmin_bytes = \"64KiB\"\n[[rule]]\nname = \"a\"\nmatch = { op = "
        "[\"allreduce\", \"reduce\"], dtype = \"f32\", bytes = \"1MiB..2MiB\", ranks = \"2..16\", "
        "scope = \"inter_node\", param = [\"1d\", \"3d+\"], index = [3, \"10-20\"], ordinal = "
        "\"0-3\", name = \"*.bias\" }\ncodec = \"int4:block=64\"\nerror_feedback = "
        "\"ef14\"\nstart_step = 10\n"
        "[[rule]]\nname = \"b\"\nalgorithm = \"native\"\n";
    ASSERT_TRUE(parse_policy(whole, "p.toml").ok());
    const uint64_t seed = test_seed();
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    int refused = 0;
    for (int round = 0; round < 3000; ++round) {
        std::string text = whole;
        for (uint64_t edits = 1 + random() % 3; edits > 0; --edits) {
            const size_t at = random() % text.size();
            const char byte = random() % 2 == 0 ? "\"'[]{}=.,\n0-#e"[random() % 14]
                                                : static_cast<char>(random() % 256);
            switch (random() % 4) {
                case 0:
                    text[at] = byte;
                    break;
                case 1:
                    text.erase(at, 1 + random() % 8);
                    break;
                case 2:
                    text.insert(at, text.substr(at, random() % 40));
                    break;
                case 3:
                    text.insert(at, 1, byte);
                    break;
            }
            text += text.empty() ? "x" : "";
        }
        const auto policy = parse_policy(text, "p.toml");
        if (!policy.ok()) {
            ++refused;
            const std::string message = policy.status().message();
            ASSERT_EQ(message.rfind("p.toml:", 0), 0u) << message << "\n" << text;
            ASSERT_EQ(message.find('\n'), std::string::npos) << message << "\n" << text;
        }
    }
    EXPECT_GT(refused, 1000);
}

}  // namespace
}  // namespace slimwire
