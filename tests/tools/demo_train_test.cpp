// demo_train as a whole, several processes on the emulator: what it computes does not depend on how
// the parameters are kept or on the run, and it ends with an error when a rank dies.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/support/has.h"
#include "tests/support/ranks.h"
#include "tests/tools/idx_files.h"
#include "tools/demo_train/random.h"
#include "tools/demo_train/record.h"

namespace demo {
namespace {

using slimwire::test::Ended;
using slimwire::test::Job;
using slimwire::test::read_file;

std::vector<float> read_npy(const std::filesystem::path& path) {
    const std::string content = read_file(path.string());
    for (size_t header = 64; header < content.size(); header += 64) {
        std::vector<float> values((content.size() - header) / sizeof(float));
        if (content.compare(0, header, npy_header(values.size())) == 0) {
            std::memcpy(values.data(), content.data() + header, values.size() * sizeof(float));
            return values;
        }
    }
    ADD_FAILURE() << path << " is no .npy file of fp32";
    return {};
}

// Ten classes of noisy 6x6 images, each with its own bright pixels: learnable in a few steps.
void write_data(const std::filesystem::path& folder, const std::string& prefix, uint32_t count) {
    Random random(11, count);
    Bytes images = image_header(count, 6, 6);
    std::vector<uint8_t> labels(count);
    for (uint8_t& label : labels) {
        label = static_cast<uint8_t>(random.below(10));
        for (uint32_t pixel = 0; pixel < 36; ++pixel) {
            images.push_back(
                static_cast<uint8_t>(random.below(90) + (pixel % 10 == label ? 120 : 0)));
        }
    }
    write_gz(folder / (prefix + "-images-idx3-ubyte.gz"), images);
    write_gz(folder / (prefix + "-labels-idx1-ubyte.gz"), label_file(labels));
}

class DemoTrain : public ::testing::Test {
  protected:
    void SetUp() override {
        write_data(folder_.path(), "train", 1000);
        write_data(folder_.path(), "t10k", 203);
    }

    Job job(int ranks, const std::vector<std::string>& arguments) {
        Job job;
        job.command = {DEMO_TRAIN_PATH, "--data", folder_.path(),   "--batch", "16",
                       "--hidden",      "40,24",  "--bucket-bytes", "4096"};
        job.command.insert(job.command.end(), arguments.begin(), arguments.end());
        job.ranks = ranks;
        job.library_path = {EMULATOR_FOLDER};
        return job;
    }

    void run(const Job& job) {
        for (const Ended& ended : slimwire::test::run_ranks(job)) {
            ASSERT_EQ(ended.exit_code, 0) << ended.out << ended.err;
        }
    }

    // Trains and returns all parameters and the record.
    std::vector<float> train(int ranks,
                             std::vector<std::string> arguments,
                             nlohmann::json* record) {
        const std::string parameters = folder_.file("parameters.npy");
        const std::string json = folder_.file("record.json");
        arguments.insert(arguments.end(),
                         {"--epochs", "4", "--dump-parameters", parameters, "--json", json});
        run(job(ranks, arguments));
        if (HasFatalFailure()) {
            return {};
        }
        *record = nlohmann::json::parse(read_file(json));
        return read_npy(parameters);
    }

