// Runs the HyperOffload optimizer of MindSpore's own package on graphs: one JSON case a line in, one JSON result a line
// out. The cases have the form of the golden files; `device_bytes` and `workspace_bytes` of a node are what a backend would set.
#include <iostream>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "abstract/abstract_value.h"
#include "ir/anf.h"
#include "ir/func_graph.h"
#include "ir/manager.h"
#include "ir/tensor.h"
#include "ir/tensor_new.h"
#include "utils/compile_config.h"
// The settings of a process are read once; the oracle takes new ones for each case.
#define private public
#include "utils/hyper_offload/hyper_offload.h"
#undef private
#include "nlohmann/json.hpp"

using json = nlohmann::json;
using namespace mindspore;
namespace ho = mindspore::utils::hyper_offload;
using ho::KernelWithIndex;

namespace {
// Python's string "Remote": MindSpore looks for a Python object of that text, whose only member is this pointer.
void *g_remote = nullptr;

template <typename T>
T Value(const json &object, const char *key, T fallback) {
  return object.contains(key) && !object[key].is_null() ? object[key].get<T>() : fallback;
}

void Configure(const json &config) {
  auto &c = ho::HyperOffloadConfig::GetInstance();
  c.enable_hyper_offload_ = true;
  c.enable_hyper_offload_peak_strategy_ = config["strategy"] == "peak";
  c.select_distance_ = config["select_distance"];
  c.select_num_ = config["select_num"];
  c.prefetch_distance_ = config["prefetch_distance"];
  c.release_distance_ = config["release_distance"];
  // The headroom is read once: it is taken off here, where the result is the same as long as something is left.
  const auto memory = Value<size_t>(config, "max_device_memory", 0), headroom = Value<size_t>(config, "headroom", 0);
  if (headroom > 0 && memory <= headroom) throw std::runtime_error("a headroom of all the memory can't be set here");
  c.max_device_memory_ = memory - headroom;
  auto weights = Value<std::vector<double>>(config, "score_weights", {1, 1, 1, 1});
  c.score_weight_size_ = weights[0];
  c.score_weight_cover_start_ = weights[1];
  c.score_weight_cover_end_ = weights[2];
  c.score_weight_neighbor_impact_ = weights[3];
  c.offload_percentage_ = Value<std::string>(config, "filter_percentage", "");
  c.d2h_bandwidth_gbps_ = Value<double>(config, "d2h_bandwidth_gbps", 20.0);
  c.h2d_bandwidth_gbps_ = Value<double>(config, "h2d_bandwidth_gbps", 55.0);
  c.default_kernel_time_us_ = Value<double>(config, "kernel_time_us", 400.0);
  c.enable_adaptive_release_distance_ = Value<bool>(config, "adaptive_release", false);
  c.enable_adaptive_prefetch_distance_ = Value<bool>(config, "adaptive_prefetch", false);
}

abstract::AbstractTensorPtr TensorOf(size_t bytes) {
  return std::make_shared<abstract::AbstractTensor>(kFloat32, ShapeVector{static_cast<int64_t>(bytes / 4)});
}

// A graph under construction, and the way back from its nodes to references.
class Case {
 public:
  explicit Case(const json &spec) : graph_(std::make_shared<FuncGraph>()) {
    for (const auto &p : spec["parameters"]) AddParameter(p);
    for (const auto &n : spec["nodes"]) AddNode(n);
    AnfNodePtrList outputs{NewValueNode(prim::kPrimMakeTuple)};
    abstract::AbstractBasePtrList kinds;
    for (const auto &ref : spec["graph_outputs"]) {
      outputs.push_back(Input(ref));
      kinds.push_back(outputs.back()->abstract());
    }
    outputs_ = graph_->NewCNode(outputs);
    outputs_->set_abstract(std::make_shared<abstract::AbstractTuple>(kinds));
    graph_->set_output(outputs_);
    manager_ = Manage(graph_, true);
  }

  json Run(const json &config) {
    ho::HyperOffloadInput input;
    input.graph = graph_;
    input.exec_order = order_;
    input.enable_offload_parameter = config["enable_parameter"];
    input.enable_offload_activation = config["enable_activation"];
    try {
      ho::HyperOffloadOptimizer optimizer(input);
      return Result(optimizer.Run().exec_order);
    } catch (const std::exception &error) {
      const bool known = std::string(error.what()).find("has no users in execution order") != std::string::npos;
      return {{"error", known ? "h2d_without_user" : error.what()}};
    }
  }

