// A moving average of the error: worker and server side of an all-reduce, and a reduce-scatter. One
// process, two emulated devices, a policy of the test's own.
#include "tests/plugin/fed_oracle.h"

namespace slimwire::test {
namespace {

class FeedbackOracle : public FedOracle {
  protected:
    static void SetUpTestSuite() {
        write_policy(
            "version = 1\n[[rule]]\nname = \"r\"\nmatch = { op = [\"allreduce\", "
            "\"reducescatter\"] }\ncodec = \"int4\"\nerror_feedback = \"ema\"\n"
            "residual = \"fp32\"\n");
    }
    FeedbackOracle() : FedOracle(2 * kElems) {}

    // What one encoder owes, and what comes out of it.
    class Encoder {
      public:
        // Decoded, of x + what is owed.
        Values send(const Values& x) {
            owed_.resize(x.size());
            Values p = x;
            add(&p, owed_);
            const Values sent = coded(p);
            for (size_t begin = 0; begin < p.size(); begin += kBlock) {
                const size_t end = std::min(begin + kBlock, p.size());
                for (size_t i = begin; finite(part(p, begin, end)) && i < end; ++i) {
                    const float lost = p[i] - sent[i];
                    if (std::memcmp(&lost, &owed_[i], sizeof lost) == 0) {
                        continue;
                    }
                    volatile float kept = 0.8f * owed_[i];
                    volatile float taken = (1.0f - 0.8f) * lost;
                    owed_[i] = kept + taken;
                }
            }
            return sent;
        }

      private:
        Values owed_;
    };
    struct TwoChunks {
        Encoder workers[2][2], owners[2];

        Values step(const Values& first, const Values& second, float scale) {
            Values all;
            for (size_t chunk = 0; chunk < 2; ++chunk) {
                const size_t begin = chunk * kChunk, end = chunk == 0 ? kChunk : kElems;
                const Values sent = owners[chunk].send(
                    sum_of_two(workers[0][chunk].send(part(first, begin, end)),
                               workers[1][chunk].send(part(second, begin, end)), scale));
                all.insert(all.end(), sent.begin(), sent.end());
            }
            return all;
        }
    };
};

TEST_F(FeedbackOracle, AllReduce) {
    expect_all_reduce(TwoChunks(), kElems, ncclSum, 1.0f);
}

TEST_F(FeedbackOracle, Average) {
    expect_all_reduce(TwoChunks(), kElems, ncclAvg, 0.5f);
}

TEST_F(FeedbackOracle, ReduceScatter) {
    Encoder workers[kRanks][kRanks];
    expect_reduce_scatter(ncclSum, [&](int rank, int block, const Values& given) {
        return workers[rank][block].send(given);
    });
}

}  // namespace
}  // namespace slimwire::test
