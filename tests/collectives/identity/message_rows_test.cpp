// What headers of messages tell of their rows, at both ends of a pair of ranks, each of which makes
// its calls in an order of its own.
#include "collectives/identity/message_rows.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "collectives/communicator/communicator.h"
#include "tests/support/plain_device.h"

namespace slimwire {
namespace {

using Rows = MessageRows;
constexpr uint64_t kFrom = 2 * Rows::kLag, kAnswersFrom = kFrom + Rows::kAnswersLater;

// A header as a framework sends it.
struct SentAhead {
    DType dtype;
    std::vector<std::byte> values;
};
template <class T>
SentAhead sent(DType dtype, const std::vector<T>& values) {
    SentAhead out{dtype, std::vector<std::byte>(values.size() * sizeof(T))};
    std::memcpy(out.values.data(), values.data(), out.values.size());
    return out;
}
SentAhead shape(const std::vector<int64_t>& extents) {
    return sent(DType::kInt64, extents);
}
SentAhead meta(std::vector<int32_t> words) {
    words.resize(256);
    return sent(DType::kInt32, words);
}

// One of the two ranks.
class End {
  public:
    explicit End(int rank) {
        state_.nccl = &real_;
        state_.rank = rank;
        state_.stats = std::make_shared<CommStats>();
    }
    void header(bool forward, const SentAhead& what, bool captured = false, uint64_t group = 0) {
        CollectiveCall call;
        call.signature =
            signature_of(forward, what.dtype, what.values.size() / dtype_bytes(what.dtype));
        call.send = what.values.data();
        call.recv = const_cast<std::byte*>(what.values.data());
        if (!rows.wants(call.signature)) {
            return;
        }
        ++headers;
        EXPECT_TRUE(rows.hear(api_, &state_, call, captured, group).ok());
        if (rows.waits_for_launch() && group == 0) {
            EXPECT_TRUE(rows.launched(api_, &state_).ok());
        }
    }
    // A message of floats; its row.
    uint32_t tensor(bool forward, uint64_t count, uint64_t group = 0, bool training = true) {
        CollectiveCall call;
        call.signature = signature_of(forward, DType::kBfloat16, count);
        if (rows.wants(call.signature)) {
            EXPECT_TRUE(rows.hear(api_, &state_, call, false, group).ok());
        }
        const MessagePairing::Place place = pairing.next(
            {.op = call.signature.op, .kind = count, .group = group, .training = training},
            PairOrder());
        const Result<uint32_t> row = rows.next(api_, state_, call.signature, place);
        EXPECT_TRUE(row.ok());
        return row.ok() ? row.value() : 0;
    }
    MessageRows rows;
    MessagePairing pairing;
    int headers = 0;

