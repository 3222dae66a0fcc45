// Host side of the solvers: the task table, the workspace and the launches that all of them share.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include "cuda/core/core.h"
#include "cuda/core/forms.cuh"
#include "cuda/core/prepare.cuh"

namespace tim_ext {
namespace cuda {

inline void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  cudaGetLastError();  // or torch would report it as its own
  throw std::runtime_error(std::string("tim_ext: ") + what + " failed: " + cudaGetErrorString(error));
}

// Shared memory beyond 48 KB must be asked for; always all there is, as the setting is common to all host threads.
template <class Kernel>
void allow_shared(Kernel* kernel, int64_t bytes) {
  if (bytes <= 48 * 1024) return;
  const int all = current_device().shared_per_block;
  if (bytes > all) throw std::runtime_error("tim_ext: too many classes for the shared memory of this GPU");
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, all),
        "setting the size of shared memory");
}

// Which kernel a task gets. Tasks of one kind are neighbours in the table, and one launch.
struct Plan {
  int kind = 0;
  double cost = 0;         // multiply-adds of the whole solve
  bool shareable = false;  // whether several blocks can work on it
  int team = 1;            // blocks that do
};

// Tasks of one kind; those for teams come first.
struct Group {
  int kind = 0, first = 0, count = 0;
  std::vector<int> teams;  // blocks of each team
  int64_t samples = 0;     // the largest N
};

constexpr int64_t kMostSamples = int64_t(1) << 30;

struct Schedule {
  std::vector<TaskEntry> table;
  std::vector<double> costs;  // of the tasks in the table
  std::vector<Group> groups;
};

// Slices of a batch. before(cost) of the next launch asks for signals if too much was launched since the last time.
class Slices {
 public:
  Slices(const Pace& pace, cudaStream_t stream) : pace_(pace), stream_(stream) {}
  void before(double cost) {
    if (pace_.slice > 0 && launched_ > 0 && launched_ + cost > pace_.slice) {
      if (pace_.between) pace_.between(pace_.asked, stream_);
      launched_ = 0;
    }
    launched_ += cost;
  }
  // f(first, count) for tasks first .. first + count - 1 of the table, slice by slice.
  template <class F>
  void each(const std::vector<double>& costs, int first, int count, F f) {
    for (const int end = first + count; first < end;) {
      double cost = costs[size_t(first)];
      int last = first + 1;
      while (last < end && !(pace_.slice > 0 && cost + costs[size_t(last)] > pace_.slice))
        cost += costs[size_t(last++)];
      before(cost);
      f(first, last - first);
      first = last;
    }
  }

 private:
  const Pace& pace_;
  cudaStream_t stream_;
  double launched_ = 0;  // multiply-adds
};

// Teams for the tasks of one kind, the heaviest first. A task is worth a team if it would otherwise keep one processor
// busy long after the others have finished, and if an iteration has enough work for several. Teams run one after the other, so
// they must be fewer than the blocks of the smallest. Results do not depend on it.
inline void form_teams(std::vector<Plan*>& plans, double rounds, const Device& device) {
  constexpr double kWorthSharing =
      2e6;  // multiply-adds per block and iteration: what a barrier of a team costs
  double total = 0;
  for (const Plan* plan : plans) total += plan->cost;
  size_t candidates = 0;
  int smallest = device.processors;
  for (Plan* plan : plans) {
    if (plan->cost * device.processors <= total * 1.001) break;
    const double blocks = plan->cost / (rounds + 1) / kWorthSharing;
    plan->team = int(std::min<double>(std::max(blocks, 1.0), device.processors));
    if (plan->team == 1) break;
    smallest = plan->team;
    ++candidates;
  }
  if (candidates >= size_t(smallest))
    for (Plan* plan : plans) plan->team = 1;
}

