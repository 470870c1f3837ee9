#include "collectives/identity/parameter_tracker.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <set>
#include <utility>

#include "codecs/base/device_scope.h"
#include "collectives/call/hash.h"
#include "collectives/call/log.h"
#include "collectives/communicator/communicator.h"
#include "collectives/communicator/graph_memory.h"

namespace slimwire {
namespace {

bool may_be_bucket(const CallSignature& signature) noexcept {
    const bool floats = signature.dtype == DType::kFloat64 || signature.dtype == DType::kFloat32 ||
                        signature.dtype == DType::kFloat16 || signature.dtype == DType::kBfloat16;
    const bool sums = signature.redop == RedOp::kSum || signature.redop == RedOp::kAvg ||
                      signature.redop == RedOp::kPreMulSum;
    return signature.op == Op::kAllReduce && floats && sums;
}

std::vector<int64_t> integers(const std::vector<std::byte>& bytes, DType dtype, uint64_t count) {
    std::vector<int64_t> values(count);
    for (uint64_t i = 0; i < count; ++i) {
        if (dtype == DType::kInt64) {
            std::memcpy(&values[i], bytes.data() + 8 * i, 8);
        } else {
            int32_t value = 0;
            std::memcpy(&value, bytes.data() + 4 * i, 4);
            values[i] = value;
        }
    }
    return values;
}

ParameterRanges parameters_in(const Bucket& bucket,
                              std::span<const ParameterShape> shapes,
                              std::span<const std::string> names,
                              std::span<const std::string> keys) {
    ParameterRanges parameters;
    const auto of = [](std::span<const std::string> all, uint32_t parameter) {
        return all.empty() ? std::string() : all[parameter];
    };
    for (const Bucket::Range& range : bucket.ranges) {
        if (range.count > 0) {
            parameters.ranges.push_back({range.offset, range.count, range.parameter,
                                         static_cast<uint8_t>(shapes[range.parameter].dimensions()),
                                         of(names, range.parameter), of(keys, range.parameter),
                                         shapes[range.parameter].count() != range.count
                                             ? 0
                                             : shapes[range.parameter].rows()});
        }
    }
    return parameters;
}

uint64_t path_of(const Bucket& bucket, uint32_t division) {
    std::string text = "DDP bucket " + std::to_string(division);
    for (const Bucket::Range& range : bucket.ranges) {
        text += ' ' + std::to_string(range.parameter) + ':' + std::to_string(range.count);
    }
    return std::max<uint64_t>(stable_hash(text), 1);
}

// By its parameters, and how many models were made before.
uint64_t path_of(const DdpModel& model, uint32_t number) {
    std::string text = "DDP model " + std::to_string(number);
    for (const ParameterShape& shape : model.parameters) {
        text += ' ' + std::to_string(shape.count());
    }
    return std::max<uint64_t>(stable_hash(text), 1);
}

}  // namespace

ParameterTracker::ParameterTracker(std::shared_ptr<const RegisteredParameters> registered,
                                   uint64_t limit_us) noexcept
    : registered_(std::move(registered)),
      changes_(ParameterRegistry::instance().changes()),
      limit_us_(limit_us) {}

const ParameterRanges* ParameterTracker::find(uint32_t number) const noexcept {
    return number == 0 || number > known_.size() ? nullptr : &known_[number - 1];
}

// Ranks compared what they had registered when the communicator was made; nothing later is used.
void ParameterTracker::warn_if_late() {
    if (registered_ != nullptr && !warned_late_ &&
        ParameterRegistry::instance().changes() != changes_) {
        warned_late_ = true;
        log_line(LogLevel::kWarn,
                 "parameters were registered, or forgotten, after the communicator that reduces "
                 "gradients was made, which goes by what was registered before. Call "
                 "slimwire_register_parameter before the framework makes its communicators");
    }
}

// Models of the same names, as copies are, are told apart by which was reduced first; parameters of
// one model that have the same name by nothing.
const ParameterTracker::ModelNames& ParameterTracker::names_of(const BucketPlace& place) {
    const auto found = names_.find(place.model_number);
    if (found != names_.end()) {
        return found->second;
    }
    ModelNames of;
    if (registered_ != nullptr) {
        of.names = registered_->names_of(place.model->parameters);
    }
    const auto before = std::count_if(names_.begin(), names_.end(), [&](const auto& one) {
        return one.second.names == of.names;
    });
    of.keys = of.names;
    for (std::string& key : of.keys) {
        key += before > 0 ? "#" + std::to_string(before + 1) : "";
    }
    if (std::set<std::string>(of.names.begin(), of.names.end()).size() != of.names.size()) {
        of.keys.clear();
    }
    return names_.emplace(place.model_number, std::move(of)).first->second;
}

uint32_t ParameterTracker::number_of(const BucketPlace& place) {
    warn_if_late();
    const auto key = std::tuple(place.model_number, place.division, place.number);
    if (const auto found = numbers_.find(key); found != numbers_.end()) {
        return found->second;
    }
    if (known_.size() >= kMaxKnown) {
        return 0;
    }
    const ModelNames& names = names_of(place);
    known_.push_back(
        parameters_in(*place.bucket, place.model->parameters, names.names, names.keys));
    known_.back().path = path_of(*place.bucket, place.division);
    known_.back().occurrence = place.occurrence;
    known_.back().model = path_of(*place.model, place.model_number);
    const auto number = static_cast<uint32_t>(known_.size());
    numbers_.emplace(key, number);
    return number;
}

// Of an all-gather no result is needed unless the very next call is the broadcast that goes with
// it.
void ParameterTracker::drop_unfollowed(const CallSignature* next) {
    if (reads_.empty() || reads_.back().signature.op != Op::kAllGather ||
        (next != nullptr && next->op == Op::kBroadcast && next->dtype == DType::kInt64)) {
        return;
    }
    launches_ -= launches_ > 0 ? 1 : 0;
    if (mark_.has_value() && reads_.size() == mark_->reads) {
        mark_->dropped = reads_.back();
        --mark_->reads;
    }
    reads_.pop_back();
}

Status ParameterTracker::want(const DeviceApi& api, const CollectiveCall& call, uint64_t count) {
    Read read;
    read.signature = call.signature;
    read.count = count;
    read.source = call.recv;
    read.stream = call.stream;
    SLIMWIRE_TRY_ASSIGN(read.captured, capturing(api, call.stream));
    read.value = std::make_shared<HostValue>(count * dtype_bytes(call.signature.dtype));
    reads_.push_back(std::move(read));
    ++launches_;
    return {};
}

Result<uint32_t> ParameterTracker::next(const DeviceApi& api,
                                        const Communicator& state,
                                        const CollectiveCall& call) {
    const std::lock_guard lock(mutex_);
    SLIMWIRE_TRY(broken_);
    const uint64_t count = listener_.wanted(call.signature, state.shape.ranks);
    drop_unfollowed(count > 0 ? &call.signature : nullptr);
    const bool bucket = may_be_bucket(call.signature);
    if (bucket || (count > 0 && reads_.size() >= kMaxReads)) {
        SLIMWIRE_TRY(broken_ = settle(api, state));
    }
    if (count > 0) {
        SLIMWIRE_TRY(broken_ = want(api, call, count));
    }
    if (!bucket) {
        return 0u;
    }
    const BucketPlace place = listener_.next(call.signature.count);
    if (place.model == nullptr) {
        return 0u;
    }
    return number_of(place);
}

Status ParameterTracker::launched(const DeviceApi& api, const Communicator& state) {
    const std::lock_guard lock(mutex_);
    return broken_ = copy(api, state);
}

Status ParameterTracker::copy(const DeviceApi& api, const Communicator& state) {
    const DeviceScope device(api, state.device);
    SLIMWIRE_TRY(await_launch(api, state, "the launch of a broadcast", limit_us_));
    for (; launches_ > 0; --launches_) {
        const Read& read = reads_[reads_.size() - launches_];
        if (!read.captured) {
            SLIMWIRE_TRY(copies_.to_host(api, read.source, read.value, read.stream));
        }
    }
    return {};
}

// Hands the listener all results that are wanted.
Status ParameterTracker::settle(const DeviceApi& api, const Communicator& state) {
    if (reads_.empty()) {
        return {};
    }
    if (launches_ > 0) {
        return {Code::kInvalidUsage,
                "this call is in one ncclGroup with the broadcast that tells which parameters it "
                "carries; end the group between them, or use no rule with param, index or name"};
    }
    for (const Read& read : reads_) {
        SLIMWIRE_TRY(read.captured ? Status()
                                   : await_value(api, state, copies_, *read.value,
                                                 "the values of a broadcast", limit_us_));
        const std::vector<int64_t> values =
            read.captured ? std::vector<int64_t>()
                          : integers(read.value->bytes, read.signature.dtype, read.count);
        listener_.read(read.signature, values);
        if (mark_.has_value()) {
            mark_->listener.read(read.signature, values);  // of calls before the group
        }
    }
    reads_.clear();
    if (mark_.has_value()) {
        mark_->reads = 0;
    }
    return {};
}

void ParameterTracker::group_begins() {
    const std::lock_guard lock(mutex_);
    mark_ = Mark{listener_, reads_.size(), std::nullopt, known_.size()};
}

void ParameterTracker::group_ends(bool ran) {
    const std::lock_guard lock(mutex_);
    std::optional<Mark> mark = std::exchange(mark_, std::nullopt);
    if (!mark.has_value() || ran) {
        return;
    }
    listener_ = std::move(mark->listener);
    for (; reads_.size() > mark->reads; reads_.pop_back()) {
        launches_ -= launches_ > 0 ? 1 : 0;
    }
    if (mark->dropped.has_value()) {
        reads_.push_back(*mark->dropped);
    }
    known_.resize(mark->known);
    std::erase_if(numbers_, [&](const auto& entry) { return entry.second > known_.size(); });
}

void ParameterTracker::end(const DeviceApi& api, int device, bool abort, DeviceMemory* memory) {
    std::unique_lock lock(mutex_, std::defer_lock);
    if (!abort) {
        lock.lock();
    } else if (!lock.try_lock()) {
        return;  // a thread of the program is in a call, which will tell that it was aborted
    }
    const DeviceScope scope(api, device);
    reads_.clear();
    mark_.reset();
    launches_ = 0;
    Retirement left(memory, api, device);
    copies_.release(api, &left);
}

}  // namespace slimwire
