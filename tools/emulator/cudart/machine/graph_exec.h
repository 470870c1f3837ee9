// Executable graphs. Instantiating compiles a graph into a plan: its steps in topological order,
// each in a lane. A lane is a chain of steps that may run one after the other without delaying
// anything that the graph lets run at the same time; lanes run concurrently, on streams of the
// executable graph's own, and wait for each other where the graph has an edge between them. One
// lane runs on the stream the graph is launched on. So a graph that is a chain costs what the same
// operations would cost enqueued one by one, and branches that wait for each other through a
// network, or on several devices, cannot block each other.
//
// Event nodes take part at the moment of the launch: a record node gives its event a new recording,
// a wait node waits for the recording its event has by then.
//
// Thread contract: any thread; launches of one executable graph are ordered behind each other.
#pragma once

#include <driver_types.h>

#include <memory>
#include <mutex>
#include <vector>

#include "tools/emulator/cudart/machine/graph.h"

namespace slimwire::emulator {

struct PlanStep {
    cudaGraphNodeType type;
    OperationRef operation;        // null for empty and event steps
    std::shared_ptr<Event> event;  // event steps
    size_t lane;
    std::vector<size_t> waits_for;  // steps of other lanes
    bool awaited = false;           // by a step of another lane
};

struct GraphPlan {
    std::vector<PlanStep> steps;
    std::vector<Device*> lanes;     // the device of each; null: any
    std::shared_ptr<Graph> source;  // a copy of what it was made from; holds its user objects
};

std::shared_ptr<const GraphPlan> compile(const Graph& graph);

class GraphExec {
  public:
    explicit GraphExec(std::shared_ptr<const GraphPlan> plan) : plan_(std::move(plan)) {}
    ~GraphExec();
    GraphExec(const GraphExec&) = delete;
    GraphExec& operator=(const GraphExec&) = delete;

    // Enqueues one run behind the stream's work and behind earlier runs.
    void launch(Stream& stream);

    [[nodiscard]] const GraphPlan& plan() const { return *plan_; }

  private:
    const std::shared_ptr<const GraphPlan> plan_;
    std::mutex mutex_;
    std::vector<std::shared_ptr<Stream>> lane_streams_;  // null for lanes not used yet
    std::shared_ptr<Recording> last_run_;                // when the latest launch is over
};

}  // namespace slimwire::emulator
