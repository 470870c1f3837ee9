// Files that demo_train writes: the NumPy header byte by byte, and the record of a run.
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "tests/support/has.h"
#include "tests/support/ranks.h"
#include "tools/demo_train/error.h"
#include "tools/demo_train/record.h"

namespace demo {
namespace {

TEST(DemoNpy, HeaderIsVersionOneAndAligned) {
    for (const size_t elems : {size_t{0}, size_t{1}, size_t{999}, size_t{1863690}}) {
        const std::string header = npy_header(elems);
        EXPECT_EQ(header.size() % 64, 0u);
        EXPECT_EQ(header.substr(0, 8), std::string("\x93NUMPY\x01\x00", 8));
        const size_t length =
            static_cast<uint8_t>(header[8]) + 256u * static_cast<uint8_t>(header[9]);
        EXPECT_EQ(header.size(), 10 + length);
        EXPECT_EQ(header.back(), '\n');
        const std::string shape = "'shape': (" + std::to_string(elems) + ",)";
        EXPECT_HAS(header, shape);
        EXPECT_HAS(header, "{'descr': '<f4', 'fortran_order': False, ");
    }
}

TEST(DemoNpy, ValuesFollowTheHeader) {
    const slimwire::test::TemporaryFolder folder;
    const std::vector<float> values{1.5f, -0.0f, 3e38f};
    const std::string path = folder.file("x.npy");
    write_npy(path, values.data(), values.size());
    std::ifstream file(path, std::ios::binary);
    const std::string content{std::istreambuf_iterator<char>(file), {}};
    const std::string header = npy_header(values.size());
    ASSERT_EQ(content.size(), header.size() + 12);
    EXPECT_EQ(content.substr(0, header.size()), header);
    EXPECT_EQ(std::memcmp(content.data() + header.size(), values.data(), 12), 0);
}

TEST(DemoNpy, UnwritablePathIsNamed) {
    try {
        write_npy("/nowhere/at/all.npy", nullptr, 0);
        FAIL() << "no error";
    } catch (const TrainError& error) {
        EXPECT_HAS(std::string(error.what()), "/nowhere/at/all.npy: No such file") << error.what();
    }
}

TEST(DemoRecord, HasTheMembersThatToolsDemoReads) {
    Options options;
    options.seed = 3;
    RunRecord record;
    record.ranks = 4;
    record.parameters = 10;
    record.bucket_bytes = {24, 16};
    record.steps = 234;
    record.step_ms = 12.5;
    record.comm_ms = 3.25;
    record.dense_bytes_per_step = 40;
    record.parameter_checksum = 0xabc;
    record.loss_curve = {{13, 2.0}, {26, 1.0}};
    record.epochs = {{1, 234, 0.5, 0.4, 87.5, 5.0}};
    const auto json = nlohmann::json::parse(to_json(options, record));
    EXPECT_EQ(json.at("v"), 1);
    EXPECT_EQ(json.at("ranks"), 4);
    EXPECT_EQ(json.at("seed"), 3);
    EXPECT_EQ(json.at("steps"), 234);
    EXPECT_EQ(json.at("accuracy"), 87.5);
    EXPECT_EQ(json.at("step_ms"), 12.5);
    EXPECT_EQ(json.at("comm_ms"), 3.25);
    EXPECT_EQ(json.at("dense_bytes_per_step"), 40);
    EXPECT_EQ(json.at("bucket_bytes"), (std::vector<int>{24, 16}));
    EXPECT_EQ(json.at("parameter_checksum"), "0000000000000abc");
    EXPECT_EQ(json.at("loss_curve").at(1).at("step"), 26);
    EXPECT_EQ(json.at("loss_curve").at(1).at("train_loss"), 1.0);
    EXPECT_EQ(json.at("epochs").at(0).at("test_accuracy"), 87.5);

    options.test = false;
    EXPECT_TRUE(nlohmann::json::parse(to_json(options, record)).at("accuracy").is_null());
}

TEST(DemoRecord, MedianLeavesTheFirstOut) {
    EXPECT_EQ(median_after({}, 5), 0);
    EXPECT_EQ(median_after({7, 1, 3}, 5), 3);
    EXPECT_EQ(median_after({100, 100, 1, 2, 3, 4}, 2), 2.5);
}

}  // namespace
}  // namespace demo
