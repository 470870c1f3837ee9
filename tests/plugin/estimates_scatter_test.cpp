// EF21 over a reduce-scatter, call after call, against a slow oracle that knows only the codec's
// encode and decode: both ends of a block have the same estimate, the result is the sum of these,
// to the bit, and a NaN ends both alike. One process, two emulated devices, a policy of the test's
// own; run again with messages in slices.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>

#include "codecs/float16.h"
#include "plugin/capi/slimwire.h"
#include "tests/plugin/oracles.h"
#include "tests/plugin/two_devices.h"

namespace {

constexpr size_t kEstimatesScatterCount = 5000;  // of a block
constexpr size_t kBlock = 64;
constexpr int kSteps = 10;

using slimwire::test::coded;
using Values = std::vector<float>;

// What both ends know of a block that goes one way, in pieces of `piece` elements.
class Link {
  public:
    // What arrives.
    Values send(const Values& x, size_t piece) {
        estimate_.resize(x.size());
        Values got;
        for (size_t begin = 0; begin < x.size(); begin += piece) {
            const size_t end = std::min(begin + piece, x.size());
            Values difference;
            for (size_t i = begin; i < end; ++i) {
                difference.push_back(x[i] - estimate_[i]);
            }
            const Values sent = coded(difference);
            bool finite = true;
            for (size_t i = begin; i < end; ++i) {
                estimate_[i] += sent[i - begin];
                finite = finite && std::isfinite(estimate_[i]);
                got.push_back(estimate_[i]);
            }
            for (size_t i = begin; i < end && !finite; ++i) {
                estimate_[i] = 0;
            }
        }
        return got;
    }

  private:
    Values estimate_;
};

// Elements of a block in one slice of a message of `blocks` blocks: FORMAT.md.
size_t piece_of(size_t blocks) {
    const char* const wanted = std::getenv("TEST_SLICE_BYTES");
    const size_t slice = wanted == nullptr ? 0 : std::strtoull(wanted, nullptr, 10) / blocks;
    const size_t slices = slice == 0 ? 1 : (4 * kEstimatesScatterCount + slice / 2) / slice;
    EXPECT_TRUE(slice == 0 || slices > 1) << "shows nothing of slices";
    return ((kEstimatesScatterCount + slices - 1) / slices + kBlock - 1) / kBlock * kBlock;
}

Values input(int rank, int step) {
    Values values(2 * kEstimatesScatterCount);
    for (size_t i = 0; i < values.size(); ++i) {
        values[i] = std::sin(0.7f * static_cast<float>(i) + 2.0f * static_cast<float>(rank)) *
                    (i % 7 == 0 ? 3.0f : 0.2f) * (step % 3 == 2 ? 0.1f : 1.0f);
    }
    if (step == 5 && rank == 1) {
        values[100] = NAN;
    }
    return values;
}

Values block_of(const Values& values, int block) {
    const auto begin = values.begin() + block * static_cast<std::ptrdiff_t>(kEstimatesScatterCount);
    return {begin, begin + static_cast<std::ptrdiff_t>(kEstimatesScatterCount)};
}

class EstimatesScatter : public slimwire::test::TwoDevices {
  protected:
    static void SetUpTestSuite() {
        write_policy(
            "version = 1\n[[rule]]\nname = \"r\"\nmatch = { op = \"reducescatter\" }\n"
            "codec = \"int4\"\nerror_feedback = \"ef21\"\n");
    }
    EstimatesScatter() : TwoDevices(2 * kEstimatesScatterCount) {}
    void SetUp() override {
        TwoDevices::SetUp();
        mark();
    }

    using Inputs = std::vector<Values>;  // of each rank
    // Calls the operation for one rank.
    using Call = std::function<ncclResult_t(int rank)>;
    // What each rank's result holds from its begin on; empty: nothing is said of it.
    using Oracle = std::function<std::vector<Values>(const Inputs& inputs)>;

