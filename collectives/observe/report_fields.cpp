#include "collectives/observe/report_fields.h"

#include <algorithm>

namespace slimwire {

void add_fields(const ReportFields& from, ReportFields* to) {
    for (const ReportField& field : from) {
        if (std::holds_alternative<std::vector<ReportFields>>(field.value)) {
            continue;
        }
        const auto same = std::find_if(to->begin(), to->end(), [&](const ReportField& other) {
            return other.name == field.name && other.value.index() == field.value.index();
        });
        if (same == to->end()) {
            to->push_back(field);
        } else if (auto* const number = std::get_if<uint64_t>(&same->value)) {
            *number += std::get<uint64_t>(field.value);
        } else if (auto* const object = std::get_if<ReportFields>(&same->value)) {
            add_fields(std::get<ReportFields>(field.value), object);
        }
    }
}

void drop_lists(ReportFields* fields) {
    std::erase_if(*fields, [](const ReportField& field) {
        return std::holds_alternative<std::vector<ReportFields>>(field.value);
    });
}

}  // namespace slimwire
