/* Record what a process does to the files of one folder and what it sends and receives; let chosen calls fail.

   Preload it (LD_PRELOAD), then call disk_shim_start. Without that call nothing is recorded, so that a process can be prepared
   once and forked for many runs. The log is a sequence of records, see `struct record`; disk_model.py reads it.

   Order: a change is recorded together with its call, under a lock. An answer is recorded before it is sent. A flush has two
   records, before and after its call, and no lock is held between them: an answer that leaves while a flush runs is seen to leave
   before its end. Calls reach the kernel through syscall(), so that nothing here depends on the library underneath.

   Not seen: what stdio writes (fopen), and shared writable mappings, of which only the path is recorded. The test compares the
   recorded files with the real ones, which reveals the former, and checks that only SQLite's -shm file is mapped. */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum kind { START, OPEN, WRITE, SYNC_BEGIN, SYNC_END, RENAME, UNLINK, TRUNCATE, SENT, UNSENT, RECEIVED, MAPPED, UNSUPPORTED };
enum failing { NO_CALL, WRITE_CALL, SYNC_CALL, OPEN_CALL, RENAME_CALL, TRUNCATE_CALL, UNLINK_CALL, ANSWER_CALL, CALLS };

struct record {
    int32_t kind, fd;      /* -1 for calls with names */
    int64_t offset, flags; /* TRUNCATE: the size; SYNC_*: the flush's number; UNSENT: how many bytes; OPEN: flags of open(2) */
    int32_t error, folder; /* errno of a failed call, 0 otherwise; OPEN: whether it is a folder */
    uint32_t path, data;   /* lengths of the path and of the data (RENAME: the other path) that follow */
};

