// Connections over an inner plugin, once their lanes are paired.
#include <array>
#include <memory>
#include <unordered_map>
#include <utility>

#include "plugin/net/wrapped/wrapped_state.h"

namespace slimwire::net {
namespace {

constexpr const char* kLaneNames[kLanes] = {"control", "data"};

// A registration is made in a lane when the lane first needs it; data's at once, because that is
// where the caller's buffers go.
struct WrappedMemory {
    void* data;
    size_t bytes;
    std::array<void*, kLanes> handles{};
    std::array<bool, kLanes> registered{};
};

struct Operation {
    int lane;
    void* request;
    size_t bytes;      // of a send; of a receive its capacity
    void* own_handle;  // a registration for this operation alone
    bool has_own_handle;
};

template <class Base>
class Side : public Base {
  public:
    Side(std::shared_ptr<InnerContext> context, InnerComm (&lanes)[kLanes], bool reg_is_global)
        : context_(std::move(context)),
          lanes_{std::move(lanes[0]), std::move(lanes[1])},
          reg_is_global_(reg_is_global),
          peer_(std::string("a peer (chain: ") + inner_.name() + ")") {}

    ~Side() override { drop(); }

    // An inner plugin has no cancel: without registrations and connections nothing of it can touch
    // a buffer. That is also how NCCL ends an aborted connection.
    void drop() noexcept override {
        for (const auto& [operation, owned] : operations_) {
            forget_own_handle(*operation);
        }
        operations_.clear();
        for (const auto& [memory, owned] : memories_) {
            unregister(*memory);
        }
        unregister(nothing_);
        for (InnerComm& lane : lanes_) {
            lane.reset();
        }
    }

    Status register_memory(void* data, size_t bytes, WireMemory** memory) override {
        auto made = std::make_unique<WrappedMemory>(WrappedMemory{data, bytes, {}, {}});
        if (bytes > 0) {
            SLIMWIRE_TRY(ensure(*made, static_cast<int>(Lane::kData)));
        }
        *memory = reinterpret_cast<WireMemory*>(made.get());
        memories_.emplace(made.get(), std::move(made));
        return {};
    }

    Status deregister_memory(WireMemory* memory) override {
        const auto known = memories_.find(reinterpret_cast<WrappedMemory*>(memory));
        if (known == memories_.end()) {
            return {Code::kInvalidArgument, "deregistering memory that is not registered"};
        }
        unregister(*known->first);
        memories_.erase(known);
        return {};
    }

    Status test(WireRequest* request, bool* done, size_t* bytes) override {
        *done = false;
        auto* operation = reinterpret_cast<Operation*>(request);
        SLIMWIRE_TRY(failures_[static_cast<size_t>(operation->lane)]);
        int over = 0;
        int size = 0;
        const ncclResult_t result = inner_.test(operation->request, &over, &size);
        if (result != ncclSuccess) {
            return fail(operation->lane, failed("test", operation->lane, result));
        }
        if (over == 0) {
            return {};
        }
        const size_t came = kSending ? operation->bytes : static_cast<size_t>(size);
        if (size < 0 || came > operation->bytes) {
            return fail(operation->lane,
                        {Code::kInvalidArgument, peer_ + ": a message of " + std::to_string(size) +
                                                     " bytes came for a receive of " +
                                                     std::to_string(operation->bytes)});
        }
        if (bytes != nullptr) {
            *bytes = came;
        }
        *done = true;
        --in_flight_[static_cast<size_t>(operation->lane)];
        forget_own_handle(*operation);
        operations_.erase(operation);
        return {};
    }

    [[nodiscard]] const std::string& peer() const noexcept override { return peer_; }

  protected:
    static constexpr bool kSending = std::is_same_v<Base, SendWire>;

