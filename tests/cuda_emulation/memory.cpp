#include "memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <unordered_map>

#include "scheduler.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#endif
#ifdef TIM_EXT_CHECK_ACCESS
#include <link.h>
#endif

namespace emulation {

Running running;

namespace {

constexpr size_t kArena = size_t{256} << 20, kGap = 256;
constexpr unsigned char kZonePattern = 0xfb;  // NaN, too

template <class T>
T* reserve(size_t count) {
  void* const start = mmap(nullptr, count * sizeof(T), PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (start == MAP_FAILED) throw std::bad_alloc();
  return static_cast<T*>(start);  // all zero
}

struct Zone {
  size_t start, bytes;
  bool by_host;
};

struct Piece {
  std::string name;
  size_t bytes, room;  // room: up to the next piece
  Use use;
  std::vector<Zone> zones;
};

unsigned char* const arena = reserve<unsigned char>(kArena);
size_t top = kGap;
std::map<size_t, Piece> pieces;              // by start
std::multimap<size_t, size_t> free_by_room;  // room -> start

size_t offset_of(const void* address) {
  return static_cast<size_t>(static_cast<const unsigned char*>(address) - arena);  // huge if below
}

std::map<size_t, Piece>::iterator piece_at(size_t offset) {
  auto next = pieces.upper_bound(offset);
  return next == pieces.begin() ? pieces.end() : std::prev(next);
}

std::string describe(size_t offset) {
  const auto found = piece_at(offset);
  if (found == pieces.end()) return "device memory that belongs to nobody";
  const auto& [start, piece] = *found;
  const std::string whole = piece.name + " (" + std::to_string(piece.bytes) + " bytes)";
  for (const Zone& zone : piece.zones)
    if (offset >= start + zone.start && offset < start + zone.start + zone.bytes)
      return "byte " + std::to_string(offset - start - zone.start) + " of a red zone at byte " +
             std::to_string(zone.start) + " of " + whole;
  if (offset >= start + piece.bytes)
    return std::to_string(offset - start - piece.bytes) + " bytes behind the end of " + whole;
  return "byte " + std::to_string(offset - start) + " of " + whole;
}

// The shadow ---------------------------------------------------------------------------------------------

#ifdef TIM_EXT_CHECK_ACCESS

enum class Access { read, vector_read, write, volatile_read, atomic };
constexpr uint16_t kSeveral = 0xffff;

// What is known of the four bytes of a word; or of one byte, where bytes are accessed one by one.
struct Cell {
  uint32_t write_block, write_epoch, write_clock, write_site;
  uint32_t read_block, read_epoch, read_clock,
      read_site;           // read_clock: number of the set if read_thread is kSeveral
  uint32_t other_readers;  // number of the set of other blocks that have read, or 0
  uint16_t write_thread, read_thread;
  uint8_t allowed, written;  // one bit for each byte
  uint8_t input, atomic, split;
};

Cell* const cells = reserve<Cell>(kArena / 4);
std::vector<uint32_t> block_readers;  // sets of [blocks of the launch] epoch + 1 of the last read; 0: none
uint32_t readers_of_launch = 0;       // whose first block this is
std::unordered_map<size_t, std::array<Cell, 4>> bytes_of;  // split words

void set_shadow(size_t start, size_t bytes, size_t room, Use use) {
  for (size_t word = start / 4; word < (start + room) / 4; ++word) {
    if (cells[word].split) bytes_of.erase(word);
    Cell cell{};
    for (size_t i = 0; i < 4; ++i)
      if (word * 4 + i < start + bytes) cell.allowed |= uint8_t(1u << i);
    cell.input = use == Use::input;
    cell.written = cell.input ? cell.allowed : 0;
    cells[word] = cell;
  }
}

void set_allowed(size_t start, size_t bytes, bool allowed) {
  for (size_t at = start; at < start + bytes; ++at) {
    const auto bit = uint8_t(1u << at % 4);
    cells[at / 4].allowed = allowed ? cells[at / 4].allowed | bit : cells[at / 4].allowed & uint8_t(~bit);
  }
}

std::string thread_name(unsigned thread) { return "thread " + std::to_string(thread); }

// The scheduler puts the line in place of {offset}.
std::string site_name(uint32_t site) { return " at {" + std::to_string(site) + "}"; }

const unsigned char* module_start = nullptr;
size_t module_bytes = 0;

void find_module() {
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void*) {
        size_t end = 0;
        for (int i = 0; i < info->dlpi_phnum; ++i)
          if (info->dlpi_phdr[i].p_type == PT_LOAD)
            end = std::max<size_t>(end, info->dlpi_phdr[i].p_vaddr + info->dlpi_phdr[i].p_memsz);
        const auto* start = reinterpret_cast<const unsigned char*>(info->dlpi_addr);
        const auto* mine = reinterpret_cast<const unsigned char*>(&module_start);
        if (mine < start || mine >= start + end) return 0;
        module_start = start;
        module_bytes = end;
        return 1;
      },
      nullptr);
}

bool within(const void* address, const void* start, size_t bytes) {
  return reinterpret_cast<uintptr_t>(address) - reinterpret_cast<uintptr_t>(start) < bytes;
}

// Whether an access of thread `thread` at (epoch, clock), of this block, is ordered before the present.
bool is_before(uint32_t epoch, unsigned thread, uint32_t clock) {
  if (epoch != running.epoch || thread == running.thread) return true;
  return thread / 32 == running.thread / 32 && running.clocks[thread % 32] >= clock;
}

bool in_launch(uint32_t block) { return block >= running.first_block; }

// Whether what another block did in this epoch is visible here.
bool is_known(uint32_t block, uint32_t epoch) {
  const size_t index = block - running.first_block;
  return index < running.known_count && running.known_blocks[index] > epoch;
}

uint32_t* readers_by_block(uint32_t& set) {
  if (readers_of_launch != running.first_block) {  // nothing of an earlier launch is needed
    readers_of_launch = running.first_block;
    block_readers.assign(running.blocks, 0);
  }
  if (set == 0) {
    set = static_cast<uint32_t>(block_readers.size() / running.blocks);
    block_readers.resize(block_readers.size() + running.blocks, 0);
  }
  return &block_readers[size_t{set} * running.blocks];
}

void report_race(size_t offset, Access access, uint32_t site, const char* other, uint32_t block,
                 unsigned thread, uint32_t other_site) {
  const std::string where = block == running.block
                                ? thread_name(thread) + " of the block, with no barrier in between"
                                : "block " + std::to_string(block - running.first_block);
  const bool writes = access == Access::write || access == Access::atomic;
  report(std::string("race: ") + (writes ? "write to " : "read of ") + describe(offset) + site_name(site) +
         ", and " + other + (other_site ? site_name(other_site) : "") + " by " + where);
}

const char* name_of(const Cell& cell) { return cell.atomic ? "an atomic operation" : "a write"; }

// Notes a read; accesses that conflict with it are writes, which come later or were checked already.
void note_read(Cell& cell, uint32_t site) {
  const uint32_t now = running.clocks[running.thread % 32];
  const bool same = cell.read_block == running.block && cell.read_epoch == running.epoch;
  cell.read_site = site;
  if (same && cell.read_thread == kSeveral) {
    running.readers->at(cell.read_clock)[running.thread] = now;
  } else if (same && cell.read_thread != running.thread) {
    const uint32_t set = running.readers->make();
    running.readers->at(set)[cell.read_thread] = cell.read_clock;
    running.readers->at(set)[running.thread] = now;
    cell.read_thread = kSeveral;
    cell.read_clock = set;
  } else {
    if (!in_launch(cell.read_block))
      cell.other_readers = 0;
    else if (cell.read_block != running.block)
      readers_by_block(cell.other_readers)[cell.read_block - running.first_block] = cell.read_epoch + 1;
    cell.read_block = running.block;
    cell.read_epoch = running.epoch;
    cell.read_thread = uint16_t(running.thread);
    cell.read_clock = now;
  }
}

// A write against all reads since the last one.
bool check_reads(const Cell& cell, size_t offset, Access access, uint32_t site) {
  if (!in_launch(cell.read_block)) return true;
  auto race = [&](uint32_t block, unsigned thread) {
    report_race(offset, access, site, "a read", block, thread, cell.read_site);
    return false;
  };
  if (cell.read_block != running.block) {
    if (!is_known(cell.read_block, cell.read_epoch)) return race(cell.read_block, 0);
  } else if (cell.read_thread != kSeveral) {
    if (!is_before(cell.read_epoch, cell.read_thread, cell.read_clock))
      return race(cell.read_block, cell.read_thread);
  } else if (cell.read_epoch == running.epoch) {
    const uint32_t* const clocks = running.readers->at(cell.read_clock);
    for (unsigned t = 0; t < running.readers->threads(); ++t)
      if (clocks[t] != 0 && !is_before(cell.read_epoch, t, clocks[t])) return race(cell.read_block, t);
  }
  if (uint32_t set = cell.other_readers) {
    const uint32_t* const epochs = readers_by_block(set);
    for (uint32_t i = 0; i < running.blocks; ++i) {
      const uint32_t block = running.first_block + i;
      if (block != running.block && epochs[i] != 0 && !is_known(block, epochs[i] - 1)) return race(block, 0);
    }
  }
  return true;
}

// bits: which of the cell's bytes (all of them for the cell of a single byte).
bool check_cell(Cell& cell, size_t offset, unsigned bits, Access access, uint32_t site) {
  const bool writes = access == Access::write || access == Access::atomic;
  if (bits & ~cell.allowed) {
    report(std::string("out of bounds: ") + (writes ? "write to " : "read of ") + describe(offset) +
           site_name(site));
    return false;
  }
  if (access != Access::write && access != Access::vector_read && (bits & ~cell.written)) {
    report("read of " + describe(offset) + site_name(site) + ", which was never written");
    return false;
  }
  if (cell.input) {
    if (writes) report("write to the input " + describe(offset) + site_name(site));
    return !writes;
  }
  const bool both_atomic = cell.atomic && (access == Access::atomic || access == Access::volatile_read);
  if (in_launch(cell.write_block) && !both_atomic &&
      !(cell.write_block == running.block ? is_before(cell.write_epoch, cell.write_thread, cell.write_clock)
                                          : is_known(cell.write_block, cell.write_epoch))) {
    report_race(offset, access, site, name_of(cell), cell.write_block, cell.write_thread, cell.write_site);
    return false;
  }
  if (access == Access::volatile_read) return true;  // as atomic as the operations it waits for
  if (access == Access::read || access == Access::vector_read) {
    note_read(cell, site);
    return true;
  }
  if (!check_reads(cell, offset, access, site)) return false;
  cell.read_block = cell.other_readers = 0;
  cell.write_block = running.block;
  cell.write_epoch = running.epoch;
  cell.write_clock = running.clocks[running.thread % 32];
  cell.write_thread = uint16_t(running.thread);
  cell.write_site = site;
  cell.atomic = access == Access::atomic;
  cell.written |= uint8_t(bits);
  return true;
}

bool check_split_word(size_t word, unsigned bits, Access access, uint32_t site) {
  Cell& whole = cells[word];
  auto& parts = bytes_of[word];
  if (!whole.split) {
    whole.split = 1;
    for (size_t i = 0; i < 4; ++i) {
      parts[i] = whole;
      parts[i].written = whole.written & (1u << i) ? 1 : 0;
    }
  }
  for (size_t i = 0; i < 4; ++i) {
    if (!(bits & (1u << i))) continue;
    parts[i].allowed = whole.allowed & (1u << i) ? 1 : 0;
    if (!check_cell(parts[i], word * 4 + i, 1, access, site)) return false;
  }
  return true;
}

bool any_written(size_t start, size_t end) {
  for (size_t word = start / 4; word * 4 < end; ++word)
    if (cells[word].split || cells[word].written) return true;
  return false;
}

void check(const void* address, size_t bytes, Access access, const void* caller) {
  if (!running.in_kernel) {
    if (offset_of(address) < kArena)
      report("the host's code touches device memory, " + describe(offset_of(address)));
    return;
  }
  if (within(address, running.stack, running.stack_bytes)) return;
  const size_t start = offset_of(address), end = start + bytes;
  if (module_start == nullptr) find_module();
  const auto site = static_cast<uint32_t>(static_cast<const unsigned char*>(caller) - module_start);
  if (start >= kArena || end > kArena) {
    if (within(address, module_start, module_bytes) ||
        (access != Access::write && within(address, running.arguments, running.arguments_bytes)))
      return;
    report("access to memory that is not on the device" + site_name(site));
    return;
  }
  if (access == Access::vector_read && !any_written(start, end)) access = Access::read;
  for (size_t word = start / 4; word * 4 < end; ++word) {
    unsigned bits = 15;
    if (word * 4 < start) bits &= 15u << (start - word * 4);
    if (word * 4 + 4 > end) bits &= 15u >> (word * 4 + 4 - end);
    const bool fine = bits == 15 && !cells[word].split
                          ? check_cell(cells[word], std::max(start, word * 4), bits, access, site)
                          : check_split_word(word, bits, access, site);
    if (!fine) return;
  }
}

#endif

#ifdef __SANITIZE_ADDRESS__
void forbid_in_sanitizer(size_t start, size_t bytes) { ASAN_POISON_MEMORY_REGION(arena + start, bytes); }
void allow_in_sanitizer(size_t start, size_t bytes) { ASAN_UNPOISON_MEMORY_REGION(arena + start, bytes); }
#else
void forbid_in_sanitizer(size_t, size_t) {}
void allow_in_sanitizer(size_t, size_t) {}
#endif

[[noreturn]] void overwritten(size_t at, const std::string& when) {
  throw Error("overrun: found at the end of " + when + ": somebody wrote to " + describe(at));
}

// A run of `bytes` that should all hold the pattern.
void check_pattern(size_t start, size_t bytes, const std::string& when) {
  const unsigned char* const first = arena + start;
  const unsigned char* const wrong =
      std::find_if(first, first + bytes, [](unsigned char c) { return c != kZonePattern; });
  if (wrong != first + bytes) overwritten(offset_of(wrong), when);
}

}  // namespace