template <class Choose>  // choose(n, K) -> Plan with kind and cost
Schedule make_schedule(const Batch& batch, int64_t rounds, const Device& device, Choose choose) {
  std::vector<Plan> plans;
  Schedule schedule;
  std::vector<TaskEntry> entries;
  int64_t probs = 0, classes = 0;
  for (int64_t t = 0; t < batch.tasks; ++t) {
    const int64_t n = batch.offsets[t + 1] - batch.offsets[t], K = batch.classes[t];
    if (n > kMostSamples || K > kMostSamples || batch.tasks > kMostSamples)
      throw std::runtime_error(
          "tim_ext: more than 2^30 samples or classes in a task, or tasks, are not supported on a GPU");
    TaskEntry entry{};
    entry.first_sample = batch.offsets[t];
    entry.first_prob = probs;
    entry.first_class = classes;
    entry.task = int(t);
    entry.samples = int(n);
    entry.classes = int(K);
    entries.push_back(entry);
    plans.push_back(choose(n, K));
    probs += n * K;
    classes += K;
  }
  std::vector<int> order(entries.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
    const Plan &p = plans[size_t(a)], &q = plans[size_t(b)];
    return p.kind != q.kind ? p.kind > q.kind : p.cost > q.cost;  // kinds of heavy tasks first
  });
  for (size_t first = 0; first < order.size();) {
    std::vector<Plan*> same;
    for (; first + same.size() < order.size();) {
      Plan& plan = plans[size_t(order[first + same.size()])];
      if (!same.empty() && plan.kind != same[0]->kind) break;
      same.push_back(&plan);
    }
    if (same[0]->shareable) form_teams(same, double(rounds), device);
    first += same.size();
  }
  for (int t : order) {
    const Plan& plan = plans[size_t(t)];
    const TaskEntry& entry = entries[size_t(t)];
    if (schedule.groups.empty() || schedule.groups.back().kind != plan.kind) {
      schedule.groups.emplace_back();
      schedule.groups.back().kind = plan.kind;
      schedule.groups.back().first = int(schedule.table.size());
    }
    Group& group = schedule.groups.back();
    ++group.count;
    if (plan.team > 1) group.teams.push_back(plan.team);
    group.samples = std::max<int64_t>(group.samples, entry.samples);
    schedule.table.push_back(entry);
    schedule.costs.push_back(plan.cost);
  }
  return schedule;
}

// Where everything lies in the workspace; made from null, it counts the bytes.
template <class T>
struct Workspace {
  TaskEntry* table;
  double* log_priors;
  unsigned* counters;  // per group: tasks taken; then one for each team
  TaskSamples* samples;
  int *position, *label, *support_count;
  int64_t* row;
  T *scale, *mean;
  T *share, *sample_priors;
  int* counting;
  unsigned char* slots;
  int64_t bytes, counter_count;
};
template <class T>
Workspace<T> take_workspace(void* start, const Batch& batch, const Schedule& schedule, int64_t slots_bytes) {
  Arena arena(start);
  Workspace<T> w{};
  const int64_t R = batch.offsets[batch.tasks];
  int64_t classes = 0, probs = 0;
  for (int64_t t = 0; t < batch.tasks; ++t) {
    classes += batch.classes[t];
    probs += (batch.offsets[t + 1] - batch.offsets[t]) * batch.classes[t];
  }
  for (const Group& group : schedule.groups) w.counter_count += 1 + int64_t(group.teams.size());
  w.table = arena.take<TaskEntry>(batch.tasks);
  w.log_priors = batch.class_prior ? arena.take<double>(classes) : nullptr;
  w.counters = arena.take<unsigned>(w.counter_count);
  w.samples = arena.take<TaskSamples>(batch.tasks);
  w.position = arena.take<int>(R);
  w.label = arena.take<int>(R);
  w.support_count = arena.take<int>(classes);
  w.row = arena.take<int64_t>(R);
  w.scale = arena.take<T>(2 * R);
  w.mean = arena.take<T>(batch.tasks * round_up(batch.dim, kVector<T>));
  if (knows_samples(batch)) {
    w.share = arena.take<T>(R);
    w.counting = arena.take<int>(batch.tasks);
    w.sample_priors = batch.sample_log_prior ? arena.take<T>(probs) : nullptr;
  }
  const int64_t before = arena.used();
  w.slots = static_cast<unsigned char*>(start) + round_up(before, 256);
  w.bytes = round_up(before, 256) + slots_bytes;
  return w;
}

// The slots of a group: one at a time for its teams, then one for each block of the others. Blocks of these kernels fill
// a processor (they use more than half of its registers), so more of them would not run; fewer do if memory is short.
struct GroupSlots {
  int64_t team_bytes = 0, bytes = 0;  // of a slot
  int count = 0;
  int64_t total() const { return std::max(team_bytes, bytes * count); }
};
constexpr int64_t kSlotsBudget = int64_t(2) << 30;