 private:
  void AddParameter(const json &p) {
    auto parameter = graph_->add_parameter();
    const std::string name = p["name"];
    parameter->set_name(name);
    parameter->set_abstract(
      std::make_shared<abstract::AbstractRefTensor>(TensorOf(p["bytes"]), std::make_shared<RefKey>(name)));
    auto tensor =
      tensor::from_spec(kNumberTypeFloat32, ShapeVector{p["bytes"].get<int64_t>() / 4}, device::DeviceType::kNone);
    if (Value<bool>(p, "remote", false)) {
      tensor->set_user_data<void *>("parameter_device", std::make_shared<void *>(g_remote));
    }
    parameter->set_default_param(tensor);
    parameters_[name] = parameter;
    names_[parameter.get()] = json::array({name, 0});
  }

  AnfNodePtr Input(const json &ref) {
    const std::string name = ref[0];
    if (auto found = parameters_.find(name); found != parameters_.end()) {
      if (ref.size() < 3) return found->second;
      auto load = graph_->NewCNode({NewValueNode(prim::kPrimLoad), found->second, NewValueNode(kUMonad)});
      load->set_abstract(TensorOf(0));
      names_[load.get()] = json::array({name, 0, "load"});
      return load;
    }
    auto node = nodes_.at(name);
    auto tuple = node->abstract()->cast<abstract::AbstractTuplePtr>();
    if (tuple == nullptr) return node;
    const int64_t index = ref[1];
    auto item = graph_->NewCNode({NewValueNode(prim::kPrimTupleGetItem), node, NewValueNode(MakeValue(index))});
    item->set_abstract(tuple->elements()[index]);
    names_[item.get()] = json::array({name, index});
    return item;
  }

  void AddNode(const json &n) {
    AnfNodePtrList inputs{NewValueNode(std::make_shared<Primitive>(n["op"].get<std::string>()))};
    for (const auto &ref : n["inputs"]) inputs.push_back(Input(ref));
    auto node = graph_->NewCNode(inputs);
    const std::string name = n["name"];
    node->set_fullname_with_scope(name);
    std::vector<size_t> bytes = n["output_bytes"];
    abstract::AbstractBasePtrList kinds;
    for (auto b : bytes) kinds.push_back(TensorOf(b));
    if (bytes.size() == 1) {
      node->set_abstract(kinds[0]);
    } else {
      node->set_abstract(std::make_shared<abstract::AbstractTuple>(kinds));
    }
    Mark(node, n);
    nodes_[name] = node;
    names_[node.get()] = json::array({name, 0});
    order_.push_back(node);
  }

  void Mark(const CNodePtr &node, const json &n) {
    if (Value<bool>(n, "view", false)) node->set_user_data<bool>("is_view", std::make_shared<bool>(true));
    if (Value<bool>(n, "inplace", false)) node->set_user_data<bool>("is_inplace", std::make_shared<bool>(true));
    auto refs = std::make_shared<std::map<size_t, size_t>>();
    if (n.contains("ref_outputs")) {
      for (const auto &[out, in] : n["ref_outputs"].items()) (*refs)[std::stoul(out)] = in;
    }
    if (!refs->empty()) node->set_user_data<std::map<size_t, size_t>>(ho::kHyperOffloadRefOutputInputMap, refs);
    if (n.contains("device_bytes") && !n["device_bytes"].is_null()) {
      auto sizes = std::make_shared<std::vector<size_t>>(n["device_bytes"].get<std::vector<size_t>>());
      node->set_user_data<std::vector<size_t>>(ho::kHyperOffloadOutputMemSizes, sizes);
      node->set_user_data<size_t>(ho::kHyperOffloadOutputCount, std::make_shared<size_t>(sizes->size()));
    }
    if (n.contains("workspace_bytes") && !n["workspace_bytes"].is_null()) {
      node->set_user_data<size_t>(ho::kHyperOffloadWorkspaceSize, std::make_shared<size_t>(n["workspace_bytes"].get<size_t>()));
    }
    if (n.contains("enable_offload") && !n["enable_offload"].is_null()) {
      node->AddAttr("enable_offload", MakeValue(n["enable_offload"].get<bool>()));
    }
    for (const char *key : {"prefetch_distance", "release_distance"}) {
      if (n.contains(key) && !n[key].is_null()) node->AddAttr(key, MakeValue<uint64_t>(n[key].get<uint64_t>()));
    }
  }

  static std::string PrimitiveOf(const CNodePtr &node) { return GetCNodePrimitive(node)->name(); }

  json Reference(const AnfNodePtr &node) {
    if (auto copy = copies_.find(node.get()); copy != copies_.end()) {
      return {{"h2d_of", copy->second.first}, {"copy", copy->second.second}};
    }
    if (auto found = names_.find(node.get()); found != names_.end()) return found->second;
    auto cnode = node->cast<CNodePtr>();
    if (cnode != nullptr && PrimitiveOf(cnode) == "TupleGetItem") {
      auto made = Reference(cnode->input(1));
      return json::array({made[0], GetValue<int64_t>(GetValueNode(cnode->input(2)))});
    }
    if (cnode != nullptr && (PrimitiveOf(cnode) == "Load" || PrimitiveOf(cnode) == "CopyToHost")) {
      return Reference(cnode->input(1));
    }
    throw std::runtime_error("unknown node " + node->DebugString());
  }

