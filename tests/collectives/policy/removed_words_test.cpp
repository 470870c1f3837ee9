// Every word that slimwire no longer takes ends in an error that says what to do instead.
#include "codecs/base/removed_words.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "codecs/codec.h"
#include "collectives/policy/config.h"
#include "collectives/policy/policy.h"

namespace slimwire {
namespace {

std::string error_of_policy(const std::string& rule) {
    return parse_policy("version = 1\n" + rule, "p.toml").status().message();
}

// The errors about the word, at every place where a user could have given it.
std::string errors_about(const RemovedWord& removed) {
    const std::string word(removed.word);
    const std::string rule = "[[rule]]\ncodec = \"int4\"\n";
    switch (removed.kind) {
        case RemovedKind::kCodec:
            return parse_codec(word).status().message();
        case RemovedKind::kCodecParameter:
            return parse_codec("int4:" + word + "=1").status().message();
        case RemovedKind::kPolicyKey:
            return error_of_policy(rule + word + " = 1\n") + error_of_policy(word + " = 1\n") +
                   error_of_policy(rule + "match = { " + word + " = 1 }\n");
        case RemovedKind::kPolicyValue: {
            const std::string key = word.substr(0, word.find('='));
            const std::string line =
                key + " = \"" + word.substr(std::min(key.size() + 1, word.size())) + "\"";
            return error_of_policy("[[rule]]\n" + line + "\n") +
                   error_of_policy(rule + line + "\n") +
                   error_of_policy(rule + "match = { " + line + " }\n");
        }
        case RemovedKind::kVariable: {
            const std::string entry = word + "=1";
            const char* const environment[] = {entry.c_str(), nullptr};
            return check_variable_names(environment).message();
        }
        case RemovedKind::kReportVariable: {
            const std::string entry = word + "=1";
            const char* const environment[] = {entry.c_str(), nullptr};
            testing::internal::CaptureStderr();
            EXPECT_TRUE(check_variable_names(environment).ok());
            return testing::internal::GetCapturedStderr();
        }
    }
    return {};
}

TEST(RemovedWords, errors_say_what_to_do_instead) {
    for (const RemovedWord& removed : kRemovedWords) {
        const std::string errors = errors_about(removed);
        EXPECT_NE(errors.find("; it was removed: " + std::string(removed.hint)), std::string::npos)
            << removed.word << ": " << errors;
    }
    EXPECT_EQ(removed_hint(RemovedKind::kCodec, "int4"), "");
}

}  // namespace
}  // namespace slimwire