#define FDS 65536
static char folder[PATH_MAX];
static size_t folder_length;
static int log_fd = -1;
static volatile int active, dying;
static unsigned char tracked[FDS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int64_t flushes;
static int failing_call, failing_number, failing_error, failing_count, fired;
static int64_t counts[CALLS];
static long flush_microseconds;

/* SIGUSR2 ends the process, without any cleaning up, at its next recorded call: between calls, so that the log is true. */
static void note_signal(int number) { dying = number; }

static void enter(void) {
    pthread_mutex_lock(&lock);
    if (dying) _exit(128 + dying);
}

static void write_fully(const void *data, size_t size) {
    for (const char *next = data; size > 0;) {
        ssize_t done = syscall(SYS_write, log_fd, next, size);
        if (done < 0) _exit(70);
        next += done, size -= done;
    }
}

static void record(int kind, int fd, int64_t offset, int64_t flags, int error, int is_folder, const char *path, const void *data, size_t size) {
    struct record head = {kind, fd, offset, flags, error, is_folder, path ? strlen(path) : 0, size};
    write_fully(&head, sizeof head);
    if (head.path) write_fully(path, head.path);
    if (size) write_fully(data, size);
}

/* Return the error with which this call must fail, 0 if it must not. Called under the lock. A short write has the error -1. */
static int find_fault(int call) {
    int64_t number = ++counts[call];
    if (call != failing_call || number < failing_number || number >= (int64_t)failing_number + failing_count) return 0;
    fired = 1;
    return failing_error;
}

/* Start a recording of a folder. From the number-th call of a kind on, let so many of them fail, or fewer if disk_shim_repair is
   called. Flushes take some microseconds longer. */
void disk_shim_start(const char *path, const char *log, int call, int number, int error, int count, long microseconds) {
    snprintf(folder, sizeof folder, "%s", path);
    folder_length = strlen(folder);
    log_fd = syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    memset(tracked, 0, sizeof tracked);
    memset(counts, 0, sizeof counts);
    failing_call = call, failing_number = number, failing_error = error, failing_count = count, fired = 0;
    flush_microseconds = microseconds;
    signal(SIGUSR2, note_signal);
    record(START, -1, 0, 0, 0, 0, NULL, NULL, 0);
    active = 1;
}

void disk_shim_stop(void) {
    active = 0;
    syscall(SYS_close, log_fd);
    log_fd = -1;
}

int disk_shim_fired(void) { return fired; }

void disk_shim_repair(void) { failing_call = NO_CALL; }

/* Record an answer that leaves by other ways than a socket. */
void disk_shim_answer(const char *data, size_t size) {
    enter();
    record(SENT, -1, 0, 0, 0, 0, NULL, data, size);
    pthread_mutex_unlock(&lock);
}

/* Write a path's name within the folder ("." for the folder itself) to `name`; return 0 if it is elsewhere. */
static int find_name(int at, const char *path, char *name) {
    char whole[2 * PATH_MAX];
    if (!active || path == NULL) return 0;
    if (path[0] == '/') {
        snprintf(whole, sizeof whole, "%s", path);
    } else {
        char base[PATH_MAX], link[64];
        ssize_t length;
        if (at == AT_FDCWD) {
            if (getcwd(base, sizeof base) == NULL) return 0;
        } else {
            snprintf(link, sizeof link, "/proc/self/fd/%d", at);
            length = readlink(link, base, sizeof base - 1);
            if (length < 0) return 0;
            base[length] = 0;
        }
        snprintf(whole, sizeof whole, "%s/%s", base, path);
    }
    if (strncmp(whole, folder, folder_length) != 0) return 0;
    const char *rest = whole + folder_length;
    if (*rest != 0 && *rest != '/') return 0;
    while (*rest == '/') rest++;
    snprintf(name, PATH_MAX, "%s", *rest == 0 ? "." : rest);
    return 1;
}

static int is_tracked(int fd) { return active && fd >= 0 && fd < FDS && tracked[fd]; }

/* Return whether bytes on this file are answers or requests: TCP, or standard output unless it is discarded. */
static int is_peer(int fd) {
    struct stat found;
    int domain;
    socklen_t size = sizeof domain;
    if (!active || fd == log_fd) return 0;
    if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size) == 0) return domain == AF_INET || domain == AF_INET6;
    return fd == STDOUT_FILENO && fstat(fd, &found) == 0 && !S_ISCHR(found.st_mode);
}

static int fail(int error) {
    pthread_mutex_unlock(&lock);
    errno = error;
    return -1;
}

/* open */

static int open_any(int at, const char *path, int flags, mode_t mode) {
    char name[PATH_MAX];
    if (!find_name(at, path, name)) return syscall(SYS_openat, at, path, flags, mode);
    struct stat found;
    enter();
    int error = find_fault(OPEN_CALL);
    if (error) return fail(error);
    int fd = syscall(SYS_openat, at, path, flags, mode);
    int saved = errno;
    if (fd >= 0 && fd < FDS && (flags & O_TMPFILE) != O_TMPFILE) {
        fstat(fd, &found);
        tracked[fd] = 1;
        record(OPEN, fd, 0, flags, 0, S_ISDIR(found.st_mode), name, NULL, 0);
    }
    pthread_mutex_unlock(&lock);
    errno = saved;
    return fd;
}

#define MODE(flags)                                \
    mode_t mode = 0;                               \
    if ((flags) & (O_CREAT | __O_TMPFILE)) {       \
        va_list rest;                              \
        va_start(rest, flags);                     \
        mode = va_arg(rest, mode_t);               \
        va_end(rest);                              \
    }
