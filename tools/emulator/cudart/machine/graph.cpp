#include "tools/emulator/cudart/machine/graph.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "tools/emulator/cudart/machine/handle_table.h"
#include "tools/emulator/cudart/machine/runtime.h"

namespace slimwire::emulator {
namespace {

using NodeTable = HandleTable<cudaGraphNode_t, GraphNode, 0x55>;

NodeTable& node_table() {
    static auto* const table = new NodeTable;  // workers may outlive static destructors
    return *table;
}

}  // namespace

NodeRef find_node(cudaGraphNode_t handle) {
    return node_table().find(handle);
}

Graph::~Graph() {
    for (const NodeRef& node : nodes_) {
        node_table().remove(node->handle);
        node->graph = nullptr;
        node->dependencies.clear();
    }
}

NodeRef Graph::add(NodeWork work, const std::vector<NodeRef>& dependencies) {
    auto node = std::make_shared<GraphNode>();
    node->work = std::move(work);
    node->graph = this;
    for (const NodeRef& dependency : dependencies) {
        node->dependencies.push_back(dependency.get());
    }
    node->handle = node_table().add(node);
    const std::lock_guard lock(mutex_);
    nodes_.push_back(node);
    return node;
}

std::vector<NodeRef> Graph::nodes() const {
    const std::lock_guard lock(mutex_);
    return nodes_;
}

std::shared_ptr<Graph> Graph::clone() const {
    auto copy = std::make_shared<Graph>();
    std::unordered_map<const GraphNode*, NodeRef> counterpart;
    for (const NodeRef& original : nodes()) {
        NodeWork work = original->work;
        if (work.child != nullptr) {
            work.child = work.child->clone();
        }
        std::vector<NodeRef> dependencies;
        for (const GraphNode* dependency : original->dependencies) {
            dependencies.push_back(counterpart.at(dependency));
        }
        counterpart[original.get()] = copy->add(std::move(work), dependencies);
    }
    copy->user_objects_ = user_objects_;
    return copy;
}

bool reachable(const std::vector<NodeRef>& from, const GraphNode* node) {
    std::vector<const GraphNode*> open;
    for (const NodeRef& start : from) {
        open.push_back(start.get());
    }
    std::unordered_set<const GraphNode*> seen;
    while (!open.empty()) {
        const GraphNode* next = open.back();
        open.pop_back();
        if (next == node) {
            return true;
        }
        if (seen.insert(next).second) {
            open.insert(open.end(), next->dependencies.begin(), next->dependencies.end());
        }
    }
    return false;
}

namespace {

constexpr size_t kNone = SIZE_MAX;
// Each lane but one is a thread; with more branches than this some run one after the other.
constexpr size_t kMaxLanes = 64;

// One node of the flattened graph: child graphs are replaced by what they consist of.
struct FlatNode {
    const NodeWork* work;  // null: only joins its dependencies
    std::vector<size_t> dependencies;
};

// Appends `graph`, whose roots depend on `entry`.
void flatten(const Graph& graph, const std::vector<size_t>& entry, std::vector<FlatNode>* out) {
    std::unordered_map<const GraphNode*, size_t> index;
    for (const NodeRef& node : graph.nodes()) {
        std::vector<size_t> dependencies;
        for (const GraphNode* dependency : node->dependencies) {
            dependencies.push_back(index.at(dependency));
        }
        if (dependencies.empty()) {
            dependencies = entry;
        }
        if (node->work.child != nullptr) {
            const size_t first = out->size();
            flatten(*node->work.child, dependencies, out);
            // An empty node stands for the end of the child.
            for (size_t i = first; i < out->size(); ++i) {
                dependencies.push_back(i);
            }
            out->push_back({nullptr, std::move(dependencies)});
        } else {
            out->push_back({&node->work, std::move(dependencies)});
        }
        index[node.get()] = out->size() - 1;
    }
}

// Distributes steps over lanes and finds which dependencies need an explicit wait.
class LanePlanner {
  public:
    explicit LanePlanner(GraphPlan* plan) : plan_(*plan) {}

    void place(const FlatNode& node) {
        // How much of each lane is over when this node starts.
        std::vector<size_t> over(plan_.lanes.size(), 0);
        for (const size_t dependency : node.dependencies) {
            const std::vector<size_t>& before = over_after_[dependency];
            for (size_t lane = 0; lane < before.size(); ++lane) {
                over[lane] = std::max(over[lane], before[lane]);
            }
        }
        Device* device = node.work != nullptr ? node.work->device : nullptr;
        const size_t lane = choose(device, node, over);
        over.resize(plan_.lanes.size(), 0);

        PlanStep step{};
        step.type = node.work != nullptr ? node.work->type : cudaGraphNodeTypeEmpty;
        step.lane = lane;
        if (node.work != nullptr) {
            step.operation = node.work->operation;
            step.event = node.work->event;
        }
        // What the lane itself has waited for so far.
        std::vector<size_t>& known = known_[lane];
        known.resize(plan_.lanes.size(), 0);
        for (const size_t dependency : node.dependencies) {
            const size_t other = plan_.steps[dependency].lane;
            if (other != lane && known[other] < position_[dependency]) {
                step.waits_for.push_back(dependency);
                plan_.steps[dependency].awaited = true;
            }
        }
        for (size_t i = 0; i < over.size(); ++i) {
            known[i] = std::max(known[i], over[i]);
        }
        over[lane] = ++lengths_[lane];
        position_.push_back(over[lane]);
        over_after_.push_back(std::move(over));
        plan_.steps.push_back(std::move(step));
    }

