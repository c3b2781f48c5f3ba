/* What small directories hold, all of it without the GIL. Contract: interface.py (Look); what it means, call by call, is
 * topicd.disk.look.look_by_calls, and a test holds the two against each other.
 *
 * Nothing is an error here: what could not be read as a whole is said to be unknown, and whoever needs it asks for it by
 * the calls that say why. Bytes go to one arena, so that thousands of small files cost no thousand allocations.
 */
#define _GNU_SOURCE
#include "core.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#define UNKNOWN (-1) /* in the place of a size */

typedef struct {
    size_t name_at, name_len; /* in the arena */
    size_t content_at, content_len;
    long long size;
} found_t;

typedef struct {
    size_t first, files;
    bool known;
} listing_t;

typedef struct {
    char *arena;
    found_t *files;
    size_t used, room, file_count, file_room;
    uint64_t whole, head, most_files, budget;
} look_t;

/* ---- without the GIL ---- */

static bool arena_room(look_t *look, size_t more)
{
    if (look->used + more <= look->room)
        return true;
    size_t wanted = 2 * look->room > look->used + more ? 2 * look->room : look->used + more + (64u << 10);
    char *bigger = PyMem_RawRealloc(look->arena, wanted);
    if (!bigger)
        return false;
    look->arena = bigger;
    look->room = wanted;
    return true;
}

static found_t *next_file(look_t *look)
{
    if (look->file_count == look->file_room) {
        size_t wanted = look->file_room ? 2 * look->file_room : 256;
        found_t *bigger = PyMem_RawRealloc(look->files, wanted * sizeof *bigger);
        if (!bigger)
            return NULL;
        look->files = bigger;
        look->file_room = wanted;
    }
    return &look->files[look->file_count++];
}

/* Size and content; false: unknown. */
static bool read_file(look_t *look, int directory, const char *name, found_t *file)
{
    struct stat found;
    int fd;
    do
        fd = openat(directory, name, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    while (fd < 0 && errno == EINTR);
    if (fd < 0)
        return false;
    bool good = fstat(fd, &found) == 0 && S_ISREG(found.st_mode);
    size_t wanted = good ? ((uint64_t)found.st_size <= look->whole ? (size_t)found.st_size : (size_t)look->head) : 0;
    good = good && look->used + wanted <= look->budget && arena_room(look, wanted);
    size_t got = 0;
    while (good && got < wanted) {
        ssize_t done = pread(fd, look->arena + look->used + got, wanted - got, (off_t)got);
        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            good = false;
        else
            got += (size_t)done;
    }
    (void)close(fd);
    if (!good)
        return false;
    file->size = (long long)found.st_size;
    file->content_at = look->used;
    file->content_len = wanted;
    look->used += wanted;
    return true;
}

static bool take_entry(look_t *look, int directory, const char *name)
{
    size_t length = strlen(name);
    found_t *file = arena_room(look, length + 1) ? next_file(look) : NULL;
    if (!file)
        return false;
    *file = (found_t){.name_at = look->used, .name_len = length, .size = UNKNOWN};
    memcpy(look->arena + look->used, name, length + 1);
    look->used += length + 1;
    if (!read_file(look, directory, name, file))
        file->size = UNKNOWN;
    return true;
}

static bool read_entries(look_t *look, DIR *directory, size_t first)
{
    for (;;) {
        errno = 0;
        struct dirent *entry = readdir(directory);
        if (!entry)
            return errno == 0;
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, ".."))
            continue;
        if (look->file_count - first >= look->most_files || look->used > look->budget ||
            !take_entry(look, dirfd(directory), entry->d_name))
            return false;
    }
}

static listing_t read_directory(look_t *look, const char *path)
{
    listing_t listing = {look->file_count, 0, false};
    size_t used = look->used;
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *directory = fd < 0 ? NULL : fdopendir(fd);
    if (!directory) {
        listing.known = fd < 0 && errno == ENOENT; /* nothing is in it */
        if (fd >= 0)
            (void)close(fd);
        return listing;
    }
    listing.known = read_entries(look, directory, listing.first);
    (void)closedir(directory);
    if (!listing.known) {
        look->file_count = listing.first;
        look->used = used;
    }
    listing.files = look->file_count - listing.first;
    return listing;
}