    Status start(
        Lane lane_name, void* data, size_t bytes, WireMemory* memory, WireRequest** request) {
        *request = nullptr;
        const int lane = static_cast<int>(lane_name);
        SLIMWIRE_TRY(failures_[static_cast<size_t>(lane)]);
        if (in_flight_[static_cast<size_t>(lane)] >= kNetMaxRequests) {
            return {};
        }
        Operation operation{lane, nullptr, bytes, nullptr, false};
        void* handle = nullptr;
        if (memory != nullptr) {
            auto& known = *reinterpret_cast<WrappedMemory*>(memory);
            SLIMWIRE_TRY(ensure(known, lane));
            handle = known.handles[static_cast<size_t>(lane)];
        } else if (bytes == 0) {
            SLIMWIRE_TRY(ensure(nothing_, lane));
            handle = nothing_.handles[static_cast<size_t>(lane)];
            data = &nowhere_;
        } else {
            WrappedMemory one{data, bytes, {}, {}};
            SLIMWIRE_TRY(ensure(one, lane));
            handle = operation.own_handle = one.handles[static_cast<size_t>(lane)];
            operation.has_own_handle = true;
        }
        void* const comm = lanes_[static_cast<size_t>(lane)].get();
        ncclResult_t result;
        if constexpr (kSending) {
            result = inner_.isend(comm, data, bytes, kInnerTag, handle, &operation.request);
        } else {
            const int tag = kInnerTag;
            result = inner_.irecv(comm, 1, &data, &bytes, &tag, &handle, &operation.request);
        }
        if (result != ncclSuccess || operation.request == nullptr) {
            forget_own_handle(operation);
            return result != ncclSuccess
                       ? fail(lane, failed(kSending ? "isend" : "irecv", lane, result))
                       : Status();
        }
        auto made = std::make_unique<Operation>(operation);
        Operation* const kept = made.get();
        operations_.emplace(kept, std::move(made));
        ++in_flight_[static_cast<size_t>(lane)];
        *request = reinterpret_cast<WireRequest*>(kept);
        return {};
    }

  private:
    Status failed(const char* call, int lane, ncclResult_t result) {
        const Status status = inner_status(inner_, call, result);
        return {status.code(), peer_ + ", lane " + kLaneNames[lane] + ": " + status.message()};
    }
    // The other lane may still have what was sent before.
    Status fail(int lane, const Status& status) {
        failures_[static_cast<size_t>(lane)] = status;
        return status;
    }

    Status ensure(WrappedMemory& memory, int lane_number) {
        const auto lane = static_cast<size_t>(lane_number);
        if (memory.registered[lane]) {
            return {};
        }
        const size_t other = 1 - lane;
        if (reg_is_global_ && memory.registered[other]) {
            memory.handles[lane] = memory.handles[other];  // taken back once, by the other lane
            return {};
        }
        void* handle = nullptr;
        const ncclResult_t result =
            inner_.reg_mr(lanes_[lane].get(), memory.data, memory.bytes, kPtrHost, &handle);
        if (result != ncclSuccess) {
            return failed("regMr", lane_number, result);
        }
        memory.handles[lane] = handle;
        memory.registered[lane] = true;
        return {};
    }

    void unregister(WrappedMemory& memory) noexcept {
        for (size_t lane = 0; lane < kLanes; ++lane) {
            if (memory.registered[lane] && lanes_[lane].get() != nullptr) {
                static_cast<void>(inner_.dereg_mr(lanes_[lane].get(), memory.handles[lane]));
            }
            memory.registered[lane] = false;
        }
    }

    void forget_own_handle(Operation& operation) noexcept {
        const InnerComm& comm = lanes_[static_cast<size_t>(operation.lane)];
        if (operation.has_own_handle && comm != nullptr) {
            static_cast<void>(inner_.dereg_mr(comm.get(), operation.own_handle));
        }
        operation.has_own_handle = false;
    }

    const std::shared_ptr<InnerContext> context_;
    InnerTable& inner_ = context_->inner();
    std::array<InnerComm, kLanes> lanes_;
    const bool reg_is_global_;
    const std::string peer_;
    std::array<int, kLanes> in_flight_{};
    std::unordered_map<Operation*, std::unique_ptr<Operation>> operations_;
    std::unordered_map<WrappedMemory*, std::unique_ptr<WrappedMemory>> memories_;
    char nowhere_ = 0;  // where messages without bytes lie
    WrappedMemory nothing_{&nowhere_, 1, {}, {}};
    std::array<Status, kLanes> failures_;
};

class WrappedSend final : public Side<SendWire> {
  public:
    using Side::Side;
    Status send(Lane lane,
                const void* data,
                size_t bytes,
                WireMemory* memory,
                WireRequest** request) override {
        return start(lane, const_cast<void*>(data), bytes, memory, request);
    }
};

class WrappedReceive final : public Side<ReceiveWire> {
  public:
    using Side::Side;
    Status receive(Lane lane,
                   void* data,
                   size_t capacity,
                   WireMemory* memory,
                   WireRequest** request) override {
        return start(lane, data, capacity, memory, request);
    }
};

}  // namespace

std::unique_ptr<SendWire> make_wrapped_send(std::shared_ptr<InnerContext> context,
                                            InnerComm (&lanes)[kLanes],
                                            bool reg_is_global) {
    return std::make_unique<WrappedSend>(std::move(context), lanes, reg_is_global);
}

std::unique_ptr<ReceiveWire> make_wrapped_receive(std::shared_ptr<InnerContext> context,
                                                  InnerComm (&lanes)[kLanes],
                                                  bool reg_is_global) {
    return std::make_unique<WrappedReceive>(std::move(context), lanes, reg_is_global);
}

}  // namespace slimwire::net
