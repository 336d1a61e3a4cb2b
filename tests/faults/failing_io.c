/* Loaded before libc (LD_PRELOAD): of the calls of one process that change what lies below one folder, some fail.

   FAILING_IO_FOLDER  the folder, as the kernel calls it; nothing fails where it is not set
   FAILING_IO_FROM    the first call that fails, counted from 1; 0: none
   FAILING_IO_UNTIL   the last one
   FAILING_IO_ERRNO   how
   FAILING_IO_TORN    1: of what a failing write was given, the first half is written
   FAILING_IO_LOCKS   0: there are no locks below the folder
   FAILING_IO_LOG     a file that gets a line for each call that is counted: the process, its number, what it is, where

   A process that was forked counts on where its parent was; one that was started counts from 1. `failing_io_reset` reads
   the environment anew. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

static char folder[PATH_MAX], log_path[PATH_MAX];
static long from, until;
static int how, torn, locks = 1, ready;
static atomic_long calls;

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static long number(const char *name, long otherwise) {
    const char *text = getenv(name);
    return text ? atol(text) : otherwise;
}

void failing_io_reset(void) {
    const char *where = getenv("FAILING_IO_FOLDER"), *log = getenv("FAILING_IO_LOG");
    snprintf(folder, sizeof folder, "%s", where ? where : "");
    snprintf(log_path, sizeof log_path, "%s", log ? log : "");
    from = number("FAILING_IO_FROM", 0);
    until = number("FAILING_IO_UNTIL", from);
    how = (int)number("FAILING_IO_ERRNO", EIO);
    torn = (int)number("FAILING_IO_TORN", 0);
    locks = (int)number("FAILING_IO_LOCKS", 1);
    atomic_store(&calls, 0);
    ready = 1;
}

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

/* Whether this call fails. */
static int fails(const char *what, const char *path) {
    if (!ready) failing_io_reset();
    if (!folder[0] || !below(path)) return 0;
    long call = atomic_fetch_add(&calls, 1) + 1;
    if (log_path[0]) {
        int fd = REAL(open)(log_path, O_WRONLY | O_CREAT | O_APPEND, 0600);
        if (fd >= 0) {
            char line[PATH_MAX + 64];
            int length = snprintf(line, sizeof line, "%d %ld %s %s\n", getpid(), call, what, path);
            if (REAL(write)(fd, line, (size_t)length) < 0) {}
            close(fd);
        }
    }
    if (!from || call < from || call > until) return 0;
    errno = how;
    return 1;
}

static int fails_fd(const char *what, int fd) {
    char path[PATH_MAX];
    if (ready && !folder[0]) return 0;
    return path_of(fd, path) && fails(what, path);
}

static int fails_at(const char *what, int at, const char *name) {
    char path[PATH_MAX];
    if (ready && !folder[0]) return 0;
    return absolute(at, name, path) && fails(what, path);
}

ssize_t write(int fd, const void *data, size_t size) {
    if (!fails_fd("write", fd)) return REAL(write)(fd, data, size);
    if (torn && REAL(write)(fd, data, size / 2) < 0) {}
    errno = how;
    return -1;
}

#define PWRITE(name, offset_type)                                            \
    ssize_t name(int fd, const void *data, size_t size, offset_type at) {    \
        if (!fails_fd("write", fd)) return REAL(name)(fd, data, size, at);   \
        if (torn && REAL(name)(fd, data, size / 2, at) < 0) {}               \
        errno = how;                                                         \
        return -1;                                                           \
    }
PWRITE(pwrite, off_t)
PWRITE(pwrite64, off64_t)

#define OF_FD(name, arguments, given, what) \
    int name arguments { return fails_fd(what, fd) ? -1 : REAL(name) given; }
OF_FD(ftruncate, (int fd, off_t size), (fd, size), "truncate")
OF_FD(ftruncate64, (int fd, off64_t size), (fd, size), "truncate")
OF_FD(fsync, (int fd), (fd), "sync")
OF_FD(fdatasync, (int fd), (fd), "sync")
OF_FD(fchmod, (int fd, mode_t mode), (fd, mode), "chmod")

