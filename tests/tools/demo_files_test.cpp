// Files of demo_train: the dataset that it reads, good and bad, and the order of the data; the
// arrays and the record of a run that it writes.
#include "tools/demo_train/dataset.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <tuple>
#include <vector>

#include "tests/support/has.h"
#include "tests/support/ranks.h"
#include "tests/tools/idx_files.h"
#include "tools/demo_train/error.h"
#include "tools/demo_train/record.h"

namespace demo {
namespace {

Bytes image_file(uint32_t count, uint32_t rows, uint32_t columns) {
    Bytes bytes = image_header(count, rows, columns);
    for (uint32_t i = 0; i < count * rows * columns; ++i) {
        bytes.push_back(static_cast<uint8_t>(i * 7));
    }
    return bytes;
}

class DemoDataset : public ::testing::Test {
  protected:
    void write_images(const Bytes& bytes) {
        write_gz(folder_.file("train-images-idx3-ubyte.gz"), bytes);
    }
    void write_labels(const Bytes& bytes) {
        write_gz(folder_.file("train-labels-idx1-ubyte.gz"), bytes);
    }

    std::string error() {
        try {
            read_dataset(folder_.path(), "train");
        } catch (const TrainError& caught) {
            return caught.what();
        }
        return "no error";
    }

    slimwire::test::TemporaryFolder folder_;
};

TEST_F(DemoDataset, ReadsImagesAndLabels) {
    write_images(image_file(3, 2, 4));
    write_labels(label_file({9, 0, 4}));
    const Dataset data = read_dataset(folder_.path(), "train");
    EXPECT_EQ(data.count, 3u);
    EXPECT_EQ(data.pixels, 8u);
    EXPECT_EQ(data.labels, (std::vector<uint8_t>{9, 0, 4}));
    for (size_t i = 0; i < data.images.size(); ++i) {
        ASSERT_EQ(data.images[i], static_cast<uint8_t>(i * 7)) << i;
    }
    std::vector<float> image(data.pixels);
    data.copy_normalised(1, image.data());
    for (size_t i = 0; i < data.pixels; ++i) {
        EXPECT_NEAR(image[i], (static_cast<double>((8 + i) * 7) / 255.0 - 0.2860) / 0.3530, 1e-5);
    }
}

TEST_F(DemoDataset, ErrorsSayWhatIsWrong) {
    EXPECT_HAS(error(), "train-images-idx3-ubyte.gz");
    EXPECT_HAS(error(), "dataset-fashion-mnist");
    Bytes truncated = image_file(3, 2, 4);
    truncated.pop_back();
    const Bytes good = image_file(3, 2, 4);
    const std::tuple<Bytes, Bytes, const char*> kWrong[] = {
        {label_file({1, 2, 3}), {}, "magic number 2049, expected 2051"},
        {truncated, label_file({1, 2, 3}), "ends too early"},
        {good, label_file({1, 2}), "2 labels for 3 images"},
        {good, label_file({1, 10, 2}), "label 10, expected 0 to 9"},
        // Before anything is allocated.
        {image_header(0xffffffff, 28, 28), {}, "count 4294967295"}};
    for (const auto& [images, labels, why] : kWrong) {
        write_images(images);
        write_labels(labels);
        EXPECT_HAS(error(), why);
    }
    write_images(image_file(64, 28, 28));  // of which half is there
    const auto path = folder_.file("train-images-idx3-ubyte.gz");
    std::filesystem::resize_file(path, std::filesystem::file_size(path) / 2);
    EXPECT_HAS(error(), "train-images-idx3-ubyte.gz: ");
}

TEST(DemoOrder, IsAPermutationOfSeedAndEpoch) {
    const std::vector<uint32_t> order = epoch_order(1000, 3, 1);
    std::vector<uint32_t> sorted = order;
    std::sort(sorted.begin(), sorted.end());
    for (uint32_t i = 0; i < sorted.size(); ++i) {
        ASSERT_EQ(sorted[i], i);
    }
    EXPECT_EQ(order, epoch_order(1000, 3, 1));
    EXPECT_NE(order, epoch_order(1000, 3, 2));
    EXPECT_NE(order, epoch_order(1000, 4, 1));
    const auto fixed =
        std::count_if(sorted.begin(), sorted.end(), [&](uint32_t i) { return order[i] == i; });
    EXPECT_LT(fixed, 10);  // a random permutation has about one fixed point
}

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
    write_npy(folder.file("x.npy"), values.data(), values.size());
    EXPECT_EQ(slimwire::test::read_file(folder.file("x.npy")),
              npy_header(3) + std::string(reinterpret_cast<const char*>(values.data()), 12));
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
    const nlohmann::json members{{"v", 1},
                                 {"ranks", 4},
                                 {"seed", 3},
                                 {"steps", 234},
                                 {"accuracy", 87.5},
                                 {"step_ms", 12.5},
                                 {"comm_ms", 3.25},
                                 {"dense_bytes_per_step", 40},
                                 {"bucket_bytes", {24, 16}},
                                 {"parameter_checksum", "0000000000000abc"}};
    for (const auto& [name, value] : members.items()) {
        EXPECT_EQ(json.at(name), value) << name;
    }
    EXPECT_EQ(json.at("loss_curve").at(1), (nlohmann::json{{"step", 26}, {"train_loss", 1.0}}));
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
