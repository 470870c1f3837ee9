// The masks of the messages forward to or from one peer that answers are yet to come for: on both
// ends the header and the positions of the encoding, in device memory. And the agreement of both
// ends on answers with positions of their own, when an answer named a mask that its receiver did
// not hold: every frame forward says how many such there were, both ends read that of every
// kSampled-th, and with number f of the first that says some, the answers from number f + kLag on
// have positions.
//
// Kept for each way to a peer of a communicator, and like it used by one thread at a time.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "codecs/sparse/masked_values.h"
#include "collectives/communicator/communicator.h"
#include "collectives/communicator/device_objects.h"
#include "collectives/identity/message_pairing.h"

namespace slimwire {

class HeldMasks {
  public:
    static constexpr size_t kMost = JoinMaskedArgs::kMost;
    static constexpr uint64_t kSampled = 8;
    static constexpr uint64_t kLag = 32;

    // Memory for the mask of forward message `number`: of an answered one, or new, or that of the
    // oldest where kMost are held. Null where there is no room. Errors: of CUDA.
    Result<void*> keep(const BeforeCall& before,
                       Communicator* state,
                       const CallSignature& signature,
                       uint64_t number,
                       uint64_t bytes);
    // The mask of forward message `number`; null where it is not held.
    [[nodiscard]] const void* find(uint64_t number) const noexcept;
    // Its answer is enqueued.
    void answered(uint64_t number) noexcept;
    // The masks that an answer of this kind may name, and what counts those that it does not hold.
    void offer(const CallSignature& signature, JoinMaskedArgs* args) const noexcept;
    // A device word: answers that named none of those held. Null where there is no room. Errors: of
    // CUDA.
    Result<uint32_t*> misses(const BeforeCall& before, Communicator* state);

    // Where what frame `number` says of misses is copied to the host; null where it is not one of
    // those that are.
    std::shared_ptr<HostValue> sample(Communicator* state, uint64_t number);
    // Whether answer `number` has positions of its own: equal on both ends, for no answer has a
    // larger number than the last message forward. Waits, which is counted, where a sample that was
    // to be there is not. Errors: of CUDA.
    Result<bool> explicit_positions(const DeviceApi& api, Communicator* state, uint64_t number);

    void release(Communicator* state, Retirement* left) noexcept;

  private:
    struct Mask {
        void* memory = nullptr;
        uint64_t bytes = 0;
        uint64_t number = 0;
        uint64_t count = 0;
        DType dtype = DType::kFloat32;
        bool answered = false;
    };
    struct Sample {
        uint64_t number = 0;
        std::shared_ptr<HostValue> value;
    };
    // Null where there is no room.
    Result<void*> allocate(const BeforeCall& before, Communicator* state, uint64_t bytes);
    // Takes the samples that are there.
    void read(Communicator* state);

    std::vector<Mask> masks_;
    uint64_t held_bytes_ = 0;
    uint32_t* misses_ = nullptr;
    std::deque<Sample> samples_;
    std::optional<uint64_t> explicit_from_;
    uint32_t counted_ = 0;  // of misses, in the communicator's statistics
};

// What a message with pair=mask, or an exchange's to or from one peer, goes by.
struct PairUse {
    MessagePairing::Place place;
    bool backward = false;  // it is an answer without positions
    HeldMasks* masks = nullptr;
    void* kept = nullptr;            // forward: memory for its mask; null: it is not held
    const void* answered = nullptr;  // backward, of the sender: the mask; null: of none
    uint32_t* misses = nullptr;
    std::shared_ptr<HostValue> sample;
};

}  // namespace slimwire
