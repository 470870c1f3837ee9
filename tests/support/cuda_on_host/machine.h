// The modelled GPU: runs the threads of a grid as fibers in a random order drawn from a seed, and
// holds them at barriers, warp collectives and, now and then, at atomics and fences. One to three
// neighbouring blocks run at a time, started in ascending order. What a GPU leaves undefined, and
// what would hang it, is an error with a text: std::logic_error out of run().
//
// Shared memory: dynamic is an allocation per block. Static (`__shared__`) is thread-local storage
// of the test program, exchanged when another block goes on; a program that keeps thread-local data
// of its own cannot be a test of kernels. Under AddressSanitizer it is plain static data instead,
// so that accesses beyond an array are seen, and blocks run one after another. A block finds its
// shared memory filled with a random byte.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/cuda_on_host/block.h"
#include "tests/support/cuda_on_host/shared_memory.h"

namespace cuda_on_host {

class Machine {
  public:
    static Machine& get() {
        static Machine machine;
        return machine;
    }

    // Draws all that follows from `seed`: schedules, resident blocks, processors.
    void seed(uint32_t seed) {
        seed_ = seed;
        random_.seed(seed);
        processors_ = 1 + static_cast<int>(random_() % 4);
    }
    int processors() const { return processors_; }
    int64_t launches() const { return launches_; }  // since the program began

    // Steps (collectives, atomics, fences, uncached loads) that may pass without a thread reaching
    // its end; more is a thread that waits for what never comes.
    void set_step_limit(int64_t steps) { step_limit_ = steps; }
    static constexpr int64_t kStepLimit = int64_t{1} << 25;

    uint3 thread_index() const { return thread_index_; }
    uint3 block_index() const { return block_index_; }
    dim3 block_dim() const { return block_; }
    dim3 grid_dim() const { return grid_; }
    void* dynamic_shared() const { return on_->dynamic.get(); }

    // Runs body() as every thread of every block. Throws what a thread threw.
    void run(dim3 grid,
             dim3 block,
             size_t dynamic_shared_bytes,
             const std::function<void()>& body) {
        const Run run(*this, grid, block, dynamic_shared_bytes, body);
        ++launches_;
        const uint64_t blocks = uint64_t{grid.x} * grid.y * grid.z;
        const uint64_t most = kExchangesShared ? 1 + random_() % 3 : 1;
        order_ = static_cast<Order>(random_() % 3);
        steps_ = 0;
        for (uint64_t next = 0;;) {
            while (next < blocks && (resident_.empty() || next < resident_[0]->index + most)) {
                open_block(next++);
            }
            if (resident_.empty()) {
                return;
            }
            const size_t chosen = random_() % resident_.size();
            if (!work_on(*resident_[chosen])) {
                idle_.push_back(std::move(resident_[chosen]));
                resident_.erase(resident_.begin() + static_cast<int64_t>(chosen));
                on_ = nullptr;
            }
        }
    }

    // --- Called by threads, through the intrinsics

    // Waits until the lanes of call.mask are in `call`; what finish() says for this lane.
    uint64_t collective(const Call& call, uint64_t value, unsigned argument, Finish finish) {
        Thread& thread = enter(call, State::kCollective, value);
        thread.argument = argument;
        if ((call.mask >> thread.lane() & 1) == 0) {
            fail_of(thread, " is not among the lanes that the mask names");
        }
        if (warp_is_there(thread)) {
            complete_warp(thread, finish);
        }
        suspend();
        return thread.value;
    }

    void barrier(Where where) {
        enter({"__syncthreads", 0, 0, where}, State::kBarrier, 0);
        if (++on_->at_barrier == on_->threads.size()) {
            complete_barrier();
        }
        suspend();
    }

    // A point where other threads may come in between.
    void step() {
        if (thread_ == nullptr) {
            return;
        }
        count_step();
        if (random_() % 4 == 0) {
            on_->ready.push_front(thread_->index);
            suspend();
        }
    }

    [[noreturn]] void fail(const std::string& text) const {
        throw std::logic_error(text + " (schedule seed " + std::to_string(seed_) + ")");
    }
    std::string describe_current() const { return describe(*thread_, *on_); }

