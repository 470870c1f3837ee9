// Notices of calls between processes of a job (call_checks.h), out of band: one thread of the
// process listens, connects to processes when there is something to tell, and hands out what comes.
// It begins with the first communicator on which rules may compress an operation that copies, lives
// until exit and blocks all signals. Nothing here waits on the path of a call. Any thread.
#pragma once

#include <memory>
#include <string>

#include "collectives/communicator/calls/call_checks.h"

namespace slimwire {

class NoticeBoard {
  public:
    // Where notices to this process go; starts its thread if needed.
    static Result<AgreementAddress> address(const std::string& ifname);
    // Puts a notice on its way. After address() succeeded.
    static void post(const AgreementAddress& to, const CallNotice& notice);
    // From now on, or until the end of the communicator, notices to it arrive. Those that came
    // before it was there are kept.
    static void add(const std::shared_ptr<CallChecks>& checks);
    static void remove(const std::shared_ptr<CallChecks>& checks) noexcept;
};

}  // namespace slimwire
