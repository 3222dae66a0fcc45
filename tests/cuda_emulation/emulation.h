// CUDA's execution model on the CPU, for the features the kernels use and no others: what platform.h includes
// instead of the CUDA headers, so that g++ compiles the kernels from the same files. Tests only.
//
// Every thread of a block is a fiber. It runs until it meets the other threads (a barrier, a shuffle, a vote) or
// an atomic; then the next one is drawn with the seed of the test. See scheduler.h for what a launch does.
#pragma once

#include <math.h>  // with the overloads of <cmath> in the global namespace, as in CUDA

#include <cstdint>
#include <cstring>
#include <tuple>
#include <type_traits>
#include <utility>

// Qualifiers -----------------------------------------------------------------------------------------

#define __global__
#define __device__
#define __host__
#define __grid_constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))

// Vectors and half types: CUDA's alignments --------------------------------------------------------------

#ifdef TIM_EXT_CHECK_ACCESS
namespace emulation {
void copy_vector(void* to, const void* from, size_t bytes);
}
// Vectors are copied as a whole: of those in memory, some elements may be fill that nobody has written.
#define TIM_VECTOR_COPY(name)                                                       \
  name() = default;                                                                 \
  name(const name& other) { ::emulation::copy_vector(this, &other, sizeof other); } \
  name& operator=(const name& other) {                                              \
    ::emulation::copy_vector(this, &other, sizeof other);                           \
    return *this;                                                                   \
  }
#else
#define TIM_VECTOR_COPY(name) name() = default;
#endif
#define TIM_VECTOR2(name, type, alignment) \
  struct alignas(alignment) name {         \
    type x, y;                             \
    TIM_VECTOR_COPY(name)                  \
    name(type x, type y) : x(x), y(y) {}   \
  };                                       \
  inline name make_##name(type x, type y) { return {x, y}; }
#define TIM_VECTOR4(name, type)                                      \
  struct alignas(16) name {                                          \
    type x, y, z, w;                                                 \
    TIM_VECTOR_COPY(name)                                            \
    name(type x, type y, type z, type w) : x(x), y(y), z(z), w(w) {} \
  };                                                                 \
  inline name make_##name(type x, type y, type z, type w) { return {x, y, z, w}; }
TIM_VECTOR2(float2, float, 8)
TIM_VECTOR2(int2, int, 8)
TIM_VECTOR2(uint2, unsigned, 8)
TIM_VECTOR2(double2, double, 16)
TIM_VECTOR4(float4, float)
TIM_VECTOR4(int4, int)
TIM_VECTOR4(uint4, unsigned)
#undef TIM_VECTOR2
#undef TIM_VECTOR4
#undef TIM_VECTOR_COPY

struct alignas(2) __half {
  uint16_t bits;
};
struct alignas(2) __nv_bfloat16 {
  uint16_t bits;
};

namespace emulation {

template <class To, class From>
inline To bit_cast(From from) {
  static_assert(sizeof(To) == sizeof(From), "another size");
  To to;
  memcpy(&to, &from, sizeof to);
  return to;
}

}  // namespace emulation

inline float __bfloat162float(__nv_bfloat16 value) {
  return emulation::bit_cast<float>(static_cast<uint32_t>(value.bits) << 16);
}
inline float __half2float(__half value) {
  const uint32_t sign = static_cast<uint32_t>(value.bits & 0x8000) << 16;
  const uint32_t exponent = (value.bits >> 10) & 31, fraction = value.bits & 1023;
  if (exponent == 0) {  // zero and subnormal: fraction * 2^-24
    const float size = static_cast<float>(fraction) * 0x1p-24f;
    return sign ? -size : size;
  }
  const uint32_t wide = exponent == 31 ? 255 : exponent + 112;
  return emulation::bit_cast<float>(sign | wide << 23 | fraction << 13);
}

// Arithmetic -------------------------------------------------------------------------------------------

inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline double rsqrt(double x) { return 1.0 / sqrt(x); }
inline float rsqrt(float x) { return rsqrtf(x); }
inline int __float_as_int(float x) { return emulation::bit_cast<int>(x); }
inline unsigned __float_as_uint(float x) { return emulation::bit_cast<unsigned>(x); }
inline float __int_as_float(int x) { return emulation::bit_cast<float>(x); }
inline float __uint_as_float(unsigned x) { return emulation::bit_cast<float>(x); }
inline long long __double_as_longlong(double x) { return emulation::bit_cast<long long>(x); }
inline double __longlong_as_double(long long x) { return emulation::bit_cast<double>(x); }

inline int __popc(unsigned bits) { return __builtin_popcount(bits); }

template <class T>
inline T __ldg(const T* p) {
  return *p;
}

// Where a thread is --------------------------------------------------------------------------------------

namespace emulation {
struct Index {
  unsigned x;
};
}  // namespace emulation
extern emulation::Index threadIdx, blockIdx, blockDim, gridDim;  // of the thread that runs now

// Meeting other threads ------------------------------------------------------------------------------------

namespace emulation {

struct Site {  // of a call in the kernel's source
  const char* file;
  int line;
};

enum class Operation {
  sync_block,
  sync_block_or,
  sync_warp,
  shuffle,
  shuffle_xor,
  shuffle_down,
  ballot,
  any,
  all
};

int meet_block(Site site, Operation operation, int value);
uint64_t meet_warp(Site site, Operation operation, unsigned mask, uint64_t value, int argument, int width);
void sync_warp(Site site, unsigned mask = 0xffffffffu);
void fence();
void yield();

template <class T>
inline T shuffle(Site site, Operation operation, unsigned mask, T value, int argument, int width = 32) {
  static_assert(std::is_same_v<T, int> || std::is_same_v<T, unsigned> || std::is_same_v<T, float> ||
                    std::is_same_v<T, double> || std::is_same_v<T, long long>,
                "a type that CUDA does not shuffle");
  uint64_t bits = 0;
  memcpy(&bits, &value, sizeof value);
  bits = meet_warp(site, operation, mask, bits, argument, width);
  memcpy(&value, &bits, sizeof value);
  return value;
}

inline unsigned vote(Site site, Operation operation, unsigned mask, int value) {
  return static_cast<unsigned>(meet_warp(site, operation, mask, value != 0, 0, 32));
}

}  // namespace emulation

#define TIM_SITE \
  ::emulation::Site { __FILE__, __LINE__ }
#define __syncthreads() \
  static_cast<void>(::emulation::meet_block(TIM_SITE, ::emulation::Operation::sync_block, 0))
#define __syncthreads_or(value) \
  ::emulation::meet_block(TIM_SITE, ::emulation::Operation::sync_block_or, value)
#define __syncwarp(...) ::emulation::sync_warp(TIM_SITE __VA_OPT__(, ) __VA_ARGS__)
#define __shfl_sync(...) ::emulation::shuffle(TIM_SITE, ::emulation::Operation::shuffle, __VA_ARGS__)
#define __shfl_xor_sync(...) ::emulation::shuffle(TIM_SITE, ::emulation::Operation::shuffle_xor, __VA_ARGS__)
#define __shfl_down_sync(...) \
  ::emulation::shuffle(TIM_SITE, ::emulation::Operation::shuffle_down, __VA_ARGS__)
#define __ballot_sync(...) ::emulation::vote(TIM_SITE, ::emulation::Operation::ballot, __VA_ARGS__)
#define __any_sync(...) \
  static_cast<int>(::emulation::vote(TIM_SITE, ::emulation::Operation::any, __VA_ARGS__))
#define __all_sync(...) \
  static_cast<int>(::emulation::vote(TIM_SITE, ::emulation::Operation::all, __VA_ARGS__))

inline void __threadfence() { emulation::fence(); }
inline void __threadfence_block() {}
inline void __nanosleep(unsigned) { emulation::yield(); }