  private:
    enum class Order : uint8_t { kAny, kNewestFirst, kOldestFirst };

    // Leaves the machine usable when a kernel failed half-way.
    struct Run {
        Machine& machine;
        Run(Machine& m, dim3 grid, dim3 block, size_t bytes, const std::function<void()>& body)
            : machine(m) {
            if (m.body_ != nullptr) {
                m.fail("a kernel is started by a kernel");
            }
            m.grid_ = grid;
            m.block_ = block;
            m.dynamic_bytes_ = bytes;
            m.body_ = &body;
        }
        ~Run() {
            machine.idle_.insert(machine.idle_.end(),
                                 std::make_move_iterator(machine.resident_.begin()),
                                 std::make_move_iterator(machine.resident_.end()));
            machine.resident_.clear();
            machine.on_ = nullptr;
            machine.thread_ = nullptr;
            machine.body_ = nullptr;
        }
    };

    Machine() { seed(1); }

    static void fiber_main() {
        Fiber::begin();
        Machine& machine = get();
        while (true) {
            try {
                (*machine.body_)();
            } catch (...) {
                machine.error_ = std::current_exception();
            }
            machine.thread_->state = State::kDone;
            machine.thread_->fiber.finish();
        }
    }

    void open_block(uint64_t index) {
        std::unique_ptr<Block> block;
        if (idle_.empty()) {
            block = std::make_unique<Block>();
        } else {
            block = std::move(idle_.back());
            idle_.pop_back();
        }
        const size_t threads = size_t{block_.x} * block_.y * block_.z;
        block->index = index;
        block->done = 0;
        block->at_barrier = 0;
        block->ready.clear();
        block->threads.resize(threads);
        for (unsigned i = 0; i < threads; ++i) {
            if (!block->threads[i]) {
                block->threads[i] = std::make_unique<Thread>();
            }
            Thread& thread = *block->threads[i];
            thread.index = i;
            thread.state = State::kReady;
            thread.fiber.prepare(&Machine::fiber_main);
            block->ready.push(i);
        }
        const auto poison = static_cast<uint8_t>(random_());
        block->dynamic.reset(new uint8_t[dynamic_bytes_]);
        std::memset(block->dynamic.get(), poison, dynamic_bytes_);
        block->shared.assign(StaticShared::get().bytes, poison);
        steps_ = 0;
        resident_.push_back(std::move(block));
    }

    void go_on_with(Block& block) {
        if (on_ == &block) {
            return;
        }
        if (on_ != nullptr) {
            StaticShared::get().save(on_->shared);
        }
        StaticShared::get().load(block.shared);
        on_ = &block;
        block_index_ = {static_cast<unsigned>(block.index % grid_.x),
                        static_cast<unsigned>(block.index / grid_.x % grid_.y),
                        static_cast<unsigned>(block.index / grid_.x / grid_.y)};
    }

    // A few turns of a block's threads; false when all have reached their end.
    bool work_on(Block& block) {
        go_on_with(block);
        for (unsigned turns = 1 + random_() % 256; turns > 0; --turns) {
            if (block.done == block.threads.size()) {
                return false;
            }
            if (block.ready.empty()) {
                fail(describe_deadlock(block));
            }
            resume(*block.threads[take_ready(block)]);
        }
        return true;
    }

    unsigned take_ready(Block& block) {
        Ready& ready = block.ready;
        const size_t size = ready.size();
        const bool any = order_ == Order::kAny || random_() % 8 == 0;
        return ready.take(any ? random_() % size : order_ == Order::kOldestFirst ? 0 : size - 1);
    }

    void resume(Thread& thread) {
        thread_ = &thread;
        thread_index_ = {thread.index % block_.x, thread.index / block_.x % block_.y,
                         thread.index / block_.x / block_.y};
        thread.fiber.resume();
        thread_ = nullptr;
        if (error_) {
            std::rethrow_exception(std::exchange(error_, nullptr));
        }
        if (thread.state == State::kDone) {
            ++on_->done;
            steps_ = 0;
        }
    }

    void suspend() { thread_->fiber.suspend(); }

