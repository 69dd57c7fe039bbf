/*-------------------------------------------------------------------------
 *
 * faults.c
 *	  Watches, fails or stops a server's writes and syncs, for test/behaviour.
 *
 * Preloaded (LD_PRELOAD) into the server. It tells apart what a call is for by
 * the file's name: the tracker's map, pg_control, a relation's file, WAL. The calls
 * are logged in the file "log" of the directory PGSTRATA_FAULTS. A file there
 * that has the name of a step makes that step
 *
 *	 fail		if it says "fail", with EIO, for as long as the file is there;
 *	 stop		if it says "stop": the file "stopped" appears, and the process
 *				waits to be killed;
 *	 pause		if it says "pause", or "pause" and the process's number: the
 *				file "stopped" appears, and the process waits until it is gone.
 *
 * The step "random" is the making of random bytes, which a token needs,
 * "control-open" the opening of pg_control by who only reads it,
 * "map-unlink" the removal of the map or of one that is not finished, and
 * "protect" what makes a storage table writable. The
 * steps "renumber-begin" and "renumber-end" enclose a renumbering of generations,
 * which works on memory alone: it takes a table for that, and gives it back.
 *
 *-------------------------------------------------------------------------
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* "map", "control", "data" and what is done to it; NULL: of no interest. */
static const char *
step_of(int fd, const char *act, char *step, size_t size)
{
	char		link[64];
	char		path[4096];
	ssize_t		length;
	const char *what;

	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	length = readlink(link, path, sizeof(path) - 1);
	if (length < 0)
		return NULL;
	path[length] = '\0';
	if (strstr(path, "/pgstrata.map"))
		what = "map";
	else if (strstr(path, "/global/pg_control"))
		what = "control";
	else if (strstr(path, "/base/"))
		what = "data";
	else if (strstr(path, "/pg_wal/") && strcmp(act, "sync") == 0)
		what = "wal";
	else
		return NULL;
	snprintf(step, size, "%s-%s", what, act);
	return step;
}

static void
put(const char *directory, const char *name, const char *text)
{
	char		path[4096];
	int			fd;

	snprintf(path, sizeof(path), "%s/%s", directory, name);
	fd = open(path, O_WRONLY | O_CREAT | O_APPEND, 0600);
	if (fd >= 0)
	{
		if (write(fd, text, strlen(text)) < 0)
			abort();
		close(fd);
	}
}

/* Wait to be killed, or until the file "stopped" is gone. */
static void
wait_stopped(const char *directory, const char *step, int for_ever)
{
	char		path[4096];

	put(directory, "stopped", step);
	snprintf(path, sizeof(path), "%s/stopped", directory);
	while (for_ever || access(path, F_OK) == 0)
		usleep(10000);
}

/* Log the step, and do as ordered; true if it is to fail. */
static int
obey(const char *step)
{
	const char *directory = getenv("PGSTRATA_FAULTS");
	char		line[80];
	char		path[4096];
	char		order[32] = "";
	int			pid = 0;
	int			file;

	if (directory == NULL)
		return 0;
	snprintf(line, sizeof(line), "%s\n", step);
	put(directory, "log", line);
	snprintf(path, sizeof(path), "%s/%s", directory, step);
	file = open(path, O_RDONLY);
	if (file < 0)
		return 0;
	/* not our read(), which would ask for orders */
	if (pread(file, order, sizeof(order) - 1, 0) < 0)
		abort();
	close(file);
	if (strncmp(order, "stop", 4) == 0)
		wait_stopped(directory, line, 1);
	if (strncmp(order, "pause", 5) == 0 &&
		(sscanf(order + 5, "%d", &pid) != 1 || pid == getpid()))
		wait_stopped(directory, line, 0);
	errno = EIO;
	return strncmp(order, "fail", 4) == 0;
}

static int
fault(int fd, const char *act)
{
	char		step[64];

	return step_of(fd, act, step, sizeof(step)) != NULL && obey(step);
}

