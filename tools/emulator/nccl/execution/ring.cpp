#include "tools/emulator/nccl/execution/ring.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "tools/emulator/nccl/execution/reduce.h"

namespace slimwire::emu {
namespace {

constexpr size_t kInFlight = 16;
constexpr size_t kGroupSlices = 16;
constexpr size_t kMinSliceBytes = 16 * 1024;
// Small blocks are cut too, so that a step does not wait for the whole block of the previous one.
constexpr size_t kSlicesPerBlock = 4;

int modulo(int value, int n) noexcept {
    return ((value % n) + n) % n;
}

}  // namespace

void ScratchPool::prepare(size_t bytes) {
    if (bytes > bytes_) {
        bytes_ = bytes;
        free_.clear();
    }
}

Scratch ScratchPool::take() {
    if (free_.empty()) {
        return Scratch(new unsigned char[bytes_]);
    }
    Scratch taken = std::move(free_.back());
    free_.pop_back();
    return taken;
}

Ring::Ring(Transport& transport, ScratchPool& scratch, const Task& task, size_t chunk_bytes)
    : transport_(transport),
      scratch_(scratch),
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
        steps_.push_back({i == 0 ? Source::kInput : Source::kPartial,
                          modulo(rank_ - i - 1, nranks_),
                          last ? Action::kReduceToOutput : Action::kReducePartial,
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
        steps_[0].action = Action::kReducePartial;
        steps_[1].source = Source::kPartial;
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
    bool keeps_partial = false;
    for (const RingStep& step : steps_) {
        keeps_partial |= step.source == Source::kPartial && steps_.size() > 2;
    }
    group_slices_ = keeps_partial ? std::min(slices_, kGroupSlices) : slices_;
    group_slices_ = std::max<size_t>(1, group_slices_);
    groups_ = (slices_ + group_slices_ - 1) / group_slices_;
    scratch_.prepare(slice_elems_ * element_bytes_);
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
           receiving_.empty();
}

bool Ring::waits_for(int rank) const noexcept {
    const bool receives = recv_.group < groups_ || !receiving_.empty();
    const bool sends = send_.group < groups_ || !sending_.empty();
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
        InFlight receive{recv_, {}, nullptr, elems * element_bytes_};
        if (step.action != Action::kNone && elems > 0) {
            unsigned char* target =
                blocks_[static_cast<size_t>(step.recv_block)].output + first * element_bytes_;
            if (step.action != Action::kCopy) {
                receive.scratch = scratch_.take();
                target = receive.scratch.get();
            }
            SLIMWIRE_TRY(previous_->start(target, receive.bytes, previous_operation_,
                                          &receive.transfer, &receive.started));
            if (!receive.started) {
                if (receive.scratch != nullptr) {
                    scratch_.give_back(std::move(receive.scratch));
                }
                return {};
            }
        }
        receiving_.push_back(std::move(receive));
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

void Ring::process(InFlight& received) {
    const RingStep& step = steps_[received.at.step];
    if (received.scratch == nullptr) {
        return;  // nothing came, or it came to its place
    }
    const auto [first, elems] = slice_range(received.at, step.recv_block);
    const Block& block = blocks_[static_cast<size_t>(step.recv_block)];
    unsigned char* partial = received.scratch.get();
    const unsigned char* own = block.input + first * element_bytes_;
    if (step.action == Action::kReducePartial) {
        reduce_elements(type_, reduction_.op, partial, partial, own, elems, reduction_.scale);
        partial_[ordinal(received.at)] = std::move(received.scratch);
        return;
    }
    unsigned char* output = block.output + first * element_bytes_;
    reduce_elements(type_, reduction_.op, output, partial, own, elems, reduction_.scale);
    if (step.last_reduction && reduction_.divisor > 1) {
        divide_integers(type_, output, elems, reduction_.divisor);
    }
    scratch_.give_back(std::move(received.scratch));
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
        InFlight send{send_, {}, nullptr, elems * element_bytes_};
        if (step.source != Source::kNone && elems > 0) {
            if (!source_ready(send_, step)) {
                return {};
            }
            const Block& block = blocks_[static_cast<size_t>(step.send_block)];
            const unsigned char* data = block.output + first * element_bytes_;
            Scratch* scratch = nullptr;
            auto partial = partial_.end();
            if (step.source == Source::kPartial) {
                Cursor received = send_;
                --received.step;
                partial = partial_.find(ordinal(received));
                scratch = &partial->second;
            } else if (step.source == Source::kInput) {
                data = block.input + first * element_bytes_;
                if (reduction_.scale.enabled) {
                    scratch = &scaled_;
                    if (scaled_ == nullptr) {
                        scaled_ = scratch_.take();
                        scale_elements(type_, scaled_.get(), data, elems, reduction_.scale);
                    }
                }
            }
            data = scratch != nullptr ? scratch->get() : data;
            SLIMWIRE_TRY(next_->start(const_cast<unsigned char*>(data), send.bytes, next_operation_,
                                      &send.transfer, &send.started));
            if (!send.started) {
                return {};
            }
            if (scratch != nullptr) {
                send.scratch = std::move(*scratch);
            }
            if (partial != partial_.end()) {
                partial_.erase(partial);
            }
        }
        sending_.push_back(std::move(send));
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
        if (oldest.scratch != nullptr) {
            scratch_.give_back(std::move(oldest.scratch));
        }
        sending_.pop_front();
        *moved = true;
    }
    return {};
}

}  // namespace slimwire::emu