template <class SlotBytes>  // slot_bytes(kind, n, K)
std::vector<GroupSlots> plan_slots(const Schedule& schedule, const Device& device, SlotBytes slot_bytes) {
  std::vector<GroupSlots> all;
  for (const Group& group : schedule.groups) {
    GroupSlots slots;
    const int teams = int(group.teams.size());
    for (int i = 0; i < group.count; ++i) {
      const TaskEntry& task = schedule.table[size_t(group.first + i)];
      const int64_t bytes = slot_bytes(group.kind, int64_t(task.samples), task.classes);
      int64_t& most = i < teams ? slots.team_bytes : slots.bytes;
      most = std::max(most, bytes);
    }
    slots.count = std::min(group.count - teams, device.processors);
    if (slots.bytes > 0)
      slots.count = int(std::min<int64_t>(slots.count, std::max<int64_t>(1, kSlotsBudget / slots.bytes)));
    all.push_back(slots);
  }
  return all;
}
// Groups run one after the other and share the memory.
inline int64_t slots_bytes(const std::vector<GroupSlots>& all) {
  int64_t bytes = 0;
  for (const GroupSlots& slots : all) bytes = std::max(bytes, slots.total());
  return bytes;
}

// How a batch is solved, and the memory for it.
struct Prepared {
  Schedule schedule;
  std::vector<GroupSlots> slots;
  int64_t slots_total = 0;
};
template <class Choose, class SlotBytes>
Prepared make_plan(const Batch& batch, int64_t rounds, const Device& device, Choose choose,
                   SlotBytes slot_bytes) {
  Prepared p;
  p.schedule = make_schedule(batch, rounds, device, choose);
  p.slots = plan_slots(p.schedule, device, slot_bytes);
  p.slots_total = slots_bytes(p.slots);
  return p;
}

template <class T>
size_t workspace_bytes(const Batch& batch, const Prepared& p) {
  return size_t(take_workspace<T>(nullptr, batch, p.schedule, p.slots_total).bytes);
}

inline void upload(const void* from, int64_t bytes, void* to, cudaStream_t stream) {
  constexpr int64_t most = sizeof(UploadPiece);
  for (int64_t at = 0; at < bytes; at += most) {
    UploadPiece piece{};
    const int64_t size = std::min(most, bytes - at);
    std::memcpy(piece.words, static_cast<const char*>(from) + at, size_t(size));
    TIM_LAUNCH(upload_kernel, 1, kThreads, 0, stream, piece,
               reinterpret_cast<uint32_t*>(static_cast<unsigned char*>(to) + at), int(size / 4));
  }
}

