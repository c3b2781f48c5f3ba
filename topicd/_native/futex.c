/* Sleeping on a word of a shared mapping, between processes. Contract: channel_interface.py (Signals).
 *
 * A signal is an aligned u32: bit 0 says that somebody sleeps, the bits above count. Who waits sets the bit, looks once
 * more at the value, and sleeps as long as the word is unchanged; who publishes stores the value, and only if the bit is
 * set counts on, clears the bit and wakes all. So a publication that nobody waits for costs no system call, and a
 * sleeper that was killed costs one.
 */
#define _GNU_SOURCE
#include "channel.h"
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define SLEEPER 1u
#define NS_PER_S 1000000000u

/* Counts on and wakes every sleeper. */
static void raise_signal(uint32_t *word)
{
    uint32_t old = __atomic_load_n(word, __ATOMIC_RELAXED);
    while (!__atomic_compare_exchange_n(word, &old, (old & ~SLEEPER) + 2, false, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED))
        ;
    syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

void publish_word(uint64_t *value, uint64_t what, uint32_t *word)
{
    __atomic_store_n(value, what, __ATOMIC_RELEASE);
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    if (__atomic_load_n(word, __ATOMIC_RELAXED) & SLEEPER)
        raise_signal(word);
}

bool take_place(PyObject *offset, const Py_buffer *view, uint64_t size, void **out)
{
    uint64_t at;
    if (!take_u64(offset, "offset", &at))
        return false;
    if ((uint64_t)view->len < size || at > (uint64_t)view->len - size || ((uintptr_t)view->buf + at) % size != 0) {
        refuse("invalid_request", "no aligned word at offset %llu of %zd bytes", (unsigned long long)at, view->len);
        return false;
    }
    *out = (uint8_t *)view->buf + at;
    return true;
}

/* publish(memory, value_at, value, signal_at) */
CORE_FUNCTION(core_publish)
{
    (void)module;
    Py_buffer memory;
    void *value, *word;
    uint64_t what;
    if (!take_count("publish", nargs, 4) || !take_buffer(args[0], true, &memory))
        return NULL;
    bool good = take_place(args[1], &memory, 8, &value) && take_u64(args[2], "value", &what) &&
                take_place(args[3], &memory, 4, &word);
    if (good)
        publish_word(value, what, word);
    PyBuffer_Release(&memory);
    if (!good)
        return NULL;
    Py_RETURN_NONE;
}

/* signal_count(memory, signal_at) -> how often it was raised, modulo 2**31 */
CORE_FUNCTION(core_signal_count)
{
    (void)module;
    Py_buffer memory;
    void *word;
    if (!take_count("signal_count", nargs, 2) || !take_buffer(args[0], false, &memory))
        return NULL;
    PyObject *found = NULL;
    if (take_place(args[1], &memory, 4, &word))
        found = PyLong_FromUnsignedLong(__atomic_load_n((uint32_t *)word, __ATOMIC_SEQ_CST) >> 1);
    PyBuffer_Release(&memory);
    return found;
}

/* raise_signal(memory, signal_at) */
CORE_FUNCTION(core_raise_signal)
{
    (void)module;
    Py_buffer memory;
    void *word;
    if (!take_count("raise_signal", nargs, 2) || !take_buffer(args[0], true, &memory))
        return NULL;
    bool good = take_place(args[1], &memory, 4, &word);
    if (good)
        raise_signal(word);
    PyBuffer_Release(&memory);
    if (!good)
        return NULL;
    Py_RETURN_NONE;
}

/* Sleeps until the signal is raised, `value` differs from known, or the time is over; -1 with an exception set. */
static int sleep_on(uint32_t *word, uint32_t seen, const uint64_t *value, uint64_t known, uint64_t timeout_ns)
{
    struct timespec limit = {(time_t)(timeout_ns / NS_PER_S), (long)(timeout_ns % NS_PER_S)};
    uint32_t now = __atomic_load_n(word, __ATOMIC_RELAXED);
    do {
        if (now >> 1 != seen)
            return 0;
    } while (!__atomic_compare_exchange_n(word, &now, now | SLEEPER, false, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED));
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    if (__atomic_load_n(value, __ATOMIC_ACQUIRE) != known)
        return 0;
    long failed;
    int error;
    Py_BEGIN_ALLOW_THREADS
    failed = syscall(SYS_futex, word, FUTEX_WAIT, seen << 1 | SLEEPER, timeout_ns == UINT64_MAX ? NULL : &limit, NULL, 0);
    error = errno;
    Py_END_ALLOW_THREADS
    if (!failed || error == EAGAIN || error == ETIMEDOUT)
        return 0;
    if (error == EINTR)
        return PyErr_CheckSignals();
    errno = error;
    PyErr_SetFromErrno(PyExc_OSError);
    return -1;
}

/* await_signal(memory, signal_at, seen, value_at, known, timeout_ns) -> the value now; UINT64_MAX: no time limit */
CORE_FUNCTION(core_await_signal)
{
    (void)module;
    Py_buffer memory;
    void *word, *value;
    uint64_t seen, known, timeout_ns;
    if (!take_count("await_signal", nargs, 6) || !take_buffer(args[0], true, &memory))
        return NULL;
    PyObject *found = NULL;
    if (take_place(args[1], &memory, 4, &word) && take_u64(args[2], "seen", &seen) &&
        take_place(args[3], &memory, 8, &value) && take_u64(args[4], "known", &known) &&
        take_u64(args[5], "timeout_ns", &timeout_ns) &&
        sleep_on(word, (uint32_t)(seen & INT32_MAX), value, known, timeout_ns) == 0)
        found = PyLong_FromUnsignedLongLong(__atomic_load_n((uint64_t *)value, __ATOMIC_ACQUIRE));
    PyBuffer_Release(&memory);
    return found;
}