int open(const char *path, int flags, ...) { MODE(flags) return open_any(AT_FDCWD, path, flags, mode); }
int open64(const char *path, int flags, ...) { MODE(flags) return open_any(AT_FDCWD, path, flags, mode); }
int openat(int at, const char *path, int flags, ...) { MODE(flags) return open_any(at, path, flags, mode); }
int openat64(int at, const char *path, int flags, ...) { MODE(flags) return open_any(at, path, flags, mode); }
int __open_2(const char *path, int flags) { return open_any(AT_FDCWD, path, flags, 0); }
int __open64_2(const char *path, int flags) { return open_any(AT_FDCWD, path, flags, 0); }
int __openat_2(int at, const char *path, int flags) { return open_any(at, path, flags, 0); }
int __openat64_2(int at, const char *path, int flags) { return open_any(at, path, flags, 0); }
int creat(const char *path, mode_t mode) { return open_any(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode); }
int creat64(const char *path, mode_t mode) { return open_any(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode); }

int close(int fd) {
    if (is_tracked(fd)) tracked[fd] = 0;
    return syscall(SYS_close, fd);
}

/* write */

/* Write to a file of the folder, at `offset`, or at the file's position if that is negative. */
static ssize_t write_file(int fd, const void *data, size_t size, off_t offset) {
    enter();
    int error = find_fault(WRITE_CALL);
    if (error > 0) return fail(error);
    if (error < 0 && size > 1) size /= 2; /* a short write */
    off_t at = offset;
    if (offset < 0) {
        struct stat found;
        int appends = fcntl(fd, F_GETFL) & O_APPEND;
        at = appends && fstat(fd, &found) == 0 ? found.st_size : lseek(fd, 0, SEEK_CUR);
    }
    ssize_t done = offset < 0 ? syscall(SYS_write, fd, data, size) : syscall(SYS_pwrite64, fd, data, size, offset);
    int saved = errno;
    if (done > 0) record(WRITE, fd, at, 0, 0, 0, NULL, data, done);
    pthread_mutex_unlock(&lock);
    errno = saved;
    return done;
}

/* Send an answer: it is recorded before it leaves, and afterwards how much of it did not leave. */
static ssize_t send_answer(int fd, const void *data, size_t size, int flags, int is_socket) {
    enter();
    int error = find_fault(ANSWER_CALL);
    if (error > 0) return fail(error);
    record(SENT, fd, 0, 0, 0, 0, NULL, data, size);
    pthread_mutex_unlock(&lock);
    ssize_t done = is_socket ? syscall(SYS_sendto, fd, data, size, flags, NULL, 0) : syscall(SYS_write, fd, data, size);
    int saved = errno;
    if (done != (ssize_t)size) {
        enter();
        record(UNSENT, fd, done < 0 ? (ssize_t)size : (ssize_t)size - done, 0, 0, 0, NULL, NULL, 0);
        pthread_mutex_unlock(&lock);
    }
    errno = saved;
    return done;
}

ssize_t write(int fd, const void *data, size_t size) {
    if (is_tracked(fd)) return write_file(fd, data, size, -1);
    return is_peer(fd) ? send_answer(fd, data, size, 0, 0) : syscall(SYS_write, fd, data, size);
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t offset) {
    return is_tracked(fd) ? write_file(fd, data, size, offset) : syscall(SYS_pwrite64, fd, data, size, offset);
}
ssize_t pwrite64(int fd, const void *data, size_t size, off64_t offset) { return pwrite(fd, data, size, offset); }

/* A call with several buffers becomes one with the first: a short write, which callers must expect. */
ssize_t writev(int fd, const struct iovec *parts, int count) {
    if (!is_tracked(fd) && !is_peer(fd)) return syscall(SYS_writev, fd, parts, count);
    int first = 0;
    while (first < count - 1 && parts[first].iov_len == 0) first++;
    return write(fd, parts[first].iov_base, parts[first].iov_len);
}
ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t offset) {
    if (!is_tracked(fd)) return syscall(SYS_pwritev, fd, parts, count, offset, 0L);
    int first = 0;
    while (first < count - 1 && parts[first].iov_len == 0) first++;
    return pwrite(fd, parts[first].iov_base, parts[first].iov_len, offset);
}
ssize_t pwritev64(int fd, const struct iovec *parts, int count, off64_t offset) { return pwritev(fd, parts, count, offset); }

