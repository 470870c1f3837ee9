// The masks of the messages forward to or from one peer that answers are yet to come for: on both
// ends the header and the positions of the encoding, in device memory. And the agreement of both
// ends on answers with positions of their own, when an answer named a mask that its receiver did
// not hold: every frame forward says how many such there were, both ends read that of the first of
// every kSampled numbers, and with number f of the first that says some, the answers from number
// f + kLag on have positions; later by as many as were ahead of it, which it says, too.
//
// Of messages by an autoencoder (learned_code.h) the rows or their numbers take the place of masks,
// and answers never have positions.
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

// Device memory within the budget; null where there is no room. `shared`: other ranks count on it,
// it is beyond the budget or the host's then. Errors: of CUDA.
Result<void*> allocate_held(const BeforeCall& before,
                            Communicator* state,
                            uint64_t bytes,
                            bool shared = false);

class HeldMasks {
  public:
    static constexpr size_t kMost = JoinMaskedArgs::kMost;
    static constexpr uint64_t kSampled = 8;
    static constexpr uint64_t kLag = 32;

    // Memory for the mask of forward message `number`: of one that is answered or before `first`,
    // the first of the step, new in its place where it is too small, or new, or that of the oldest
    // where kMost are held. What the step before did not use goes. Null where there is no room.
    // Errors: of CUDA.
    Result<void*> keep(const BeforeCall& before,
                       Communicator* state,
                       const CallSignature& signature,
                       uint64_t number,
                       uint64_t first,
                       uint64_t bytes);
    // The mask of forward message `number`; null where it is not held.
    [[nodiscard]] const void* find(uint64_t number) const noexcept;
    // Its answer is enqueued.
    void answered(uint64_t number) noexcept;
    // The masks that an answer of this kind may name, and their numbers: at most kMost; how many.
    int32_t offer(const CallSignature& signature,
                  uint32_t* numbers,
                  const void** masks) const noexcept;
    // A device word: answers that named none of those held. Errors: of CUDA.
    Result<uint32_t*> misses(const BeforeCall& before, Communicator* state);

    // Where what frame `number` says of misses is copied to the host; null where it is not one of
    // those that are. `own`: this end's misses, which count in its statistics.
    std::shared_ptr<HostValue> sample(Communicator* state, uint64_t number, bool own);
    // Whether answer `number` has positions of its own: equal on both ends, for whoever comes to it
    // has the message forward that says so behind it, but where answers outnumber messages forward
    // and more than kLag of them are underway. Waits, which is counted, where a sample that was to
    // be there is not. Errors: of CUDA.
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
    // Those of earlier calls that are not needed any more.
    void drop(const BeforeCall& before, Communicator* state, const Mask& mask) noexcept;
    void begin_step(const BeforeCall& before, Communicator* state, uint64_t first) noexcept;
    // Takes the samples that are there.
    void read(Communicator* state);

    std::vector<Mask> masks_;
    uint64_t first_ = 0;  // of the step
    uint64_t held_bytes_ = 0;
    uint32_t* misses_ = nullptr;
    std::deque<Sample> samples_;
    uint64_t next_sample_ = 0;
    std::optional<uint64_t> explicit_from_;
    bool own_ = false;      // misses are this end's
    uint32_t counted_ = 0;  // of those, in the communicator's statistics
};

class CodeWeights;       // learned_code.h
struct ExchangeContext;  // exchange.h

// What a message with pair=mask or by an autoencoder, or an exchange's to or from one peer, goes
// by; of an exchange by an autoencoder E and all else, and D.
struct PairUse {
    MessagePairing::Place place;
    uint64_t first_of_step = 0;  // MessagePairing's
    bool backward = false;       // it is an answer without positions
    HeldMasks* masks = nullptr;
    void* kept = nullptr;            // forward: memory for its mask; null: it is not held
    const void* answered = nullptr;  // backward, of the sender: the mask; null: of none
    uint32_t* misses = nullptr;
    std::shared_ptr<HostValue> sample;
    // By an autoencoder: of this end; and it makes a step in front of the call, behind it.
    CodeWeights* weights = nullptr;
    bool first = false, last = false;
};

// For a message whose frame ends with a MaskTrailer at `trailer`, on the codec stream; without
// `use` as one that nothing is known of. At the sender: the trailer.
Status write_trailer(const ExchangeContext& context,
                     const PairUse* use,
                     char* trailer,
                     bool answers);
// At both ends of a message forward: `bytes` of `from` for its answer, and what the trailer says.
Status keep_forward(const ExchangeContext& context,
                    const PairUse* use,
                    const void* from,
                    uint64_t bytes,
                    const char* trailer);
// At the receiver of an answer, of context.pairs: what was kept of the message that the trailer
// names, or zeros, counted: to `to`, `bytes` up to a multiple of 16.
Status take_answered(const ExchangeContext& context, char* trailer, void* to, uint64_t bytes);

}  // namespace slimwire
