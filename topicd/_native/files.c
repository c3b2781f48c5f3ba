/* Steps on files, all of them without the GIL. Contract: interface.py (MakeDir, Put, SyncDir, Rename, RunChains); what
 * each does, call by call, is topicd.disk.steps.run_steps, and a test holds the two against each other.
 *
 * First everything is taken out of the Python objects: paths are encoded, buffers are locked against resizing. Then the
 * GIL goes and the steps are done; none of them looks at an object. Modes and sizes come from the caller.
 */
#define _GNU_SOURCE
#include "core.h"
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define TOO_SHORT 0 /* in the place of an errno */

typedef enum { MAKE_DIR, PUT, SYNC_DIR, RENAME } step_kind;

typedef struct {
    step_kind kind;
    bool create, sync;
    char *path, *target; /* of bytes objects in plan_t.paths */
    uint64_t offset, length;
    size_t first_part, parts;
} step_t;

typedef struct {
    size_t first_step, steps;
    size_t failed; /* == steps: none */
    int error;
    uint64_t size;
} chain_t;

typedef struct {
    const core_state *types;
    PyObject *paths; /* list: owns the encoded paths */
    chain_t *chains;
    step_t *steps;
    struct iovec *parts;
    Py_buffer *views; /* one for each part */
    size_t chain_count, step_count, view_count;
    size_t step_room, view_room;
    mode_t file_mode, dir_mode;
    uint64_t long_bytes, piece_bytes;
} plan_t;

/* ---- with the GIL: the plan ---- */

/* The array with room for so many more; NULL with an exception set, and the array as it was. It doubles, so that
 * thousands of small steps do not move it each time. */
static void *with_room(void *array, size_t size, size_t used, size_t more, size_t *room)
{
    if (array && used + more <= *room)
        return array;
    size_t wanted = used + more > 2 * *room ? used + more : 2 * *room;
    void *bigger = PyMem_RawRealloc(array, (wanted ? wanted : 1) * size);
    if (bigger)
        *room = wanted;
    else
        PyErr_NoMemory();
    return bigger;
}

static bool make_room_for_steps(plan_t *plan, size_t more)
{
    step_t *steps = with_room(plan->steps, sizeof *steps, plan->step_count, more, &plan->step_room);
    if (steps)
        plan->steps = steps;
    return steps != NULL;
}

static bool make_room_for_parts(plan_t *plan, size_t more)
{
    size_t room = plan->view_room; /* the same for both arrays, once both have it */
    Py_buffer *views = with_room(plan->views, sizeof *views, plan->view_count, more, &room);
    if (views)
        plan->views = views;
    struct iovec *parts =
        views ? with_room(plan->parts, sizeof *parts, plan->view_count, more, &plan->view_room) : NULL;
    if (parts)
        plan->parts = parts;
    return parts != NULL;
}

static bool take_path(plan_t *plan, PyObject *path, char **out)
{
    PyObject *encoded = NULL;
    if (!PyUnicode_Check(path))
        return PyErr_Format(PyExc_TypeError, "a path is text, not %.80s", Py_TYPE(path)->tp_name), false;
    if (!PyUnicode_FSConverter(path, &encoded))
        return false;
    int failed = PyList_Append(plan->paths, encoded);
    *out = PyBytes_AS_STRING(encoded); /* the list holds it now */
    Py_DECREF(encoded);
    return failed == 0;
}

static bool take_parts(plan_t *plan, PyObject *sequence, step_t *step)
{
    PyObject *parts = PySequence_Fast(sequence, "parts are a sequence of buffers");
    if (!parts)
        return false;
    size_t count = (size_t)PySequence_Fast_GET_SIZE(parts);
    bool good = make_room_for_parts(plan, count);
    step->first_part = plan->view_count;
    step->parts = count;
    for (size_t i = 0; good && i < count; i++) {
        Py_buffer *view = &plan->views[plan->view_count];
        good = take_buffer(PySequence_Fast_GET_ITEM(parts, (Py_ssize_t)i), false, view);
        if (good) {
            plan->parts[plan->view_count++] = (struct iovec){view->buf, (size_t)view->len};
            step->length += (uint64_t)view->len;
        }
    }
    Py_DECREF(parts);
    return good;
}

static bool take_put(plan_t *plan, PyObject *given, step_t *step)
{
    step->kind = PUT;
    int create = PyObject_IsTrue(PyTuple_GET_ITEM(given, 1)), sync = PyObject_IsTrue(PyTuple_GET_ITEM(given, 4));
    step->create = create > 0;
    step->sync = sync > 0;
    if (create < 0 || sync < 0 || !take_u64(PyTuple_GET_ITEM(given, 2), "offset", &step->offset) ||
        !take_parts(plan, PyTuple_GET_ITEM(given, 3), step))
        return false;
    if (step->length <= INT64_MAX && step->offset <= INT64_MAX - step->length)
        return true;
    refuse("invalid_request", "offset %llu is beyond what a file can hold", (unsigned long long)step->offset);
    return false;
}