  private:
    // Rank 0 sends forward.
    [[nodiscard]] CallSignature signature_of(bool forward, DType dtype, uint64_t count) const {
        CallSignature signature;
        signature.op = forward == (state_.rank == 0) ? Op::kSend : Op::kRecv;
        signature.dtype = dtype;
        signature.root_or_peer = 1 - state_.rank;
        signature.count = count;
        return signature;
    }
    const DeviceApi api_ = test::plain_device();
    const RealNccl real_{};
    Communicator state_;
};

// The rows of the messages each way.
struct Told {
    std::vector<uint32_t> forward, backward;
    bool operator==(const Told&) const = default;
};

// Rank 0 is two micro-batches ahead; `send(end, batch, forward)` makes a message and its header.
template <class Send>
void expect_told(int batches, uint32_t row, const Send& send) {
    constexpr int kAhead = 2;
    Told both[2];
    int headers[2];
    for (int rank = 0; rank < 2; ++rank) {
        End end(rank);
        for (int i = 0; i < batches + kAhead; ++i) {
            const int ahead = rank == 0 ? kAhead : 0;
            if (i < batches) {
                both[rank].forward.push_back(send(&end, i, true));
            }
            if (i >= ahead && i - ahead < batches) {
                both[rank].backward.push_back(send(&end, i - ahead, false));
            }
        }
        headers[rank] = end.headers;
    }
    EXPECT_EQ(both[0], both[1]);
    EXPECT_EQ(headers[0], headers[1]);
    EXPECT_LE(headers[0], static_cast<int>(kFrom) + 2) << "nothing is read for ever";
    for (uint64_t i = 0; i < both[0].forward.size(); ++i) {
        EXPECT_EQ(both[0].forward[i], i >= kFrom ? row : 0) << i;
        EXPECT_EQ(both[0].backward[i], i >= kAnswersFrom ? row : 0) << i;
    }
}

TEST(MessageRowsTold, OfSequencesOfAnyLength) {
    expect_told(150, 48, [](End* end, int batch, bool forward) {
        const int64_t length = 5 + batch * batch % 7;
        end->header(forward, shape({length, 2, 48}));
        return end->tensor(forward, static_cast<uint64_t>(length) * 2 * 48);
    });
}

TEST(MessageRowsTold, OnceInFrontOfAllOfTheSameShape) {
    const std::vector<std::vector<SentAhead>> kHeaders = {
        {meta({0, 5, 3, 4, 6, 32})},                  // a tensor of type 5
        {meta({2, 1, 5, 2, 24, 32})},                 // a tuple of one
        {shape({0}), shape({3}), shape({4, 6, 32})},  // type, dimensions, shape
    };
    for (const std::vector<SentAhead>& headers : kHeaders) {
        expect_told(120, 32, [&](End* end, int batch, bool forward) {
            for (const SentAhead& one : headers) {
                if (batch == 0 && forward) {
                    end->header(forward, one);
                }
            }
            return end->tensor(forward, 4 * 6 * 32);
        });
    }
}

// Each tensor of a tuple has its own, as activations with a mask, of which no gradients come.
TEST(MessageRowsTold, OfEachTensorOfATuple) {
    const SentAhead tuple = meta({2, 4, 5, 2, 8, 32, 5, 3, 1, 8, 8, 0, 1, 7, 5, 2, 8, 32});
    EXPECT_EQ(Rows::row_told(tuple.dtype, tuple.values, 256), 32u);
    EXPECT_EQ(Rows::row_told(tuple.dtype, tuple.values, 64), 8u);
    EXPECT_EQ(Rows::row_told(tuple.dtype, tuple.values, 7), 0u);
    for (const int rank : {0, 1}) {
        End end(rank);
        end.header(true, tuple);
        for (uint64_t i = 0; i < kAnswersFrom + 2; ++i) {
            const uint64_t number = 3 * i;
            EXPECT_EQ(end.tensor(true, 256), number >= kFrom ? 32u : 0u) << i;
            EXPECT_EQ(end.tensor(true, 64), number + 1 >= kFrom ? 8u : 0u) << i;
            EXPECT_EQ(end.tensor(true, 96), 0u) << i;
            EXPECT_EQ(end.tensor(false, 256), i >= kAnswersFrom ? 32u : 0u) << i;
        }
    }
}

TEST(MessageRowsTold, OfWholeRowsAlone) {
    expect_told(120, 0, [](End* end, int, bool forward) {
        end->header(forward, shape({4, 32}));
        (void)end->tensor(forward, 128);
        return end->tensor(forward, 100);
    });
}

// Headers in front of two tensors are those of each.
TEST(MessageRowsTold, NothingWhereRowsDiffer) {
    for (const int64_t other : {32, 16}) {
        expect_told(120, other == 32 ? 32 : 0, [&](End* end, int batch, bool forward) {
            if (batch % 2 == 0) {
                end->header(forward, shape({8, 32}));
                end->header(forward, shape({512 / other, other}));
            }
            return end->tensor(forward, batch % 2 == 0 ? 256 : 512);
        });
    }
}

TEST(MessageRowsTold, NothingByHeadersThatNoTensorHas) {
    const std::vector<SentAhead> kNone = {
        shape({8, 31}),  // 256 elements
        shape({-8, -32}),
        shape({256, 1}),
        shape({0, 32}),
        shape({INT64_MAX, INT64_MAX, 4, 64}),
        meta({1, 5, 2, 8, 32}),
        meta({0, 5, 2, 8, 31}),
        meta({0, 5, 300, 8, 32}),
        meta({2, 200, 5, 2, 8, 32}),  // more than there is room for
        meta({2, 2, 5, 2, 8, 32, 5, 2, 16, 16}),
        meta({2, 2, 5, 300, 8, 32, 5, 2, 8, 32}),
        meta({2, 2, 5, -2, 8, 32, 5, 2, 8, 32}),
        meta({2, INT32_MAX, 5, 2, 8, 31}),
        meta({2, 0, 5, 2, 8, 32}),
    };
    for (const SentAhead& one : kNone) {
        EXPECT_EQ(Rows::row_told(one.dtype, one.values, 256), 0u);
    }
    End end(1);
    for (int i = 0; i < 200; ++i) {
        end.header(true, kNone[static_cast<size_t>(i) % kNone.size()]);
        EXPECT_EQ(end.tensor(true, 256), 0u);
    }
    EXPECT_EQ(end.headers, static_cast<int>(Rows::kMostRead + Rows::kLag));
    End later(1);
    for (uint64_t i = 0; i < 3 + kFrom + 1; ++i) {
        later.header(true, shape({8, i < 3 ? 31 : 32}));
        EXPECT_EQ(later.tensor(true, 256), i >= 3 + kFrom ? 32u : 0u) << i;
    }
}

TEST(MessageRowsTold, NothingByWhatIsCaptured) {
    End end(0);
    for (uint64_t i = 0; i < 2 * kFrom; ++i) {
        end.header(true, shape({8, 32}), true);
        EXPECT_EQ(end.tensor(true, 256), 0u);
    }
}

// Messages of an evaluation have no numbers, and few are kept until training goes on.
TEST(MessageRowsTold, InEvaluationFewAreKept) {
    End end(1);
    for (int i = 0; i < 200; ++i) {
        end.header(true, shape({8, 32}));
        EXPECT_EQ(end.tensor(true, 256, 0, false), 0u);
    }
    EXPECT_EQ(end.headers, static_cast<int>(Rows::kMostRead));
    for (uint64_t i = 0; i < kFrom + 2; ++i) {
        EXPECT_EQ(end.tensor(true, 256), i >= kFrom ? 32u : 0u) << i;
    }
}

// A group that is dropped told nothing, however much of it was heard.
TEST(MessageRowsTold, NothingByGroupsThatAreDropped) {
    for (const int rank : {0, 1}) {
        End end(rank);
        for (uint64_t i = 0; i < kFrom + 2; ++i) {
            const uint64_t group = 1 + i;
            end.header(true, shape({8, 16}), false, 100 + group);
            (void)end.tensor(true, 128, 100 + group);
            end.rows.rewind(100 + group);
            end.pairing.rewind(100 + group);
            EXPECT_FALSE(end.rows.waits_for_launch());
            end.header(true, shape({8, 32}), false, 0);
            EXPECT_EQ(end.tensor(true, 256), i >= kFrom ? 32u : 0u) << i;
        }
    }
}

}  // namespace
}  // namespace slimwire
