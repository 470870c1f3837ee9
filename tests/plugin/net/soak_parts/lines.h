// One end of a connection of the soak: carries it through its lives, a step at a time, and checks
// all that comes. A thread steps the lines that the plan gives it.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "plugin/net/engine.h"
#include "tests/plugin/net/soak_parts/plan.h"

namespace slimwire::net::soak {

// What a process carried; read when its threads are over.
struct Totals {
    std::atomic<uint64_t> messages{0};  // received and found right
    std::atomic<uint64_t> bytes{0};
    std::atomic<uint64_t> lives{0};      // of receivers, that ended
    std::atomic<uint64_t> cut_short{0};  // of these, ended before all had come
    // Of senders, over their wires.
    std::atomic<uint64_t> sent_bytes{0}, data_wire_bytes{0};
    std::atomic<uint64_t> large_messages{0}, coded_messages{0};  // with data messages; of these
};

// Says what was wrong, where, and ends the process.
[[noreturn]] void give_up(const std::string& what);

class Line {
  public:
    virtual ~Line() = default;
    // Whether something moved; gives up after a minute in which nothing did.
    bool step();
    [[nodiscard]] bool over() const noexcept { return life_number_ == plan_.lives; }

  protected:
    static constexpr size_t kMargin = 128;
    static constexpr uint8_t kPoison = 0xd7;

    Line(const ConnectionPlan& plan, const Bytes& bytes, Totals* totals, size_t slots);
    virtual bool move() = 0;
    // What the line does, for messages.
    [[nodiscard]] virtual std::string name() const = 0;

    [[nodiscard]] uint8_t* slot(size_t number) noexcept { return arena_.get() + number * stride_; }
    void poison(size_t number) noexcept;
    void check_poison(size_t number, size_t from, size_t to, const std::string& what) const;
    void check_all_poison(const std::string& what) const;
    // That nobody wrote to the buffers since the connection before was closed.
    void check_untouched() const;
    void next_life();
    [[noreturn]] void wrong(const std::string& what) const;
    void require(const Status& status, const char* call) const;

    const ConnectionPlan plan_;
    const Bytes& bytes_;
    Totals* const totals_;
    const size_t slots_;
    const size_t stride_;
    std::unique_ptr<uint8_t[]> arena_;
    std::mt19937_64 random_;
    int life_number_ = 0;
    LifePlan life_;
    Memory* memory_ = nullptr;

  private:
    std::chrono::steady_clock::time_point moved_at_ = std::chrono::steady_clock::now();
};

// What both ends do alike with the requests of their connection. Slot holds what lies in a place of
// the arena, and its `request`, null while the place is free.
template <class Connection, class Slot>
class LineOver : public Line {
  protected:
    // `leaves`: the end of a life in which this side leaves; the other side may in `left`.
    struct Side {
        End leaves, left;
        const char* doing;
    };
    LineOver(const ConnectionPlan& plan,
             const Bytes& bytes,
             Totals* totals,
             size_t slots,
             int window,
             const Side& side);

    // The connection, if it is there now. False: not yet.
    virtual bool connect() = 0;
    [[nodiscard]] virtual size_t planned() const = 0;  // requests of this life
    // Hands the next request over; slot->request is null when it is not taken.
    virtual Status give(Slot* slot, size_t at) = 0;
    // What is right about a request that is over, and how many messages it was.
    virtual int finish(const Slot& slot, size_t at, const size_t* sizes) = 0;
    // The connection has been closed.
    virtual void ended() {}

    void begin_life();

    std::unique_ptr<Connection> connection_;
    std::vector<Slot> in_flight_;
    size_t posted_ = 0, done_ = 0;  // requests
    int messages_ = 0;              // over

  private:
    bool move() final;
    bool post();
    bool look();
    void end_life();
    // True when the peer left, which ends the life.
    bool gone(const Status& status);

    const Side side_;
};

struct SendSlot {
    int number = -1;  // of the message that lies there
    size_t bytes = 0;
    size_t shift = 0;
    Request* request = nullptr;
};

class SendLine final : public LineOver<SendConnection, SendSlot> {
  public:
    // `handle`: of the peer's listener for this connection.
    SendLine(const ConnectionPlan& plan,
             const Bytes& bytes,
             Totals* totals,
             Context* context,
             const char* handle);

  private:
    [[nodiscard]] std::string name() const override;
    bool connect() override;
    [[nodiscard]] size_t planned() const override { return static_cast<size_t>(life_.messages); }
    Status give(SendSlot* slot, size_t at) override;
    int finish(const SendSlot& slot, size_t at, const size_t* sizes) override;

    Context* const context_;
    alignas(8) char handle_[kNetHandleBytes];
};

struct ReceiveSlot {
    const GroupPlan* group = nullptr;
    std::array<size_t, kMaxGroupedReceives> shift{}, capacity{};
    Request* request = nullptr;
};

class ReceiveLine final : public LineOver<ReceiveConnection, ReceiveSlot> {
  public:
    ReceiveLine(const ConnectionPlan& plan,
                const Bytes& bytes,
                Totals* totals,
                std::unique_ptr<Listener> listener);

  private:
    [[nodiscard]] std::string name() const override;
    bool connect() override;
    [[nodiscard]] size_t planned() const override { return groups_.size(); }
    Status give(ReceiveSlot* slot, size_t at) override;
    int finish(const ReceiveSlot& slot, size_t at, const size_t* sizes) override;
    void ended() override;
    [[nodiscard]] size_t wide() const noexcept { return plan_.grouped ? kMaxGroupedReceives : 1; }

    std::unique_ptr<Listener> listener_;
    std::vector<GroupPlan> groups_;
    std::vector<uint8_t> wanted_;
};

}  // namespace slimwire::net::soak
