// How much of a long test is played: all of it on the newest table, a part on the others, which
// share what is below the tables. TEST_NET_LONG=1 plays all of it on each.
#pragma once

#include <cstdlib>
#include <cstring>

#include "plugin/net/wrapped/inner_table.h"

namespace slimwire::net {

inline bool is_long_form() {
    const char* const wanted = std::getenv("TEST_NET_LONG");
    return wanted != nullptr && std::strcmp(wanted, "1") == 0;
}

inline bool plays_all(int table) {
    return table == kNewestTable || is_long_form();
}

}  // namespace slimwire::net
