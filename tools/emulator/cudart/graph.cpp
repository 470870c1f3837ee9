#include "tools/emulator/cudart/graph.h"

#include <algorithm>
#include <queue>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "tools/emulator/cudart/handle_table.h"

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

bool UserObject::retain(uint64_t count) {
    const std::lock_guard lock(mutex_);
    if (references_ == 0) {
        return false;
    }
    references_ += count;
    return true;
}

bool UserObject::release(uint64_t count) {
    {
        const std::lock_guard lock(mutex_);
        if (count > references_) {
            return false;
        }
        references_ -= count;
        if (references_ != 0 || count == 0) {
            return true;
        }
    }
    if (forget_) {
        forget_();
    }
    destroy_(pointer_);
    return true;
}

void UserObjectSet::adopt_all(const UserObjectSet& other) {
    for (const auto& [object, count] : other.held_) {
        (void)object->retain(count);
        adopt(object, count);
    }
}

UserObjectSet::~UserObjectSet() {
    for (const auto& [object, count] : held_) {
        (void)object->release(count);
    }
}

void UserObjectSet::adopt(const std::shared_ptr<UserObject>& object, uint64_t count) {
    held_[object] += count;
}

bool UserObjectSet::release(const std::shared_ptr<UserObject>& object, uint64_t count) {
    const auto found = held_.find(object);
    if (found == held_.end() || found->second < count) {
        return false;
    }
    found->second -= count;
    if (found->second == 0) {
        held_.erase(found);
    }
    return object->release(count);
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

void Graph::remove(const NodeRef& node) {
    node_table().remove(node->handle);
    const std::lock_guard lock(mutex_);
    std::erase(nodes_, node);
    for (const NodeRef& other : nodes_) {
        std::erase(other->dependencies, node.get());
    }
    node->graph = nullptr;
    node->dependencies.clear();
}

bool Graph::add_edge(GraphNode* from, GraphNode* to) {
    const std::lock_guard lock(mutex_);
    if (std::count(to->dependencies.begin(), to->dependencies.end(), from) != 0) {
        return false;
    }
    to->dependencies.push_back(from);
    return true;
}

bool Graph::remove_edge(GraphNode* from, GraphNode* to) {
    const std::lock_guard lock(mutex_);
    return std::erase(to->dependencies, from) != 0;
}

std::vector<NodeRef> Graph::nodes() const {
    const std::lock_guard lock(mutex_);
    return nodes_;
}

std::vector<NodeRef> Graph::sorted() const {
    const std::lock_guard lock(mutex_);
    std::unordered_map<const GraphNode*, size_t> index;
    for (size_t i = 0; i < nodes_.size(); ++i) {
        index[nodes_[i].get()] = i;
    }
    std::vector<std::vector<size_t>> dependents(nodes_.size());
    std::vector<size_t> waits_for(nodes_.size());
    std::priority_queue<size_t, std::vector<size_t>, std::greater<>> ready;
    for (size_t i = 0; i < nodes_.size(); ++i) {
        waits_for[i] = nodes_[i]->dependencies.size();
        for (const GraphNode* dependency : nodes_[i]->dependencies) {
            dependents[index.at(dependency)].push_back(i);
        }
        if (waits_for[i] == 0) {
            ready.push(i);
        }
    }
    std::vector<NodeRef> order;
    while (!ready.empty()) {
        const size_t next = ready.top();
        ready.pop();
        order.push_back(nodes_[next]);
        for (const size_t dependent : dependents[next]) {
            if (--waits_for[dependent] == 0) {
                ready.push(dependent);
            }
        }
    }
    return order.size() == nodes_.size() ? order : std::vector<NodeRef>{};
}

std::shared_ptr<Graph> Graph::clone() const {
    auto copy = std::make_shared<Graph>();
    std::unordered_map<const GraphNode*, GraphNode*> counterpart;
    const std::vector<NodeRef> originals = nodes();
    for (const NodeRef& original : originals) {
        NodeWork work = original->work;
        if (work.child != nullptr) {
            work.child = work.child->clone();
        }
        const NodeRef made = copy->add(std::move(work), {});
        made->cloned_from = original->handle;
        counterpart[original.get()] = made.get();
    }
    for (const NodeRef& original : originals) {
        for (const GraphNode* dependency : original->dependencies) {
            copy->add_edge(counterpart.at(dependency), counterpart.at(original.get()));
        }
    }
    copy->user_objects_.adopt_all(user_objects_);
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

}  // namespace slimwire::emulator
