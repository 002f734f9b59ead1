/* A library to preload: one call of a process on one file fails, when a trigger file is there.
 *
 * FAIL_PART: what the path of the file contains.  FAIL_CALL: data, meta or sync.  FAIL_NTH: which one.
 * FAIL_ERRNO: the error; 0 for a write that stops half way.  FAIL_TRIGGER: the trigger's path.
 * A write to the first two pages of the file is one of "meta", any other one of "data".
 * A failed sync is told once more, to whoever asks with fsync next, as the kernel tells other
 * descriptors of the same file.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <stdio.h>
#include <sys/uio.h>
#include <unistd.h>

static int calls, sync_has_failed;

static int strikes(int fd, const char *call)
{
	char link[64], path[4096];
	const char *part = getenv("FAIL_PART"), *wanted = getenv("FAIL_CALL");
	if (!part || !wanted || strcmp(call, wanted) || access(getenv("FAIL_TRIGGER"), F_OK))
		return 0;
	snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
	ssize_t size = readlink(link, path, sizeof path - 1);
	if (size < 0)
		return 0;
	path[size] = 0;
	return strstr(path, part) && ++calls == atoi(getenv("FAIL_NTH"));
}

static int error(void)
{
	return atoi(getenv("FAIL_ERRNO"));
}

ssize_t pwrite64(int fd, const void *data, size_t size, off_t at)
{
	ssize_t (*real)(int, const void *, size_t, off_t) = dlsym(RTLD_NEXT, "pwrite64");
	if (strikes(fd, at < 8192 ? "meta" : "data")) {
		ssize_t done = real(fd, data, size / 2, at);
		if (!error())
			return done;
		errno = error();
		return -1;
	}
	return real(fd, data, size, at);
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t at)
{
	return pwrite64(fd, data, size, at);
}

ssize_t writev(int fd, const struct iovec *parts, int count)
{
	ssize_t (*real)(int, const struct iovec *, int) = dlsym(RTLD_NEXT, "writev");
	if (strikes(fd, "data")) {
		ssize_t done = real(fd, parts, count / 2);
		if (!error())
			return done;
		errno = error();
		return -1;
	}
	return real(fd, parts, count);
}

ssize_t pwritev64(int fd, const struct iovec *parts, int count, off_t at)
{
	ssize_t (*real)(int, const struct iovec *, int, off_t) = dlsym(RTLD_NEXT, "pwritev64");
	if (strikes(fd, "data")) {
		ssize_t done = real(fd, parts, count / 2, at);
		if (!error())
			return done;
		errno = error();
		return -1;
	}
	return real(fd, parts, count, at);
}

ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t at)
{
	return pwritev64(fd, parts, count, at);
}

int fdatasync(int fd)
{
	int (*real)(int) = dlsym(RTLD_NEXT, "fdatasync");
	if (strikes(fd, "sync") && error()) {
		sync_has_failed = 1;
		errno = error();
		return -1;
	}
	return real(fd);
}

int fsync(int fd)
{
	int (*real)(int) = dlsym(RTLD_NEXT, "fsync");
	if (sync_has_failed) {
		sync_has_failed = 0;
		errno = error();
		return -1;
	}
	return real(fd);
}
