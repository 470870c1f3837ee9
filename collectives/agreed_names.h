// Which of the contents of calls that a program named (slimwire.h) it named alike on all ranks.
// What a program tells is each rank's own knowledge, and plans must never follow from that. So each
// rank has a hash of what it was told of every content, the ranks compare these (comparison.h), and
// what the program told counts from there on where all have the same.
//
// A content that comes anew is compared when the calls come round: when one that came since then
// comes again, which is the next training step. The result is read a round later. Equal on all
// ranks, given the same calls. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

namespace slimwire {

class AgreedNames {
  public:
    // A call comes that carries `number`, of which this rank was told `hash`; 0: nothing.
    void next(uint32_t number, uint32_t hash);
    // Whether what was compared is to be read, or hashes are to be compared, at this call. Both
    // stay true until it is done.
    [[nodiscard]] bool read_due() const noexcept { return read_due_; }
    [[nodiscard]] bool compare_due() const noexcept { return compare_due_; }
    enum class Told : uint8_t {
        kUnknown,  // not compared yet
        kNothing,  // no rank was told anything
        kAlike,    // all ranks the same
        kDifferently,
    };
    [[nodiscard]] Told told(uint32_t number) const noexcept;

    // What this rank gives, of which the ranks' maximum is to be given to adopt().
    [[nodiscard]] std::vector<uint32_t> give();
    // Of how many contents the ranks were not told the same.
    size_t adopt(const std::vector<uint32_t>& greatest);
    // What give() returned did not reach the others, on any rank.
    void taken_back() noexcept;
    // The numbers above were of calls that never were.
    void forget_above(uint32_t number);

  private:
    struct Entry {
        uint32_t hash = 0;
        uint64_t round = 0;  // in which it came last
        Told told = Told::kUnknown;
    };

    std::map<uint32_t, Entry> entries_;  // in the same order on all ranks
    uint64_t round_ = 0;
    uint32_t last_ = 0;
    bool fresh_ = false;           // some were never compared
    std::vector<uint32_t> given_;  // numbers, by place among the words; empty: none is on its way
    bool read_due_ = false, compare_due_ = false;
};

}  // namespace slimwire
