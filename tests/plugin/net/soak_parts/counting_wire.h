// A Wire around a Wire that counts what senders give it: bytes of the data lane, and the frames of
// messages that have data messages, compressed or not. And damages one of them, so that the soak
// itself can be tested.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "plugin/net/engine/frame.h"
#include "plugin/net/wire.h"
#include "tests/plugin/net/soak_parts/lines.h"

namespace slimwire::net::soak {

// What happens to the kDamaged-th data message of each connection.
enum class Damage : uint8_t { kNone, kFlip, kDrop };
inline constexpr int kDamaged = 3;
inline Damage the_damage = Damage::kNone;

class CountingSend final : public SendWire {
  public:
    CountingSend(std::unique_ptr<SendWire> inner, Totals* totals)
        : inner_(std::move(inner)), totals_(totals) {}
    void drop() noexcept override { inner_->drop(); }
    Status register_memory(void* data, size_t bytes, WireMemory** memory) override {
        return inner_->register_memory(data, bytes, memory);
    }
    Status deregister_memory(WireMemory* memory) override {
        return inner_->deregister_memory(memory);
    }
    Status test(WireRequest* request, bool* done, size_t* bytes) override {
        if (request == dropped()) {
            *done = true;
            return {};
        }
        return inner_->test(request, done, bytes);
    }
    [[nodiscard]] const std::string& peer() const noexcept override { return inner_->peer(); }
    [[nodiscard]] Word word() noexcept override { return inner_->word(); }
    Status send(Lane lane,
                const void* data,
                size_t bytes,
                WireMemory* memory,
                WireRequest** request) override {
        const bool damaged = lane == Lane::kData && data_messages_ + 1 == kDamaged && bytes > 0;
        if (damaged && the_damage == Damage::kDrop) {
            ++data_messages_;
            *request = dropped();
            return {};
        }
        if (damaged && the_damage == Damage::kFlip) {
            const auto* const begin = static_cast<const uint8_t*>(data);
            flipped_.assign(begin, begin + bytes);
            flipped_[bytes / 2] ^= 0x10;
            data = flipped_.data();
        }
        SLIMWIRE_TRY(inner_->send(lane, data, bytes, memory, request));
        data_messages_ += *request != nullptr && lane == Lane::kData ? 1 : 0;
        if (*request != nullptr && lane == Lane::kData) {
            totals_->data_wire_bytes += bytes;
        } else if (*request != nullptr) {
            SLIMWIRE_TRY_ASSIGN(const Frame frame,
                                read_frame(static_cast<const uint8_t*>(data), bytes));
            totals_->coded_messages += frame.kind == FrameKind::kCoded ? 1 : 0;
            totals_->large_messages +=
                frame.kind == FrameKind::kCoded || frame.kind == FrameKind::kRaw ? 1 : 0;
        }
        return {};
    }

  private:
    WireRequest* dropped() { return reinterpret_cast<WireRequest*>(&dropped_); }

    std::unique_ptr<SendWire> inner_;
    Totals* const totals_;
    int data_messages_ = 0;
    std::vector<uint8_t> flipped_;
    uint64_t dropped_ = 0;  // its address is the request of a message that never went
};

class CountingContext final : public WireContext {
  public:
    CountingContext(std::unique_ptr<WireContext> inner, Totals* totals)
        : inner_(std::move(inner)), totals_(totals) {}
    Status listen(int device, void* handle, std::unique_ptr<WireListener>* listener) override {
        return inner_->listen(device, handle, listener);
    }
    Status connect(int device,
                   void* handle,
                   std::unique_ptr<WireConnecting>* attempt,
                   std::unique_ptr<SendWire>* wire) override {
        std::unique_ptr<SendWire> plain;
        SLIMWIRE_TRY(inner_->connect(device, handle, attempt, &plain));
        if (plain != nullptr) {
            *wire = std::make_unique<CountingSend>(std::move(plain), totals_);
        }
        return {};
    }

  private:
    std::unique_ptr<WireContext> inner_;
    Totals* const totals_;
};

class CountingWire final : public Wire {
  public:
    CountingWire(std::unique_ptr<Wire> inner, Totals* totals)
        : inner_(std::move(inner)), totals_(totals) {}
    [[nodiscard]] int devices() const noexcept override { return inner_->devices(); }
    [[nodiscard]] const WireDevice& device(int index) const noexcept override {
        return inner_->device(index);
    }
    Status open(uint64_t comm_id,
                int traffic_class,
                std::unique_ptr<WireContext>* context) override {
        std::unique_ptr<WireContext> plain;
        SLIMWIRE_TRY(inner_->open(comm_id, traffic_class, &plain));
        *context = std::make_unique<CountingContext>(std::move(plain), totals_);
        return {};
    }

  private:
    std::unique_ptr<Wire> inner_;
    Totals* const totals_;
};

}  // namespace slimwire::net::soak
