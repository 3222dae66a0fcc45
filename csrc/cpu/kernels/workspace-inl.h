// Memory of a solve in one buffer, and pieces of work on the threads of a team.
#pragma once

#include "cpu/kernels/prelude.h"

namespace tim_ext {
namespace TIM_ISA {

// Hands out 64-byte aligned pieces of one buffer; with a null buffer it only counts.
class Arena {
 public:
  explicit Arena(void* base) : base_(static_cast<char*>(base)) {}
  template <class U>
  U* take(int64_t n) {
    U* p = base_ ? reinterpret_cast<U*>(base_ + used_) : nullptr;
    used_ += round_up(n * int64_t(sizeof(U)), 64);
    return p;
  }
  int64_t used() const { return used_; }

 private:
  char* base_;
  int64_t used_ = 0;
};

// As std::swap, which may be no instruction set's own: see prelude.h.
template <class U>
TIM_INLINE void exchange(U& a, U& b) {
  const U kept = a;
  a = b;
  b = kept;
}

// Where a solve can end early; see Team.
TIM_INLINE void pause(const Team& team) {
  if (team.pause) team.pause(team.asked);
}

// f(i) for i in 0 .. n - 1, on the team's threads if there is more than one piece and thread. Each thread takes the
// next piece when it is free, so that one that is held up holds up no more than the piece it has.
template <class F>
TIM_INLINE void run(const Team& team, int64_t n, F f) {
  if (team.threads <= 1 || n <= 1) {
    for (int64_t i = 0; i < n; ++i) f(i);
  } else {
    struct Pieces {
      F& f;
      int64_t n, next;
    } pieces{f, n, 0};
    team.parallel(
        team.threads < n ? team.threads : n,
        [](void* context, int64_t) {
          Pieces& p = *static_cast<Pieces*>(context);
          for (int64_t i; (i = __atomic_fetch_add(&p.next, 1, __ATOMIC_RELAXED)) < p.n;) p.f(i);
        },
        &pieces);
  }
}

}  // namespace TIM_ISA
}  // namespace tim_ext