unsigned char* allocate(const std::string& name, size_t bytes, Use use, unsigned char fill) {
  const size_t room = (bytes + kGap + 255) / 256 * 256;
  size_t start = top;
  if (const auto found = free_by_room.find(room); found != free_by_room.end()) {
    start = found->second;
    free_by_room.erase(found);
  } else if (top + room > kArena) {
    throw Error("the emulated device has only " + std::to_string(kArena >> 20) + " MB of memory");
  } else {
    top += room;
  }
  pieces[start] = {name, bytes, room, use, {}};
  allow_in_sanitizer(start, room);
  std::memset(arena + start, fill, bytes);
  std::memset(arena + start + bytes, kZonePattern, room - bytes);
  forbid_in_sanitizer(start + bytes, room - bytes);
#ifdef TIM_EXT_CHECK_ACCESS
  set_shadow(start, bytes, room, use);
#endif
  return arena + start;
}

void release(unsigned char* start) {
  const auto found = pieces.find(offset_of(start));
  free_by_room.emplace(found->second.room, found->first);
#ifdef TIM_EXT_CHECK_ACCESS
  set_shadow(found->first, 0, found->second.room, Use::shared);
#endif
  pieces.erase(found);
}

void release_all() {
  while (!pieces.empty()) release(arena + pieces.begin()->first);
  free_by_room.clear();
  top = kGap;
}

