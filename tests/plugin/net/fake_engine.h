// An engine that notes what it was asked and answers as a test says: for what stands on engine.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <vector>

#include "plugin/net/engine.h"

namespace slimwire::net {

struct Memory {};

// What the fake engine was asked, and what it shall answer.
struct Fake {
    Status status;  // of every call
    bool not_yet = false;
    bool throws = false;
    int starts = 0, contexts = 0, connections = 0, listeners = 0, memories = 0;
    int traffic_class = 0;
    uint64_t comm_id = 0;
    size_t bytes = 0;
    std::vector<size_t> capacities;
    std::vector<int> tags;
    bool visible = false;
    bool done = true;
    std::vector<size_t> sizes;
    WireDevice device;
};
inline Fake fake;

inline Status answer() {
    if (fake.throws) {
        throw std::runtime_error("thrown");
    }
    return fake.status;
}

template <class Base>
class FakeConnection : public Base {
  public:
    FakeConnection() { ++fake.connections; }
    ~FakeConnection() override { --fake.connections; }
    Status register_memory(void*, size_t, Memory** memory) override {
        SLIMWIRE_TRY(answer());
        ++fake.memories;
        *memory = new Memory;
        return {};
    }
    Status deregister_memory(Memory* memory) override {
        --fake.memories;
        delete memory;
        return answer();
    }
    Status test(Request*, bool* done, size_t* sizes) override {
        SLIMWIRE_TRY(answer());
        *done = fake.done;
        for (size_t i = 0; fake.done && i < fake.sizes.size(); ++i) {
            sizes[i] = fake.sizes[i];
        }
        return {};
    }
    Request request;
};

class FakeSend final : public FakeConnection<SendConnection> {
    Status send(const void*, size_t bytes, int tag, Memory*, Request** out) override {
        SLIMWIRE_TRY(answer());
        fake.bytes = bytes;
        fake.tags = {tag};
        *out = fake.not_yet ? nullptr : &request;
        return {};
    }
};

class FakeReceive final : public FakeConnection<ReceiveConnection> {
    Status receive(int count,
                   void* const*,
                   const size_t* capacities,
                   const int* tags,
                   Memory* const*,
                   bool visible,
                   Request** out) override {
        SLIMWIRE_TRY(answer());
        fake.capacities.assign(capacities, capacities + count);
        fake.tags.assign(tags, tags + count);
        fake.visible = visible;
        *out = fake.not_yet ? nullptr : &request;
        return {};
    }
};

class FakeListener final : public Listener {
  public:
    FakeListener() { ++fake.listeners; }
    ~FakeListener() override { --fake.listeners; }
    Status accept(std::unique_ptr<ReceiveConnection>* connection) override {
        SLIMWIRE_TRY(answer());
        if (!fake.not_yet) {
            *connection = std::make_unique<FakeReceive>();
        }
        return {};
    }
};

class FakeContext final : public Context {
  public:
    FakeContext() { ++fake.contexts; }
    ~FakeContext() override { --fake.contexts; }
    Status listen(int, void*, std::unique_ptr<Listener>* listener) override {
        SLIMWIRE_TRY(answer());
        *listener = std::make_unique<FakeListener>();
        return {};
    }
    Status connect(int, void*, std::unique_ptr<SendConnection>* connection) override {
        SLIMWIRE_TRY(answer());
        if (!fake.not_yet) {
            *connection = std::make_unique<FakeSend>();
        }
        return {};
    }
};

class FakeEngine final : public Engine {
  public:
    [[nodiscard]] int devices() const noexcept override { return 2; }
    [[nodiscard]] const WireDevice& device(int) const noexcept override { return fake.device; }
    Status open(uint64_t comm_id, int traffic_class, std::unique_ptr<Context>* context) override {
        SLIMWIRE_TRY(answer());
        fake.comm_id = comm_id;
        fake.traffic_class = traffic_class;
        *context = std::make_unique<FakeContext>();
        return {};
    }
};

}  // namespace slimwire::net