/* sockets */

ssize_t sendto(int fd, const void *data, size_t size, int flags, const struct sockaddr *to, socklen_t length) {
    return is_peer(fd) ? send_answer(fd, data, size, flags, 1) : syscall(SYS_sendto, fd, data, size, flags, to, length);
}
ssize_t send(int fd, const void *data, size_t size, int flags) { return sendto(fd, data, size, flags, NULL, 0); }

ssize_t sendmsg(int fd, const struct msghdr *message, int flags) {
    if (!is_peer(fd)) return syscall(SYS_sendmsg, fd, message, flags);
    size_t first = 0;
    while (first + 1 < message->msg_iovlen && message->msg_iov[first].iov_len == 0) first++;
    return send(fd, message->msg_iov[first].iov_base, message->msg_iov[first].iov_len, flags);
}

static ssize_t record_received(int fd, const void *data, ssize_t size) {
    int saved = errno;
    if (size > 0) {
        enter();
        record(RECEIVED, fd, 0, 0, 0, 0, NULL, data, size);
        pthread_mutex_unlock(&lock);
    }
    errno = saved;
    return size;
}

ssize_t read(int fd, void *data, size_t size) {
    ssize_t done = syscall(SYS_read, fd, data, size);
    return done > 0 && is_peer(fd) && fd != STDOUT_FILENO ? record_received(fd, data, done) : done;
}
ssize_t recv(int fd, void *data, size_t size, int flags) {
    ssize_t done = syscall(SYS_recvfrom, fd, data, size, flags, NULL, NULL);
    return done > 0 && is_peer(fd) && !(flags & MSG_PEEK) ? record_received(fd, data, done) : done;
}

/* flush */

static int sync_file(int fd, long number) {
    if (!is_tracked(fd)) return syscall(number, fd);
    enter();
    int error = find_fault(SYNC_CALL);
    int64_t flush = ++flushes;
    record(SYNC_BEGIN, fd, flush, 0, 0, 0, NULL, NULL, 0);
    pthread_mutex_unlock(&lock);
    struct timespec pause = {0, flush_microseconds * 1000};
    if (flush_microseconds) nanosleep(&pause, NULL);
    if (!error && syscall(number, fd) != 0) error = errno;
    enter();
    record(SYNC_END, fd, flush, 0, error, 0, NULL, NULL, 0);
    pthread_mutex_unlock(&lock);
    errno = error;
    return error ? -1 : 0;
}
int fsync(int fd) { return sync_file(fd, SYS_fsync); }
int fdatasync(int fd) { return sync_file(fd, SYS_fdatasync); }

/* names and sizes */

static int change_names(int kind, int call, const char *name, const char *other, long number, long a, long b, long c, long d, long e) {
    enter();
    int error = find_fault(call);
    if (error) return fail(error);
    int status = syscall(number, a, b, c, d, e);
    int saved = errno;
    if (status == 0) record(kind, -1, 0, 0, 0, 0, name, other, other ? strlen(other) : 0);
    pthread_mutex_unlock(&lock);
    errno = saved;
    return status;
}

int renameat2(int from_at, const char *from, int to_at, const char *to, unsigned flags) {
    char name[PATH_MAX], other[PATH_MAX];
    int both = find_name(from_at, from, name) + find_name(to_at, to, other);
    if (both == 0) return syscall(SYS_renameat2, from_at, from, to_at, to, flags);
    int kind = both == 2 && flags == 0 ? RENAME : UNSUPPORTED;
    return change_names(kind, RENAME_CALL, name, other, SYS_renameat2, from_at, (long)from, to_at, (long)to, flags);
}
int renameat(int from_at, const char *from, int to_at, const char *to) { return renameat2(from_at, from, to_at, to, 0); }
int rename(const char *from, const char *to) { return renameat2(AT_FDCWD, from, AT_FDCWD, to, 0); }

