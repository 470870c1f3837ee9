// EF21 over a reduce-scatter: both ends of a block have the same estimate, the result is the sum of
// these, and a NaN ends both alike. One process, two emulated devices, a policy of the test's own;
// run again with messages in slices.
#include <cstdlib>

#include "tests/plugin/fed_oracle.h"

namespace slimwire::test {
namespace {

class EstimatesScatter : public FedOracle {
  protected:
    static void SetUpTestSuite() {
        write_policy(
            "version = 1\n[[rule]]\nname = \"r\"\nmatch = { op = \"reducescatter\" }\n"
            "codec = \"int4\"\nerror_feedback = \"ef21\"\n");
    }
    EstimatesScatter() : FedOracle(2 * kElems) {}

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
                for (size_t i = begin; i < end; ++i) {
                    estimate_[i] += sent[i - begin];
                    got.push_back(estimate_[i]);
                }
                const bool broken = !finite(part(estimate_, begin, end));
                for (size_t i = begin; i < end && broken; ++i) {
                    estimate_[i] = 0;
                }
            }
            return got;
        }

      private:
        Values estimate_;
    };
    // Elements of a block in one slice of a message of two blocks: FORMAT.md.
    static size_t piece_elems() {
        const char* const wanted = std::getenv("TEST_SLICE_BYTES");
        const size_t slice = wanted == nullptr ? 0 : std::strtoull(wanted, nullptr, 10) / kRanks;
        const size_t slices = slice == 0 ? 1 : (4 * kElems + slice / 2) / slice;
        EXPECT_TRUE(slice == 0 || slices > 1) << "shows nothing of slices";
        return ((kElems + slices - 1) / slices + kBlock - 1) / kBlock * kBlock;
    }
    void expect_links(ncclRedOp_t op, float scale) {
        Link links[kRanks][kRanks];
        expect_reduce_scatter(op, [&](int rank, int block, Values given) {
            for (float& x : given) {
                x *= scale;
            }
            return links[rank][block].send(given, piece_elems());
        });
    }
};

TEST_F(EstimatesScatter, ReduceScatterOfASum) {
    expect_links(ncclSum, 1.0f);
}

TEST_F(EstimatesScatter, ReduceScatterOfAnAverage) {
    expect_links(ncclAvg, 0.5f);
}

TEST_F(EstimatesScatter, SixteenBitsBecomeExact) {
    expect_halves_become_exact(2 * kElems, kElems, [&](int rank) {
        return ncclReduceScatter(send_[rank], recv_[rank], kElems, ncclBfloat16, ncclAvg,
                                 comms_[rank], nullptr);
    });
}

}  // namespace
}  // namespace slimwire::test
