#include "tests/e2e/conformance/oracle.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "tests/e2e/conformance/sparse_oracle.h"

namespace conformance {
namespace {

// A cyclic walk through a table.
class Walk {
  public:
    Walk(size_t offset, size_t skip) : at_((offset + skip) % Table::kElems) {}
    [[nodiscard]] size_t at() const { return at_; }
    void step() { at_ = at_ + 1 == Table::kElems ? 0 : at_ + 1; }

  private:
    size_t at_;
};

std::string number(double value) {
    char text[64];
    std::snprintf(text, sizeof(text), "%.9g", value);
    return text;
}

}  // namespace

size_t table_offset(const Call& call, int rank) {
    return Chance(call.data + static_cast<uint64_t>(rank) * 0x1234567).next() % Table::kElems;
}

Oracle::Oracle(const Call& call, const Codec& codec, int ranks, int rank)
    : call_(call),
      codec_(codec),
      signature_(facts_of(call.type)),
      table_(table_of(call.type, call.shape)),
      ranks_(ranks),
      rank_(rank) {}

void Oracle::write_input(char* input) const {
    const size_t elems = call_.input_elems(ranks_);
    size_t from = table_offset(call_, rank_);
    for (size_t done = 0; done < elems;) {
        const size_t run = std::min(elems - done, Table::kElems - from);
        std::memcpy(input + done * signature_.bytes, table_.bytes.data() + from * signature_.bytes,
                    run * signature_.bytes);
        done += run;
        from = 0;
    }
    if (call_.special && call_.special_rank % ranks_ == rank_) {
        write_special(call_.type, call_.infinity, input + special_at() * signature_.bytes);
    }
}

size_t Oracle::special_at() const {
    return call_.special_index % call_.input_elems(ranks_);
}

const char* Oracle::scalar() const {
    return table_of(call_.type, Shape::kFactors).bytes.data() + call_.scalar * signature_.bytes;
}

bool Oracle::compressible() const {
    const bool type =
        call_.type == ncclFloat32 ||
        (!codec_.float32_only && (call_.type == ncclFloat16 || call_.type == ncclBfloat16));
    const bool sum =
        call_.op != Operator::kProd && call_.op != Operator::kMax && call_.op != Operator::kMin;
    const size_t elems = std::max(call_.input_elems(ranks_), call_.output_elems(ranks_));
    return codec_.any && type && (sum || !call_.reduces()) && ranks_ > 1 && call_.count > 1 &&
           elems * signature_.bytes >= codec_.min_bytes;
}

std::string Oracle::check_copy(const char* output,
                               int source,
                               size_t source_begin,
                               size_t output_begin) const {
    if (compressible() && source != rank_) {
        return check_lossy_copy(output, source, source_begin, output_begin);
    }
    const bool broadcast = call_.kind == Kind::kBroadcast || call_.kind == Kind::kBcast;
    if (compressible() && (broadcast || call_.kind == Kind::kAllGather)) {
        return check_lossy_copy(output, source, source_begin, output_begin);  // as the others get
    }
    std::vector<char> special(signature_.bytes);
    write_special(call_.type, call_.infinity, special.data());
    Walk walk(table_offset(call_, source), source_begin);
    for (size_t i = 0; i < call_.count; ++i, walk.step()) {
        const bool here = call_.special && call_.special_rank % ranks_ == source &&
                          source_begin + i == special_at();
        const char* expected =
            here ? special.data() : table_.bytes.data() + walk.at() * signature_.bytes;
        const char* actual = output + (output_begin + i) * signature_.bytes;
        if (std::memcmp(expected, actual, signature_.bytes) != 0) {
            return "element " + std::to_string(output_begin + i) + ": " +
                   number(to_double(call_.type, actual)) + " is not rank " +
                   std::to_string(source) + "'s " + number(to_double(call_.type, expected));
        }
    }
    return {};
}

std::string Oracle::check_lossy_copy(const char* output,
                                     int source,
                                     size_t source_begin,
                                     size_t output_begin) const {
    const double relative = codec_.error + (1 + codec_.error) * (signature_.roundoff + 0x1p-22);
    const double absolute = 4 * signature_.tiny + 0x1p-120 + owed(false);
    for (size_t block = 0; block < call_.count; block += codec_.block) {
        const size_t until = std::min(block + codec_.block, call_.count);
        double largest = 0;
        Walk of_block(table_offset(call_, source), source_begin + block);
        for (size_t i = block; i < until; ++i, of_block.step()) {
            largest = std::max(largest, std::fabs(table_.values[of_block.at()]));
        }
        const bool poisoned = call_.special && call_.special_rank % ranks_ == source &&
                              special_at() >= source_begin + block &&
                              special_at() < source_begin + until;
        Walk walk(table_offset(call_, source), source_begin + block);
        for (size_t i = block; i < until; ++i, walk.step()) {
            const double expected = table_.values[walk.at()];
            const double actual =
                to_double(call_.type, output + (output_begin + i) * signature_.bytes);
            const std::string element = "element " + std::to_string(output_begin + i) + ": ";
            if (poisoned && !std::isfinite(actual)) {
                continue;
            }
            if (poisoned && source_begin + i == special_at()) {
                return element + "the non-finite input became " + number(actual);
            }
            if (!(std::fabs(actual - expected) <= largest * relative + absolute)) {
                return element + number(actual) + " for rank " + std::to_string(source) + "'s " +
                       number(expected) + ", largest of its block " + number(largest) +
                       " (compressible)";
            }
        }
    }
    return {};
}

std::string Oracle::check_integers(const char* output, size_t base) const {
    const uint64_t scalar = table_of(call_.type, Shape::kFactors).words[call_.scalar];
    std::vector<Walk> walks;
    for (int r = 0; r < ranks_; ++r) {
        walks.emplace_back(table_offset(call_, r), base);
    }
    for (size_t i = 0; i < call_.count; ++i) {
        uint64_t word = 0;
        for (int r = 0; r < ranks_; ++r) {
            uint64_t x = table_.words[walks[static_cast<size_t>(r)].at()];
            walks[static_cast<size_t>(r)].step();
            if (call_.op == Operator::kPreMulHost || call_.op == Operator::kPreMulDevice) {
                x *= scalar;
            }
            if (r == 0) {
                word = x;
                continue;
            }
            const bool less = signature_.is_signed
                                  ? static_cast<int64_t>(x) < static_cast<int64_t>(word)
                                  : x < word;
            switch (call_.op) {
                case Operator::kSum:
                case Operator::kAvg:
                case Operator::kPreMulHost:
                case Operator::kPreMulDevice:
                    word += x;
                    break;
                case Operator::kProd:
                    word *= x;
                    break;
                case Operator::kMax:
                    word = less ? word : x;
                    break;
                case Operator::kMin:
                    word = less ? x : word;
                    break;
            }
        }
        if (call_.op == Operator::kAvg) {
            word = signature_.is_signed ? static_cast<uint64_t>(static_cast<int64_t>(word) / ranks_)
                                        : word / static_cast<uint64_t>(ranks_);
        }
        if (std::memcmp(&word, output + i * signature_.bytes, signature_.bytes) != 0) {
            return "element " + std::to_string(i) + ": " +
                   number(to_double(call_.type, output + i * signature_.bytes)) + ", expected " +
                   number(to_double(call_.type, &word));
        }
    }
    return {};
}

std::string Oracle::check_floats(const char* output, size_t base, size_t begin, size_t end) const {
    const bool compressed = compressible();
    const bool premul = call_.op == Operator::kPreMulHost || call_.op == Operator::kPreMulDevice;
    const double n = ranks_;
    const double factor = premul ? table_of(call_.type, Shape::kFactors).values[call_.scalar]
                                 : (call_.op == Operator::kAvg ? 1.0 / n : 1.0);
    const double e = codec_.error;
    const double u = signature_.roundoff;
    // |error| <= magnitude * relative + absolute, magnitude being sum|s x|, or M when compressed.
    const double native = (n + 3) * (u + 0x1p-53);
    const double lossy = call_.kind == Kind::kReduceScatter
                             ? e + (1 + e) * ((n + 2) * 0x1p-23 + n * u)
                             : e + e * (1 + e) + (1 + e) * (1 + e) * ((n + 2) * 0x1p-23 + u);
    const double absolute = 8 * n * signature_.tiny + (compressed ? 0x1p-120 + owed(true) : 0);
    const bool blocks = compressed && codec_.block > 1;
    const size_t step = blocks ? codec_.block : Table::kElems;
    for (size_t block = begin; block < end; block += step) {
        const size_t until = std::min(block + step, call_.count);
        double largest = 0;
        if (blocks) {
            for (int r = 0; r < ranks_; ++r) {
                double of_rank = 0;
                Walk walk(table_offset(call_, r), base + block);
                for (size_t i = block; i < until; ++i, walk.step()) {
                    of_rank = std::max(of_rank, std::fabs(table_.values[walk.at()]));
                }
                largest += of_rank * std::fabs(factor);
            }
        }
        const bool poisoned =
            call_.special && special_at() >= base + block && special_at() < base + until;
        std::vector<Walk> walks;
        for (int r = 0; r < ranks_; ++r) {
            walks.emplace_back(table_offset(call_, r), base + block);
        }
        for (size_t i = block; i < std::min(until, end); ++i) {
            double sum = 0, magnitude = 0, product = 1, most = 0, least = 0;
            for (size_t r = 0; r < walks.size(); ++r) {
                const double x = table_.values[walks[r].at()];
                walks[r].step();
                sum += x;
                magnitude += std::fabs(x);
                product *= x;
                most = r == 0 ? x : std::max(most, x);
                least = r == 0 ? x : std::min(least, x);
            }
            double expected = sum * factor;
            double bound = 0;
            if (call_.op == Operator::kProd) {
                expected = product;
                bound = (n + 1) * 1.2 * (u + 0x1p-53) * std::fabs(product) +
                        absolute * std::pow(1.5, n);
            } else if (call_.op == Operator::kMax || call_.op == Operator::kMin) {
                expected = call_.op == Operator::kMax ? most : least;
            } else {
                magnitude *= std::fabs(factor);
                bound = absolute +
                        (compressed ? std::max(magnitude, largest) * lossy : magnitude * native);
            }
            const double actual = to_double(call_.type, output + i * signature_.bytes);
            if (call_.special && base + i == special_at()) {
                if (std::isfinite(actual)) {
                    return "element " + std::to_string(i) + ": the non-finite input became " +
                           number(actual);
                }
                continue;
            }
            if (poisoned && blocks && !std::isfinite(actual)) {
                continue;  // shares the block of a non-finite element
            }
            if (!(std::fabs(actual - expected) <= bound)) {
                return "element " + std::to_string(i) + ": " + number(actual) + ", expected " +
                       number(expected) + " within " + number(bound) +
                       (compressed ? " (compressible)" : "");
            }
        }
    }
    return {};
}

double Oracle::owed(bool sum) const {
    if (!codec_.feedback) {
        return 0;
    }
    // Shape::kSpread holds values up to 4, and the scalars of pre-multiplied sums go up to 1.5.
    const double e = codec_.error, part = e / (1 - e), n = ranks_;
    const double rounding = 1 + 4 * (signature_.roundoff + 0x1p-20);
    if (!sum) {
        return part * 4 * (1 + e) * rounding;
    }
    const double of_rank = part * 6;
    const double of_sum = part * n * (6 + of_rank) * (1 + e);
    return (n * of_rank * (1 + e) * (1 + e) + of_sum * (1 + e)) * rounding;
}

std::string Oracle::check(const char* output) const {
    if (!compressible() || codec_.selection == Selection::kAll) {
        return check_dense(output);
    }
    std::string wrong = SparseOracle(call_, codec_, ranks_, rank_).check(output);
    if (wrong.empty()) {
        return {};
    }
    const Codec none;
    return Oracle(call_, none, ranks_, rank_).check_dense(output).empty() ? "" : wrong;
}

std::string Oracle::check_dense(const char* output) const {
    const auto mine = static_cast<size_t>(rank_);
    switch (call_.kind) {
        case Kind::kAllReduce:
        case Kind::kReduce:
        case Kind::kReduceScatter: {
            if (!call_.has_output(ranks_, rank_)) {
                return {};
            }
            const size_t base = call_.kind == Kind::kReduceScatter ? mine * call_.count : 0;
            if (!signature_.floating) {
                return check_integers(output, base);
            }
            size_t begin = 0, end = call_.count;
            if (call_.kind == Kind::kAllReduce) {
                const size_t blocks = (call_.count + codec_.block - 1) / codec_.block;
                const auto n = static_cast<size_t>(ranks_);
                begin = blocks * mine / n * codec_.block;
                end = std::min(blocks * (mine + 1) / n * codec_.block, call_.count);
            }
            return check_floats(output, base, begin, end);
        }
        case Kind::kAllGather:
        case Kind::kAllToAll:
        case Kind::kGather:
            if (!call_.has_output(ranks_, rank_)) {
                return {};
            }
            for (int source = 0; source < ranks_; ++source) {
                std::string wrong = check_copy(
                    output, source, call_.kind == Kind::kAllToAll ? mine * call_.count : 0,
                    static_cast<size_t>(source) * call_.count);
                if (!wrong.empty()) {
                    return wrong;
                }
            }
            return {};
        case Kind::kBroadcast:
        case Kind::kBcast:
            return check_copy(output, call_.root % ranks_, 0, 0);
        case Kind::kScatter:
            return check_copy(output, call_.root % ranks_, mine * call_.count, 0);
        case Kind::kSendRecv:
            return check_copy(output, (rank_ - call_.root % ranks_ + ranks_) % ranks_, 0, 0);
    }
    return {};
}

}  // namespace conformance
