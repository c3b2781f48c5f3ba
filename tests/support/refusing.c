/* Calls of the C library that refuse, loaded before it (LD_PRELOAD): a disk with a bad page, or a full one, where nobody
 * may mount a filesystem. The file that TOPICD_REFUSALS names has one rule a line:
 *
 *     bad START END PATH     a read of the file that touches these bytes: EIO
 *     full MARKER DIRECTORY  while a file MARKER is there, what makes a file below DIRECTORY longer: ENOSPC
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#define MOST 16

static struct rule {
    char kind[8], path[PATH_MAX], marker[PATH_MAX];
    long long start, end;
} rules[MOST];
static int count;

__attribute__((constructor)) static void load(void) {
    const char *name = getenv("TOPICD_REFUSALS");
    FILE *file = name ? fopen(name, "r") : NULL;
    char line[3 * PATH_MAX];
    while (file && count < MOST && fgets(line, sizeof line, file)) {
        struct rule *r = &rules[count];
        if (sscanf(line, "bad %lld %lld %4095[^\n]", &r->start, &r->end, r->path) == 3)
            strcpy(r->kind, "bad");
        else if (sscanf(line, "full %4095s %4095[^\n]", r->marker, r->path) == 2)
            strcpy(r->kind, "full");
        else
            continue;
        count++;
    }
    if (file) fclose(file);
}

static int path_of(int fd, char *path) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, PATH_MAX - 1);
    if (size > 0) path[size] = 0;
    return size > 0;
}

static long long total(const struct iovec *parts, int n) {
    long long size = 0;
    for (int i = 0; i < n; i++) size += parts[i].iov_len;
    return size;
}

static int bad(int fd, long long start, long long size) {
    char path[PATH_MAX];
    for (int i = 0, known = 0; i < count; i++) {
        struct rule *r = &rules[i];
        if (r->kind[0] != 'b' || start >= r->end || start + size <= r->start) continue;
        if (!known && !(known = path_of(fd, path))) return 0;
        if (strcmp(path, r->path) == 0) return errno = EIO;
    }
    return 0;
}

static int full(int fd, long long end) {
    char path[PATH_MAX];
    struct stat found;
    for (int i = 0; i < count; i++) {
        struct rule *r = &rules[i];
        if (r->kind[0] != 'f' || access(r->marker, F_OK) != 0 || !path_of(fd, path)) continue;
        if (strncmp(path, r->path, strlen(r->path)) != 0) continue;
        if (fstat(fd, &found) == 0 && end > found.st_size) return errno = ENOSPC;
    }
    return 0;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

ssize_t pread64(int fd, void *to, size_t size, off64_t at) {
    return bad(fd, at, size) ? -1 : REAL(pread64)(fd, to, size, at);
}
ssize_t pread(int fd, void *to, size_t size, off_t at) { return pread64(fd, to, size, at); }
ssize_t preadv64(int fd, const struct iovec *parts, int n, off64_t at) {
    return bad(fd, at, total(parts, n)) ? -1 : REAL(preadv64)(fd, parts, n, at);
}
ssize_t preadv(int fd, const struct iovec *parts, int n, off_t at) { return preadv64(fd, parts, n, at); }
ssize_t preadv64v2(int fd, const struct iovec *parts, int n, off64_t at, int flags) {
    return bad(fd, at, total(parts, n)) ? -1 : REAL(preadv64v2)(fd, parts, n, at, flags);
}
ssize_t preadv2(int fd, const struct iovec *parts, int n, off_t at, int flags) {
    return preadv64v2(fd, parts, n, at, flags);
}
ssize_t pwrite64(int fd, const void *from, size_t size, off64_t at) {
    return full(fd, at + size) ? -1 : REAL(pwrite64)(fd, from, size, at);
}
ssize_t pwrite(int fd, const void *from, size_t size, off_t at) { return pwrite64(fd, from, size, at); }
ssize_t pwritev64(int fd, const struct iovec *parts, int n, off64_t at) {
    return full(fd, at + total(parts, n)) ? -1 : REAL(pwritev64)(fd, parts, n, at);
}
ssize_t pwritev(int fd, const struct iovec *parts, int n, off_t at) { return pwritev64(fd, parts, n, at); }
ssize_t pwritev64v2(int fd, const struct iovec *parts, int n, off64_t at, int flags) {
    return full(fd, at + total(parts, n)) ? -1 : REAL(pwritev64v2)(fd, parts, n, at, flags);
}
ssize_t pwritev2(int fd, const struct iovec *parts, int n, off_t at, int flags) {
    return pwritev64v2(fd, parts, n, at, flags);
}
ssize_t write(int fd, const void *from, size_t size) {
    off_t at = count ? lseek(fd, 0, SEEK_CUR) : -1;
    return at >= 0 && full(fd, at + size) ? -1 : REAL(write)(fd, from, size);
}
int posix_fallocate64(int fd, off64_t at, off64_t size) {
    return full(fd, at + size) ? ENOSPC : REAL(posix_fallocate64)(fd, at, size);
}
int posix_fallocate(int fd, off_t at, off_t size) { return posix_fallocate64(fd, at, size); }