  private:
    // A lane of the right device all of whose steps are over by then, preferably a dependency's;
    // else a new one, or the shortest when there are enough.
    size_t choose(Device* device, const FlatNode& node, const std::vector<size_t>& over) {
        const auto suits = [&](size_t lane) {
            return device == nullptr || plan_.lanes[lane] == nullptr || plan_.lanes[lane] == device;
        };
        const auto fits = [&](size_t lane) { return over[lane] == lengths_[lane] && suits(lane); };
        size_t found = kNone;
        for (const size_t dependency : node.dependencies) {
            if (found == kNone && fits(plan_.steps[dependency].lane)) {
                found = plan_.steps[dependency].lane;
            }
        }
        for (size_t lane = 0; lane < plan_.lanes.size() && found == kNone; ++lane) {
            found = fits(lane) ? lane : kNone;
        }
        if (found == kNone && plan_.lanes.size() >= kMaxLanes) {
            for (size_t lane = 0; lane < plan_.lanes.size(); ++lane) {
                if (suits(lane) && (found == kNone || lengths_[lane] < lengths_[found])) {
                    found = lane;
                }
            }
        }
        if (found == kNone) {
            plan_.lanes.push_back(device);
            lengths_.push_back(0);
            known_.emplace_back();
            return plan_.lanes.size() - 1;
        }
        if (plan_.lanes[found] == nullptr) {
            plan_.lanes[found] = device;
        }
        return found;
    }

    GraphPlan& plan_;
    std::vector<size_t> lengths_;                  // by lane
    std::vector<std::vector<size_t>> known_;       // by lane
    std::vector<size_t> position_;                 // by step: its place in its lane, from 1
    std::vector<std::vector<size_t>> over_after_;  // by step: how much of each lane is then over
};

}  // namespace

std::shared_ptr<const GraphPlan> compile(const Graph& graph) {
    auto plan = std::make_shared<GraphPlan>();
    plan->source = graph.clone();
    std::vector<FlatNode> nodes;
    flatten(*plan->source, {}, &nodes);
    LanePlanner planner(plan.get());
    for (const FlatNode& node : nodes) {
        planner.place(node);
    }
    return plan;
}

GraphExec::~GraphExec() {
    for (const std::shared_ptr<Stream>& stream : lane_streams_) {
        if (stream != nullptr) {
            stream->retire();  // runs in flight still end
        }
    }
}

void GraphExec::launch(Stream& stream) {
    const std::lock_guard lock(mutex_);
    const GraphPlan& plan = *plan_;
    wait_for(stream, last_run_);
    lane_streams_.resize(std::max(lane_streams_.size(), plan.lanes.size()));

    // One lane of the stream's device runs on the stream itself.
    size_t own = 0;
    while (own < plan.lanes.size() && plan.lanes[own] != nullptr &&
           plan.lanes[own] != &stream.device()) {
        ++own;
    }
    std::vector<Stream*> lanes(plan.lanes.size(), &stream);
    std::shared_ptr<Recording> start;
    for (size_t lane = 0; lane < plan.lanes.size(); ++lane) {
        if (lane == own) {
            continue;
        }
        if (start == nullptr) {
            start = record(stream);
        }
        Device& device = plan.lanes[lane] != nullptr ? *plan.lanes[lane] : stream.device();
        std::shared_ptr<Stream>& lane_stream = lane_streams_[lane];
        if (lane_stream != nullptr && &lane_stream->device() != &device) {
            lane_stream->retire();  // the last run was launched on another device
            lane_stream = nullptr;
        }
        if (lane_stream == nullptr) {
            lane_stream =
                device.create_stream(Stream::Kind::kNonBlocking, cudaStreamNonBlocking, 0);
        }
        lanes[lane] = lane_stream.get();
        wait_for(*lane_stream, start);
    }

    std::vector<std::shared_ptr<Recording>> reached(plan.steps.size());
    for (size_t i = 0; i < plan.steps.size(); ++i) {
        const PlanStep& step = plan.steps[i];
        Stream& lane = *lanes[step.lane];
        for (const size_t other : step.waits_for) {
            wait_for(lane, reached[other]);
        }
        if (step.operation != nullptr) {
            lane.enqueue(step.operation);
        } else if (step.type == cudaGraphNodeTypeWaitEvent) {
            wait_for(lane, step.event->recording());
        } else if (step.type == cudaGraphNodeTypeEventRecord) {
            step.event->set_recording(record(lane));
        }
        if (step.awaited) {
            reached[i] = record(lane);
        }
    }
    for (size_t lane = 0; lane < plan.lanes.size(); ++lane) {
        if (lane != own) {
            wait_for(stream, record(*lanes[lane]));
        }
    }
    last_run_ = std::make_shared<Recording>(&stream);
    // Keeps the plan, and what the plan keeps alive, until the stream gets here.
    stream.enqueue(
        make_operation({"cudaGraphLaunch", [plan = plan_, end = last_run_] { end->complete(); },
                        /*survives_poison=*/true}));
}

}  // namespace slimwire::emulator
