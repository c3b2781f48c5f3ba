/* The same bytes to many sockets. Contract: interface.SendEach. */
#include "core.h"
#include <errno.h>
#include <sys/socket.h>

typedef struct {
    Py_ssize_t index, sent;
} short_t;

/* send_each(descriptors, data) */
CORE_FUNCTION(core_send_each)
{
    (void)module;
    if (!take_count("send_each", nargs, 2))
        return NULL;
    Py_buffer fds, data;
    if (!take_buffer(args[0], false, &fds))
        return NULL;
    if (!take_buffer(args[1], false, &data)) {
        PyBuffer_Release(&fds);
        return NULL;
    }
    PyObject *found = NULL;
    short_t *missed = NULL;
    Py_ssize_t count = fds.len / (Py_ssize_t)sizeof(int32_t), misses = 0;
    if (fds.len % (Py_ssize_t)sizeof(int32_t)) {
        refuse("invalid_request", "%zd bytes are no list of descriptors", fds.len);
        goto done;
    }
    missed = PyMem_Malloc((size_t)(count ? count : 1) * sizeof *missed);
    if (!missed) {
        PyErr_NoMemory();
        goto done;
    }
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t i = 0; i < count; i++) {
        ssize_t sent;
        do
            sent = send((int)get32((const uint8_t *)fds.buf + 4 * i), data.buf, (size_t)data.len,
                        MSG_DONTWAIT | MSG_NOSIGNAL);
        while (sent < 0 && errno == EINTR);
        if (sent != data.len)
            missed[misses++] = (short_t){i, sent < 0 ? 0 : sent};
    }
    Py_END_ALLOW_THREADS
    found = PyList_New(misses);
    for (Py_ssize_t i = 0; found && i < misses; i++) {
        PyObject *pair = Py_BuildValue("(nn)", missed[i].index, missed[i].sent);
        if (!pair)
            Py_CLEAR(found);
        else
            PyList_SET_ITEM(found, i, pair);
    }
done:
    PyMem_Free(missed);
    PyBuffer_Release(&data);
    PyBuffer_Release(&fds);
    return found;
}
