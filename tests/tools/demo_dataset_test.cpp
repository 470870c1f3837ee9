// The dataset reader of demo_train: good files, every kind of bad one, and the order of the data.
#include "tools/demo_train/dataset.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/support/has.h"
#include "tests/support/ranks.h"
#include "tests/tools/idx_files.h"
#include "tools/demo_train/error.h"

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

TEST_F(DemoDataset, MissingFileNamesThePackage) {
    const std::string text = error();
    EXPECT_HAS(text, "train-images-idx3-ubyte.gz");
    EXPECT_HAS(text, "dataset-fashion-mnist");
}

TEST_F(DemoDataset, WrongMagic) {
    write_images(label_file({1, 2, 3}));
    EXPECT_HAS(error(), "magic number 2049, expected 2051");
}

TEST_F(DemoDataset, TruncatedImages) {
    Bytes bytes = image_file(3, 2, 4);
    bytes.pop_back();
    write_images(bytes);
    write_labels(label_file({1, 2, 3}));
    EXPECT_HAS(error(), "ends too early");
}

TEST_F(DemoDataset, CorruptCompressedData) {
    write_images(image_file(64, 28, 28));
    write_labels(label_file(std::vector<uint8_t>(64)));
    const auto path = folder_.file("train-images-idx3-ubyte.gz");
    std::filesystem::resize_file(path, std::filesystem::file_size(path) / 2);
    const std::string text = error();
    EXPECT_HAS(text, "train-images-idx3-ubyte.gz: ");
}

TEST_F(DemoDataset, LabelCountDiffers) {
    write_images(image_file(3, 2, 4));
    write_labels(label_file({1, 2}));
    EXPECT_HAS(error(), "2 labels for 3 images");
}

TEST_F(DemoDataset, LabelOutOfRange) {
    write_images(image_file(3, 2, 4));
    write_labels(label_file({1, 10, 2}));
    EXPECT_HAS(error(), "label 10, expected 0 to 9");
}

TEST_F(DemoDataset, AbsurdSizesAreRefusedBeforeAllocating) {
    const Bytes bytes = image_header(0xffffffff, 28, 28);
    write_images(bytes);
    EXPECT_HAS(error(), "count 4294967295");
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

}  // namespace
}  // namespace demo
