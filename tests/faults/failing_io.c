/* Loaded before libc (LD_PRELOAD): calls that change files below one folder can fail.

   failing_io_start(folder, first, last, error, torn, locks) counts the calls of this process from 1 on. Calls `first`
   to `last` fail with `error`; if first is 0, none fails. A `torn` write writes the first half of its bytes. If `locks`
   is 0, files below the folder cannot be locked. failing_io_calls() returns the number of calls so far. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

static char folder[PATH_MAX];
static long from, until, how = EIO, torn, locks = 1;
static atomic_long calls;

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

void failing_io_start(const char *where, long first, long last, long error, long tear, long lock) {
    snprintf(folder, sizeof folder, "%s", where);
    from = first, until = last, how = error, torn = tear, locks = lock;
    atomic_store(&calls, 0);
}

int failing_io_calls(void) { return (int)atomic_load(&calls); }

static int below(const char *path) {
    size_t length = strlen(folder);
    return strncmp(path, folder, length) == 0 && (path[length] == '/' || path[length] == 0 || path[length] == ' ');
}

static int path_of(int fd, char *path) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, PATH_MAX - 1);
    path[length < 0 ? 0 : length] = 0;
    return length > 0;
}

static int absolute(int at, const char *name, char *path) {
    if (name[0] == '/') {
        snprintf(path, PATH_MAX, "%s", name);
        return 1;
    }
    char base[PATH_MAX];
    if (at == AT_FDCWD ? !getcwd(base, sizeof base) : !path_of(at, base)) return 0;
    snprintf(path, PATH_MAX, "%.2000s/%.2000s", base, name);
    return 1;
}

/* Count a call on this path, and return whether it fails. */
static int fails(const char *path) {
    if (!below(path)) return 0;
    long call = atomic_fetch_add(&calls, 1) + 1;
    if (!from || call < from || call > until) return 0;
    errno = (int)how;
    return 1;
}

static int fails_fd(int fd) {
    char path[PATH_MAX];
    return folder[0] && path_of(fd, path) && fails(path);
}

static int fails_at(int at, const char *name) {
    char path[PATH_MAX];
    return folder[0] && absolute(at, name, path) && fails(path);
}

#define WRITE(name, arguments, given, half)                    \
    ssize_t name arguments {                                   \
        if (!fails_fd(fd)) return REAL(name) given;            \
        if (torn && REAL(name) half < 0) {}                    \
        errno = (int)how;                                      \
        return -1;                                             \
    }
WRITE(write, (int fd, const void *data, size_t size), (fd, data, size), (fd, data, size / 2))
WRITE(pwrite, (int fd, const void *data, size_t size, off_t at), (fd, data, size, at), (fd, data, size / 2, at))
WRITE(pwrite64, (int fd, const void *data, size_t size, off64_t at), (fd, data, size, at), (fd, data, size / 2, at))

#define OF_FD(name, arguments, given) \
    int name arguments { return fails_fd(fd) ? -1 : REAL(name) given; }
OF_FD(ftruncate, (int fd, off_t size), (fd, size))
OF_FD(ftruncate64, (int fd, off64_t size), (fd, size))
OF_FD(fsync, (int fd), (fd))
OF_FD(fdatasync, (int fd), (fd))
OF_FD(fchmod, (int fd, mode_t mode), (fd, mode))

int posix_fallocate(int fd, off_t at, off_t size) {
    return fails_fd(fd) ? (int)how : REAL(posix_fallocate)(fd, at, size);
}

/* A full disk has room for one file less. */
#define OF_NAME(name, arguments, given, at, on_full_disk) \
    int name arguments { return (on_full_disk || how != ENOSPC) && fails_at(at, path) ? -1 : REAL(name) given; }
OF_NAME(mkdir, (const char *path, mode_t mode), (path, mode), AT_FDCWD, 1)
OF_NAME(mkdirat, (int at, const char *path, mode_t mode), (at, path, mode), at, 1)
OF_NAME(rename, (const char *path, const char *to), (path, to), AT_FDCWD, 1)
OF_NAME(renameat, (int at, const char *path, int to_at, const char *to), (at, path, to_at, to), at, 1)
OF_NAME(chmod, (const char *path, mode_t mode), (path, mode), AT_FDCWD, 1)
OF_NAME(unlink, (const char *path), (path), AT_FDCWD, 0)
OF_NAME(unlinkat, (int at, const char *path, int flags), (at, path, flags), at, 0)
OF_NAME(rmdir, (const char *path), (path), AT_FDCWD, 0)

/* An existing file can be opened for writing on a full disk; a new one cannot be created. */
static int fails_open(int at, const char *name, int flags) {
    if (!folder[0]) return 0;
    struct stat there;
    int makes = (flags & O_TMPFILE) == O_TMPFILE || ((flags & O_CREAT) && fstatat(at, name, &there, 0) != 0);
    int counts = makes || ((flags & O_ACCMODE) != O_RDONLY && how != ENOSPC);
    return counts && fails_at(at, name);
}

#define OPEN(name, at, arguments, given)                         \
    int name arguments {                                         \
        va_list more;                                            \
        va_start(more, flags);                                   \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0; \
        va_end(more);                                            \
        return fails_open(at, path, flags) ? -1 : REAL(name) given; \
    }
OPEN(open, AT_FDCWD, (const char *path, int flags, ...), (path, flags, mode))
OPEN(open64, AT_FDCWD, (const char *path, int flags, ...), (path, flags, mode))
OPEN(openat, at, (int at, const char *path, int flags, ...), (at, path, flags, mode))
OPEN(openat64, at, (int at, const char *path, int flags, ...), (at, path, flags, mode))

static int no_locks(int fd) {
    char path[PATH_MAX];
    if (locks || !folder[0] || !path_of(fd, path) || !below(path)) return 0;
    errno = ENOLCK;
    return 1;
}

int flock(int fd, int operation) { return no_locks(fd) ? -1 : REAL(flock)(fd, operation); }

#define FCNTL(name)                                                                                             \
    int name(int fd, int command, ...) {                                                                        \
        va_list more;                                                                                           \
        va_start(more, command);                                                                                \
        void *given = va_arg(more, void *);                                                                     \
        va_end(more);                                                                                           \
        int is_lock = command == F_SETLK || command == F_SETLKW || command == F_GETLK;                          \
        return is_lock && no_locks(fd) ? -1 : REAL(name)(fd, command, given);                                   \
    }
FCNTL(fcntl)
FCNTL(fcntl64)
