// Kernels for the emulator's own tests: right ones, and one for every mistake that it must catch.
#include <map>
#include <stdexcept>

#include "cuda/core/platform.h"
#include "own_kernels.h"

namespace {

constexpr unsigned kAll = 0xffffffffu;

// Right -------------------------------------------------------------------------------------------------

// out[block] = sum of the block's part of the input, by halving in shared memory
__global__ void block_sum(const float* in, int count, float* out) {
  TIM_SHARED_MEMORY(memory);
  float* const s = reinterpret_cast<float*>(memory);
  const int t = int(threadIdx.x), i = int(blockIdx.x * blockDim.x) + t;
  s[t] = i < count ? in[i] : 0.0f;
  __syncthreads();
  for (int half = int(blockDim.x) / 2; half > 0; half /= 2) {
    if (t < half) s[t] += s[t + half];
    __syncthreads();
  }
  if (t == 0) out[blockIdx.x] = s[0];
}

// out[i] = sum of the warp's inputs
__global__ void butterfly(const float* in, int count, float* out) {
  const int i = int(blockIdx.x * blockDim.x + threadIdx.x);
  float value = i < count ? in[i] : 0.0f;
  for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(kAll, value, offset);
  out[i] = value;
}

// out[i] = sum of the warp's inputs up to i
__global__ void warp_scan(const float* in, int, float* out) {
  const int i = int(blockIdx.x * blockDim.x + threadIdx.x), lane = i % 32;
  float value = in[i];
  for (int offset = 1; offset < 32; offset *= 2) {
    const float other = __shfl_sync(kAll, value, lane - offset);
    if (lane >= offset) value += other;
  }
  out[i] = value;
}

// out[i] = sum over the rest of a group of 8 lanes
__global__ void groups_of_eight(const float* in, int, float* out) {
  const int i = int(threadIdx.x);
  float value = in[i];
  for (int offset = 4; offset > 0; offset /= 2) value += __shfl_down_sync(kAll, value, offset, 8);
  out[i] = value;
}

// Each half of a warp does something else, and both know it.
__global__ void half_warps(const float* in, int, float* out) {
  const int i = int(threadIdx.x), lane = i % 32;
  if (lane < 16) {
    out[i] = __shfl_sync(0x0000ffffu, in[i], 3);
  } else {
    out[i] = __all_sync(0xffff0000u, in[i] > 0) ? 1.0f : __any_sync(0xffff0000u, in[i] > 0) ? 0.5f : 0.0f;
  }
  if (__syncthreads_or(lane == 5 && in[i] < 0)) out[i] = -1;
}

// A warp reverses its inputs through shared memory.
__global__ void warp_reverse(const float* in, int, float* out) {
  TIM_SHARED_MEMORY(memory);
  const int t = int(threadIdx.x), lane = t % 32;
  float* const s = reinterpret_cast<float*>(memory) + t / 32 * 32;
  s[lane] = in[t];
  __syncwarp();
  out[t] = s[31 - lane];
}

// The fourth element of a vector in memory is fill.
__global__ void vectors_of_three(const float* in, int, float* out) {
  TIM_SHARED_MEMORY(memory);
  float* const s = reinterpret_cast<float*>(memory);
  const unsigned t = threadIdx.x;
  if (t % 4 != 3) s[t] = in[t];
  __syncthreads();
  float v[4];
  const float4 x = *reinterpret_cast<const float4*>(s + t / 4 * 4);
  v[0] = x.x, v[1] = x.y, v[2] = x.z, v[3] = x.w;
  out[t] = v[t % 3];
}

// out[0] = inputs above zero, of all blocks: an integer counted in any order
__global__ void count_positive(const float* in, int count, float* out, unsigned* counter, unsigned* done) {
  const int i = int(blockIdx.x * blockDim.x + threadIdx.x);
  const unsigned ones = __ballot_sync(kAll, i < count && in[i] > 0);
  if (threadIdx.x % 32 == 0) atomicAdd(counter, unsigned(__popc(ones)));
  __syncthreads();
  if (threadIdx.x != 0) return;
  __threadfence();
  if (atomicAdd(done, 1u) + 1 == gridDim.x) out[0] = float(atomicAdd(counter, 0u));
}

// All blocks wait for each other, then read what the next one wrote.
template <bool Fence>
__global__ void team(const float* in, int, float* out, float* exchange, unsigned* arrived) {
  exchange[blockIdx.x * blockDim.x + threadIdx.x] = in[blockIdx.x];
  __syncthreads();
  if (threadIdx.x == 0) {
    if (Fence) __threadfence();
    atomicAdd(arrived, 1u);
    while (*static_cast<volatile unsigned*>(arrived) < gridDim.x) __nanosleep(32);
    if (Fence) __threadfence();
  }
  __syncthreads();
  const unsigned next = (blockIdx.x + 1) % gridDim.x;
  if (threadIdx.x == 0) out[blockIdx.x] = exchange[next * blockDim.x + blockDim.x - 1];
}

// Wrong --------------------------------------------------------------------------------------------------

__global__ void missing_barrier(const float* in, int, float* out) {
  TIM_SHARED_MEMORY(memory);
  float* const s = reinterpret_cast<float*>(memory);
  const unsigned t = threadIdx.x;
  s[t] = in[t];
  out[t] = s[(t + 32) % blockDim.x];
}

// The second barrier of a loop is missing: the next round overwrites what others still read.
__global__ void missing_second_barrier(const float* in, int, float* out) {
  TIM_SHARED_MEMORY(memory);
  float* const s = reinterpret_cast<float*>(memory);
  const unsigned t = threadIdx.x;
  float sum = 0;
  for (int round = 0; round < 4; ++round) {
    s[t] = in[t] + float(round);
    __syncthreads();
    sum += s[blockDim.x - 1 - t];
  }
  out[t] = sum;
}

__global__ void missing_warp_barrier(const float* in, int, float* out) {
  TIM_SHARED_MEMORY(memory);
  const int t = int(threadIdx.x), lane = t % 32;
  float* const s = reinterpret_cast<float*>(memory) + t / 32 * 32;
  s[lane] = in[t];
  out[t] = s[31 - lane];
}

// A shuffle orders no memory.
__global__ void shuffle_as_barrier(const float* in, int, float* out) {
  TIM_SHARED_MEMORY(memory);
  const int t = int(threadIdx.x), lane = t % 32;
  float* const s = reinterpret_cast<float*>(memory) + t / 32 * 32;
  s[lane] = in[t];
  const float other = __shfl_sync(kAll, in[t], 0);
  out[t] = s[31 - lane] + 0 * other;
}

__global__ void two_barriers(const float* in, int, float* out) {
  if (threadIdx.x < 40) {
    out[threadIdx.x] = in[threadIdx.x];
    __syncthreads();
  } else {
    __syncthreads();
  }
}

__global__ void ended_before_barrier(const float*, int, float* out) {
  if (threadIdx.x == 77) return;
  __syncthreads();
  out[threadIdx.x] = 1;
}

__global__ void barrier_and_shuffle(const float* in, int, float* out) {
  if (threadIdx.x == 33)
    __syncthreads();
  else
    out[threadIdx.x] = __shfl_sync(kAll, in[threadIdx.x], 0);
}

__global__ void not_in_its_mask(const float* in, int, float* out) {
  out[threadIdx.x] = __shfl_sync(0x7fffffffu, in[threadIdx.x], 0);
}

__global__ void shuffle_from_outside(const float* in, int, float* out) {
  if (threadIdx.x % 32 < 16) out[threadIdx.x] = __shfl_sync(0x0000ffffu, in[threadIdx.x], 20);
}

__global__ void shuffle_from_ended(const float* in, int, float* out) {
  if (threadIdx.x % 32 == 31) return;
  out[threadIdx.x] = __shfl_xor_sync(kAll, in[threadIdx.x], 1);
}

__global__ void different_masks(const float* in, int, float* out) {
  const unsigned mask = threadIdx.x % 32 < 16 ? kAll : 0xffff0000u;
  out[threadIdx.x] = __shfl_sync(mask, in[threadIdx.x], 16);
}

__global__ void shared_overrun(const float* in, int, float* out) {
  TIM_SHARED_MEMORY(memory);
  float* const s = reinterpret_cast<float*>(memory);
  const unsigned t = threadIdx.x;
  s[t + 1] = in[t];  // one past the end
  __syncthreads();
  out[t] = s[t + 1];
}

__global__ void shared_overread(const float* in, int, float* out) {
  TIM_SHARED_MEMORY(memory);
  float* const s = reinterpret_cast<float*>(memory);
  s[threadIdx.x] = in[threadIdx.x];
  __syncthreads();
  out[threadIdx.x] = s[threadIdx.x + 1];
}

__global__ void vector_overread(const float* in, int, float* out) {
  TIM_SHARED_MEMORY(memory);
  float* const s = reinterpret_cast<float*>(memory);
  const unsigned t = threadIdx.x;
  s[t] = in[t];
  __syncthreads();
  if (t % 4 != 0) return;
  const float4 v = *reinterpret_cast<const float4*>(s + t + 4);
  out[t] = v.x;
}

// Two arrays of 16 in one piece of memory, with a red zone in between.
__global__ void red_zone_overrun(const float* in, int, float* out) {
  TIM_SHARED_MEMORY(memory);
  float* const first = reinterpret_cast<float*>(memory);
  forbid(first + 16, kRedZone);
  __syncthreads();
  if (threadIdx.x < 17) first[threadIdx.x] = in[threadIdx.x];
  __syncthreads();
  if (threadIdx.x < 16) out[threadIdx.x] = first[threadIdx.x];
}

__global__ void global_overrun(const float* in, int count, float* out) {
  const int i = int(blockIdx.x * blockDim.x + threadIdx.x);
  if (i <= count) out[i] = in[0];
}

__global__ void global_overread(const float* in, int, float* out) {
  const int i = int(blockIdx.x * blockDim.x + threadIdx.x);
  out[i] = in[i + 1];
}

__global__ void never_written(const float* in, int, float* out) {
  TIM_SHARED_MEMORY(memory);
  float* const s = reinterpret_cast<float*>(memory);
  const unsigned t = threadIdx.x;
  if (t != 9) s[t] = in[t];
  __syncthreads();
  out[t] = fmaxf(s[t ^ 1], 0.0f);  // which makes 0 of NaN
}

__global__ void writes_its_input(const float* in, int, float* out) {
  const_cast<float*>(in)[threadIdx.x] = 0;
  out[threadIdx.x] = 0;
}

__global__ void misaligned_vector(const float* in, int, float* out) {
  const float4 v = *reinterpret_cast<const float4*>(in + threadIdx.x);
  out[threadIdx.x] = v.x;
}

__global__ void local_overrun(const float* in, int count, float* out) {
  float local[4];
  for (int j = 0; j < 4; ++j) local[j] = in[j];
  for (int j = 0; j < 4; ++j) local[(j + count) % 5] += 1;
  out[threadIdx.x] = local[threadIdx.x % 4];
}

__global__ void host_pointer(const float*, int, float* out, const float* host) { out[threadIdx.x] = *host; }

__global__ void blocks_talk(const float* in, int, float* out) {
  out[0] = in[blockIdx.x];  // all blocks write here
}

// A plain read of a counter that others still count up.
__global__ void reads_a_counter(const float*, int, float* out, unsigned* counter) {
  atomicAdd(counter, 1u);
  out[blockIdx.x * blockDim.x + threadIdx.x] = float(*counter);
}

__global__ void waits_for_ever(const float*, int, float* out, unsigned* counter) {
  while (atomicAdd(counter, 0u) == 0) __nanosleep(1);
  out[threadIdx.x] = 0;
}

__global__ void clear(unsigned* counters) {
  if (threadIdx.x < 2) counters[threadIdx.x] = 0;
}

}  // namespace

