// NCCL's twelve element types as the conformance program sees them: facts, values as float64, and
// tables of input data. Written apart from slimwire's and the emulator's conversions on purpose.
#pragma once

#include <nccl.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace conformance {

// splitmix64: the whole program's source of chance, the same on all ranks for one seed.
class Chance {
  public:
    explicit Chance(uint64_t seed) : state_(seed) {}
    uint64_t next() {
        uint64_t mixed = state_ += 0x9e3779b97f4a7c15ull;
        mixed = (mixed ^ mixed >> 30) * 0xbf58476d1ce4e5b9ull;
        mixed = (mixed ^ mixed >> 27) * 0x94d049bb133111ebull;
        return mixed ^ mixed >> 31;
    }
    int below(int bound) { return static_cast<int>(next() % static_cast<uint64_t>(bound)); }
    double unit() { return static_cast<double>(next() >> 11) * 0x1p-53; }

  private:
    uint64_t state_;
};

struct TypeFacts {
    const char* name;
    size_t bytes;
    bool floating;
    bool is_signed;
    double roundoff;  // half a unit in the last place, relative; 0 for integers
    double tiny;      // smallest subnormal
};

const TypeFacts& facts_of(ncclDataType_t type);

// Value of one element, exact (64-bit integers excepted).
double to_double(ncclDataType_t type, const void* element);
// Bits of a NaN, or of an infinity where the type has one and `infinity` is set.
void write_special(ncclDataType_t type, bool infinity, void* element);

// What the elements of a message look like.
enum class Shape : int {
    kSpread,   // magnitudes over several binades, both signs; integers: any bits
    kSparse,   // the same with long runs of zeros
    kFactors,  // magnitudes in [0.5, 1.5], for products; integers: any bits
    kSmall,    // small integers, whose sum over ranks fits; floats as kSpread
    kNothing,  // zeros
};
inline constexpr int kShapes = 5;

// A cyclic message of a prime number of elements; a rank's input is the table from its own offset
// on.
struct Table {
    static constexpr size_t kElems = 4093;
    ncclDataType_t type = ncclFloat32;
    std::vector<char> bytes;      // kElems elements
    std::vector<double> values;   // the same as float64
    std::vector<uint64_t> words;  // integers: the same, sign- or zero-extended
};

const Table& table_of(ncclDataType_t type, Shape shape);

}  // namespace conformance