void forbid_bytes(const unsigned char* first, size_t bytes, bool by_host) {
  const size_t offset = offset_of(first);
  const auto found = piece_at(offset);
  if (offset >= kArena || found == pieces.end() || offset + bytes > found->first + found->second.bytes) {
    report("forbid: not inside one piece of device memory");
    return;
  }
  auto& [start, piece] = *found;
  for (const Zone& zone : piece.zones)
    if (zone.start == offset - start && zone.bytes == bytes) return;  // another thread said so already
  piece.zones.push_back({offset - start, bytes, by_host});
  std::memset(arena + offset, kZonePattern, bytes);
  forbid_in_sanitizer(offset, bytes);
#ifdef TIM_EXT_CHECK_ACCESS
  set_allowed(offset, bytes, false);
#endif
}

void permit_bytes(const unsigned char* first, size_t bytes) {
  if (bytes == 0) return;
  const size_t offset = offset_of(first);
  const auto found = piece_at(offset);
  if (offset >= kArena || found == pieces.end() || offset + bytes > found->first + found->second.bytes) {
    report("permit: not inside one piece of device memory");
    return;
  }
  auto& [start, piece] = *found;
  std::vector<Zone> remain;
  allow_in_sanitizer(offset, bytes);
  for (const Zone& zone : piece.zones) {
    const size_t at = start + zone.start;
    if (at + zone.bytes <= offset || at >= offset + bytes) {
      remain.push_back(zone);
    } else if (std::any_of(arena + at, arena + at + zone.bytes,
                           [](unsigned char c) { return c != kZonePattern; })) {
      report("overrun: somebody wrote to " + describe(at));
      return;
    }
  }
  piece.zones = remain;
  std::memset(arena + offset, kPoison, bytes);
#ifdef TIM_EXT_CHECK_ACCESS
  set_shadow(offset, bytes, bytes, piece.use);
#endif
}