static bool take_step(plan_t *plan, PyObject *given)
{
    step_t step = {.kind = MAKE_DIR};
    PyTypeObject *type = Py_TYPE(given);
    bool good;
    if (type == plan->types->put)
        good = take_put(plan, given, &step);
    else if (type == plan->types->rename) {
        step.kind = RENAME;
        good = take_path(plan, PyTuple_GET_ITEM(given, 1), &step.target);
    } else if (type == plan->types->make_dir || type == plan->types->sync_dir) {
        step.kind = type == plan->types->make_dir ? MAKE_DIR : SYNC_DIR;
        good = true;
    } else
        return PyErr_Format(PyExc_TypeError, "%.80s is no step", type->tp_name), false;
    if (!good || !take_path(plan, PyTuple_GET_ITEM(given, 0), &step.path) || !make_room_for_steps(plan, 1))
        return false;
    plan->steps[plan->step_count++] = step;
    return true;
}

static bool take_chain(plan_t *plan, PyObject *given)
{
    PyObject *steps = PySequence_Fast(given, "a chain is a sequence of steps");
    if (!steps)
        return false;
    Py_ssize_t count = PySequence_Fast_GET_SIZE(steps);
    plan->chains[plan->chain_count++] = (chain_t){plan->step_count, (size_t)count, (size_t)count, 0, 0};
    bool good = true;
    for (Py_ssize_t i = 0; good && i < count; i++)
        good = take_step(plan, PySequence_Fast_GET_ITEM(steps, i));
    Py_DECREF(steps);
    return good;
}

static bool take_chains(plan_t *plan, PyObject *given)
{
    size_t room = 0;
    PyObject *chains = PySequence_Fast(given, "chains are a sequence of chains");
    if (!chains)
        return false;
    Py_ssize_t count = PySequence_Fast_GET_SIZE(chains);
    plan->paths = PyList_New(0);
    plan->chains = with_room(NULL, sizeof *plan->chains, 0, (size_t)count, &room);
    bool good = plan->paths && plan->chains;
    for (Py_ssize_t i = 0; good && i < count; i++)
        good = take_chain(plan, PySequence_Fast_GET_ITEM(chains, i));
    Py_DECREF(chains);
    return good;
}

static void drop_plan(plan_t *plan)
{
    for (size_t i = 0; i < plan->view_count; i++)
        PyBuffer_Release(&plan->views[i]);
    Py_XDECREF(plan->paths);
    PyMem_RawFree(plan->chains);
    PyMem_RawFree(plan->steps);
    PyMem_RawFree(plan->parts);
    PyMem_RawFree(plan->views);
}

/* ---- without the GIL: the steps. Each returns 0 or an errno. ---- */

#define RETRIED(result, call) do { (result) = (call); } while ((result) < 0 && errno == EINTR)

/* As os.makedirs does it: the mode is for the last one, its parents have what the umask leaves. The path, nobody else's,
 * is cut for a moment and put together again. */
static int make_dirs(char *path, mode_t mode)
{
    struct stat found;
    if (mkdir(path, mode) == 0)
        return 0;
    int error = errno;
    char *slash = strrchr(path, '/');
    if (error == ENOENT && slash && slash != path) {
        *slash = '\0';
        error = make_dirs(path, 0777);
        *slash = '/';
        if (error)
            return error;
        if (mkdir(path, mode) == 0)
            return 0;
        error = errno;
    }
    return stat(path, &found) == 0 && S_ISDIR(found.st_mode) ? 0 : error;
}

static int close_file(int fd, int error)
{
    /* Linux closes it also when interrupted. */
    if (close(fd) < 0 && !error && errno != EINTR)
        return errno;
    return error;
}

