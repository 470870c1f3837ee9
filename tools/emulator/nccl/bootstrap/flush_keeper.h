// A thread of last resort for UCX. A send is done for UCX when its bytes are in UCX's own hands;
// over TCP they may stay there, because UCX moves only when somebody asks it to and nobody does
// once a job is over. When a context falls idle its worker is flushed; where that does not finish
// at once, this thread keeps asking until it has. Started when first needed; process-wide.
#pragma once

namespace slimwire::emu {

struct NetContext;

// --- Under the context's mutex.
// Call when the last request of the context is done: starts a flush.
void flush_when_idle(NetContext& context);

// --- Not under the context's mutex.
// Waits up to `limit_ms` for the flush, then takes the context away from the thread.
void finish_flush(NetContext& context, int limit_ms);

}  // namespace slimwire::emu
