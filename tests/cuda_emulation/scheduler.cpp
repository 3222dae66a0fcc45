#include "scheduler.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <memory>
#include <unordered_map>
#include <vector>

#include "emulation.h"
#include "fiber.h"
#include "memory.h"

emulation::Index threadIdx, blockIdx, blockDim, gridDim;

namespace emulation {
namespace {

constexpr unsigned kWarp = 32;

struct Random {
  uint64_t state;
  uint64_t next() {  // splitmix64
    uint64_t z = state += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
  }
  unsigned below(size_t n) { return static_cast<unsigned>((next() >> 32) * n >> 32); }
};

struct Block;

// Of the blocks of this launch: what they did before this epoch is visible. Empty: nothing.
using Epochs = std::vector<uint32_t>;

void join(Epochs& to, const Epochs& from) {
  to.resize(std::max(to.size(), from.size()), 0);
  for (size_t i = 0; i < from.size(); ++i) to[i] = std::max(to[i], from[i]);
}

enum class State { ready, at_block_barrier, at_warp_operation, ended };

struct Fiber {
  Context context;
  Block* block = nullptr;
  unsigned thread = 0;
  State state = State::ready;
  uint64_t result = 0;
  std::array<uint32_t, kWarp> clocks{};  // of the warp's lanes, as far as this thread knows
  const void* seen = nullptr;            // the last address of an atomic operation or volatile read
  bool fenced = false;                   // __threadfence since the last block barrier
  Epochs heard;                          // from other blocks, for the whole block after its next barrier