// The batch on the device: table and prior uploaded, samples arranged and measured.
template <class T>
Problem<T> prepare(const Batch& batch, const Outputs& out, const Schedule& schedule, const Workspace<T>& w,
                   bool normalize, double marginal_weight, int64_t history_length, const void* start,
                   cudaStream_t stream) {
  upload(schedule.table.data(), int64_t(schedule.table.size() * sizeof(TaskEntry)), w.table, stream);
  const std::vector<unsigned> zeros(size_t(w.counter_count), 0);
  upload(zeros.data(), w.counter_count * int64_t(sizeof(unsigned)), w.counters, stream);
  if (batch.class_prior) {
    std::vector<double> logs;
    for (int64_t t = 0; t < batch.tasks; ++t)
      for (int64_t k = 0; k < batch.classes[t]; ++k)
        logs.push_back(log_prior_of(batch.classes[t], batch.class_prior[logs.size()]));
    upload(logs.data(), int64_t(logs.size() * sizeof(double)), w.log_priors, stream);
  }
  const bool half = batch.dtype == Dtype::f16 || batch.dtype == Dtype::bf16;
  const size_t unit = half ? 8 : 16;
  Problem<T> problem{};
  problem.features = batch.features;
  problem.dtype = batch.dtype;
  problem.aligned = batch.dim % kVector<T> == 0 && reinterpret_cast<uintptr_t>(batch.features) % unit == 0;
  problem.pool_rows = batch.pool_rows;
  problem.dim = batch.dim;
  problem.rows = batch.rows;
  problem.labels = batch.labels;
  problem.log_priors = w.log_priors;
  problem.table = w.table;
  problem.start = static_cast<const T*>(start ? start : batch.weights);
  problem.checks_start = batch.weights != nullptr;
  problem.sample_weight = static_cast<const T*>(batch.sample_weight);
  problem.sample_log_prior = static_cast<const T*>(batch.sample_log_prior);
  problem.samples = w.samples;
  problem.position = w.position;
  problem.label = w.label;
  problem.row = w.row;
  problem.scale = w.scale;
  problem.support_count = w.support_count;
  problem.mean = w.mean;
  problem.mean_pitch = round_up(batch.dim, kVector<T>);
  problem.share = w.share;
  problem.sample_priors = w.sample_priors;
  problem.counting = w.counting;
  problem.probs = static_cast<T*>(out.probs);
  problem.predictions = out.predictions;
  problem.weights = static_cast<T*>(out.weights);
  problem.iterations = out.iterations;
  problem.history = static_cast<T*>(out.history);
  problem.proportions = static_cast<T*>(out.proportions);
  problem.marginal_weights = static_cast<T*>(out.marginal_weights);
  problem.status = out.status;
  problem.history_length = history_length;
  problem.history_terms = int(history_terms(batch));
  problem.marginal_weight = T(marginal_weight);
  Arena shared(nullptr);
  shared.take<int>(kWarps);
  for (int i = 0; i < 5; ++i) shared.take<int>(1);
  shared.take<T>(kMeanPartial<T>);
  shared.take<double>(kWarps);
  TIM_LAUNCH((prepare_kernel<T>), batch.tasks, kThreads, size_t(shared.used()), stream, problem, normalize);
  return problem;
}

// Blocks of a kernel that the device holds at once.
template <class Kernel>
int resident_blocks(Kernel* kernel, int64_t shared, const Device& device) {
  int each = 0;
  check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, kernel, kThreads, size_t(shared)),
        "reading the occupancy");
  return each * device.processors;
}

// Launches a kernel of slots for one group: a cooperative launch for each task with a team, then one for the rest. Where part
// of the device is set aside (MPS, green contexts) a team may not fit: then its task gets one block, and the same result.
template <class T, class Kernel, class Weights, class... More>
void launch_group(Kernel* kernel, const Problem<T>& problem, const Weights& weights, const Schedule& schedule,
                  const Group& group, const Workspace<T>& w, unsigned* counters, const GroupSlots& memory,
                  int64_t shared, const Device& device, Slices& slices, cudaStream_t stream, More... more) {
  allow_shared(kernel, shared);
  const int teams = int(group.teams.size()), most = teams > 0 ? resident_blocks(kernel, shared, device) : 0;
  for (int i = 0; i < teams; ++i) {
    Slots slots{};
    slots.memory = w.slots;
    slots.bytes = memory.team_bytes;
    slots.first = group.first + i;
    slots.count = 1;
    slots.arrived = counters + 1 + i;
    slices.before(schedule.costs[size_t(slots.first)]);
    const cudaError_t error =
        TIM_LAUNCH_COOPERATIVE((*kernel), std::min(group.teams[size_t(i)], most), kThreads, size_t(shared),
                               stream, problem, weights, slots, more...);
    if (error == cudaErrorCooperativeLaunchTooLarge) {
      cudaGetLastError();
      TIM_LAUNCH((*kernel), 1, kThreads, size_t(shared), stream, problem, weights, slots, more...);
    } else {
      check(error, "launching a team");
    }
  }
  slices.each(schedule.costs, group.first + teams, group.count - teams, [&](int first, int count) {
    if (first > group.first + teams) {
      const unsigned none = 0;
      upload(&none, sizeof none, counters, stream);
    }
    Slots slots{};
    slots.memory = w.slots;
    slots.bytes = memory.bytes;
    slots.first = first;
    slots.count = count;
    slots.next = counters;
    TIM_LAUNCH((*kernel), std::min(memory.count, count), kThreads, size_t(shared), stream, problem, weights,
               slots, more...);
  });
}

}  // namespace cuda
}  // namespace tim_ext
