// The one exception of the demo trainer: one line that says what was wrong, where, and what would
// be right. main() adds the rank and ends with a non-zero exit code.
#pragma once

#include <stdexcept>

namespace demo {

class TrainError : public std::runtime_error {
  public:
    using std::runtime_error::runtime_error;
};

}  // namespace demo