void check_zones(const unsigned char* first, const std::string& when) {
  auto& [start, piece] = *pieces.find(offset_of(first));
  allow_in_sanitizer(start, piece.room);
  check_pattern(start + piece.bytes, piece.room - piece.bytes, when);
  for (const Zone& zone : piece.zones) check_pattern(start + zone.start, zone.bytes, when);
  std::vector<Zone> remain;
  for (const Zone& zone : piece.zones) {
    if (zone.by_host) {
      remain.push_back(zone);
      forbid_in_sanitizer(start + zone.start, zone.bytes);
    } else {
#ifdef TIM_EXT_CHECK_ACCESS
      set_allowed(start + zone.start, zone.bytes, true);
#endif
    }
  }
  piece.zones = remain;
  forbid_in_sanitizer(start + piece.bytes, piece.room - piece.bytes);
}

void check_all_zones(const std::string& when) {
  for (const auto& piece : pieces) check_zones(arena + piece.first, when);
}

#ifdef TIM_EXT_CHECK_ACCESS
void check_atomic(const void* address, size_t bytes, const void* caller) {
  check(address, bytes, Access::atomic, caller);
}

void copy_vector(void* to, const void* from, size_t bytes) {
  check(from, bytes, Access::vector_read, __builtin_return_address(0));
  check(to, bytes, Access::write, __builtin_return_address(0));
  std::memcpy(to, from, bytes);
}
#else
void check_atomic(const void*, size_t, const void*) {}
#endif

}  // namespace emulation