    // `broken`: the ranks that get the NaN of step 5.
    void expect_oracle(const Call& call, const Oracle& oracle, const std::vector<bool>& broken) {
        for (int step = 0; step < kSteps; ++step) {
            Inputs inputs;
            for (int rank = 0; rank < kRanks; ++rank) {
                inputs.push_back(input(rank, step));
                fill(rank, inputs.back());
            }
            ASSERT_EQ(ncclGroupStart(), ncclSuccess);
            for (int rank = 0; rank < kRanks; ++rank) {
                ASSERT_EQ(cudaSetDevice(rank), cudaSuccess);
                ASSERT_EQ(call(rank), ncclSuccess) << ncclGetLastError(nullptr);
            }
            ASSERT_EQ(ncclGroupEnd(), ncclSuccess);
            const std::vector<Values> wanted = oracle(inputs);
            for (int rank = 0; rank < kRanks; ++rank) {
                const Values& of = wanted[static_cast<size_t>(rank)];
                const Values got = result(rank, of.size());
                bool nan = false;
                for (size_t i = 0; i < of.size(); ++i) {
                    nan = nan || std::isnan(of[i]);
                    ASSERT_TRUE(std::isnan(of[i])
                                    ? std::isnan(got[i])
                                    : std::memcmp(&got[i], &of[i], sizeof(float)) == 0)
                        << "step " << step << " rank " << rank << " element " << i << ": " << got[i]
                        << " instead of " << of[i];
                }
                EXPECT_EQ(nan, step == 5 && broken[static_cast<size_t>(rank)])
                    << "step " << step << " rank " << rank;
            }
            mark();
        }
    }

    void expect_reduce_scatter(ncclRedOp_t op, float scale) {
        Link links[kRanks][kRanks];
        expect_oracle(
            [&](int rank) {
                return ncclReduceScatter(send_[rank], recv_[rank], kEstimatesScatterCount,
                                         ncclFloat32, op, comms_[rank], nullptr);
            },
            [&](const Inputs& inputs) {
                std::vector<Values> results;
                for (int block = 0; block < kRanks; ++block) {
                    Values sum(kEstimatesScatterCount);
                    for (size_t rank = 0; rank < kRanks; ++rank) {
                        Values given = block_of(inputs[rank], block);
                        for (float& x : given) {
                            x *= scale;
                        }
                        const Values got = links[rank][block].send(given, piece_of(kRanks));
                        for (size_t i = 0; i < kEstimatesScatterCount; ++i) {
                            sum[i] = rank == 0 ? got[i] : sum[i] + got[i];
                        }
                    }
                    results.push_back(sum);
                }
                return results;
            },
            {true, false});
    }
};

TEST_F(EstimatesScatter, ReduceScatterOfASum) {
    expect_reduce_scatter(ncclSum, 1.0f);
}

TEST_F(EstimatesScatter, ReduceScatterOfAnAverage) {
    expect_reduce_scatter(ncclAvg, 0.5f);
}

// The elements are of 16 bits, the estimates are not.
TEST_F(EstimatesScatter, SixteenBitsBecomeExact) {
    std::vector<uint16_t> halves(2 * kEstimatesScatterCount);
    for (size_t i = 0; i < halves.size(); ++i) {
        halves[i] = slimwire::float_to_bfloat16(0.37f * std::sin(static_cast<float>(i)));
    }
    double error = 0;
    for (int call = 0; call < 25; ++call) {
        ASSERT_EQ(ncclGroupStart(), ncclSuccess);
        for (int rank = 0; rank < kRanks; ++rank) {
            ASSERT_EQ(cudaSetDevice(rank), cudaSuccess);
            ASSERT_EQ(
                cudaMemcpy(send_[rank], halves.data(), halves.size() * 2, cudaMemcpyHostToDevice),
                cudaSuccess);
            ASSERT_EQ(ncclReduceScatter(send_[rank], recv_[rank], kEstimatesScatterCount,
                                        ncclBfloat16, ncclAvg, comms_[rank], nullptr),
                      ncclSuccess);
        }
        ASSERT_EQ(ncclGroupEnd(), ncclSuccess);
        error = 0;
        for (int rank = 0; rank < kRanks; ++rank) {
            const Values raw = result(rank, kEstimatesScatterCount / 2);
            std::vector<uint16_t> got(kEstimatesScatterCount);
            std::memcpy(got.data(), raw.data(), kEstimatesScatterCount * 2);
            for (size_t i = 0; i < kEstimatesScatterCount; ++i) {
                const uint16_t given =
                    halves[static_cast<size_t>(rank) * kEstimatesScatterCount + i];
                error = std::max(error,
                                 std::abs(static_cast<double>(slimwire::bfloat16_to_float(got[i]) -
                                                              slimwire::bfloat16_to_float(given))));
            }
        }
        if (call == 0) {
            EXPECT_GT(error, 0.01);
        }
        mark();
    }
    EXPECT_EQ(error, 0.0) << "both ranks' average is an element of the type";
}

}  // namespace