    Thread& enter(const Call& call, State state, uint64_t value) {
        if (thread_ == nullptr) {
            fail_at(call, " outside a kernel");
        }
        thread_->call = call;
        thread_->state = state;
        thread_->value = value;
        count_step();
        return *thread_;
    }

    void count_step() {
        if (++steps_ > step_limit_) {
            fail_without_end();
        }
    }

    // Whether the lanes of `last`'s collective have all come to it.
    bool warp_is_there(const Thread& last) const {
        const unsigned first = last.index / kWarp * kWarp;
        for (unsigned lane = 0; lane < kWarp; ++lane) {
            if ((last.call.mask >> lane & 1) == 0) {
                continue;
            }
            if (first + lane >= on_->threads.size()) {
                fail_beyond(last, lane);
            }
            const Thread& other = *on_->threads[first + lane];
            if (other.state != State::kCollective) {
                return false;
            }
            if (!(other.call == last.call)) {
                if ((other.call.mask >> last.lane() & 1) == 0) {
                    return false;  // it may come here after that
                }
                fail_diverged("lanes of a warp", last, other);
            }
        }
        return true;
    }

    void complete_warp(const Thread& last, Finish finish) {
        const std::unique_ptr<Thread>* const threads = &on_->threads[last.index / kWarp * kWarp];
        Brought brought{.mask = last.call.mask};
        for (unsigned lane = 0; lane < kWarp; ++lane) {
            if ((brought.mask >> lane & 1) != 0) {
                brought.value[lane] = threads[lane]->value;
                brought.argument[lane] = threads[lane]->argument;
            }
        }
        for (unsigned lane = 0; lane < kWarp; ++lane) {
            if ((brought.mask >> lane & 1) != 0) {
                Thread& other = *threads[lane];
                other.value = finish(brought, lane);
                other.state = State::kReady;
                on_->ready.push(other.index);
            }
        }
    }

    void complete_barrier() {
        const Call& call = on_->threads[0]->call;
        for (const auto& thread : on_->threads) {
            if (!(thread->call == call)) {
                fail_diverged("threads of a block", *thread, *on_->threads[0]);
            }
        }
        for (const auto& thread : on_->threads) {
            thread->state = State::kReady;
            on_->ready.push(thread->index);
        }
        on_->at_barrier = 0;
    }

    // On their own, for AddressSanitizer makes a place for their texts at each call of what has
    // them.
    [[noreturn, gnu::noinline]] void fail_of(const Thread& thread, const char* what) const {
        fail(describe(thread, *on_) + what);
    }
    [[noreturn, gnu::noinline]] void fail_at(const Call& call, const char* what) const {
        fail(std::string(call.name) + what);
    }
    [[noreturn, gnu::noinline]] void fail_beyond(const Thread& thread, unsigned lane) const {
        fail(describe(thread, *on_) + " names lane " + std::to_string(lane) +
             ", which the block does not have");
    }
    [[noreturn, gnu::noinline]] void fail_diverged(const char* who,
                                                   const Thread& one,
                                                   const Thread& other) const {
        fail(who + (" diverged: " + describe(one, *on_)) + ", but " + describe(other, *on_));
    }
    [[noreturn, gnu::noinline]] void fail_without_end() const {
        fail("no thread came to its end in " + std::to_string(step_limit_) +
             " steps: one waits for a block that has not started or for a value that nobody "
             "writes; " +
             describe(*thread_, *on_) + " was the last to go on");
    }

    std::vector<std::unique_ptr<Block>> resident_;
    std::vector<std::unique_ptr<Block>> idle_;
    Block* on_ = nullptr;
    Thread* thread_ = nullptr;
    const std::function<void()>* body_ = nullptr;
    std::exception_ptr error_;
    std::mt19937 random_;
    uint32_t seed_ = 0;
    int processors_ = 1;
    int64_t launches_ = 0;
    Order order_ = Order::kAny;
    int64_t steps_ = 0;
    int64_t step_limit_ = kStepLimit;
    size_t dynamic_bytes_ = 0;
    dim3 grid_;
    dim3 block_;
    uint3 thread_index_{};
    uint3 block_index_{};
};

}  // namespace cuda_on_host
