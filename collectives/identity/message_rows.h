// How long the rows of messages are, as frameworks tell the shape of a tensor in front of it:
//   Megatron-LM   with sequences of variable length, int64[3] in front of each
//   DeepSpeed     once in front of the first one of a shape, int32[256]: 0, its type, how many
//                 dimensions, the shape; of a tuple 2, of how many tensors, and these of each; or
//                 as it was before, the shape as int64[n]
// A message of integers that looks so is a header of the next message of floats that has none, and
// counts where that has as many elements as the shape, or one of a tuple; messages of a tuple of
// several have the row of the one that has as many. Both ends read it, and decide alike by the
// numbers of messages (message_pairing.h): the first header that counts, of forward message f, is
// read by forward message f + kLag, and so are all up to that one; where they have other rows
// nothing is told. Messages forward have the row from f + 2 * kLag on, answers kAnswersLater behind
// that: none then answers a message that had no row. Nothing is read any more then.
//
// Kept for one communicator, and like it used by one thread at a time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "codecs/base/device.h"
#include "collectives/call/call.h"
#include "collectives/communicator/host_copies.h"
#include "collectives/identity/message_pairing.h"

namespace slimwire {

struct Communicator;

class MessageRows {
  public:
    static constexpr uint64_t kLag = 16;
    static constexpr uint64_t kAnswersLater = 64;  // as many activations as wait (HeldMasks::kMost)
    static constexpr size_t kMostWaiting = 16;     // headers of a peer; then the oldest is dropped
    static constexpr size_t kMostRead = 64;        // that count for nothing, until none is read

    // Whether such a message may be a header.
    [[nodiscard]] static bool may_be_header(const CallSignature& signature) noexcept;
    // The row that the values of one tell of a message of `count` elements; 0: none, or several.
    [[nodiscard]] static uint32_t row_told(DType dtype,
                                           std::span<const std::byte> values,
                                           uint64_t count);

    // Whether hear() wants the message.
    [[nodiscard]] bool wants(const CallSignature& signature) const noexcept;
    // The next well-formed message to or from another rank that is wanted. `captured`: what it will
    // be is not known. `group`: of the NCCL group that it is in; 0: none. Errors: CUDA's.
    Status hear(const DeviceApi& api,
                Communicator* state,
                const CollectiveCall& call,
                bool captured,
                uint64_t group);
    // The row of the message that was heard last, whose place this is; 0: not known, or not of all
    // its elements. Errors: as await_value()'s.
    Result<uint32_t> next(const DeviceApi& api,
                          const Communicator& state,
                          const CallSignature& signature,
                          const MessagePairing::Place& place);

    // What came is to be copied once it is launched; it is, or never will be.
    [[nodiscard]] bool waits_for_launch() const noexcept { return !arriving_.empty(); }
    Status launched(const DeviceApi& api, Communicator* state);
    void forget() noexcept { arriving_.clear(); }
    // The group, the last one that messages were given of, was dropped: they never were.
    void rewind(uint64_t group) noexcept;

  private:
    struct Header {
        DType dtype = DType::kInt64;
        std::shared_ptr<HostValue> value;  // null: not known
    };
    struct Read {
        Header header;
        uint64_t number, count;  // of the message that took it
    };
    // Messages to and from a peer.
    struct Told {
        std::optional<Op> forward;
        std::array<std::vector<Header>, 2> waiting;  // to it, from it; oldest first
        std::optional<Header> taken;                 // by the message heard last
        std::shared_ptr<HostValue> tuple;            // that told `row`; null: of all messages
        std::vector<Read> reads;                     // by number
        size_t idle = 0;                             // that were read and counted for nothing
        uint32_t row = 0;
        uint64_t first = 0;   // number of the first message that told it
        bool unlike = false;  // others told another one
        bool settled = false;
    };
    struct Peer {
        Told now, before;  // before: as before the group
        uint64_t group = 0;
    };
    struct Wanted {
        std::shared_ptr<HostValue> value;
        const void* from;
        cudaStream_t stream;
    };
    static Status copy(const DeviceApi& api,
                       Communicator* state,
                       const std::vector<Wanted>& wanted);
    static Status settle(
        const DeviceApi& api, const Communicator& state, int peer, uint64_t number, Told* told);

    std::map<int, Peer> peers_;
    std::vector<Wanted> arriving_;
};

}  // namespace slimwire
