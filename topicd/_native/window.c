/* A part of a growing file that is mapped before it is needed, so that writing there is a store into memory and no call.
 * Contract: channel_interface.py (reserve, send_message).
 *
 * A store may meet a page that the disk cannot give any more (the file was cut off by somebody, its filesystem failed):
 * the kernel says so with SIGBUS. store_message turns that, and only that, into an errno; every other SIGBUS goes to
 * whoever handled it before.
 */
#define _GNU_SOURCE
#include "channel.h"
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/vfs.h>
#include <unistd.h>

#ifndef XFS_SUPER_MAGIC
#define XFS_SUPER_MAGIC 0x58465342
#endif

typedef struct {
    sigjmp_buf back;
    const uint8_t *start, *end; /* where a fault is expected; start is NULL outside of a store */
} storing_t;

static _Thread_local volatile storing_t *storing __attribute__((tls_model("initial-exec")));
static struct sigaction before;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void on_bus_error(int number, siginfo_t *info, void *context)
{
    volatile storing_t *mine = storing;
    const uint8_t *at = info->si_addr;
    if (mine && at >= mine->start && at < mine->end)
        siglongjmp(*(sigjmp_buf *)&mine->back, 1);
    if (before.sa_flags & SA_SIGINFO && before.sa_sigaction)
        before.sa_sigaction(number, info, context);
    else if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN)
        before.sa_handler(number);
    else
        sigaction(SIGBUS, &before, NULL); /* the faulting instruction runs again and meets what was there before us */
}

static void listen(void)
{
    struct sigaction mine = {.sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER};
    sigemptyset(&mine.sa_mask);
    sigaction(SIGBUS, &mine, &before);
}

int store_message(uint8_t *place, const uint8_t *head, size_t head_bytes, const uint8_t *payload, size_t length)
{
    storing_t mine = {.start = place, .end = place + head_bytes + length};
    pthread_once(&once, listen);
    if (sigsetjmp(mine.back, 0)) {
        storing = NULL;
        return EIO;
    }
    storing = &mine;
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
    memcpy(place + head_bytes, payload, length);
    memcpy(place, head, head_bytes);
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
    storing = NULL;
    return 0;
}

const uint8_t cleared_zeros[2 * CLEARED_PART];

uint64_t cleared_end(uint64_t least, uint64_t most)
{
    uint64_t end = (least + CLEARED_PART - 1) / CLEARED_PART * CLEARED_PART;
    return end < most ? end : most;
}

uint64_t clear_room(int fd, uint64_t start, uint64_t least, uint64_t most)
{
    uint64_t end = cleared_end(least, most);
    while (start < end) {
        uint64_t size = end - start < sizeof cleared_zeros ? end - start : sizeof cleared_zeros;
        ssize_t done = pwrite(fd, cleared_zeros, (size_t)size, (off_t)start);
        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            return 0;
        start += (uint64_t)done;
    }
    return end;
}

/* Where blocks that were reserved are there when a page is written, and a page that was written is the file's. */
static bool keeps_reservations(int fd)
{
    struct statfs found;
    if (fstatfs(fd, &found))
        return false;
    unsigned long kind = (unsigned long)found.f_type;
    return kind == EXT4_SUPER_MAGIC || kind == XFS_SUPER_MAGIC || kind == TMPFS_MAGIC;
}

/* reserve(fd, offset, length) -> the file has these bytes, as zeros where it had none, and room for them on the disk */
CORE_FUNCTION(core_reserve)
{
    (void)module;
    uint64_t offset, length;
    if (!take_count("reserve", nargs, 3) || !take_u64(args[1], "offset", &offset) ||
        !take_u64(args[2], "length", &length))
        return NULL;
    long fd = PyLong_AsLong(args[0]);
    if (fd == -1 && PyErr_Occurred())
        return NULL;
    int error = EOPNOTSUPP;
    Py_BEGIN_ALLOW_THREADS
    if (keeps_reservations((int)fd))
        do
            error = fallocate((int)fd, 0, (off_t)offset, (off_t)length) ? errno : 0;
        while (error == EINTR);
    Py_END_ALLOW_THREADS
    if (error == EOPNOTSUPP || error == ENOSYS)
        Py_RETURN_FALSE;
    if (!error)
        Py_RETURN_TRUE;
    errno = error;
    return PyErr_SetFromErrno(PyExc_OSError);
}
