// The ring collectives as one machine. The ranks stand in a ring; each step sends one block to the
// next rank and receives one from the previous; blocks are cut into slices that are separate
// messages, so that reducing a slice overlaps with the wire carrying others. What differs between
// all-reduce, reduce-scatter, all-gather, broadcast and reduce is the list of steps, nothing else.
//
//   all-reduce, 4 ranks, rank r:  step      0    1    2    3    4    5
//                                 sends     r   r-1  r-2  r-3   r   r-1     (block, modulo 4)
//                                 receives r-1  r-2  r-3   r   r-1  r-2
//                                 does     +    +    + =  copy copy copy
//
// Messages go in the order (group of slices, step, slice). Reduce-scatter keeps partial sums in
// scratch until they are passed on, of about one group. Thread contract: one thread, the one that
// runs the communicator's job.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "codecs/base/status.h"
#include "tools/emulator/nccl/execution/task.h"
#include "tools/emulator/nccl/transport/transport.h"

namespace slimwire::emu {

// A run of elements of the user's buffers.
struct Block {
    const unsigned char* input = nullptr;  // this rank's contribution
    unsigned char* output = nullptr;       // where the result goes
    size_t elems = 0;
};

enum class Source : uint8_t { kNone, kInput, kOutput, kPartial };
enum class Action : uint8_t { kNone, kCopy, kReduceToOutput, kReducePartial };

struct RingStep {
    Source source = Source::kNone;
    int send_block = 0;
    Action action = Action::kNone;
    int recv_block = 0;
    bool last_reduction = false;  // the received slice completes the sum: apply the divisor
};

// Room for a slice; those of a communicator are kept from call to call.
using Scratch = std::unique_ptr<unsigned char[]>;

class ScratchPool {
  public:
    // Before the calls of one ring: the bytes of a slice, at most.
    void prepare(size_t bytes);
    Scratch take();
    void give_back(Scratch scratch) { free_.push_back(std::move(scratch)); }

  private:
    size_t bytes_ = 0;
    std::vector<Scratch> free_;
};

class Ring {
  public:
    // `task` with pointers that this process may touch. `chunk_bytes` bounds a slice.
    Ring(Transport& transport, ScratchPool& scratch, const Task& task, size_t chunk_bytes);
    Ring(const Ring&) = delete;
    Ring& operator=(const Ring&) = delete;

    // Moves what can be moved. `*moved` becomes true when something did.
    Status advance(bool* moved);
    [[nodiscard]] bool done() const noexcept;
    // Whether something has still to come from that rank or to go to it.
    [[nodiscard]] bool waits_for(int rank) const noexcept;

  private:
    // Position in the order of messages.
    struct Cursor {
        size_t group = 0;
        size_t step = 0;
        size_t slice = 0;  // within the group
    };
    struct InFlight {
        Cursor at;
        Transfer transfer;
        Scratch scratch;
        size_t bytes = 0;
        bool started = false;  // false: an empty slice, which takes no message
    };

    void plan_all_reduce(const Task& task);
    void plan_reduce_scatter(const Task& task);
    void plan_all_gather(const Task& task);
    void plan_broadcast(const Task& task);
    void plan_reduce(const Task& task);
    void set_slices(size_t chunk_bytes);
    void open_links(const Task& task);

    [[nodiscard]] size_t slices_in_group(size_t group) const noexcept;
    [[nodiscard]] uint64_t ordinal(const Cursor& at) const noexcept;
    void step_forward(Cursor* at) const noexcept;
    // The part of `block` that a cursor names: offset and count in elements; count may be 0.
    [[nodiscard]] std::pair<size_t, size_t> slice_range(const Cursor& at, int block) const noexcept;

    Status send_more(bool* moved);
    Status receive_more(bool* moved);
    Status complete_sends(bool* moved);
    Status complete_receives(bool* moved);
    [[nodiscard]] bool source_ready(const Cursor& at, const RingStep& step) const noexcept;
    void process(InFlight& received);

    Transport& transport_;
    ScratchPool& scratch_;
    int rank_;
    int nranks_;
    DType type_;
    size_t element_bytes_;
    Reduction reduction_;
    std::vector<Block> blocks_;
    std::vector<RingStep> steps_;
    size_t slice_elems_ = 1;
    size_t slices_ = 0;  // of the largest block
    size_t group_slices_ = 1;
    size_t groups_ = 0;

    // To the next rank and from the previous one; a rank at the end of a chain lacks one of them.
    Link* next_ = nullptr;
    Link* previous_ = nullptr;
    WireOperation next_operation_;
    WireOperation previous_operation_;
    Cursor send_;
    Cursor recv_;
    uint64_t processed_ = 0;  // receives done, in order
    std::deque<InFlight> sending_;
    std::deque<InFlight> receiving_;
    std::map<uint64_t, Scratch> partial_;  // sums to be passed on, by ordinal of their receive
    Scratch scaled_;                       // the input that is sent next
};

}  // namespace slimwire::emu