#define REAL(call) \
	static __typeof__(&call) real; \
	if (real == NULL) \
		real = (__typeof__(&call)) dlsym(RTLD_NEXT, #call)

/* 65536 generations of 2 bytes. */
#define RENUMBER_BYTES 131072

static void *renumber;

static int
called_by_tracker(void *caller)
{
	Dl_info		info;

	return dladdr(caller, &info) != 0 && strstr(info.dli_fname, "/pgstrata.so") != NULL;
}

extern void *__libc_malloc(size_t size);
extern void __libc_free(void *memory);

void *
malloc(size_t size)
{
	if (size != RENUMBER_BYTES || !called_by_tracker(__builtin_return_address(0)))
		return __libc_malloc(size);
	if (obey("renumber-begin"))
		return NULL;
	return renumber = __libc_malloc(size);
}

void
free(void *memory)
{
	if (memory != NULL && memory == renumber)
	{
		renumber = NULL;
		(void) obey("renumber-end");
	}
	__libc_free(memory);
}

int
mprotect(void *address, size_t length, int protection)
{
	REAL(mprotect);
	return called_by_tracker(__builtin_return_address(0)) && obey("protect") ? -1 :
		real(address, length, protection);
}

/* The server itself opens pg_control to write it. */
static int
is_control_to_read(const char *path, int flags)
{
	static const char name[] = "global/pg_control";
	size_t		length = strlen(path);

	return (flags & O_ACCMODE) == O_RDONLY && length >= sizeof(name) - 1 &&
		strcmp(path + length - (sizeof(name) - 1), name) == 0;
}

static mode_t
mode_of(int flags, va_list args)
{
	return (flags & O_CREAT) != 0 || (flags & O_TMPFILE) == O_TMPFILE ?
		va_arg(args, mode_t) : 0;
}

int
open(const char *path, int flags,...)
{
	va_list		args;
	mode_t		mode;

	REAL(open);
	va_start(args, flags);
	mode = mode_of(flags, args);
	va_end(args);
	return is_control_to_read(path, flags) && obey("control-open") ? -1 :
		real(path, flags, mode);
}

int
open64(const char *path, int flags,...)
{
	va_list		args;
	mode_t		mode;

	REAL(open64);
	va_start(args, flags);
	mode = mode_of(flags, args);
	va_end(args);
	return is_control_to_read(path, flags) && obey("control-open") ? -1 :
		real(path, flags, mode);
}

ssize_t
pwrite(int fd, const void *data, size_t length, off_t offset)
{
	REAL(pwrite);
	return fault(fd, "write") ? -1 : real(fd, data, length, offset);
}

ssize_t
pwrite64(int fd, const void *data, size_t length, off64_t offset)
{
	REAL(pwrite64);
	return fault(fd, "write") ? -1 : real(fd, data, length, offset);
}

/* pg_control is written so, in one piece; looking at others takes time. */
ssize_t
write(int fd, const void *data, size_t length)
{
	REAL(write);
	return length == 8192 && fault(fd, "write") ? -1 : real(fd, data, length);
}

int
unlink(const char *path)
{
	REAL(unlink);
	return strstr(path, "pgstrata.map") != NULL && obey("map-unlink") ? -1 :
		real(path);
}

int
fsync(int fd)
{
	REAL(fsync);
	return fault(fd, "sync") ? -1 : real(fd);
}

int
fdatasync(int fd)
{
	REAL(fdatasync);
	return fault(fd, "sync") ? -1 : real(fd);
}

/* Servers built with OpenSSL make random bytes so ... */
int			RAND_bytes(unsigned char *bytes, int count);

int
RAND_bytes(unsigned char *bytes, int count)
{
	REAL(RAND_bytes);
	return obey("random") ? 0 : real(bytes, count);
}

/* ... and others so; larger reads are of no interest. */
ssize_t
read(int fd, void *data, size_t length)
{
	char		link[64];
	char		path[16];
	ssize_t		size = 0;

	REAL(read);
	if (length <= 64)
	{
		snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
		size = readlink(link, path, sizeof(path));
	}
	if (size == 12 && strncmp(path, "/dev/urandom", 12) == 0 && obey("random"))
		return -1;
	return real(fd, data, length);
}
