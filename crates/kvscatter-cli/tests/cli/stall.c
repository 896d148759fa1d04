/*
 * LD_PRELOAD loads this library. It stops the process, by SIGSTOP, in the first write to a file whose path
 * contains STALL_AT, or in the first msync if STALL_AT is "msync". After the process continues, the write takes STALL_SECONDS, so that the process handles a
 * signal before the write is complete.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

static void stall(const char *path) {
    static int stalled;
    const char *at = getenv("STALL_AT"), *seconds = getenv("STALL_SECONDS");
    if (at == NULL || stalled || strstr(path, at) == NULL)
        return;
    stalled = 1;
    kill(getpid(), SIGSTOP);
    /* The thread sleeps several times, because a handled signal wakes it up. */
    for (int i = 20 * (seconds == NULL ? 1 : atoi(seconds)); i > 0; i--)
        usleep(50000);
}

static void stall_file(int file) {
    char link[64], path[4096];
    ssize_t length;
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    length = readlink(link, path, sizeof path - 1);
    if (length < 0)
        return;
    path[length] = 0;
    stall(path);
}

ssize_t write(int file, const void *bytes, size_t count) {
    static ssize_t (*real)(int, const void *, size_t);
    if (real == NULL)
        real = (ssize_t(*)(int, const void *, size_t))dlsym(RTLD_NEXT, "write");
    if (file > 2)
        stall_file(file);
    return real(file, bytes, count);
}

ssize_t copy_file_range(int from, off64_t *at, int to, off64_t *to_at, size_t count, unsigned flags) {
    static ssize_t (*real)(int, off64_t *, int, off64_t *, size_t, unsigned);
    if (real == NULL)
        real = (ssize_t(*)(int, off64_t *, int, off64_t *, size_t, unsigned))dlsym(RTLD_NEXT, "copy_file_range");
    stall_file(to);
    return real(from, at, to, to_at, count, flags);
}

int msync(void *address, size_t length, int flags) {
    static int (*real)(void *, size_t, int);
    if (real == NULL)
        real = (int (*)(void *, size_t, int))dlsym(RTLD_NEXT, "msync");
    stall("msync");
    return real(address, length, flags);
}