// What the compiler calls with -fsanitize=thread and -fsanitize=alignment,bounds,... ---------------------------------

#ifdef TIM_EXT_CHECK_ACCESS

using emulation::Access;

extern "C" {

#define TIM_ACCESS(bytes)                                                                 \
  void __tsan_read##bytes(void* address) {                                                \
    emulation::check(address, bytes, Access::read, __builtin_return_address(0));          \
  }                                                                                       \
  void __tsan_write##bytes(void* address) {                                               \
    emulation::check(address, bytes, Access::write, __builtin_return_address(0));         \
  }                                                                                       \
  void __tsan_volatile_read##bytes(void* address) {                                       \
    emulation::check(address, bytes, Access::volatile_read, __builtin_return_address(0)); \
    emulation::note_volatile_read(address);                                               \
  }                                                                                       \
  void __tsan_volatile_write##bytes(void* address) {                                      \
    emulation::check(address, bytes, Access::write, __builtin_return_address(0));         \
  }
TIM_ACCESS(1)
TIM_ACCESS(2)
TIM_ACCESS(4)
TIM_ACCESS(8)
TIM_ACCESS(16)
#undef TIM_ACCESS

void __tsan_read_range(void* address, size_t bytes) {
  emulation::check(address, bytes, Access::read, __builtin_return_address(0));
}
void __tsan_write_range(void* address, size_t bytes) {
  emulation::check(address, bytes, Access::write, __builtin_return_address(0));
}
unsigned char __tsan_atomic8_load(const volatile unsigned char* address,
                                  int) {  // guard of the host's statics
  return __atomic_load_n(address, __ATOMIC_ACQUIRE);
}
void __tsan_init() {}
void __tsan_vptr_update(void*, void*) {}

struct UndefinedPlace {
  const char* file;
  uint32_t line, column;
};

static void undefined(const UndefinedPlace* place, const char* what) {
  emulation::report(std::string(what) + " at " +
                    std::string(place->file).substr(std::string(place->file).find_last_of('/') + 1) + ":" +
                    std::to_string(place->line));
}

void __ubsan_handle_type_mismatch_v1(UndefinedPlace* place, uintptr_t) {
  undefined(place, "misaligned (or null) address");
}
void __ubsan_handle_out_of_bounds(UndefinedPlace* place, uintptr_t) {
  undefined(place, "array index out of bounds");
}
void __ubsan_handle_shift_out_of_bounds(UndefinedPlace* place, uintptr_t, uintptr_t) {
  undefined(place, "shift out of range");
}
void __ubsan_handle_add_overflow(UndefinedPlace* place, uintptr_t, uintptr_t) {
  undefined(place, "integer overflow");
}
void __ubsan_handle_sub_overflow(UndefinedPlace* place, uintptr_t, uintptr_t) {
  undefined(place, "integer overflow");
}
void __ubsan_handle_mul_overflow(UndefinedPlace* place, uintptr_t, uintptr_t) {
  undefined(place, "integer overflow");
}
void __ubsan_handle_negate_overflow(UndefinedPlace* place, uintptr_t) {
  undefined(place, "integer overflow");
}
void __ubsan_handle_divrem_overflow(UndefinedPlace* place, uintptr_t, uintptr_t) {
  undefined(place, "integer division by zero or overflow");
}

}  // extern "C"

#endif
