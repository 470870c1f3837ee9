// The trace of the observing modes: a line for each call (collectives/SCHEMA.md, "Trace"). What
// happened goes into a ring that no thread waits for; the reporter's thread makes lines of it and
// writes them. Bounded: a full ring drops, a full file makes way for the next, and both leave a
// line that says so.
//
// Thread contract: push() from any thread, without lock or allocation; flush() from any thread, one
// at a time. No CUDA and no NCCL call.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <string>

#include "codecs/base/steady_ns.h"
#include "collectives/call/call.h"
#include "collectives/call/step_position.h"
#include "collectives/call/training.h"

namespace slimwire {

enum class TraceKind : uint8_t { kComm, kCall, kGroup, kTime, kCodecTime, kTraining };

// What happened, as plain data; which members count depends on the kind.
struct TraceItem {
    TraceKind kind = TraceKind::kCall;
    bool captured = false;  // the stream was being captured
    bool in_place = false;
    bool would_compress = false;  // kCall, mode shadow
    uint8_t result = 0;           // ncclResult_t that NCCL returned
    uint32_t group = 0;           // number of the group in this process; 0: none
    uint64_t call = 0;            // number of the call in this process, from 1; of times: which
    uint64_t comm = 0;            // key of the communicator
    CallSignature signature;      // kCall
    uint64_t tensor = 0;          // key of the tensor
    uint64_t occurrence = 0;      // of the tensor before
    uint64_t at_ns = 0;           // of a steady clock: when it began
    uint64_t host_ns = 0;         // kCall, kGroup: how long NCCL's function took the calling thread
    uint64_t device_ns = 0;       // kTime: between events around the call, or around its group;
                                  // kCodecTime: around its encoding and decoding
    const void* stream = nullptr;
    const char* name = nullptr;  // of the buffer; null without one, else valid for ever
    StepPosition place;
    int32_t rank = 0, ranks = 0, device = 0;  // kComm
    uint32_t ordinal = 0;                     // kComm: in this process; kGroup: calls in it
    // kTraining; the step is in `place`, where steps are marked.
    Phase phase = Phase::kTraining;
    bool marked = false;
    double learning_rate = 0;  // NaN: not told, as is the next
    double loss_scale = std::numeric_limits<double>::quiet_NaN();
};

struct TraceOptions {
    std::string pattern;     // as SLIMWIRE_REPORT's
    uint64_t max_bytes = 0;  // of the file and the one before it together
    std::string header;      // members of the first line, without braces
    // Appends whole lines that do not come by the ring; called by flush(). May be empty.
    std::function<void(std::string* out)> more;
};

class Trace {
  public:
    explicit Trace(TraceOptions options);
    ~Trace();
    Trace(const Trace&) = delete;
    Trace& operator=(const Trace&) = delete;

    // False when the ring was full: the item is dropped, and a line will say how many were.
    bool push(const TraceItem& item) noexcept;
    // Whether so much waits that it should be written before the usual time comes.
    [[nodiscard]] bool pressing() const noexcept;
    // Writes what waits. The first failure to write is a warning, and the trace then ends. Returns
    // the file's path, empty before there is one.
    std::string flush();
    // Of a steady clock, the zero of at_ns in the lines.
    [[nodiscard]] uint64_t began_ns() const noexcept { return began_ns_; }

    static constexpr uint32_t kRing = 16384;  // items

  private:
    struct Slot {
        std::atomic<uint64_t> turn{0};
        TraceItem item;
    };
    void open();
    void write(const std::string& text);
    void fail(const char* why);

    const TraceOptions options_;
    const uint64_t began_ns_;
    std::unique_ptr<Slot[]> slots_;
    alignas(64) std::atomic<uint64_t> head_{0};  // next to be written
    alignas(64) std::atomic<uint64_t> tail_{0};  // next to be read
    alignas(64) std::atomic<uint64_t> dropped_{0};

    std::mutex mutex_;  // guards what follows
    std::string path_;
    int file_ = -1;
    int rank_ = -1;  // of the first communicator
    uint64_t file_bytes_ = 0;
    uint64_t lines_of_calls_ = 0;    // in all files so far
    uint64_t lines_of_dropped_ = 0;  // items that `dropped` lines in all files told
    // What the next file says again: communicators, and what the program told last.
    std::string comms_, training_;
    uint64_t dropped_told_ = 0;
    uint32_t part_ = 0;
    bool failed_ = false;
};

}  // namespace slimwire
