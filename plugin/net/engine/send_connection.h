// The sending side of a connection. A message travels as a frame on the control lane and, unless it
// is small, as data messages on the data lane; both lanes keep the order in which NCCL sent.
//
//   send()  ─> request ─┬─ frame ───────────────────────────────> control lane
//                       └─ parts: the message, or its pieces ─┬─> data lane
//                                   codec threads encode ─────┘
//
// Everything moves on in advance(), which send() and test() call; no other thread touches the
// object but codec threads, in the tasks of parts.
#pragma once

#include <array>
#include <memory>
#include <optional>

#include "plugin/net/engine/benefit.h"
#include "plugin/net/engine/codec_pool.h"
#include "plugin/net/engine/connection.h"
#include "plugin/net/engine/element_probe.h"

namespace slimwire::net {

class SendConnection final : public Connection {
  public:
    static Result<std::unique_ptr<SendConnection>> make(std::shared_ptr<Network> network,
                                                        std::unique_ptr<SendWire> wire,
                                                        const char* device);
    ~SendConnection() override { close(); }

    // A null *request: try again later.
    Status send(const void* data, size_t bytes, int tag, Memory* memory, Request** request);
    Status test(Request* request, bool* done, size_t* sizes) override;

  private:
    SendConnection(std::shared_ptr<Network> network,
                   std::unique_ptr<SendWire> wire,
                   const char* device)
        : Connection(std::move(network), *wire, Direction::kSend, device), wire_(std::move(wire)) {}

    [[nodiscard]] bool uses(const Memory& memory) const noexcept override;
    // The frame has announced all of the message.
    [[nodiscard]] bool let_go(const Memory&) override { return false; }
    void settle() noexcept override;

    struct Message : Request {
        bool frame_sent = false;
        bool frame_done = false;
        bool data_done = false;
        bool end_sent = false;
        bool pieces_do_not_shrink = false;
        const uint8_t* data = nullptr;
        const Memory* memory = nullptr;
        Frame frame{};
        size_t control_bytes = 0;
        WireRequest* control = nullptr;  // the frame's, then the end's
        uint64_t parts_left = 0;
        uint64_t next_offset = 0;  // parts are made up to here
        Way way = Way::kRaw;
        bool paced = false;
        uint64_t began_ns = 0;
        ChecksumTask checksum;
    };

    // A data message.
    struct Part final : CodecTask {
        Message* message = nullptr;
        const uint8_t* source = nullptr;
        size_t bytes = 0;
        size_t wire_bytes = 0;
        uint64_t encode_ns = 0;
        DType element = DType::kUint8;
        StagingBuffer* staging = nullptr;  // null: sent as it is
        WireRequest* request = nullptr;

        void run() noexcept override;
    };
    static constexpr uint64_t kParts = 64;

    Message& message(uint64_t number) noexcept { return messages_[number % kNetMaxRequests]; }
    Part& part(uint64_t number) noexcept { return parts_in_flight_[number % kParts]; }

    void plan(Message* message);
    [[nodiscard]] bool looks_compressible(const Message& message);
    void learn(const std::optional<ElementGuess>& guess) noexcept;
    [[nodiscard]] bool knows_element_for(const void* data) const noexcept;
    void go_coded(Message* message);
    Status advance();
    Status send_frames();
    Status make_parts();
    Status make_part(Message* message, bool* made);
    Status send_parts();
    Status finish_parts();
    Status finish_control(Message* message);
    [[nodiscard]] static bool over(const Message& message) noexcept;
    [[nodiscard]] static bool has_end(const Message& message) noexcept;

    const std::unique_ptr<SendWire> wire_;
    std::array<Message, kNetMaxRequests> messages_;
    uint64_t next_message_ = 0;  // number of the next message
    uint64_t next_frame_ = 0;    // its frame goes next
    uint64_t next_data_ = 0;     // parts are made of it
    std::array<Part, kParts> parts_in_flight_;
    uint64_t parts_made_ = 0, parts_sent_ = 0, parts_done_ = 0;
    // What was learned about this connection's data.
    std::optional<DType> element_;
    uint32_t skip_looking_ = 0;  // messages that go raw unseen
    uint32_t skips_ = 0;         // how many the next time
    uint64_t coded_in_ = 0, coded_out_ = 0;
    Benefit benefit_;
};

}  // namespace slimwire::net
