// How far the controllers and counts of a communicator are, which its ranks keep alike, and how a
// later process of the job goes on with them; and what codecs draw on all ranks alike.
//
// A rank that went on alone would choose other codecs than the others. So ranks tell each other,
// when a communicator is made, of which moment the progress is that they have loaded; where these
// are not the same it begins anew on all of them. What is loaded later than that does not touch it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "collectives/state/state_file.h"

namespace slimwire {

class Runtime;
class AbortWatch;
struct Communicator;
struct Plan;

using ProgressRecords = std::map<std::pair<LastingTensor, StateKind>, std::vector<std::byte>>;

// Of one communicator: what was loaded for it and waits for the first call of its tensor, and what
// its calls added.
struct Progress {
    // Calls so far that changed what ranks keep alike: state that all share, controllers and
    // counts; those of captured calls the device counts (RandomSteps). Equal on all ranks.
    uint64_t replicated_calls = 0;
    uint32_t drawn = 0;  // StateComm::drawn_alike, of all ranks
    ProgressRecords waiting;

    // The record of a tensor, which waits no more; empty where there is none.
    [[nodiscard]] std::vector<std::byte> take(const LastingTensor& tensor, StateKind kind);
};

// What a rank tells the others of what it loaded for a communicator; 0 of nothing.
[[nodiscard]] uint64_t told_progress(const StateComm& loaded) noexcept;

// What the count of a kind of calls is known by.
[[nodiscard]] LastingTensor counted_calls(uint64_t checkpoint_key, const Plan& plan) noexcept;

// The bytes of records, field by field.
class RecordWriter {
  public:
    template <class T>
    void put(const T& value) {
        const auto bytes = std::as_bytes(std::span(&value, 1));
        bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
    }
    [[nodiscard]] std::vector<std::byte> take() noexcept { return std::move(bytes_); }

  private:
    std::vector<std::byte> bytes_;
};
class RecordReader {
  public:
    explicit RecordReader(std::span<const std::byte> bytes) noexcept : left_(bytes) {}
    // False, and nothing read, where fewer bytes are left.
    template <class T>
    bool get(T* value) noexcept {
        if (left_.size() < sizeof *value) {
            return false;
        }
        std::copy_n(left_.begin(), sizeof *value,
                    std::as_writable_bytes(std::span(value, 1)).begin());
        left_ = left_.subspan(sizeof *value);
        return true;
    }

  private:
    std::span<const std::byte> left_;
};

using KeepRecord =
    std::function<void(const LastingTensor& tensor, StateKind kind, std::vector<std::byte> bytes)>;
// Copies device memory that no work is using.
using ReadMemory = std::function<Status(const void* memory, std::span<std::byte> out)>;

// One that goes on, if its ranks loaded the same state as each other.
struct ProgressOf {
    Communicator* communicator = nullptr;
    Progress* progress = nullptr;
};
// Ranks tell each other over the private communicators what they loaded; a warning says where those
// differ.
Status agree_on_progress(Runtime& runtime,
                         const std::vector<ProgressOf>& counting,
                         AbortWatch* watch);

}  // namespace slimwire
