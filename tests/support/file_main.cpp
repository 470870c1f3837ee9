// main() of a program of several test files. With names of some as its arguments,
// "policy_test.cpp", it runs those files' cases only: Meson lists each file as a test of its own.
#include <gtest/gtest.h>

#include <cstdio>
#include <string>
#include <string_view>

namespace {

// The filter that takes the cases of this file; empty if there are none.
std::string cases_of(std::string_view file) {
    std::string filter;
    const testing::UnitTest& program = *testing::UnitTest::GetInstance();
    for (int i = 0; i < program.total_test_suite_count(); ++i) {
        const testing::TestSuite& suite = *program.GetTestSuite(i);
        for (int k = 0; k < suite.total_test_count(); ++k) {
            const testing::TestInfo& test = *suite.GetTestInfo(k);
            const std::string_view path = test.file();
            if (path.substr(path.rfind('/') + 1) == file) {
                filter += std::string(suite.name()) + "." + test.name() + ":";
            }
        }
    }
    return filter;
}

}  // namespace

int main(int argc, char** argv) {
    testing::InitGoogleTest(&argc, argv);
    std::string filter;
    for (int i = 1; i < argc; ++i) {
        const std::string cases = cases_of(argv[i]);
        if (cases.empty()) {
            std::fprintf(stderr, "no test is in a file %s\n", argv[i]);
            return 2;
        }
        filter += cases;
    }
    if (!filter.empty() && GTEST_FLAG_GET(filter) == "*") {  // a death test's child has its own
        GTEST_FLAG_SET(filter, filter);
    }
    return RUN_ALL_TESTS();
}
