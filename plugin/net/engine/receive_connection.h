// The receiving side of a connection.
//
//   receive() ─> posted receives ──┐ matched by tag, in order
//   control lane ─> frames ────────┴─> arrivals ─> data receives ─> parts ─> done
//                                                   (codec threads decode pieces)
//
// Data messages come in the order of their frames, so their receives are posted in that order. When
// the next one belongs to a message nobody has asked for yet, while a later one has been asked for
// (grouped receives with other tags), it is received into memory of its own and copied later.
//
// Everything moves on in advance(), which receive() and test() call; no other thread touches the
// object but codec threads, in the tasks of parts.
#pragma once

#include <array>
#include <deque>
#include <memory>

#include "plugin/net/engine/benefit.h"
#include "plugin/net/engine/codec_pool.h"
#include "plugin/net/engine/connection.h"

namespace slimwire::net {

inline constexpr int kMaxGroupedReceives = 8;

class ReceiveConnection final : public Connection {
  public:
    static Result<std::unique_ptr<ReceiveConnection>> make(std::shared_ptr<Network> network,
                                                           std::unique_ptr<ReceiveWire> wire,
                                                           const char* device);
    ~ReceiveConnection() override { close(); }

    // Posts `count` (1..kMaxGroupedReceives) receives; each takes the next message with its tag
    // that no earlier receive took. With a message larger than its receive the connection fails
    // with kInvalidArgument. A null *request: try again later. `in_place_visible`: somebody may
    // look at the buffers before test() says done (protocols with flags in the data), so final
    // bytes are written once only.
    Status receive(int count,
                   void* const* data,
                   const size_t* capacities,
                   const int* tags,
                   Memory* const* memories,
                   bool in_place_visible,
                   Request** request);
    Status test(Request* request, bool* done, size_t* sizes) override;

  private:
    ReceiveConnection(std::shared_ptr<Network> network,
                      std::unique_ptr<ReceiveWire> wire,
                      const char* device)
        : Connection(std::move(network), *wire, Direction::kReceive, device),
          wire_(std::move(wire)) {}

    [[nodiscard]] bool uses(const Memory& memory) const noexcept override;
    // Messages of those requests still come, and go nowhere, so that later receives get theirs.
    [[nodiscard]] bool let_go(const Memory& memory) override;
    void settle() noexcept override;

    struct Group;
    // One of the receives of a group.
    struct Posted {
        Group* group = nullptr;
        uint8_t* data = nullptr;
        size_t capacity = 0;
        int tag = 0;
        const Memory* memory = nullptr;  // valid until its group is let go of
        bool matched = false;
        size_t bytes = 0;  // of its message
    };
    struct Group : Request {
        bool let_go = false;  // its memory is gone: it failed, and writes nothing
        bool told = false;    // so test() has said
        int left = 0;
        std::array<Posted, kMaxGroupedReceives> posted;

        [[nodiscard]] bool uses(const Memory& memory) const noexcept;
    };
    // A message whose frame has come.
    struct Arrival {
        Frame frame{};
        Posted* target = nullptr;  // null: nobody has asked for it yet
        // Its bytes where they cannot go to the target yet. Not touched before they come: the size
        // is only what a frame said.
        std::unique_ptr<uint8_t[]> held;
        bool holds = false;
        bool early = false;  // held because nobody had asked for it
        uint64_t parts_left = 0;
        uint64_t next_offset = 0;  // receives are posted up to here
        bool data_done = false;
        uint64_t began_ns = 0;  // both asked for and announced
        bool end_came = false;
        bool checking = false;
        ChecksumTask checksum;

        [[nodiscard]] uint8_t* destination() noexcept { return holds ? held.get() : target->data; }
    };
    // A data message.
    struct Part final : CodecTask {
        Arrival* arrival = nullptr;
        uint8_t* output = nullptr;
        size_t bytes = 0;
        size_t received = 0;
        StagingBuffer* staging = nullptr;  // null: received in place
        bool write_once = false;
        bool submitted = false;
        WireRequest* request = nullptr;
        Status status;

        void run() noexcept override;
    };
    static constexpr uint64_t kParts = 64;
    // Messages that nobody has asked for; the peer is then kept waiting.
    static constexpr size_t kMostUnmatched = 256;

    Part& part(uint64_t number) noexcept { return parts_in_flight_[number % kParts]; }

    Status advance();
    Status read_control();
    [[nodiscard]] bool waits_in_vain(const Group& group) const noexcept;
    [[nodiscard]] bool in_place(const Group& group) const noexcept;
    Status divert(Arrival* arrival);
    Status handle_frame(const uint8_t* message, size_t size);
    Status handle_end(const Frame& frame);
    [[nodiscard]] Posted* find_posted(int tag) noexcept;
    Status match(Arrival* arrival, Posted* posted);
    Status post_parts();
    Status post_part(Arrival* from, bool* made);
    Status hold(Arrival* arrival);
    Status take_parts();
    Status finish_parts();
    Status finish_arrivals();
    void deliver(Arrival* arrival);
    void measure(const Arrival& arrival) noexcept;

    [[nodiscard]] bool someone_waits_behind(size_t index) const noexcept;

    const std::unique_ptr<ReceiveWire> wire_;
    std::array<Group, kNetMaxRequests> groups_;
    uint64_t next_group_ = 0;
    uint64_t oldest_group_ = 0;  // with unmatched receives
    uint64_t control_posted_ = 0, control_read_ = 0;
    std::array<WireRequest*, kControlSlots> control_requests_{};
    Status control_end_;  // an error: no frame comes any more, and why
    uint64_t next_sequence_ = 0;
    // In the order of their frames; a message leaves when it is delivered.
    std::deque<std::unique_ptr<Arrival>> arrivals_;
    size_t unmatched_ = 0;
    std::deque<Arrival*> data_queue_;  // receives are to be posted of these
    std::array<Part, kParts> parts_in_flight_;
    Meter meter_;
    uint64_t parts_made_ = 0, parts_came_ = 0, parts_done_ = 0;
};

}  // namespace slimwire::net