    slimwire::test::TemporaryFolder folder_;
};

TEST_F(DemoTrain, LearnsAndRepeatsBitForBit) {
    nlohmann::json first, second, other;
    const std::vector<float> parameters = train(2, {}, &first);
    ASSERT_FALSE(HasFatalFailure());
    EXPECT_GT(first.at("accuracy"), 90.0);
    EXPECT_EQ(first.at("steps"), 4 * (1000 / 32));
    EXPECT_EQ(first.at("parameters"), 36 * 40 + 40 + 40 * 24 + 24 + 24 * 10 + 10);
    EXPECT_NE(first.at("blas_core"), "unknown");
    EXPECT_GT(first.at("step_ms"), 0.0);
    EXPECT_GT(first.at("comm_ms"), 0.0);
    EXPECT_LE(first.at("comm_ms"), first.at("comm_wait_ms"));
    EXPECT_EQ(train(2, {}, &second), parameters);
    EXPECT_EQ(second.at("parameter_checksum"), first.at("parameter_checksum"));
    train(2, {"--seed", "2"}, &other);
    EXPECT_NE(other.at("parameter_checksum"), first.at("parameter_checksum"));
}

TEST_F(DemoTrain, ShardedEqualsReplicated) {
    nlohmann::json replicated, sharded;
    const std::vector<float> expected = train(3, {}, &replicated);
    const std::vector<float> got = train(3, {"--shard"}, &sharded);
    ASSERT_FALSE(HasFatalFailure());
    ASSERT_EQ(got.size(), expected.size());
    double error = 0, norm = 0;
    for (size_t i = 0; i < got.size(); ++i) {
        error += std::pow(static_cast<double>(got[i]) - expected[i], 2);
        norm += std::pow(expected[i], 2);
    }
    // The two reduce in different orders: rounding only, grown by some hundred steps.
    EXPECT_LT(std::sqrt(error / norm), 1e-4);
    EXPECT_NEAR(sharded.at("accuracy"), replicated.at("accuracy"), 1.5);
    EXPECT_GT(sharded.at("dense_bytes_per_step"),
              2 * replicated.at("dense_bytes_per_step").get<int>());
}

TEST_F(DemoTrain, GradientsOfEveryRankAreDumped) {
    const std::filesystem::path dump = folder_.file("gradients");
    run(job(
        2, {"--steps", "5", "--no-test", "--dump-gradients", dump.string(), "--dump-step", "1,4"}));
    ASSERT_FALSE(HasFatalFailure());
    size_t files = 0, elems = 0;
    for (const auto& entry : std::filesystem::directory_iterator(dump)) {
        ++files;
        for (const float value : read_npy(entry.path())) {
            elems += std::isfinite(value) ? 1 : 0;
        }
    }
    EXPECT_EQ(files % 4, 0u);  // 2 ranks, 2 steps
    EXPECT_EQ(elems, 4u * (36 * 40 + 40 + 40 * 24 + 24 + 24 * 10 + 10));
    const auto of_rank = [&](int rank) {
        return read_npy(dump / ("gradient-step00004-rank" + std::to_string(rank) + "-bucket0.npy"));
    };
    EXPECT_NE(of_rank(0), of_rank(1));  // before the reduction
}

TEST_F(DemoTrain, KilledRankEndsTheOthersWithAnNcclError) {
    Job endless = job(3, {"--epochs", "1000", "--no-test"});
    std::vector<std::string> shell{
        "/bin/sh", "-c", "[ $RANK != 1 ] && exec \"$@\"; exec timeout -s KILL 2 \"$@\"", "sh"};
    shell.insert(shell.end(), endless.command.begin(), endless.command.end());
    endless.command = shell;
    endless.limit_s = 40;
    const std::vector<Ended> ended = slimwire::test::run_ranks(endless);
    EXPECT_EQ(ended[1].exit_code, 128 + 9);
    for (const size_t rank : {0u, 2u}) {
        EXPECT_FALSE(ended[rank].expired) << "rank " << rank << " hangs";
        EXPECT_EQ(ended[rank].exit_code, 1);
        const std::string expected = "demo_train: rank " + std::to_string(rank) + ": error: ";
        EXPECT_HAS(ended[rank].err, expected);
    }
}

TEST_F(DemoTrain, BadInputIsOneLine) {
    const auto with = [&](const std::string& option, const std::string& value) {
        Job changed = job(1, {});
        *(std::find(changed.command.begin(), changed.command.end(), option) + 1) = value;
        return changed;
    };
    Ended ended = slimwire::test::run_ranks(with("--data", "/nowhere")).front();
    EXPECT_EQ(ended.exit_code, 1);
    EXPECT_HAS(ended.err, "/nowhere/train-images-idx3-ubyte.gz: No such file");
    EXPECT_EQ(std::count(ended.err.begin(), ended.err.end(), '\n'), 1) << ended.err;

    EXPECT_EQ(slimwire::test::run_ranks(job(1, {"--codec", "int4"})).front().exit_code, 2);

    ended = slimwire::test::run_ranks(with("--batch", "2000")).front();
    EXPECT_EQ(ended.exit_code, 1);
    EXPECT_HAS(ended.err, "more than the 1000 samples");

    ended = slimwire::test::run_ranks(job(1, {"--json", "/nowhere/r.json"})).front();
    EXPECT_EQ(ended.exit_code, 1);
    EXPECT_HAS(ended.err, "/nowhere/r.json: No such file");
}

}  // namespace
}  // namespace demo
