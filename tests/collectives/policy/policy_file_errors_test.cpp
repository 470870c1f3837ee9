// What is wrong around the rules of a policy's file, and in how it is read, ends in one line as
// what is wrong in a rule does (policy_errors_test.cpp).
#include <gtest/gtest.h>

#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <initializer_list>
#include <random>

#include "tests/collectives/policy_error.h"
#include "tests/support/seed.h"

namespace slimwire {
namespace {

struct FileCase {
    std::string text;
    const char* wrong;  // begin of the message, from the line on
};

// `head` stands in front of each.
void expect_errors(const std::string& head, std::initializer_list<FileCase> cases) {
    for (const FileCase& one : cases) {
        const std::string begin = std::string("p.toml:") + one.wrong;
        const std::string message = error_of(head + one.text + "\n");
        EXPECT_EQ(message.substr(0, begin.size()), begin) << message;
    }
}

TEST(PolicyFileErrors, the_file_around_the_rules) {
    expect_errors("", {{"", "1:1: missing key 'version'; accepted: version = 1"},
                       {"version = 2", "1:11: unknown version 2; accepted: 1"},
                       {"version = '1'", "1:11: 'version' is a string; accepted: 1"},
                       {"version = 1\n[[rule]\nname = 'a'", "2:"},
                       {"version = 1\nversion = 1", "2:"},
                       {std::string("\xff\xfev\0e\0", 6),
                        "1:1: the file is UTF-16, as some editors and "
                        "shells write it; accepted: UTF-8"}});
    expect_errors(
        "version = 1\n",
        {{"rules = []",
          "2:1: unknown key 'rules' of the file (did you mean 'rule'?); accepted: "
          "version, defaults, rule, runtime"},
         {"[rule]\nname = 'a'", "2:1: 'rule' is a table; accepted: an array of tables: [[rule]]"},
         {"rule = [1]", "2:9: 'rule' is an integer; accepted: an array of tables: [[rule]]"},
         {"defaults = 1", "2:12: 'defaults' is an integer; accepted: a table: [defaults]"},
         {"[[rule]]\ncodec = 'int8'", "2:1: rule 1: missing key 'name'; accepted: 1 to 64 letters"},
         {"[[rule]]\nname = 'a,b'", "3:8: rule 1: bad value 'a,b' of 'name'; accepted: 1 to 64"},
         {"[[rule]]\nname = 'env'",
          "3:8: rule 1: the name 'env' belongs to the rule that "
          "SLIMWIRE_CODEC makes; accepted: any other name"},
         {"[[rule]]\nname = 'a'\n[[rule]]\nname = 'a'",
          "5:8: rule 2: duplicate name 'a', first used by the rule in line 2; accepted: unique"}});
    const std::string rule = "\n[[rule]]\nname = 'a'\ncodec = ";
    expect_errors(
        "version = 1\n[defaults]\n",
        {{"match = {}",
          "3:1: [defaults]: unknown key 'match' of [defaults]; accepted: codec, "
          "algorithm, error_feedback, start_step, min_bytes, intra_codec, ef"},
         {"residual = 'int8'" + rule + "'int4'\nef = 'ef21'",
          "4:1: rule 'a': 'residual' with ef21, whose estimates must not be rounded"},
         {"intra_codec = 'powersgd'" + rule + "'int4'\n[[rule]]\nname = 'b'\ncodec = 'native'",
          "4:1: rule 'a': intra_codec 'powersgd', which is for whole messages"},
         {"intra_codec = 'topk:pair=mask'" + rule + "'int4'",
          "4:1: rule 'a': intra_codec 'topk:pair=mask' with pair=mask, which is for messages"},
         {"algorithm = 'gather'" + rule + "'powersgd'",
          "4:1: rule 'a': algorithm 'gather' with codec 'powersgd'; accepted: auto, low_rank"}});
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

TEST(PolicyFileErrors, quotes_that_are_none_or_do_not_end) {
    expect_errors(
        "version = 1\n[[rule]]\nname = \"a\"\n",
        {{"codec = \u201cint4\u201d", "4:9: quotes of a word processor, \u201c; accepted: \" or '"},
         {"codec = \"int4\nmin_bytes = 7",
          "4:14: a text that does not end in its line; accepted: a closing quote"},
         {"codec = 'int4\r\nmin_bytes = 7",
          "4:14: a text that does not end in its line; accepted: a closing quote"},
         {"codec = \"\x1b[1mint4\"", "4:10: a control character in a text; accepted: as \\u001b"},
         {"codec = \"\\nt4\"", "4:9: rule 'a': bad value '\\x0at4' of 'codec'"}});
}

TEST(PolicyFileErrors, a_key_that_is_there_twice) {
    for (const char* line : {"match = { op = \"allreduce\", op = \"reduce\" }",
                             "codec = \"int4\"\ncodec = \"int8\""}) {
        const std::string message =
            error_of("version = 1\n[[rule]]\nname = \"a\"\n" + std::string(line) + "\n");
        EXPECT_EQ(message.find("no quotes"), std::string::npos) << message;
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

TEST(PolicyFileErrors, files_that_cannot_be_read_and_their_names) {
    const std::string path = testing::TempDir() + "slimwire_policy_" + std::to_string(::getpid());
    const auto expect = [](const std::string& file, const std::string& why) {
        const auto policy = load_policy_file(file);
        ASSERT_FALSE(policy.ok()) << file;
        EXPECT_EQ(policy.status().code(), Code::kNotFound);
        EXPECT_EQ(policy.status().message(), "policy file '" + file + "' cannot be read: " + why +
                                                 "; accepted: the path of a readable TOML file");
    };
    expect("/nonexistent/p.toml", "No such file or directory");
    expect("/tmp", "Is a directory");
    expect("/dev/zero", "it is no regular file");
    ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
    expect(path, "it is no regular file");
    ::unlink(path.c_str());
    std::ofstream(path) << "version = 1\n#" << std::string(1 << 20, '.') << "\n";
    expect(path, "it has more than 1048576 bytes");
    std::ofstream(path) << "version = 3\n";
    EXPECT_EQ(load_policy_file(path).status().message(),
              path + ":1:11: unknown version 3; accepted: 1");
    ::unlink(path.c_str());
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