static int sync_dir(const char *path)
{
    int fd, result, error = 0;
    RETRIED(fd, open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (fd < 0)
        return errno;
    RETRIED(result, fsync(fd));
    /* A filesystem that cannot sync directories says EINVAL and keeps its own order of names. */
    if (result < 0 && errno != EINVAL)
        error = errno;
    return close_file(fd, error);
}

/* All of the parts; they are used up. */
static int write_all(int fd, struct iovec *parts, size_t count, uint64_t offset)
{
    static const size_t most = 1024; /* what one call takes on Linux (UIO_MAXIOV) */
    for (;;) {
        ssize_t done;
        while (count && parts->iov_len == 0)
            parts++, count--;
        if (!count)
            return 0;
        RETRIED(done, pwritev(fd, parts, (int)(count < most ? count : most), (off_t)offset));
        if (done <= 0)
            return done < 0 ? errno : EIO;
        offset += (uint64_t)done;
        for (size_t left = (size_t)done; left;) {
            size_t step = left < parts->iov_len ? left : parts->iov_len;
            parts->iov_base = (uint8_t *)parts->iov_base + step;
            parts->iov_len -= step;
            left -= step;
            if (!parts->iov_len)
                parts++, count--;
        }
    }
}

/* The disk begins with the first piece while the last is not copied yet: the sync behind it waits less. */
static int write_pieces(int fd, struct iovec *parts, size_t count, uint64_t offset, uint64_t piece_bytes)
{
    uint64_t length = 0;
    for (size_t first = 0, i = 0; i < count; i++) {
        length += parts[i].iov_len;
        if (length < piece_bytes && i + 1 < count)
            continue;
        int error = write_all(fd, parts + first, i + 1 - first, offset);
        if (error)
            return error;
        (void)sync_file_range(fd, (off_t)offset, (off_t)length, SYNC_FILE_RANGE_WRITE); /* a hint */
        offset += length;
        length = 0;
        first = i + 1;
    }
    return 0;
}

static int fill(const plan_t *plan, const step_t *step, int fd, chain_t *chain)
{
    struct stat found;
    int result;
    struct iovec *parts = plan->parts + step->first_part;
    if (fstat(fd, &found) < 0)
        return errno;
    if ((uint64_t)found.st_size < step->offset) {
        chain->size = (uint64_t)found.st_size;
        return -1;
    }
    if ((uint64_t)found.st_size > step->offset + step->length) {
        RETRIED(result, ftruncate(fd, (off_t)(step->offset + step->length)));
        if (result < 0)
            return errno;
    }
    int error = step->length >= plan->long_bytes
                    ? write_pieces(fd, parts, step->parts, step->offset, plan->piece_bytes)
                    : write_all(fd, parts, step->parts, step->offset);
    if (error || !step->sync)
        return error;
    RETRIED(result, fdatasync(fd));
    return result < 0 ? errno : 0;
}

static int put(const plan_t *plan, const step_t *step, chain_t *chain)
{
    int fd;
    RETRIED(fd, open(step->path, O_RDWR | O_CLOEXEC | (step->create ? O_CREAT : 0), plan->file_mode));
    return fd < 0 ? errno : close_file(fd, fill(plan, step, fd, chain));
}

static int do_step(const plan_t *plan, const step_t *step, chain_t *chain)
{
    switch (step->kind) {
    case MAKE_DIR:
        return make_dirs(step->path, plan->dir_mode);
    case SYNC_DIR:
        return sync_dir(step->path);
    case RENAME:
        return rename(step->path, step->target) < 0 ? errno : 0;
    default:
        return put(plan, step, chain);
    }
}

static void run_chain(const plan_t *plan, chain_t *chain)
{
    for (size_t i = 0; i < chain->steps; i++) {
        int error = do_step(plan, &plan->steps[chain->first_step + i], chain);
        if (error) {
            chain->failed = i;
            chain->error = error < 0 ? TOO_SHORT : error;
            return;
        }
    }
}

/* ---- the function ---- */

static PyObject *failures(const plan_t *plan)
{
    PyObject *found = PyDict_New();
    for (size_t i = 0; found && i < plan->chain_count; i++) {
        const chain_t *chain = &plan->chains[i];
        if (chain->failed == chain->steps)
            continue;
        PyObject *number = PyLong_FromSize_t(i);
        PyObject *what = Py_BuildValue("(niK)", (Py_ssize_t)chain->failed, chain->error, (unsigned long long)chain->size);
        if (!number || !what || PyDict_SetItem(found, number, what) < 0)
            Py_CLEAR(found);
        Py_XDECREF(number);
        Py_XDECREF(what);
    }
    return found;
}

/* run_chains(chains, file_mode, dir_mode, long_bytes, piece_bytes) -> {chain: (step, errno, size)} */
CORE_FUNCTION(core_run_chains)
{
    plan_t plan = {.types = PyModule_GetState(module)};
    uint64_t file_mode, dir_mode;
    PyObject *found = NULL;
    if (!take_count("run_chains", nargs, 5) || !take_u64(args[1], "file_mode", &file_mode) ||
        !take_u64(args[2], "dir_mode", &dir_mode) || !take_u64(args[3], "long_bytes", &plan.long_bytes) ||
        !take_u64(args[4], "piece_bytes", &plan.piece_bytes))
        return NULL;
    plan.file_mode = (mode_t)file_mode;
    plan.dir_mode = (mode_t)dir_mode;
    if (take_chains(&plan, args[0])) {
        Py_BEGIN_ALLOW_THREADS
        for (size_t i = 0; i < plan.chain_count; i++)
            run_chain(&plan, &plan.chains[i]);
        Py_END_ALLOW_THREADS
        found = failures(&plan);
    }
    drop_plan(&plan);
    return found;
}
