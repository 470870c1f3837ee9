// What features count beside what every key has: named values, which the report prints as they
// come. Neither the statistics nor the report knows a feature by name.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

namespace slimwire {

struct ReportField;
using ReportFields = std::vector<ReportField>;
struct ReportField {
    std::string name;
    // Fields are an object; several of them are a list of objects.
    std::variant<uint64_t, double, bool, std::string, ReportFields, std::vector<ReportFields>>
        value;
};

// Where keys are added up: whole numbers are sums, other values are those of the first key that
// has them, and lists go.
void add_fields(const ReportFields& from, ReportFields* to);
void drop_lists(ReportFields* fields);

// A feature's counters of one key. Atomic ones change at any time, all else changes inside
// CommStats::update() only.
class FeatureStats {
  public:
    virtual ~FeatureStats() = default;
    virtual void report(ReportFields* fields) const = 0;
    // Changes with every atomic counter.
    [[nodiscard]] virtual uint64_t mark() const noexcept { return 0; }
};

}  // namespace slimwire