int unlinkat(int at, const char *path, int flags) {
    char name[PATH_MAX];
    if (!find_name(at, path, name)) return syscall(SYS_unlinkat, at, path, flags);
    return change_names(flags ? UNSUPPORTED : UNLINK, UNLINK_CALL, name, NULL, SYS_unlinkat, at, (long)path, flags, 0, 0);
}
int unlink(const char *path) { return unlinkat(AT_FDCWD, path, 0); }
int remove(const char *path) {
    int status = unlinkat(AT_FDCWD, path, 0);
    return status != 0 && errno == EISDIR ? rmdir(path) : status;
}

int linkat(int from_at, const char *from, int to_at, const char *to, int flags) {
    char name[PATH_MAX];
    if (!find_name(to_at, to, name)) return syscall(SYS_linkat, from_at, from, to_at, to, flags);
    return change_names(UNSUPPORTED, NO_CALL, name, NULL, SYS_linkat, from_at, (long)from, to_at, (long)to, flags);
}
int link(const char *from, const char *to) { return linkat(AT_FDCWD, from, AT_FDCWD, to, 0); }

int ftruncate(int fd, off_t size) {
    if (!is_tracked(fd)) return syscall(SYS_ftruncate, fd, size);
    enter();
    int error = find_fault(TRUNCATE_CALL);
    if (error) return fail(error);
    int status = syscall(SYS_ftruncate, fd, size);
    int saved = errno;
    if (status == 0) record(TRUNCATE, fd, size, 0, 0, 0, NULL, NULL, 0);
    pthread_mutex_unlock(&lock);
    errno = saved;
    return status;
}
int ftruncate64(int fd, off64_t size) { return ftruncate(fd, size); }

/* Calls that the model does not know: the test fails if they occur in the folder. */

static void record_unsupported(const char *call) {
    enter();
    record(UNSUPPORTED, -1, 0, 0, 0, 0, call, NULL, 0);
    pthread_mutex_unlock(&lock);
}
int truncate(const char *path, off_t size) {
    char name[PATH_MAX];
    if (find_name(AT_FDCWD, path, name)) record_unsupported("truncate");
    return syscall(SYS_truncate, path, size);
}
int truncate64(const char *path, off64_t size) { return truncate(path, size); }
int sync_file_range(int fd, off64_t offset, off64_t size, unsigned flags) {
    if (is_tracked(fd)) record_unsupported("sync_file_range");
    return syscall(SYS_sync_file_range, fd, offset, size, flags);
}
void sync(void) {
    if (active) record_unsupported("sync");
    syscall(SYS_sync);
}
int syncfs(int fd) {
    if (active) record_unsupported("syncfs");
    return syscall(SYS_syncfs, fd);
}
int fallocate(int fd, int mode, off_t offset, off_t size) {
    if (is_tracked(fd)) record_unsupported("fallocate");
    return syscall(SYS_fallocate, fd, mode, offset, size);
}
int fallocate64(int fd, int mode, off64_t offset, off64_t size) { return fallocate(fd, mode, offset, size); }
int dup2(int fd, int other) {
    if (is_tracked(fd)) record_unsupported("dup2");
    return fd == other ? fd : syscall(SYS_dup3, fd, other, 0);
}

void *mmap(void *address, size_t size, int protection, int flags, int fd, off_t offset) {
    if (is_tracked(fd) && (protection & PROT_WRITE) && (flags & MAP_TYPE) != MAP_PRIVATE) {
        enter();
        record(MAPPED, fd, offset, 0, 0, 0, NULL, NULL, 0);
        pthread_mutex_unlock(&lock);
    }
    return (void *)syscall(SYS_mmap, address, size, protection, flags, fd, offset);
}
void *mmap64(void *address, size_t size, int protection, int flags, int fd, off64_t offset) {
    return mmap(address, size, protection, flags, fd, offset);
}