// Atomics: on integers only. A sum of floats in the order of arrival is not deterministic; it does not compile.
int atomicAdd(int* address, int value);
unsigned atomicAdd(unsigned* address, unsigned value);
unsigned long long atomicAdd(unsigned long long* address, unsigned long long value);
int atomicMin(int* address, int value);
unsigned atomicMin(unsigned* address, unsigned value);
unsigned long long atomicMin(unsigned long long* address, unsigned long long value);
int atomicMax(int* address, int value);
unsigned atomicMax(unsigned* address, unsigned value);
unsigned long long atomicMax(unsigned long long* address, unsigned long long value);
int atomicCAS(int* address, int compare, int value);
unsigned long long atomicCAS(unsigned long long* address, unsigned long long compare,
                             unsigned long long value);

// Memory -----------------------------------------------------------------------------------------------------

namespace emulation {
unsigned char* shared_memory();  // of the current block
}

#define TIM_SHARED_MEMORY(name) unsigned char* const name = ::emulation::shared_memory()

// Between two arrays in one piece of memory lie kRedZone bytes that nobody may touch until the block ends
// (shared memory) or the launch ends (global memory). permit() ends that earlier, for memory that gets another layout:
// from the block's next barrier on, it is fresh memory again.
constexpr int kRedZone = 64;
void forbid(const void* start, long long bytes);
void permit(const void* start, long long bytes);

// Launches and the host's calls -----------------------------------------------------------------------------

using cudaStream_t = void*;
enum cudaError_t { cudaSuccess, cudaErrorCooperativeLaunchTooLarge };
enum cudaDeviceAttr { cudaDevAttrMultiProcessorCount, cudaDevAttrMaxSharedMemoryPerBlockOptin };
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize };

inline cudaError_t cudaGetLastError() { return cudaSuccess; }  // what else fails here, throws
inline const char* cudaGetErrorString(cudaError_t) { return "no error, or a team that is too large"; }
inline cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device);

namespace emulation {

void set_shared_limit(const void* kernel, int bytes);

struct Launch {
  const void* kernel;
  const char* name;
  long long blocks, threads, shared_bytes;
  bool cooperative;                    // all blocks are in flight at once
  void (*run)(const void* arguments);  // the kernel in one thread
  const void* arguments;
  size_t arguments_size;
};
cudaError_t run(const Launch& launch);

template <class... Parameters, class... Arguments>
cudaError_t launch(bool cooperative, const char* name, void (*kernel)(Parameters...), long long blocks,
                   long long threads, long long shared_bytes, cudaStream_t, Arguments&&... arguments) {
  using Call = std::pair<void (*)(Parameters...), std::tuple<std::decay_t<Parameters>...>>;
  const Call call(kernel, std::tuple<std::decay_t<Parameters>...>(std::forward<Arguments>(arguments)...));
  auto one_thread = [](const void* what) {
    const Call& call = *static_cast<const Call*>(what);
    std::apply(call.first, call.second);
  };
  return run({reinterpret_cast<const void*>(kernel), name, blocks, threads, shared_bytes, cooperative,
              one_thread, &call, sizeof call});
}

}  // namespace emulation

template <class Kernel>
inline cudaError_t cudaFuncSetAttribute(Kernel* kernel, cudaFuncAttribute, int bytes) {
  emulation::set_shared_limit(reinterpret_cast<const void*>(kernel), bytes);
  return cudaSuccess;
}

// A processor holds one block of these kernels.
template <class Kernel>
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, Kernel*, int, size_t) {
  *blocks = 1;
  return cudaSuccess;
}

#define TIM_LAUNCH(kernel, blocks, threads, shared, stream, ...)                                       \
  ::emulation::launch(false, #kernel, kernel, blocks, threads, static_cast<long long>(shared), stream, \
                      __VA_ARGS__)
#define TIM_LAUNCH_COOPERATIVE(kernel, blocks, threads, shared, stream, ...)                          \
  ::emulation::launch(true, #kernel, kernel, blocks, threads, static_cast<long long>(shared), stream, \
                      __VA_ARGS__)
