// A communicator that this process's agreement server knows.
#pragma once

#include <gtest/gtest.h>

#include "collectives/communicator/agreement/agreement.h"

namespace slimwire {

inline constexpr uint64_t kTimeoutUs = 60000000;  // no test takes as long

inline AgreementAddress open_communicator() {
    Result<AgreementServer*> server = AgreementServer::instance(kTimeoutUs);
    EXPECT_TRUE(server.ok());
    Result<AgreementAddress> address = server.value()->open(ncclUniqueId{}, "");
    EXPECT_TRUE(address.ok());
    return address.value();
}

}  // namespace slimwire
