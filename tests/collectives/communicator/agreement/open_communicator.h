// A communicator that this process's agreement server knows.
#pragma once

#include <gtest/gtest.h>

#include "collectives/communicator/agreement/agreement.h"

namespace slimwire {

inline constexpr uint64_t kTimeoutUs = 60000000;  // no test takes as long

// The process's first call says how long ranks wait for each other.
inline AgreementAddress open_communicator(uint64_t timeout_us = kTimeoutUs) {
    const Result<AgreementAddress> address = open_agreement(timeout_us, ncclUniqueId{}, "");
    EXPECT_TRUE(address.ok()) << address.status().message();
    return address.value();
}

}  // namespace slimwire