  unsigned lane() const { return thread % kWarp; }
  unsigned warp() const { return thread / kWarp; }
};

// Lanes that have met, or wait to meet, in one operation.
struct Meeting {
  Site site;
  Operation operation;
  unsigned mask, here;
  std::array<uint64_t, kWarp> values;
  std::array<int, kWarp> arguments, widths;
};

struct Warp {
  std::vector<Meeting> meetings;  // of disjoint masks
  unsigned ended = 0, at_block_barrier = 0;
};

struct Block {
  uint32_t number = 0;  // over all launches
  unsigned index = 0;
  unsigned char* shared = nullptr;
  std::vector<std::unique_ptr<Fiber>> fibers;
  std::vector<Warp> warps;
  Readers readers{1};
  uint32_t epoch = 0;
  Epochs known;
  std::vector<std::pair<const unsigned char*, size_t>> permitted;  // at the next barrier
  unsigned at_barrier = 0, ended = 0;
  Site barrier{};
  Operation barrier_operation{};
  int barrier_value = 0;
};

Settings current_settings;
std::unordered_map<const void*, int> shared_limits;
std::string removed_file;  // of the barrier that is not there
int removed_line = 0;
std::map<std::pair<const char*, int>, int64_t> barrier_counts;
std::string host_problem;  // found where nothing can be thrown

Stacks stacks;
Context scheduler;
const Launch* launch_now = nullptr;
Fiber* current = nullptr;
std::string failure;
std::vector<Fiber*> ready;
Random random_source{0};
uint32_t blocks_started = 0;
int64_t idle_yields = 0;
// What a fence and an atomic operation on this address made known.
std::unordered_map<const void*, Epochs> signals;

// Messages ---------------------------------------------------------------------------------------------

const char* file_name(const char* path) {
  const char* const slash = std::strrchr(path, '/');
  return slash ? slash + 1 : path;
}

std::string name_of(Site site) { return std::string(file_name(site.file)) + ":" + std::to_string(site.line); }

std::string name_of(Operation operation, Site site) {
  static const char* const names[] = {"__syncthreads", "__syncthreads_or", "__syncwarp",
                                      "__shfl_sync",   "__shfl_xor_sync",  "__shfl_down_sync",
                                      "__ballot_sync", "__any_sync",       "__all_sync"};
  return std::string(names[static_cast<int>(operation)]) + " at " + name_of(site);
}

std::string name_of(unsigned mask) {
  char text[16];
  std::snprintf(text, sizeof text, "0x%08x", mask);
  return text;
}

std::string name_of(const Fiber& fiber) {
  return "block " + std::to_string(fiber.block->index) + ", thread " + std::to_string(fiber.thread);
}

// file:line of an instruction in this library, then of the calls that were inlined there, with the help of addr2line
std::string line_of(unsigned long offset) {
  Dl_info library;
  if (!dladdr(reinterpret_cast<const void*>(&line_of), &library)) return "??";
  char command[4096], text[1024];
  std::snprintf(command, sizeof command, "addr2line -i -e '%s' 0x%lx 2>/dev/null", library.dli_fname,
                offset - 1);
  std::string lines;
  FILE* const output = popen(command, "r");
  while (output && std::fgets(text, sizeof text, output)) {
    const std::string line = file_name(text);
    if (line.find("emulation.h") != std::string::npos) continue;  // the copy of a vector
    lines += (lines.empty() ? "" : " < ") + line.substr(0, line.find_first_of(" \n"));
  }
  if (output) pclose(output);
  return lines.empty() ? "??" : lines;
}

// {offset} -> file:line
std::string with_lines(std::string text) {
  for (size_t open = text.find('{'); open != std::string::npos; open = text.find('{', open)) {
    const size_t close = text.find('}', open);
    text.replace(open, close - open + 1, line_of(std::stoul(text.substr(open + 1, close - open - 1))));
  }
  return text;
}

// Fibers ---------------------------------------------------------------------------------------------------

void enter(Fiber& fiber) {
  current = &fiber;
  const Block& block = *fiber.block;
  threadIdx.x = fiber.thread;
  blockIdx.x = block.index;
  running.in_kernel = true;
  running.block = block.number;
  running.epoch = block.epoch;
  running.thread = fiber.thread;
  running.clocks = fiber.clocks.data();
  running.readers = &fiber.block->readers;
  running.known_blocks = block.known.data();
  running.known_count = block.known.size();
  running.stack = fiber.context.stack;
  running.stack_bytes = Stacks::kBytes;
  switch_to(scheduler, fiber.context);
  running.in_kernel = false;
  current = nullptr;
}

void leave() { switch_to(current->context, scheduler); }

[[noreturn]] void fail(const std::string& what) {
  failure = name_of(*current) + ": " + what;
  leave();
  __builtin_unreachable();
}

template <class F>
void check_meetings(const Fiber& fiber, F does) {
  for (const Meeting& meeting : fiber.block->warps[fiber.warp()].meetings)
    if (meeting.mask & (1u << fiber.lane()))
      fail(does() + ", but other lanes of its warp wait for it in " +
           name_of(meeting.operation, meeting.site) + ", mask " + name_of(meeting.mask));
}

void end_thread() {
  Fiber& fiber = *current;
  Block& block = *fiber.block;
  if (block.at_barrier > 0)
    fail("ended, but other threads of the block wait at " + name_of(block.barrier_operation, block.barrier));
  check_meetings(fiber, [] { return std::string("ended"); });
  fiber.state = State::ended;
  block.warps[fiber.warp()].ended |= 1u << fiber.lane();
  ++block.ended;
  idle_yields = 0;
  leave();
}

void fiber_main() {
  arrived(current->context, &scheduler);
  launch_now->run(launch_now->arguments);
  end_thread();
}

// Threads that go on, in random order, at the end of the list of those that are ready.
class Release {
 public:
  Release() : first_(ready.size()) { idle_yields = 0; }
  void add(Fiber& fiber) {
    fiber.state = State::ready;
    ready.push_back(&fiber);
    std::swap(ready.back(), ready[first_ + random_source.below(ready.size() - first_)]);
  }

