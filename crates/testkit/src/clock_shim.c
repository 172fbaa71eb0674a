// Steps the wall clock of one process. Loaded with LD_PRELOAD, it adds an offset to every reading of
// the time of day.
//
// TIDEGATE_CLOCK names a file of eight bytes: the offset in microseconds, signed, in the machine's
// byte order. The file is mapped, so that writing to it steps the clock at once. Monotonic clocks do
// not change, as when a real clock is set.

#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static int64_t now_micros(void) {
  static volatile const int64_t *offset;
  if (!offset) {
    const char *path = getenv("TIDEGATE_CLOCK");
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    void *map = fd < 0 ? MAP_FAILED : mmap(NULL, sizeof *offset, PROT_READ, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED) abort();
    close(fd);
    offset = map;
  }
  struct timespec t;
  syscall(SYS_clock_gettime, CLOCK_REALTIME, &t);
  return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000 + *offset;
}

int clock_gettime(clockid_t id, struct timespec *t) {
  if (id != CLOCK_REALTIME && id != CLOCK_REALTIME_COARSE) {
    return (int)syscall(SYS_clock_gettime, id, t);
  }
  int64_t now = now_micros();
  *t = (struct timespec){ .tv_sec = now / 1000000, .tv_nsec = now % 1000000 * 1000 };
  return 0;
}

int gettimeofday(struct timeval *restrict t, void *restrict zone) {
  (void)zone;
  int64_t now = now_micros();
  *t = (struct timeval){ .tv_sec = now / 1000000, .tv_usec = now % 1000000 };
  return 0;
}

time_t time(time_t *t) {
  time_t now = now_micros() / 1000000;
  if (t) *t = now;
  return now;
}
