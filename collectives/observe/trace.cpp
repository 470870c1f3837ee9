#include "collectives/observe/trace.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <cstring>

#include "codecs/base/number_text.h"
#include "collectives/call/launcher.h"
#include "collectives/call/log.h"

namespace slimwire {
namespace {

[[gnu::format(printf, 2, 3)]] void put(std::string* out, const char* format, ...) {
    char text[512];
    va_list values;
    va_start(values, format);
    const int length = std::vsnprintf(text, sizeof text, format, values);
    va_end(values);
    out->append(text, std::min<size_t>(static_cast<size_t>(length), sizeof text - 1));
}

std::string us(uint64_t ns) {
    return fixed_text(static_cast<double>(ns) / 1000, 3);
}

void put_call(const TraceItem& item, uint64_t began_ns, std::string* out) {
    const CallSignature& signature = item.signature;
    put(out,
        "{\"v\":1,\"record\":\"call\",\"call\":%" PRIu64 ",\"comm\":\"%016" PRIx64
        "\",\"op\":\"%s\",\"dtype\":\"%s\",\"redop\":\"%s\",\"count\":%" PRIu64
        ",\"root_or_peer\":%d,\"bytes\":%" PRIu64 ",\"tensor\":\"%016" PRIx64
        "\",\"occurrence\":%" PRIu64,
        item.call, item.comm, op_name(signature.op), dtype_name(signature.dtype),
        redop_name(signature.redop), signature.count, signature.root_or_peer,
        signature.count * dtype_bytes(signature.dtype), item.tensor, item.occurrence);
    put(out,
        ",\"group\":%u,\"stream\":\"%" PRIxPTR
        "\",\"in_place\":%s,\"captured\":%s,\"at_us\":%s,\"host_us\":%s",
        item.group, reinterpret_cast<uintptr_t>(item.stream), item.in_place ? "true" : "false",
        item.captured ? "true" : "false", us(item.at_ns - began_ns).c_str(),
        us(item.host_ns).c_str());
    if (item.would_compress) {
        *out += ",\"would_compress\":true";
    }
    if (item.result != 0) {
        put(out, ",\"result\":%u", item.result);
    }
    if (item.place.known()) {
        put(out, ",\"path\":\"%016" PRIx64 "\",\"place\":%u,\"step\":%" PRIu64, item.place.path,
            item.place.ordinal, item.place.step);
    }
    if (item.name != nullptr) {
        put(out, ",\"name\":\"%s\"", item.name);
    }
    *out += "}\n";
}

void put_item(const TraceItem& item, uint64_t began_ns, std::string* out) {
    switch (item.kind) {
        case TraceKind::kCall:
            put_call(item, began_ns, out);
            return;
        case TraceKind::kComm:
            put(out,
                "{\"v\":1,\"record\":\"trace_comm\",\"comm\":\"%016" PRIx64
                "\",\"ordinal\":%u,\"rank\":%d,\"ranks\":%d,\"device\":%d}\n",
                item.comm, item.ordinal, item.rank, item.ranks, item.device);
            return;
        case TraceKind::kGroup:
            put(out,
                "{\"v\":1,\"record\":\"group\",\"group\":%u,\"calls\":%u,\"at_us\":%s,"
                "\"host_us\":%s,\"result\":%u}\n",
                item.group, item.ordinal, us(item.at_ns - began_ns).c_str(),
                us(item.host_ns).c_str(), item.result);
            return;
        case TraceKind::kTraining:
            put(out, "{\"v\":1,\"record\":\"training\",\"at_us\":%s,\"phase\":\"%s\"",
                us(item.at_ns - began_ns).c_str(), phase_name(item.phase));
            if (item.marked) {
                put(out, ",\"step\":%" PRIu64, item.place.step);
            }
            if (!std::isnan(item.learning_rate)) {
                put(out, ",\"learning_rate\":%s", general_text(item.learning_rate, 17).c_str());
            }
            if (!std::isnan(item.loss_scale)) {
                put(out, ",\"loss_scale\":%s", general_text(item.loss_scale, 17).c_str());
            }
            *out += "}\n";
            return;
        case TraceKind::kTime:
        case TraceKind::kCodecTime:
            put(out, "{\"v\":1,\"record\":\"%s\",\"call\":%" PRIu64 ",\"device_us\":%s}\n",
                item.kind == TraceKind::kTime ? "time" : "codec_time", item.call,
                us(item.device_ns).c_str());
            return;
    }
}

}  // namespace

Trace::Trace(TraceOptions options)
    : options_(std::move(options)), began_ns_(steady_ns()), slots_(new Slot[kRing]) {
    for (uint32_t i = 0; i < kRing; ++i) {
        slots_[i].turn.store(i, std::memory_order_relaxed);
    }
}

Trace::~Trace() {
    if (file_ >= 0) {
        ::close(file_);
    }
}

// A bounded queue of many writers (D. Vyukov's): a slot's turn says whose it is. Position p may be
// written when the turn is p, read when it is p + 1, and written again as p + kRing.
bool Trace::push(const TraceItem& item) noexcept {
    uint64_t position = head_.load(std::memory_order_relaxed);
    for (;;) {
        Slot& slot = slots_[position % kRing];
        const uint64_t turn = slot.turn.load(std::memory_order_acquire);
        if (turn == position) {
            if (head_.compare_exchange_weak(position, position + 1, std::memory_order_relaxed)) {
                slot.item = item;
                slot.turn.store(position + 1, std::memory_order_release);
                return true;
            }
        } else if (turn < position) {
            dropped_.fetch_add(1, std::memory_order_relaxed);
            return false;
        } else {
            position = head_.load(std::memory_order_relaxed);
        }
    }
}

bool Trace::pressing() const noexcept {
    return head_.load(std::memory_order_relaxed) - tail_.load(std::memory_order_relaxed) >=
           kRing / 2;
}

// Opens the file, and makes room for it when there is one of ours already.
void Trace::open() {
    if (path_.empty()) {
        path_ = expand_pattern_for(options_.pattern, launcher_rank().value_or(rank_));
        const std::string& pattern = options_.pattern;
        if (launcher_size().value_or(1) > 1 && pattern.find("%r") == pattern.npos &&
            pattern.find("%p") == pattern.npos) {
            log_line(LogLevel::kWarn, "trace pattern '" + pattern +
                                          "' has neither %r nor %p: processes that see the same "
                                          "file write over each other's trace");
        }
    }
    const std::string before = path_ + ".1";
    if (file_ >= 0) {
        ::close(file_);
        (void)::rename(path_.c_str(), before.c_str());
    } else {
        (void)::unlink(before.c_str());  // of another job
    }
    struct stat existing {};
    const bool strange = ::lstat(path_.c_str(), &existing) == 0 && !S_ISREG(existing.st_mode);
    file_ = strange ? -1 : ::open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (file_ < 0) {
        fail(strange ? "not a regular file" : std::strerror(errno));
        return;
    }
    std::string first;
    put(&first, "{\"v\":1,\"record\":\"trace\",\"part\":%u,", ++part_);
    first += options_.header + "}\n";
    if (part_ > 1) {
        put(&first,
            "{\"v\":1,\"record\":\"rotated\",\"calls\":%" PRIu64 ",\"items\":%" PRIu64 "}\n",
            lines_of_calls_, lines_of_dropped_);
        first += comms_ + training_;
    }
    file_bytes_ = 0;
    write(first);
}

void Trace::fail(const char* why) {
    failed_ = true;
    log_line(LogLevel::kWarn, "trace file '" + path_ + "' cannot be written: " + why +
                                  "; the job goes on without it (SLIMWIRE_TRACE)");
}

void Trace::write(const std::string& text) {
    size_t done = 0;
    while (!failed_ && done < text.size()) {
        const ssize_t written = ::write(file_, text.data() + done, text.size() - done);
        if (written >= 0) {
            done += static_cast<size_t>(written);
        } else if (errno != EINTR) {
            fail(std::strerror(errno));
        }
    }
    file_bytes_ += text.size();
}

std::string Trace::flush() {
    const std::lock_guard lock(mutex_);
    std::string text, comms, training;  // the latter two of the text
    uint64_t calls = 0, dropped = 0;    // in the text
    const auto out = [&] {
        if (!text.empty() && !failed_) {
            if (file_ < 0 ||
                (options_.max_bytes != 0 && file_bytes_ + text.size() > options_.max_bytes / 2)) {
                open();
            }
            write(text);
            lines_of_calls_ += calls;
            lines_of_dropped_ += dropped;
            comms_ +=
                options_.max_bytes == 0 || comms_.size() < options_.max_bytes / 8 ? comms : "";
            training_ = training.empty() ? training_ : training;
        }
        text.clear();
        comms.clear();
        training.clear();
        calls = dropped = 0;
    };
    constexpr size_t kPiece = 256 << 10;
    uint64_t position = tail_.load(std::memory_order_relaxed);
    // At most a ring: a job that never rests may not keep the thread here.
    for (uint32_t taken = 0; taken < kRing; ++taken, ++position) {
        Slot& slot = slots_[position % kRing];
        if (slot.turn.load(std::memory_order_acquire) != position + 1) {
            break;
        }
        const TraceItem item = slot.item;
        slot.turn.store(position + kRing, std::memory_order_release);
        tail_.store(position + 1, std::memory_order_relaxed);
        if (item.kind == TraceKind::kComm && rank_ < 0) {
            rank_ = item.rank;
        }
        const size_t begin = text.size();
        put_item(item, began_ns_, &text);
        if (item.kind == TraceKind::kComm) {
            comms.append(text, begin);
        } else if (item.kind == TraceKind::kTraining) {
            training.assign(text, begin);
        }
        calls += item.kind == TraceKind::kCall ? 1 : 0;
        if (text.size() > std::min<size_t>(kPiece, options_.max_bytes / 8)) {
            out();
        }
    }
    dropped = dropped_.load(std::memory_order_relaxed) - dropped_told_;
    if (dropped != 0) {
        put(&text, "{\"v\":1,\"record\":\"dropped\",\"items\":%" PRIu64 "}\n", dropped);
        dropped_told_ += dropped;
    }
    if (options_.more) {
        options_.more(&text);
    }
    out();
    return failed_ ? std::string() : path_;
}

}  // namespace slimwire
