// The border of the C interface: exceptions become a noted reason and a code.
#pragma once

#include <stdint.h>

#include <new>
#include <stdexcept>
#include <string>

namespace outrider {

// Why the last call of this thread failed.
inline std::string &last_error() {
  thread_local std::string reason;
  return reason;
}

inline std::string text(int64_t number) { return std::to_string(number); }

inline void require(bool condition, const char *reason) {
  if (!condition) throw std::invalid_argument(reason);
}
inline void require(bool condition, const std::string &reason) { require(condition, reason.c_str()); }

// 0, or -1 when f threw.
template <class F>
int guarded(F &&f) {
  try {
    f();
    return 0;
  } catch (const std::bad_alloc &) {
    last_error() = "out of memory";
  } catch (const std::exception &error) {
    last_error() = error.what();
  }
  return -1;
}

}  // namespace outrider
