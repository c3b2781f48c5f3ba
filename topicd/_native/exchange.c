/* A request and the beginning of its answer, in one call without the GIL. Contract: interface.Exchange.
 *
 * Between the two it waits in poll() and not in recv(): whoever reads the request frees its bytes, and the kernel then
 * wakes a writer that might wait for room. A sleeper in recv() is taken for one; a sleeper in poll() says what it waits
 * for and sleeps on.
 */
#include "core.h"
#include <errno.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/types.h>

/* exchange(descriptor, message, window, timeout_ms) -> bytes received */
CORE_FUNCTION(core_exchange)
{
    (void)module;
    if (!take_count("exchange", nargs, 4))
        return NULL;
    long fd = PyLong_AsLong(args[0]), timeout_ms = PyLong_AsLong(args[3]);
    if (PyErr_Occurred())
        return NULL;
    Py_buffer message, window;
    if (!take_buffer(args[1], false, &message))
        return NULL;
    if (!take_buffer(args[2], true, &window)) {
        PyBuffer_Release(&message);
        return NULL;
    }
    Py_ssize_t sent = 0, found = -1;
    int error = 0;
    do { /* again after a signal whose handler raised nothing */
        Py_BEGIN_ALLOW_THREADS
        error = fd < 0 ? EBADF : 0; /* poll() would pass over it */
        while (!error && sent < message.len) {
            ssize_t took = send((int)fd, (const uint8_t *)message.buf + sent, (size_t)(message.len - sent), MSG_NOSIGNAL);
            if (took < 0)
                error = errno;
            else
                sent += took;
        }
        if (!error) {
            struct pollfd wanted = {.fd = (int)fd, .events = POLLIN};
            int ready = poll(&wanted, 1, (int)timeout_ms);
            if (ready < 0)
                error = errno;
            else if (!ready)
                error = EAGAIN;
        }
        if (!error) {
            found = recv((int)fd, window.buf, (size_t)window.len, 0);
            if (found < 0)
                error = errno;
        }
        Py_END_ALLOW_THREADS
    } while (error == EINTR && !PyErr_CheckSignals());
    PyBuffer_Release(&window);
    PyBuffer_Release(&message);
    if (PyErr_Occurred())
        return NULL;
    if (error) {
        errno = error;
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    return PyLong_FromSsize_t(found);
}
