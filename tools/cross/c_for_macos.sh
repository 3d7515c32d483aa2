# Sourced by the checks for macOS: the compiler for what crates have in C (ring). Clang makes code for any system, and
# that C needs three headers of one, of which the little that it uses stands here. Needs Debian's clang-19.
c_for_macos="$PWD/target/cross/include"
mkdir -p "$c_for_macos"
cat >"$c_for_macos/string.h" <<'HEADER'
#include <stddef.h>
void *memcpy(void *, const void *, size_t);
void *memmove(void *, const void *, size_t);
void *memset(void *, int, size_t);
int memcmp(const void *, const void *, size_t);
HEADER
printf '#define assert(condition) ((void)0)\n' >"$c_for_macos/assert.h"
printf '#define TARGET_OS_IPHONE 0\n' >"$c_for_macos/TargetConditionals.h"
export CC_aarch64_apple_darwin=clang-19
export CFLAGS_aarch64_apple_darwin="-ffreestanding -nostdlibinc -isystem $c_for_macos"