 private:
  size_t first_;
};

// Meetings ---------------------------------------------------------------------------------------------------

bool same(Site a, Site b) { return a.line == b.line && (a.file == b.file || !std::strcmp(a.file, b.file)); }

bool is_removed(Site site) { return site.line == removed_line && removed_file == file_name(site.file); }

// What a lane gets from a complete meeting.
uint64_t outcome(const Meeting& meeting, unsigned lane) {
  unsigned votes = 0;
  for (unsigned other = 0; other < kWarp; ++other)
    if (meeting.mask >> other & 1 && meeting.values[other]) votes |= 1u << other;
  const int argument = meeting.arguments[lane], width = meeting.widths[lane], mine = static_cast<int>(lane);
  const int first = mine / width * width;  // of the lane's group
  int from = mine;
  switch (meeting.operation) {
    case Operation::ballot:
      return votes;
    case Operation::any:
      return votes != 0;
    case Operation::all:
      return votes == meeting.mask;
    case Operation::shuffle:
      from = first + (argument & (width - 1));
      break;
    case Operation::shuffle_xor:
      from = mine ^ argument;
      if (from >= first + width) from = mine;
      break;
    case Operation::shuffle_down:
      from = mine + argument;
      if (from >= first + width) from = mine;
      break;
    default:
      return 0;
  }
  if (from < 0 || from >= static_cast<int>(kWarp) || !(meeting.mask >> from & 1))
    fail(name_of(meeting.operation, meeting.site) + ": lane " + std::to_string(lane) + " reads from lane " +
         std::to_string(from) + ", which is not in the mask " + name_of(meeting.mask));
  return meeting.values[static_cast<size_t>(from)];
}

void complete(Block& block, unsigned warp, const Meeting& meeting) {
  std::array<uint32_t, kWarp> clocks{};
  const bool orders_memory = meeting.operation == Operation::sync_warp;
  auto for_lanes = [&](auto body) {
    for (unsigned lane = 0; lane < kWarp; ++lane)
      if (meeting.mask >> lane & 1) body(*block.fibers[warp * kWarp + lane], lane);
  };
  if (orders_memory)
    for_lanes([&](Fiber& fiber, unsigned) {
      for (unsigned i = 0; i < kWarp; ++i) clocks[i] = std::max(clocks[i], fiber.clocks[i]);
    });
  for_lanes([&](Fiber& fiber, unsigned lane) {
    fiber.result = outcome(meeting, lane);
    if (orders_memory) {
      fiber.clocks = clocks;
      ++fiber.clocks[lane];
    }
  });
  Release release;
  for_lanes([&](Fiber& fiber, unsigned) { release.add(fiber); });
  if (orders_memory) ++barrier_counts[{meeting.site.file, meeting.site.line}];
}

void check_mask(const Fiber& fiber, Site site, Operation operation, unsigned mask, int width) {
  const auto here = [&] { return name_of(operation, site) + ": "; };
  const Block& block = *fiber.block;
  const Warp& warp = block.warps[fiber.warp()];
  const size_t lanes = std::min<size_t>(kWarp, block.fibers.size() - fiber.warp() * kWarp);
  const unsigned existing = lanes == kWarp ? ~0u : (1u << lanes) - 1;
  if (!(mask >> fiber.lane() & 1))
    fail(here() + "lane " + std::to_string(fiber.lane()) + " is not in its own mask " + name_of(mask));
  if (mask & ~existing)
    fail(here() + "the mask " + name_of(mask) + " names lanes that the block does not have, " +
         name_of(mask & ~existing));
  if (width < 1 || width > 32 || (width & (width - 1)))
    fail(here() + "width must be a power of two up to 32, got " + std::to_string(width));
  if (mask & warp.ended)
    fail(here() + "the mask " + name_of(mask) + " names lanes that have ended, " +
         name_of(mask & warp.ended));
  if (mask & warp.at_block_barrier)
    fail(here() + "the mask " + name_of(mask) + " names lanes that wait at " +
         name_of(block.barrier_operation, block.barrier) + ", " + name_of(mask & warp.at_block_barrier));
}

// The launch -------------------------------------------------------------------------------------------------

std::unique_ptr<Block> start_block(const Launch& launch, unsigned index) {
  auto block = std::make_unique<Block>();
  const auto threads = static_cast<unsigned>(launch.threads);
  block->number = ++blocks_started;
  block->index = index;
  block->shared = allocate("the shared memory of block " + std::to_string(index),
                           static_cast<size_t>(launch.shared_bytes), Use::shared);
  block->warps.resize((threads + kWarp - 1) / kWarp);
  block->readers = Readers(threads);
  Release release;
  for (unsigned t = 0; t < threads; ++t) {
    auto fiber = std::make_unique<Fiber>();
    fiber->block = block.get();
    fiber->thread = t;
    fiber->clocks[fiber->lane()] = 1;
    prepare(fiber->context, stacks.take(), fiber_main);
    release.add(*fiber);
    block->fibers.push_back(std::move(fiber));
  }
  return block;
}

void free_stacks(Block& block) {
  for (auto& fiber : block.fibers) stacks.give_back(const_cast<char*>(fiber->context.stack));
}

// Which of the ready threads runs next: `habit` says how often it is the one at the end of the list.
Fiber& draw(unsigned habit) {
  const size_t last = ready.size() - 1,
               picked = random_source.below(64) < habit ? last : random_source.below(last + 1);
  Fiber& fiber = *ready[picked];
  ready[picked] = ready[last];
  ready.pop_back();
  return fiber;
}

void check_launch(const Launch& launch) {
  const std::string name = std::string("launch of ") + launch.name + ": ";
  const auto limit = shared_limits.find(launch.kernel);
  const long long most = limit == shared_limits.end() ? 48 << 10 : std::max(limit->second, 48 << 10);
  if (launch_now) throw Error(name + "inside another launch");
  if (launch.blocks < 1 || launch.blocks > 0x7fffffff)
    throw Error(name + "expected 1 to 2^31 - 1 blocks, got " + std::to_string(launch.blocks));
  if (launch.cooperative && launch.blocks > current_settings.processors)
    throw Error(name + std::to_string(launch.blocks) +
                " blocks that wait for each other, but the device has " +
                std::to_string(current_settings.processors) + " processors");
  if (launch.threads < 1 || launch.threads > 1024)
    throw Error(name + "expected 1 to 1024 threads, got " + std::to_string(launch.threads));
  if (launch.shared_bytes < 0 || launch.shared_bytes > current_settings.shared_per_block)
    throw Error(name + std::to_string(launch.shared_bytes) + " bytes of shared memory, but the device has " +
                std::to_string(current_settings.shared_per_block) + " for a block");
  if (launch.shared_bytes > most)
    throw Error(name + std::to_string(launch.shared_bytes) + " bytes of shared memory, but only " +
                std::to_string(most) + " were asked for with cudaFuncSetAttribute");
}

void run_blocks(const Launch& launch, std::vector<std::unique_ptr<Block>>& blocks) {
  const size_t in_flight =
      launch.cooperative ? static_cast<size_t>(launch.blocks) : 1 + random_source.below(3);
  constexpr unsigned habits[] = {0, 48, 60, 63};
  const unsigned habit = habits[random_source.below(4)];
  long long next = 0;
  while (next < launch.blocks || !blocks.empty()) {
    while (next < launch.blocks && blocks.size() < in_flight)
      blocks.push_back(start_block(launch, static_cast<unsigned>(next++)));
    if (ready.empty()) throw Error("deadlock");  // cannot be: every way to wait checks that it will end
    Fiber& fiber = draw(habit);
    enter(fiber);
    if (!failure.empty()) throw Error(with_lines(failure) + " [" + launch.name + "]");
    if (idle_yields > 1000000)
      throw Error(name_of(fiber) + ": waits for ever (__nanosleep) [" + launch.name + "]");
    Block* const block = fiber.block;
    if (fiber.state != State::ended || block->ended < block->fibers.size()) continue;
    check_zones(block->shared, "block " + std::to_string(block->index));
    release(block->shared);
    free_stacks(*block);
    for (auto& candidate : blocks)
      if (candidate.get() == block) {
        std::swap(candidate, blocks.back());
        blocks.pop_back();
        break;
      }
  }
}

}  // namespace

cudaError_t run(const Launch& launch) {
#ifdef __SANITIZE_ADDRESS__
  __asan_set_error_report_callback([](const char*) {
    if (current) std::fprintf(stderr, "in %s [%s]\n", name_of(*current).c_str(), launch_now->name);
  });
#endif
  check_launch(launch);
  if (launch.cooperative && current_settings.resident > 0 && launch.blocks > current_settings.resident)
    return cudaErrorCooperativeLaunchTooLarge;
  std::vector<std::unique_ptr<Block>> blocks;
  launch_now = &launch;
  failure.clear();
  blockDim.x = static_cast<unsigned>(launch.threads);
  gridDim.x = static_cast<unsigned>(launch.blocks);
  running.first_block = blocks_started + 1;
  running.blocks = static_cast<uint32_t>(launch.blocks);
  running.arguments = static_cast<const char*>(launch.arguments);
  running.arguments_bytes = launch.arguments_size;
  struct End {
    std::vector<std::unique_ptr<Block>>& blocks;
    ~End() {
      for (auto& block : blocks) free_stacks(*block);
      ready.clear();
      signals.clear();
      launch_now = nullptr;
    }
  } end{blocks};
  run_blocks(launch, blocks);
  check_all_zones(std::string("the launch of ") + launch.name);
  return cudaSuccess;
}

int meet_block(Site site, Operation operation, int value) {
  Fiber& fiber = *current;
  Block& block = *fiber.block;
  if (operation == Operation::sync_block && is_removed(site)) return 0;
  const auto waits = [&] { return "waits at " + name_of(operation, site); };
  if (block.ended > 0) fail(waits() + ", but other threads of the block have ended");
  if (block.at_barrier > 0 && (operation != block.barrier_operation || !same(site, block.barrier)))
    fail(waits() + ", but other threads of the block wait at " +
         name_of(block.barrier_operation, block.barrier));
  check_meetings(fiber, waits);
  if (block.at_barrier == 0) block.barrier_value = 0;
  block.barrier = site;
  block.barrier_operation = operation;
  block.barrier_value |= value != 0;
  fiber.state = State::at_block_barrier;
  block.warps[fiber.warp()].at_block_barrier |= 1u << fiber.lane();
  if (++block.at_barrier == block.fibers.size()) {
    block.at_barrier = 0;
    ++block.epoch;
    block.readers.clear();
    for (Warp& warp : block.warps) warp.at_block_barrier = 0;
    for (const auto& [start, bytes] : std::exchange(block.permitted, {})) permit_bytes(start, bytes);
    Release release;
    for (auto& other : block.fibers) {
      if (!other->heard.empty()) join(block.known, std::exchange(other->heard, {}));
      other->fenced = false;
      other->result = static_cast<uint64_t>(block.barrier_value);
      release.add(*other);
    }
    ++barrier_counts[{site.file, site.line}];
  }
  leave();
  return static_cast<int>(fiber.result);
}

uint64_t meet_warp(Site site, Operation operation, unsigned mask, uint64_t value, int argument, int width) {
  Fiber& fiber = *current;
  Block& block = *fiber.block;
  Warp& warp = block.warps[fiber.warp()];
  check_mask(fiber, site, operation, mask, width);
  Meeting* meeting = nullptr;
  for (Meeting& other : warp.meetings) {
    if (!(other.mask & mask)) continue;
    if (other.mask != mask || other.operation != operation || !same(other.site, site))
      fail(name_of(operation, site) + ", mask " + name_of(mask) + ": other lanes of this mask wait in " +
           name_of(other.operation, other.site) + ", mask " + name_of(other.mask));
    meeting = &other;
  }
  if (!meeting) {
    warp.meetings.push_back({site, operation, mask, 0, {}, {}, {}});
    meeting = &warp.meetings.back();
  }
  const unsigned lane = fiber.lane();
  meeting->here |= 1u << lane;
  meeting->values[lane] = value;
  meeting->arguments[lane] = argument;
  meeting->widths[lane] = width;
  fiber.state = State::at_warp_operation;
  if (meeting->here == mask) {
    const Meeting done = *meeting;
    *meeting = warp.meetings.back();
    warp.meetings.pop_back();
    complete(block, fiber.warp(), done);
  }
  leave();
  return fiber.result;
}

void sync_warp(Site site, unsigned mask) {
  if (!is_removed(site)) meet_warp(site, Operation::sync_warp, mask, 0, 0, 32);
}

// A fence and then an atomic operation: what the block did up to its last barrier becomes known to whoever sees the
// address and then has a fence; and to that one's whole block at its next barrier.
void fence() {
  current->fenced = true;
  const auto found = signals.find(current->seen);
  if (found != signals.end()) join(current->heard, found->second);
}

void signal(const void* address) {
  current->seen = address;
  if (!current->fenced) return;
  Epochs& signal = signals[address];
  join(signal, current->block->known);
  const size_t mine = current->block->number - running.first_block;
  if (signal.size() <= mine) signal.resize(mine + 1, 0);
  signal[mine] = std::max(signal[mine], current->block->epoch);
}

void note_volatile_read(const void* address) {
  if (current) current->seen = address;
}

void yield() {
  ++idle_yields;
  ready.push_back(current);
  std::swap(ready.back(), ready[random_source.below(ready.size())]);
  leave();
}

unsigned char* shared_memory() { return current->block->shared; }

void report(const std::string& what) {
  if (current) fail(what);
  if (host_problem.empty()) host_problem = what;
}

void throw_host_problem() {
  if (host_problem.empty()) return;
  const std::string what = with_lines(host_problem);
  host_problem.clear();
  throw Error(what);
}

void set_shared_limit(const void* kernel, int bytes) {
  if (bytes > current_settings.shared_per_block)
    throw Error("cudaFuncSetAttribute: " + std::to_string(bytes) +
                " bytes of shared memory, but the device has " +
                std::to_string(current_settings.shared_per_block) + " for a block");
  shared_limits[kernel] = bytes;
}

void configure(const Settings& settings) {
  current_settings = settings;
  random_source.state = settings.seed;
}

const Settings& settings() { return current_settings; }

void remove_barrier(const std::string& site) {
  const size_t colon = site.find(':');
  removed_file = site.substr(0, colon);
  removed_line = colon == std::string::npos ? 0 : std::stoi(site.substr(colon + 1));
}

std::map<std::string, int64_t> take_barrier_counts() {
  std::map<std::string, int64_t> counts;
  for (const auto& [site, count] : std::exchange(barrier_counts, {}))
    counts[name_of({site.first, site.second})] += count;
  return counts;
}

}  // namespace emulation