int posix_fallocate(int fd, off_t at, off_t size) {
    return fails_fd("allocate", fd) ? how : REAL(posix_fallocate)(fd, at, size);
}

#define OF_NAME(name, arguments, given, at, path, what) \
    int name arguments { return fails_at(what, at, path) ? -1 : REAL(name) given; }
OF_NAME(mkdir, (const char *path, mode_t mode), (path, mode), AT_FDCWD, path, "mkdir")
OF_NAME(mkdirat, (int at, const char *path, mode_t mode), (at, path, mode), at, path, "mkdir")
OF_NAME(rename, (const char *path, const char *to), (path, to), AT_FDCWD, path, "rename")
OF_NAME(renameat, (int at, const char *path, int to_at, const char *to), (at, path, to_at, to), at, path, "rename")
OF_NAME(chmod, (const char *path, mode_t mode), (path, mode), AT_FDCWD, path, "chmod")

/* A full disk has room for one file less. */
#define UNLINK(name, arguments, given, at, what) \
    int name arguments { return how != ENOSPC && fails_at(what, at, path) ? -1 : REAL(name) given; }
UNLINK(unlink, (const char *path), (path), AT_FDCWD, "unlink")
UNLINK(unlinkat, (int at, const char *path, int flags), (at, path, flags), at, "unlink")
UNLINK(rmdir, (const char *path), (path), AT_FDCWD, "unlink")

/* What would be written to; on a full disk what would be made. */
static int fails_open(int at, const char *name, int flags) {
    if (ready && !folder[0]) return 0;
    struct stat there;
    int makes = (flags & O_TMPFILE) == O_TMPFILE || ((flags & O_CREAT) && fstatat(at, name, &there, 0) != 0);
    int counts = makes || ((flags & O_ACCMODE) != O_RDONLY && (!ready || how != ENOSPC));
    return counts && fails_at("open", at, name);
}

#define OPEN(name, at, arguments, given, given_mode)             \
    int name arguments {                                         \
        mode_t mode = 0;                                         \
        if (flags & (O_CREAT | O_TMPFILE)) {                     \
            va_list more;                                        \
            va_start(more, flags);                               \
            mode = va_arg(more, mode_t);                         \
            va_end(more);                                        \
        }                                                        \
        if (fails_open(at, path, flags)) return -1;              \
        return REAL(name) given_mode;                            \
    }
OPEN(open, AT_FDCWD, (const char *path, int flags, ...), (path, flags), (path, flags, mode))
OPEN(open64, AT_FDCWD, (const char *path, int flags, ...), (path, flags), (path, flags, mode))
OPEN(openat, at, (int at, const char *path, int flags, ...), (at, path, flags), (at, path, flags, mode))
OPEN(openat64, at, (int at, const char *path, int flags, ...), (at, path, flags), (at, path, flags, mode))

static int no_locks(int fd) {
    char path[PATH_MAX];
    if (!ready) failing_io_reset();
    return !locks && folder[0] && path_of(fd, path) && below(path);
}

int flock(int fd, int operation) {
    if (!no_locks(fd)) return REAL(flock)(fd, operation);
    errno = ENOLCK;
    return -1;
}

#define FCNTL(name)                                                                              \
    int name(int fd, int command, ...) {                                                         \
        va_list more;                                                                            \
        va_start(more, command);                                                                 \
        void *given = va_arg(more, void *);                                                      \
        va_end(more);                                                                            \
        if ((command == F_SETLK || command == F_SETLKW || command == F_GETLK) && no_locks(fd)) { \
            errno = ENOLCK;                                                                      \
            return -1;                                                                           \
        }                                                                                        \
        return REAL(name)(fd, command, given);                                                   \
    }
FCNTL(fcntl)
FCNTL(fcntl64)
