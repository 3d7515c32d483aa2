// Threadgroup memory of the running threadgroup.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lily_host {

class Arena {
 public:
  // What every Apple GPU has.
  static constexpr unsigned LIMIT = 32768;

  Arena();
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // Forgets all variables: a threadgroup begins.
  void clear();
  // The variable of that number; null if it would go beyond the limit. New ones are filled with NaNs of every float type.
  void* variable(unsigned number, unsigned bytes, unsigned alignment);
  unsigned used() const { return used_; }

 private:
  static constexpr unsigned VARIABLES = 64;
  static constexpr unsigned RED_ZONE = 64;  // kept between variables
  static constexpr size_t SIZE = LIMIT + VARIABLES * 2 * RED_ZONE;

  unsigned char* memory_;
  unsigned used_ = 0;  // as Metal counts, without red zones
  size_t end_ = 0;
  void* variables_[VARIABLES] = {};
};

}  // namespace lily_host
