// What a program told of its training (slimwire.h): steps, phase, learning rate, loss scale. One
// state a process; every member is read and written by any thread. Told on all ranks at the same
// point between the same calls, so what a call reads is equal on all ranks that take part in it.
#pragma once

#include <atomic>
#include <cstdint>
#include <limits>

namespace slimwire {

// The values are those of slimwire.h.
enum class Phase : uint8_t { kTraining = 0, kEvaluation = 1, kOther = 2 };
inline constexpr int kPhaseCount = 3;
[[nodiscard]] constexpr const char* phase_name(Phase phase) noexcept {
    switch (phase) {
        case Phase::kTraining:
            return "training";
        case Phase::kEvaluation:
            return "evaluation";
        case Phase::kOther:
            return "other";
    }
    return "";
}

struct Training {
    std::atomic<uint64_t> marks{0};  // steps told so far; 0: the program does not tell them
    std::atomic<uint64_t> step{0};   // its number of the last one
    std::atomic<Phase> phase{Phase::kTraining};
    // NaN while they were not told.
    std::atomic<double> learning_rate{std::numeric_limits<double>::quiet_NaN()};
    std::atomic<double> loss_scale{std::numeric_limits<double>::quiet_NaN()};
    std::atomic<uint64_t> changes{0};  // how often anything was told; raised last

    void mark_step(uint64_t number) noexcept {
        step.store(number, std::memory_order_relaxed);
        marks.fetch_add(1, std::memory_order_release);
        changes.fetch_add(1, std::memory_order_release);
    }
    void mark_phase(Phase now) noexcept {
        phase.store(now, std::memory_order_release);
        changes.fetch_add(1, std::memory_order_release);
    }
    void set_learning_rate(double rate) noexcept {
        learning_rate.store(rate, std::memory_order_relaxed);
        changes.fetch_add(1, std::memory_order_release);
    }
    // False where that is what it was.
    bool set_loss_scale(double scale) noexcept {
        if (loss_scale.exchange(scale, std::memory_order_relaxed) == scale) {
            return false;
        }
        changes.fetch_add(1, std::memory_order_release);
        return true;
    }
    [[nodiscard]] bool training() const noexcept {
        return phase.load(std::memory_order_acquire) == Phase::kTraining;
    }
};

// That of this process.
inline constinit Training g_training;
[[nodiscard]] inline Training& training_state() noexcept {
    return g_training;
}

}  // namespace slimwire