void launch_own(const std::string& name, const float* in, int count, float* out, long long blocks,
                long long threads, long long shared_bytes) {
  using Simple = void (*)(const float*, int, float*);
  static const std::map<std::string, Simple> simple = {
      {"block_sum", block_sum},
      {"butterfly", butterfly},
      {"warp_scan", warp_scan},
      {"groups_of_eight", groups_of_eight},
      {"half_warps", half_warps},
      {"warp_reverse", warp_reverse},
      {"vectors_of_three", vectors_of_three},
      {"missing_barrier", missing_barrier},
      {"missing_second_barrier", missing_second_barrier},
      {"missing_warp_barrier", missing_warp_barrier},
      {"shuffle_as_barrier", shuffle_as_barrier},
      {"two_barriers", two_barriers},
      {"ended_before_barrier", ended_before_barrier},
      {"barrier_and_shuffle", barrier_and_shuffle},
      {"not_in_its_mask", not_in_its_mask},
      {"shuffle_from_outside", shuffle_from_outside},
      {"shuffle_from_ended", shuffle_from_ended},
      {"different_masks", different_masks},
      {"shared_overrun", shared_overrun},
      {"shared_overread", shared_overread},
      {"vector_overread", vector_overread},
      {"red_zone_overrun", red_zone_overrun},
      {"global_overrun", global_overrun},
      {"global_overread", global_overread},
      {"never_written", never_written},
      {"writes_its_input", writes_its_input},
      {"misaligned_vector", misaligned_vector},
      {"local_overrun", local_overrun},
      {"blocks_talk", blocks_talk},
  };
  if (const auto found = simple.find(name); found != simple.end()) {
    const Simple kernel = found->second;
    TIM_LAUNCH(kernel, blocks, threads, shared_bytes, nullptr, in, count, out);
    return;
  }
  // The last floats of the output are the others' workspace.
  unsigned* const counters = reinterpret_cast<unsigned*>(out + 2);
  float* const exchange = out + 64;
  TIM_LAUNCH((clear), 1, 32, 0, nullptr, counters);
  if (name == "allowed_shared_memory") {
    cudaFuncSetAttribute(&warp_scan, cudaFuncAttributeMaxDynamicSharedMemorySize, int(shared_bytes));
    TIM_LAUNCH((warp_scan), blocks, threads, shared_bytes, nullptr, in, count, out);
  } else if (name == "count_positive") {
    TIM_LAUNCH((count_positive), blocks, threads, 0, nullptr, in, count, out, counters, counters + 1);
  } else if (name == "team") {
    TIM_LAUNCH_COOPERATIVE((team<true>), blocks, threads, 0, nullptr, in, count, out + 4, exchange, counters);
  } else if (name == "team_without_fence") {
    TIM_LAUNCH_COOPERATIVE((team<false>), blocks, threads, 0, nullptr, in, count, out + 4, exchange,
                           counters);
  } else if (name == "host_pointer") {
    const float host = 1;
    TIM_LAUNCH((host_pointer), blocks, threads, 0, nullptr, in, count, out + 4, &host);
  } else if (name == "reads_a_counter") {
    TIM_LAUNCH((reads_a_counter), blocks, threads, 0, nullptr, in, count, out + 4, counters);
  } else if (name == "waits_for_ever") {
    TIM_LAUNCH((waits_for_ever), blocks, threads, 0, nullptr, in, count, out + 4, counters);
  } else {
    throw std::invalid_argument("no kernel " + name);
  }
}
