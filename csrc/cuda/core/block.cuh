// What kernels are made of: threads of a block and of a team of blocks, sums over lanes, arrays in one piece of
// memory, 16-byte loads.
#pragma once

#include <cstdint>

#include "common/numbers.h"
#include "cuda/core/platform.h"

namespace tim_ext {
namespace cuda {

constexpr int kThreads = 256;  // of every block
constexpr int kLanes = 32;
constexpr int kWarps = kThreads / kLanes;
constexpr unsigned kAllLanes = 0xffffffffu;

// Arrays one after the other in one piece of memory; from null, only counts bytes.
class Arena {
 public:
  __host__ __device__ explicit Arena(void* start) : start_(static_cast<unsigned char*>(start)) {}
  template <class E>
  __host__ __device__ E* take(int64_t count) {
    unsigned char* array = start_ + used_;
    const int64_t bytes = round_up(count * int64_t(sizeof(E)), 16);
    used_ += bytes + kRedZone;
    if (kRedZone > 0 && start_ != nullptr) forbid(array + bytes, kRedZone);
    return reinterpret_cast<E*>(array);
  }
  // Several arrays of one length, `stride` elements apart: one pointer instead of many.
  template <class E>
  __host__ __device__ E* take_equal(int arrays, int64_t count, int64_t* stride) {
    E* first = take<E>(count);
    for (int i = 1; i < arrays; ++i) take<E>(count);
    *stride = round_up(count * int64_t(sizeof(E)), 16) / int64_t(sizeof(E)) + kRedZone / int64_t(sizeof(E));
    return first;
  }
  __host__ __device__ int64_t used() const { return used_; }

 private:
  unsigned char* start_;
  int64_t used_ = 0;
};

// The threads that work on one task: a block, or several that are resident together. Blocks of a team wait for each
// other by counting up to a multiple of the team's size in global memory.
struct Team {
  int rank, size;     // blocks
  unsigned* arrived;  // 0 at the start of the kernel
  unsigned target;

  __device__ int warp() const { return rank * kWarps + int(threadIdx.x) / kLanes; }
  __device__ int warps() const { return size * kWarps; }
  __device__ int thread() const { return rank * kThreads + int(threadIdx.x); }
  __device__ int threads() const { return size * kThreads; }

  // After the barrier of each block, the barrier among the blocks: see TIM_SYNC.
  __device__ void meet() {
    if (size == 1) return;
    target += unsigned(size);
    if (threadIdx.x == 0) {
      __threadfence();
      atomicAdd(arrived, 1u);
      while (int(*static_cast<volatile unsigned*>(arrived) - target) < 0) __nanosleep(32);  // may wrap
      __threadfence();
    }
    __syncthreads();
  }
};

// What any thread of the team wrote before is visible to all of them after. A macro, so that the emulation knows each
// barrier by its line.
#define TIM_SYNC(team) \
  do {                 \
    __syncthreads();   \
    (team).meet();     \
  } while (0)

__device__ __forceinline__ int lane_id() { return int(threadIdx.x) % kLanes; }

template <class T>
__device__ __forceinline__ T warp_sum(T value) {
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset /= 2) value += __shfl_xor_sync(kAllLanes, value, offset);
  return value;
}
template <class T>
__device__ __forceinline__ T warp_max(T value) {
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset /= 2) {
    const T other = __shfl_xor_sync(kAllLanes, value, offset);
    value = other > value ? other : value;
  }
  return value;
}
template <class T>
__device__ __forceinline__ T warp_min(T value) {
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset /= 2) {
    const T other = __shfl_xor_sync(kAllLanes, value, offset);
    value = other < value ? other : value;
  }
  return value;
}
// The sum over the lanes before this one; value becomes that over all.
__device__ __forceinline__ int warp_sum_before(int& value) {
  int before = 0;
#pragma unroll
  for (int offset = 1; offset < kLanes; offset *= 2) {
    const int other = __shfl_xor_sync(kAllLanes, value, offset);
    if (lane_id() & offset) before += other;
    value += other;
  }
  return before;
}

// Half a butterfly: of the N sums in v, a lane keeps those of its half (the upper if lane & offset) and adds
// what its partner has of them. After log2(N) calls with N halved, each lane has one sum over N lanes: N - 1 shuffles
// for N sums instead of N log2 N.
template <int N, int Size, class T>
__device__ __forceinline__ void halve(T (&v)[Size], int lane, int offset) {
  const bool upper = (lane & offset) != 0;
#pragma unroll
  for (int j = 0; j < N / 2; ++j) {
    const T keep = upper ? v[j + N / 2] : v[j], send = upper ? v[j] : v[j + N / 2];
    v[j] = keep + __shfl_xor_sync(kAllLanes, send, offset);
  }
}

template <class T>
constexpr int kVector = 16 / int(sizeof(T));  // elements in a 16-byte load

__device__ __forceinline__ void load_vector(const float* from, float (&v)[4]) {
  const float4 x = *reinterpret_cast<const float4*>(from);
  v[0] = x.x, v[1] = x.y, v[2] = x.z, v[3] = x.w;
}
__device__ __forceinline__ void load_vector(const double* from, double (&v)[2]) {
  const double2 x = *reinterpret_cast<const double2*>(from);
  v[0] = x.x, v[1] = x.y;
}
__device__ __forceinline__ void store_vector(float* to, const float (&v)[4]) {
  *reinterpret_cast<float4*>(to) = make_float4(v[0], v[1], v[2], v[3]);
}
__device__ __forceinline__ void store_vector(double* to, const double (&v)[2]) {
  *reinterpret_cast<double2*>(to) = make_double2(v[0], v[1]);
}

// Four elements at an address that is aligned for vectors.
__device__ __forceinline__ void load_four(const float* from, float* v) {
  const float4 x = *reinterpret_cast<const float4*>(from);
  v[0] = x.x, v[1] = x.y, v[2] = x.z, v[3] = x.w;
}
__device__ __forceinline__ void load_four(const double* from, double* v) {
  const double2 x = *reinterpret_cast<const double2*>(from), y = *reinterpret_cast<const double2*>(from + 2);
  v[0] = x.x, v[1] = x.y, v[2] = y.x, v[3] = y.y;
}

}  // namespace cuda
}  // namespace tim_ext
