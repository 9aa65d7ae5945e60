/* A wall clock that can be set wrong, for every process that preloads this: the seconds in the file named by WRONG_CLOCK
   are added to the time of day, in processes that run as well. Clocks that only count are left alone. Programs that are
   started with an environment of their own are given this library all the same. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

static volatile int64_t *offset_s;
static char preload[4096], clock_file[4096];

__attribute__((constructor)) static void open_offset(void)
{
    const char *path = getenv("WRONG_CLOCK"), *library = getenv("LD_PRELOAD");
    if (path && library) {
        strncpy(clock_file, path, sizeof clock_file - 1);
        strncpy(preload, library, sizeof preload - 1);
    }
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0)
        return;
    void *page = mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (page != MAP_FAILED)
        offset_s = page;
}

static int64_t offset(void)
{
    return offset_s ? *offset_s : 0;
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
    int failed = (int)syscall(SYS_clock_gettime, clock, now);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        now->tv_sec += offset();
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
    struct timespec precise;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &precise);
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *seconds)
{
    struct timespec precise;
    clock_gettime(CLOCK_REALTIME, &precise);
    if (seconds)
        *seconds = precise.tv_sec;
    return precise.tv_sec;
}

/* Subprocesses come into being by one of these two: the one of Python's loop, the other of uvloop's. */

static void follow(void)
{
    setenv("LD_PRELOAD", preload, 1);
    setenv("WRONG_CLOCK", clock_file, 1);
}

int execvp(const char *file, char *const argv[])
{
    int (*real)(const char *, char *const[]) = dlsym(RTLD_NEXT, "execvp");
    if (*preload)
        follow();
    return real(file, argv);
}

int execve(const char *path, char *const argv[], char *const envp[])
{
    int (*real)(const char *, char *const[], char *const[]) = dlsym(RTLD_NEXT, "execve");
    if (!*preload || envp == environ)
        return real(path, argv, envp);
    environ = (char **)envp;
    follow();
    return real(path, argv, environ);
}
