#include "tools/emulator/nccl/execution/ring.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "tools/emulator/nccl/execution/reduce.h"

namespace slimwire::emu {
namespace {

constexpr size_t kInFlight = 16;
// Slots never run out for good: let m be the first message, counted over all ranks, whose receive
// is not posted. Every earlier send completes, so its receiver holds at most one group of partial
// sums (those whose passing on has an ordinal >= m) and kInFlight scaled inputs on their way.
constexpr size_t kGroupSlices = 16;
constexpr size_t kSlots = 2 * kGroupSlices + kInFlight;
constexpr size_t kMinSliceBytes = 16 * 1024;
// Small blocks are cut too, so that a step does not wait for the whole block of the previous one.
constexpr size_t kSlicesPerBlock = 4;

int modulo(int value, int n) noexcept {
    return ((value % n) + n) % n;
}

}  // namespace

void SlotPool::prepare(size_t slots, size_t slot_bytes) {
    const size_t needed = slots * slot_bytes;
    if (needed > capacity_) {
        memory_.reset(new unsigned char[needed]);
        capacity_ = needed;
    }
    slot_bytes_ = slot_bytes;
    free_.clear();
    for (size_t slot = 0; slot < slots; ++slot) {
        free_.push_back(static_cast<int>(slot));
    }
}

int SlotPool::take() noexcept {
    if (free_.empty()) {
        return -1;
    }
    const int slot = free_.back();
    free_.pop_back();
    return slot;
}

Ring::Ring(Transport& transport, SlotPool& slots, const Task& task, size_t chunk_bytes)
    : transport_(transport),
      slots_(slots),
      rank_(transport.members().rank),
      nranks_(transport.members().size()),
      type_(task.type),
      element_bytes_(task.element_bytes()),
      reduction_(task.reduction) {
    switch (task.kind) {
        case TaskKind::kAllReduce:
            plan_all_reduce(task);
            break;
        case TaskKind::kReduceScatter:
            plan_reduce_scatter(task);
            break;
        case TaskKind::kAllGather:
            plan_all_gather(task);
            break;
        case TaskKind::kBroadcast:
            plan_broadcast(task);
            break;
        case TaskKind::kReduce:
            plan_reduce(task);
            break;
        case TaskKind::kSend:
        case TaskKind::kRecv:
            break;
    }
    set_slices(chunk_bytes);
    open_links(task);
}

void Ring::plan_all_reduce(const Task& task) {
    const auto* input = static_cast<const unsigned char*>(task.send);
    auto* output = static_cast<unsigned char*>(task.recv);
    for (int b = 0; b < nranks_; ++b) {
        const size_t n = static_cast<size_t>(nranks_);
        const size_t first = task.count / n * static_cast<size_t>(b) +
                             std::min(static_cast<size_t>(b), task.count % n);
        const size_t elems = task.count / n + (static_cast<size_t>(b) < task.count % n ? 1 : 0);
        blocks_.push_back({input + first * element_bytes_, output + first * element_bytes_, elems});
    }
    for (int i = 0; i < nranks_ - 1; ++i) {
        steps_.push_back({i == 0 ? Source::kInput : Source::kOutput, modulo(rank_ - i, nranks_),
                          Action::kReduceToOutput, modulo(rank_ - i - 1, nranks_),
                          i == nranks_ - 2});
    }
    for (int i = 0; i < nranks_ - 1; ++i) {
        steps_.push_back({Source::kOutput, modulo(rank_ + 1 - i, nranks_), Action::kCopy,
                          modulo(rank_ - i, nranks_), false});
    }
}

void Ring::plan_reduce_scatter(const Task& task) {
    const auto* input = static_cast<const unsigned char*>(task.send);
    for (int b = 0; b < nranks_; ++b) {
        const size_t offset = task.count * static_cast<size_t>(b) * element_bytes_;
        blocks_.push_back({input + offset, static_cast<unsigned char*>(task.recv), task.count});
    }
    for (int i = 0; i < nranks_ - 1; ++i) {
        const bool last = i == nranks_ - 2;
        steps_.push_back({i == 0 ? Source::kInput : Source::kSlot, modulo(rank_ - i - 1, nranks_),
                          last ? Action::kReduceToOutput : Action::kReduceInSlot,
                          modulo(rank_ - i - 2, nranks_), last});
    }
}

void Ring::plan_all_gather(const Task& task) {
    const auto* input = static_cast<const unsigned char*>(task.send);
    auto* output = static_cast<unsigned char*>(task.recv);
    for (int b = 0; b < nranks_; ++b) {
        const size_t offset = task.count * static_cast<size_t>(b) * element_bytes_;
        blocks_.push_back({input, output + offset, task.count});
    }
    unsigned char* own = blocks_[static_cast<size_t>(rank_)].output;
    if (own != input && task.count > 0) {
        memmove(own, input, task.count * element_bytes_);
    }
    for (int i = 0; i < nranks_ - 1; ++i) {
        steps_.push_back({Source::kOutput, modulo(rank_ - i, nranks_), Action::kCopy,
                          modulo(rank_ - i - 1, nranks_), false});
    }
}

// A chain from the root around the ring: receive in step 0, pass on in step 1.
void Ring::plan_broadcast(const Task& task) {
    auto* output = static_cast<unsigned char*>(task.recv);
    const auto* input = static_cast<const unsigned char*>(task.send);
    blocks_.push_back({input, output, task.count});
    const bool root = rank_ == task.root;
    const bool last = modulo(rank_ + 1, nranks_) == task.root;
    steps_.resize(2);
    if (root) {
        if (input != output && task.count > 0) {
            memmove(output, input, task.count * element_bytes_);
        }
        steps_[1].source = Source::kOutput;
    } else {
        steps_[0].action = Action::kCopy;
        steps_[1].source = last ? Source::kNone : Source::kOutput;
    }
}

// A chain that ends at the root: partial sums are received in step 0 and passed on in step 1.
void Ring::plan_reduce(const Task& task) {
    const auto* input = static_cast<const unsigned char*>(task.send);
    blocks_.push_back({input, static_cast<unsigned char*>(task.recv), task.count});
    const bool root = rank_ == task.root;
    const bool first = modulo(rank_ - 1, nranks_) == task.root;
    steps_.resize(2);
    if (root) {
        steps_[0].action = Action::kReduceToOutput;
        steps_[0].last_reduction = true;
    } else if (first) {
        steps_[1].source = Source::kInput;
    } else {
        steps_[0].action = Action::kReduceInSlot;
        steps_[1].source = Source::kSlot;
    }
}

void Ring::set_slices(size_t chunk_bytes) {
    size_t largest = 0;
    for (const Block& block : blocks_) {
        largest = std::max(largest, block.elems);
    }
    const size_t bytes = std::clamp(largest * element_bytes_ / kSlicesPerBlock,
                                    std::min(kMinSliceBytes, chunk_bytes), chunk_bytes);
    slice_elems_ = std::max<size_t>(1, bytes / element_bytes_);
    slices_ = (largest + slice_elems_ - 1) / slice_elems_;
    bool through_slots = false;
    for (const RingStep& step : steps_) {
        through_slots |= step.source == Source::kSlot && steps_.size() > 2;
    }
    group_slices_ = through_slots ? std::min(slices_, kGroupSlices) : slices_;
    group_slices_ = std::max<size_t>(1, group_slices_);
    groups_ = (slices_ + group_slices_ - 1) / group_slices_;
    slots_.prepare(kSlots, slice_elems_ * element_bytes_);
}

void Ring::open_links(const Task& task) {
    size_t sent = 0;
    size_t received = 0;
    for (const RingStep& step : steps_) {
        if (step.source != Source::kNone) {
            sent += blocks_[static_cast<size_t>(step.send_block)].elems;
        }
        if (step.action != Action::kNone) {
            received += blocks_[static_cast<size_t>(step.recv_block)].elems;
        }
    }
    if (sent > 0) {
        next_ = &transport_.link(modulo(rank_ + 1, nranks_), Channel::kCollective, true);
        next_operation_ = WireOperation::of(task, sent * element_bytes_);
    }
    if (received > 0) {
        previous_ = &transport_.link(modulo(rank_ - 1, nranks_), Channel::kCollective, false);
        previous_operation_ = WireOperation::of(task, received * element_bytes_);
    }
}

size_t Ring::slices_in_group(size_t group) const noexcept {
    return std::min(group_slices_, slices_ - group * group_slices_);
}

uint64_t Ring::ordinal(const Cursor& at) const noexcept {
    return at.group * group_slices_ * steps_.size() + at.step * slices_in_group(at.group) +
           at.slice;
}

void Ring::step_forward(Cursor* at) const noexcept {
    if (++at->slice < slices_in_group(at->group)) {
        return;
    }
    at->slice = 0;
    if (++at->step < steps_.size()) {
        return;
    }
    at->step = 0;
    ++at->group;
}

std::pair<size_t, size_t> Ring::slice_range(const Cursor& at, int block) const noexcept {
    const size_t elems = blocks_[static_cast<size_t>(block)].elems;
    const size_t first = std::min(elems, (at.group * group_slices_ + at.slice) * slice_elems_);
    return {first, std::min(slice_elems_, elems - first)};
}

bool Ring::done() const noexcept {
    return send_.group == groups_ && recv_.group == groups_ && sending_.empty() &&
           receiving_.empty() && staged_.empty();
}

bool Ring::waits_for(int rank) const noexcept {
    const bool receives = recv_.group < groups_ || !receiving_.empty();
    const bool sends = send_.group < groups_ || !sending_.empty() || !staged_.empty();
    return (receives && previous_ != nullptr && rank == modulo(rank_ - 1, nranks_)) ||
           (sends && next_ != nullptr && rank == modulo(rank_ + 1, nranks_));
}

Status Ring::advance(bool* moved) {
    SLIMWIRE_TRY(complete_receives(moved));
    SLIMWIRE_TRY(complete_sends(moved));
    SLIMWIRE_TRY(receive_more(moved));
    return send_more(moved);
}

Status Ring::receive_more(bool* moved) {
    while (recv_.group < groups_ && receiving_.size() < kInFlight) {
        const RingStep& step = steps_[recv_.step];
        const auto [first, elems] = slice_range(recv_, step.recv_block);
        InFlight receive{recv_, {}, -1, elems * element_bytes_};
        if (step.action != Action::kNone && elems > 0) {
            unsigned char* target = nullptr;
            if (step.action == Action::kCopy) {
                target =
                    blocks_[static_cast<size_t>(step.recv_block)].output + first * element_bytes_;
            } else {
                receive.slot = slots_.take();
                if (receive.slot < 0) {
                    return {};
                }
                target = slots_.data(receive.slot);
            }
            const Status status = previous_->start(target, receive.bytes, previous_operation_,
                                                   &receive.transfer, &receive.started);
            if (!receive.started) {
                if (receive.slot >= 0) {
                    slots_.give_back(receive.slot);
                }
                return status;
            }
        }
        receiving_.push_back(receive);
        step_forward(&recv_);
        *moved = true;
    }
    return {};
}

Status Ring::complete_receives(bool* moved) {
    while (!receiving_.empty()) {
        InFlight& oldest = receiving_.front();
        if (oldest.started) {
            bool arrived = false;
            size_t bytes = 0;
            SLIMWIRE_TRY(previous_->test(&oldest.transfer, &arrived, &bytes));
            if (!arrived) {
                return {};
            }
            if (bytes != oldest.bytes) {
                return {Code::kInvalidUsage,
                        "a rank sent " + std::to_string(bytes) + " bytes where " +
                            std::to_string(oldest.bytes) +
                            " were expected: the ranks' calls differ in count, type or operation"};
            }
        }
        process(oldest);
        ++processed_;
        receiving_.pop_front();
        *moved = true;
    }
    return {};
}

void Ring::process(const InFlight& received) {
    const RingStep& step = steps_[received.at.step];
    if (!received.started || received.slot < 0) {
        return;  // nothing came, or it came to its place
    }
    const auto [first, elems] = slice_range(received.at, step.recv_block);
    const Block& block = blocks_[static_cast<size_t>(step.recv_block)];
    unsigned char* partial = slots_.data(received.slot);
    const unsigned char* own = block.input + first * element_bytes_;
    if (step.action == Action::kReduceInSlot) {
        reduce_elements(type_, reduction_.op, partial, partial, own, elems, reduction_.scale);
        partial_slots_[ordinal(received.at)] = received.slot;
        return;
    }
    unsigned char* output = block.output + first * element_bytes_;
    reduce_elements(type_, reduction_.op, output, partial, own, elems, reduction_.scale);
    if (step.last_reduction && reduction_.divisor > 1) {
        divide_integers(type_, output, elems, reduction_.divisor);
    }
    slots_.give_back(received.slot);
}

// Data of step i > 0 is what the receive of step i - 1 left.
bool Ring::source_ready(const Cursor& at, const RingStep& step) const noexcept {
    if (step.source == Source::kInput || at.step == 0) {
        return true;
    }
    Cursor needed = at;
    --needed.step;
    return processed_ > ordinal(needed);
}

Status Ring::send_more(bool* moved) {
    while (send_.group < groups_ && sending_.size() < kInFlight) {
        const RingStep& step = steps_[send_.step];
        const auto [first, elems] = slice_range(send_, step.send_block);
        InFlight send{send_, {}, -1, elems * element_bytes_};
        auto partial = partial_slots_.end();
        if (step.source != Source::kNone && elems > 0) {
            if (!source_ready(send_, step)) {
                return {};
            }
            const Block& block = blocks_[static_cast<size_t>(step.send_block)];
            const unsigned char* data = block.output + first * element_bytes_;
            if (step.source == Source::kSlot) {
                Cursor received = send_;
                --received.step;
                partial = partial_slots_.find(ordinal(received));
                send.slot = partial->second;
                data = slots_.data(send.slot);
            } else if (step.source == Source::kInput) {
                data = block.input + first * element_bytes_;
                if (reduction_.scale.enabled) {
                    if (staged_.empty()) {
                        send.slot = slots_.take();
                        if (send.slot < 0) {
                            return {};
                        }
                        scale_elements(type_, slots_.data(send.slot), data, elems,
                                       reduction_.scale);
                        staged_.push_back(send);
                    }
                    send.slot = staged_.front().slot;
                    data = slots_.data(send.slot);
                }
            }
            SLIMWIRE_TRY(next_->start(const_cast<unsigned char*>(data), send.bytes, next_operation_,
                                      &send.transfer, &send.started));
            if (!send.started) {
                return {};
            }
            staged_.clear();
            if (partial != partial_slots_.end()) {
                partial_slots_.erase(partial);
            }
        }
        sending_.push_back(send);
        step_forward(&send_);
        *moved = true;
    }
    return {};
}

Status Ring::complete_sends(bool* moved) {
    while (!sending_.empty()) {
        InFlight& oldest = sending_.front();
        if (oldest.started) {
            bool sent = false;
            size_t bytes = 0;
            SLIMWIRE_TRY(next_->test(&oldest.transfer, &sent, &bytes));
            if (!sent) {
                return {};
            }
        }
        if (oldest.slot >= 0) {
            slots_.give_back(oldest.slot);
        }
        sending_.pop_front();
        *moved = true;
    }
    return {};
}

}  // namespace slimwire::emu