/* ---- with the GIL ---- */

static PyObject *as_dict(const look_t *look, const listing_t *listing)
{
    PyObject *all = PyDict_New();
    for (size_t i = 0; all && i < listing->files; i++) {
        const found_t *file = &look->files[listing->first + i];
        PyObject *name = PyUnicode_DecodeFSDefaultAndSize(look->arena + file->name_at, (Py_ssize_t)file->name_len);
        PyObject *value = file->size == UNKNOWN
                              ? Py_NewRef(Py_None)
                              : Py_BuildValue("(Ly#)", file->size, look->arena + file->content_at,
                                              (Py_ssize_t)file->content_len);
        if (!name || !value || PyDict_SetItem(all, name, value) < 0)
            Py_CLEAR(all);
        Py_XDECREF(name);
        Py_XDECREF(value);
    }
    return all;
}

static PyObject *as_list(const look_t *look, const listing_t *listings, Py_ssize_t count)
{
    PyObject *all = PyList_New(count);
    for (Py_ssize_t i = 0; all && i < count; i++) {
        PyObject *one = listings[i].known ? as_dict(look, &listings[i]) : Py_NewRef(Py_None);
        if (one)
            PyList_SET_ITEM(all, i, one);
        else
            Py_CLEAR(all);
    }
    return all;
}

static PyObject *encoded_paths(PyObject *given)
{
    PyObject *paths = PySequence_Fast(given, "paths are a sequence of texts");
    Py_ssize_t count = paths ? PySequence_Fast_GET_SIZE(paths) : 0;
    PyObject *encoded = paths ? PyList_New(count) : NULL;
    for (Py_ssize_t i = 0; encoded && i < count; i++) {
        PyObject *path = PySequence_Fast_GET_ITEM(paths, i), *bytes = NULL;
        if (!PyUnicode_Check(path))
            PyErr_Format(PyExc_TypeError, "a path is text, not %.80s", Py_TYPE(path)->tp_name);
        else
            (void)PyUnicode_FSConverter(path, &bytes);
        if (bytes)
            PyList_SET_ITEM(encoded, i, bytes);
        else
            Py_CLEAR(encoded);
    }
    Py_XDECREF(paths);
    return encoded;
}

/* look(paths, whole, head, most_files, budget) -> [{name: (size, content) | None} | None] */
CORE_FUNCTION(core_look)
{
    (void)module;
    look_t look = {0};
    if (!take_count("look", nargs, 5) || !take_u64(args[1], "whole", &look.whole) ||
        !take_u64(args[2], "head", &look.head) || !take_u64(args[3], "most_files", &look.most_files) ||
        !take_u64(args[4], "budget", &look.budget))
        return NULL;
    if (look.head > look.whole)
        return refuse("invalid_request", "head is larger than whole");
    PyObject *paths = encoded_paths(args[0]);
    if (!paths)
        return NULL;
    Py_ssize_t count = PyList_GET_SIZE(paths);
    listing_t *listings = PyMem_RawCalloc(count ? (size_t)count : 1, sizeof *listings);
    const char **raw = PyMem_RawCalloc(count ? (size_t)count : 1, sizeof *raw);
    PyObject *found = NULL;
    if (listings && raw) {
        for (Py_ssize_t i = 0; i < count; i++)
            raw[i] = PyBytes_AS_STRING(PyList_GET_ITEM(paths, i));
        Py_BEGIN_ALLOW_THREADS
        for (Py_ssize_t i = 0; i < count; i++)
            listings[i] = read_directory(&look, raw[i]);
        Py_END_ALLOW_THREADS
        found = as_list(&look, listings, count);
    } else
        PyErr_NoMemory();
    PyMem_RawFree(raw);
    PyMem_RawFree(listings);
    PyMem_RawFree(look.files);
    PyMem_RawFree(look.arena);
    Py_DECREF(paths);
    return found;
}