  static bool IsEvent(const CNodePtr &node) { return ho::GetSendOrRecvStreamId(node).has_value(); }

  // The copies of each datum are numbered in the order in which they run.
  void NumberCopies(const CNodePtrList &order) {
    for (const auto &node : order) {
      if (names_.count(node.get()) > 0 || IsEvent(node) || PrimitiveOf(node) != "CopyToDevice") continue;
      const auto data = DataOf(node);
      copies_[node.get()] = {data, seen_[data.dump()]++};
    }
  }

  json DataOf(const CNodePtr &node) {
    auto data = Reference(node->input(1));
    if (data.size() > 2) data.erase(2);
    return data;
  }

  json DataOfEvent(const CNodePtr &node) {
    auto source = node->input(1)->cast<CNodePtr>();
    while (source != nullptr && IsEvent(source)) source = source->input(1)->cast<CNodePtr>();
    const bool reloads = *ho::GetEventNodeType(node) == ho::kSendRecvAfterH2D;
    if (reloads && copies_.count(source.get()) > 0) return copies_.at(source.get()).first;
    return Reference(source == nullptr ? node->input(1) : source);
  }

  json Operation(const CNodePtr &node) {
    static const std::map<std::string, std::string> kOps = {
      {"CopyToHost", "copy_to_host"}, {"CopyToDevice", "copy_to_device"}, {"CopyToHostExt", "copy_to_host_inplace"},
      {"FreeData", "free"}, {"AssignData", "assign"}};
    static const char *kEvents[] = {"before_d2h", "after_d2h", "after_h2d"};
    const auto primitive = PrimitiveOf(node);
    json found = {{"stream", nullptr}, {"event", nullptr}, {"side", nullptr}};
    if (auto stream = ho::GetSendOrRecvStreamId(node); stream.has_value()) {
      const bool sends = primitive.find("Send") != std::string::npos;
      found["op"] = sends ? "send" : "recv";
      found["data"] = DataOfEvent(node);
      found["stream"] = *stream;
      found["event"] = kEvents[*ho::GetEventNodeType(node)];
      return found;
    }
    found["op"] = kOps.at(primitive);
    if (primitive == "CopyToDevice") {
      const auto &copy = copies_.at(node.get());
      found["data"] = copy.first;
      found["copy"] = copy.second;
      return found;
    }
    found["data"] = Reference(node->input(1));
    if (primitive == "FreeData" || primitive == "AssignData") {
      found["side"] = *ho::GetFreeOrAssignNodeType(node) == ho::kDeviceType ? "device" : "host";
    }
    if (primitive == "AssignData" && found["side"] == "device") found["copy"] = copies_.at(node->input(2).get()).second;
    return found;
  }

  json Result(const CNodePtrList &order) {
    json pre = json::array(), after = json::array(), inputs = json::object(), outputs = json::array();
    NumberCopies(order);
    for (const auto &node : order) {
      auto found = names_.find(node.get());
      if (found != names_.end()) {
        after.push_back(json::array());
      } else {
        (after.empty() ? pre : after.back()).push_back(Operation(node));
      }
    }
    for (const auto &node : order_) {
      json list = json::array();
      for (size_t k = 1; k < node->size(); ++k) list.push_back(Reference(node->input(k)));
      inputs[names_[node.get()][0].get<std::string>()] = list;
    }
    auto output = graph_->output()->cast<CNodePtr>();
    for (size_t k = 1; k < output->size(); ++k) outputs.push_back(Reference(output->input(k)));
    return {{"error", nullptr}, {"pre", pre}, {"after", after}, {"inputs", inputs}, {"graph_outputs", outputs}};
  }

  FuncGraphPtr graph_;
  FuncGraphManagerPtr manager_;
  CNodePtr outputs_;
  CNodePtrList order_;
  std::map<std::string, ParameterPtr> parameters_;
  std::map<std::string, CNodePtr> nodes_;
  std::unordered_map<const AnfNode *, json> names_;
  std::map<std::string, int> seen_;
  std::unordered_map<const AnfNode *, std::pair<json, int>> copies_;
};
}  // namespace

extern "C" void set_remote(void *text) { g_remote = text; }

extern "C" void set_default(const char *name, const char *value) { common::SetCompileConfig(name, value); }

extern "C" const char *hyper_offload(const char *text) {
  static std::string answer;
  try {
    const auto spec = json::parse(text);
    Configure(spec["config"]);
    answer = Case(spec).Run(spec["config"]).dump();
  } catch (const std::exception &error) {
    answer = json{{"error", std::string("oracle: ") + error.what()}}.dump();
  }
  return answer.c_str();
}
