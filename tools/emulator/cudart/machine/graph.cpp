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

std::vector<NodeRef> Graph::append(const Graph& other, const std::vector<NodeRef>& dependencies) {
    std::unordered_map<const GraphNode*, NodeRef> copies;
    std::vector<NodeRef> last = dependencies;
    for (const NodeRef& original : other.nodes()) {
        std::vector<NodeRef> before;
        for (const GraphNode* dependency : original->dependencies) {
            before.push_back(copies.at(dependency));
        }
        const NodeRef copy = add(original->work, before.empty() ? dependencies : before);
        std::erase_if(last, [&](const NodeRef& node) {
            const auto& followed = copy->dependencies;
            return std::find(followed.begin(), followed.end(), node.get()) != followed.end();
        });
        last.push_back(copies[original.get()] = copy);
    }
    user_objects_.insert(user_objects_.end(), other.user_objects_.begin(),
                         other.user_objects_.end());
    return last;
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

// Distributes steps over lanes and finds which dependencies need an explicit wait.
class LanePlanner {
  public:
    explicit LanePlanner(GraphPlan* plan) : plan_(*plan) {}

    void place(const NodeWork& work, const std::vector<size_t>& dependencies) {
        // How much of each lane is over when this node starts.
        std::vector<size_t> over(plan_.lanes.size(), 0);
        for (const size_t dependency : dependencies) {
            const std::vector<size_t>& before = over_after_[dependency];
            for (size_t lane = 0; lane < before.size(); ++lane) {
                over[lane] = std::max(over[lane], before[lane]);
            }
        }
        const size_t lane = choose(work.device, dependencies, over);
        over.resize(plan_.lanes.size(), 0);

        PlanStep step{&work, lane, {}};
        // What the lane itself has waited for so far.
        std::vector<size_t>& known = known_[lane];
        known.resize(plan_.lanes.size(), 0);
        for (const size_t dependency : dependencies) {
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
    size_t choose(Device* device,
                  const std::vector<size_t>& dependencies,
                  const std::vector<size_t>& over) {
        const auto suits = [&](size_t lane) {
            return device == nullptr || plan_.lanes[lane] == nullptr || plan_.lanes[lane] == device;
        };
        const auto fits = [&](size_t lane) { return over[lane] == lengths_[lane] && suits(lane); };
        size_t found = kNone;
        for (const size_t dependency : dependencies) {
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
    plan->source = std::make_shared<Graph>();
    (void)plan->source->append(graph, {});
    LanePlanner planner(plan.get());
    std::unordered_map<const GraphNode*, size_t> step_of;
    for (const NodeRef& node : plan->source->nodes()) {
        std::vector<size_t> dependencies;
        for (const GraphNode* dependency : node->dependencies) {
            dependencies.push_back(step_of.at(dependency));
        }
        step_of.emplace(node.get(), step_of.size());
        planner.place(node->work, dependencies);
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
            lane_stream = device.create_stream(Stream::Kind::kNonBlocking, 0);
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
        const NodeWork& work = *step.work;
        if (work.operation != nullptr) {
            lane.enqueue(work.operation);
        } else if (work.type == cudaGraphNodeTypeWaitEvent) {
            wait_for(lane, work.event->recording());
        } else {
            work.event->set_recording(record(lane));
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
    stream.enqueue(make_operation(
        "cudaGraphLaunch", [plan = plan_, end = last_run_] { end->complete(); },
        /*survives_poison=*/true));
}

}  // namespace slimwire::emulator