// What kernels and the host call without a namespace -------------------------------------------------------------

void forbid(const void* start, long long bytes) {
  emulation::forbid_bytes(static_cast<const unsigned char*>(start), static_cast<size_t>(bytes),
                          emulation::current == nullptr);
}

void permit(const void* start, long long bytes) {
  emulation::current->block->permitted.emplace_back(static_cast<const unsigned char*>(start), bytes);
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  const emulation::Settings& device = emulation::settings();
  *value = attribute == cudaDevAttrMultiProcessorCount ? device.processors : device.shared_per_block;
  return cudaSuccess;
}

namespace {

// In one step, as no other thread runs meanwhile; but who comes next is open.
template <class T, class F>
T atomically(T* address, F update, const void* caller) {
  if (emulation::random_source.below(4) == 0) emulation::yield();
  emulation::check_atomic(address, sizeof(T), caller);
  emulation::signal(address);
  const T old = *address;
  *address = update(old);
  return old;
}

}  // namespace

#define TIM_ATOMIC(name, type, expression)                                                                 \
  type name(type* address, type value) {                                                                   \
    return atomically(address, [=](type old) -> type { return expression; }, __builtin_return_address(0)); \
  }
TIM_ATOMIC(atomicAdd, int, static_cast<int>(static_cast<unsigned>(old) + static_cast<unsigned>(value)))
TIM_ATOMIC(atomicAdd, unsigned, old + value)
TIM_ATOMIC(atomicAdd, unsigned long long, old + value)
TIM_ATOMIC(atomicMin, int, std::min(old, value))
TIM_ATOMIC(atomicMin, unsigned, std::min(old, value))
TIM_ATOMIC(atomicMin, unsigned long long, std::min(old, value))
TIM_ATOMIC(atomicMax, int, std::max(old, value))
TIM_ATOMIC(atomicMax, unsigned, std::max(old, value))
TIM_ATOMIC(atomicMax, unsigned long long, std::max(old, value))
#undef TIM_ATOMIC

int atomicCAS(int* address, int compare, int value) {
  return atomically(
      address, [=](int old) { return old == compare ? value : old; }, __builtin_return_address(0));
}
unsigned long long atomicCAS(unsigned long long* address, unsigned long long compare,
                             unsigned long long value) {
  return atomically(
      address, [=](unsigned long long old) { return old == compare ? value : old; },
      __builtin_return_address(0));
}
