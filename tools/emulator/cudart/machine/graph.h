// Emulated graphs: nodes with an immutable operation each, edges, and the user objects that live as
// long as the graph. Built by capture (capture.h); then turned into something that can be
// launched (GraphExec).
//
// Thread contract: a graph is changed by one thread at a time, as the CUDA Runtime demands; the
// lock in here only keeps a program that breaks the rule from corrupting memory. User objects: any
// thread.
#pragma once

#include <driver_types.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "tools/emulator/cudart/machine/event.h"
#include "tools/emulator/cudart/machine/stream.h"

namespace slimwire::emulator {

class Device;
class Graph;

// Something of the client's that must live as long as a graph that uses it. The deleter of `object`
// is the client's: it runs on the thread that gives up the last reference (a stream's worker, where
// that was a launch in flight). Only then is the handle invalid.
struct UserObject {
    std::weak_ptr<void> object;           // graphs hold it
    std::shared_ptr<void> held;           // while the program has references
    std::atomic<uint64_t> references{0};  // the program's own
};

// What a node does.
struct NodeWork {
    cudaGraphNodeType type = cudaGraphNodeTypeEmpty;
    Device* device = nullptr;      // whose worker runs it; null: any
    OperationRef operation;        // null for event nodes
    std::shared_ptr<Event> event;  // event nodes
};

struct GraphNode {
    NodeWork work;
    std::vector<GraphNode*> dependencies;  // nodes of the same graph, no duplicates
    Graph* graph = nullptr;
    cudaGraphNode_t handle = nullptr;
};
using NodeRef = std::shared_ptr<GraphNode>;

class Graph {
  public:
    ~Graph();
    Graph() = default;
    Graph(const Graph&) = delete;
    Graph& operator=(const Graph&) = delete;

    // `dependencies` are nodes of this graph.
    NodeRef add(NodeWork work, const std::vector<NodeRef>& dependencies);
    // As they were added, so that each node follows its dependencies.
    [[nodiscard]] std::vector<NodeRef> nodes() const;
    // Adds copies of another graph's nodes, the first of them behind `dependencies`, and keeps its
    // user objects. The copies that no other one follows.
    std::vector<NodeRef> append(const Graph& other, const std::vector<NodeRef>& dependencies);
    // Keeps a user object for as long as the graph, or a copy of it, lives.
    void keep(std::shared_ptr<void> object) { user_objects_.push_back(std::move(object)); }

    // While a capture adds to it, a graph cannot be instantiated or destroyed.
    std::atomic<bool> capturing{false};

  private:
    mutable std::mutex mutex_;
    std::vector<NodeRef> nodes_;
    std::vector<std::shared_ptr<void>> user_objects_;
};

// The node behind a handle, of any graph; null when there is none.
NodeRef find_node(cudaGraphNode_t handle);

// True when `node` is one of `from` or comes before one of them.
bool reachable(const std::vector<NodeRef>& from, const GraphNode* node);

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

struct PlanStep {
    const NodeWork* work;  // of the plan's source
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
