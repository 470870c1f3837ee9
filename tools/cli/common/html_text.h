// Text in pages that the command line writes.
#pragma once

#include <string>

namespace slimwire::cli {

// As text or the value of an attribute: markup is escaped, control characters become blanks, and
// what is not UTF-8 becomes U+FFFD.
[[nodiscard]] std::string escaped(const std::string& text);

}  // namespace slimwire::cli
