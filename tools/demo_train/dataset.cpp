#include "tools/demo_train/dataset.h"

#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <numeric>

#include "tools/demo_train/error.h"
#include "tools/demo_train/random.h"

namespace demo {
namespace {

// Mean and standard deviation of the pixels of Fashion-MNIST's training images, of 0..1.
constexpr float kMean = 0.2860f;
constexpr float kDeviation = 0.3530f;

constexpr uint32_t kImageMagic = 0x00000803;
constexpr uint32_t kLabelMagic = 0x00000801;
constexpr size_t kLargestCount = 1u << 24;
constexpr size_t kLargestSide = 4096;

struct GzClose {
    void operator()(gzFile file) const { gzclose_r(file); }
};
using GzHandle = std::unique_ptr<gzFile_s, GzClose>;

class IdxFile {
  public:
    explicit IdxFile(std::string path)
        : path_(std::move(path)), file_(gzopen(path_.c_str(), "rb")) {
        if (!file_) {
            throw TrainError(
                path_ + ": " + std::strerror(errno) +
                "; install Debian's dataset-fashion-mnist or name its folder by --data");
        }
        gzbuffer(file_.get(), 1u << 18);
    }

    uint32_t read_u32() {
        uint8_t bytes[4];
        read(bytes, sizeof bytes);
        return uint32_t{bytes[0]} << 24 | uint32_t{bytes[1]} << 16 | uint32_t{bytes[2]} << 8 |
               bytes[3];
    }

    void read(uint8_t* output, size_t bytes) {
        while (bytes > 0) {
            const auto piece = static_cast<unsigned>(std::min<size_t>(bytes, 1u << 30));
            const int got = gzread(file_.get(), output, piece);
            if (got <= 0) {
                int code = Z_OK;
                const char* text = gzerror(file_.get(), &code);
                throw TrainError(path_ + ": " + (code == Z_OK ? "file ends too early" : text));
            }
            output += got;
            bytes -= static_cast<size_t>(got);
        }
    }

    void expect_magic(uint32_t expected) {
        const uint32_t magic = read_u32();
        if (magic != expected) {
            throw TrainError(path_ + ": magic number " + std::to_string(magic) + ", expected " +
                             std::to_string(expected));
        }
    }

    uint32_t read_size(const char* what, size_t largest) {
        const uint32_t size = read_u32();
        if (size == 0 || size > largest) {
            throw TrainError(path_ + ": " + what + " " + std::to_string(size) + ", expected 1 to " +
                             std::to_string(largest));
        }
        return size;
    }

    const std::string& path() const { return path_; }

  private:
    std::string path_;
    GzHandle file_;
};

}  // namespace

void Dataset::copy_normalised(size_t index, float* output) const {
    const uint8_t* image = images.data() + index * pixels;
    constexpr float kScale = 1.0f / (255.0f * kDeviation);
    constexpr float kShift = kMean / kDeviation;
    for (size_t i = 0; i < pixels; ++i) {
        output[i] = static_cast<float>(image[i]) * kScale - kShift;
    }
}

Dataset read_dataset(const std::string& folder, const std::string& prefix) {
    Dataset data;
    IdxFile images(folder + "/" + prefix + "-images-idx3-ubyte.gz");
    images.expect_magic(kImageMagic);
    data.count = images.read_size("count", kLargestCount);
    const size_t rows = images.read_size("rows", kLargestSide);
    const size_t columns = images.read_size("columns", kLargestSide);
    data.pixels = rows * columns;
    data.images.resize(data.count * data.pixels);
    images.read(data.images.data(), data.images.size());

    IdxFile labels(folder + "/" + prefix + "-labels-idx1-ubyte.gz");
    labels.expect_magic(kLabelMagic);
    if (const size_t count = labels.read_size("count", kLargestCount); count != data.count) {
        throw TrainError(labels.path() + ": " + std::to_string(count) + " labels for " +
                         std::to_string(data.count) + " images");
    }
    data.labels.resize(data.count);
    labels.read(data.labels.data(), data.labels.size());
    const auto wrong = std::find_if(data.labels.begin(), data.labels.end(),
                                    [](uint8_t label) { return label >= Dataset::kClasses; });
    if (wrong != data.labels.end()) {
        throw TrainError(labels.path() + ": label " + std::to_string(*wrong) + ", expected 0 to " +
                         std::to_string(Dataset::kClasses - 1));
    }
    return data;
}

std::vector<uint32_t> epoch_order(size_t count, uint64_t seed, int epoch) {
    std::vector<uint32_t> order(count);
    std::iota(order.begin(), order.end(), 0u);
    Random random(seed, 0x6461746100000000ull + static_cast<uint64_t>(epoch));
    for (size_t i = count; i > 1; --i) {
        std::swap(order[i - 1], order[random.below(static_cast<uint32_t>(i))]);
    }
    return order;
}

}  // namespace demo
