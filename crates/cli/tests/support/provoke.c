/*-------------------------------------------------------------------------
 *
 * provoke.c
 *	  Ways to end that a test cannot wait for: loaded before libc.
 *
 * MOST_THREADS=N		the system gives N threads at once beside the first
 * RAISE=N				signal N arrives when the first thread is started
 * RAISE_AT=M			it arrives when the Mth file is opened, read or written instead
 * RAISE_AGAIN=1		and once more a moment later, before that goes on
 * COUNT=FILE			how many files were opened, read or written is put there
 * PANIC=1				what the Rust library is sure of fails when a thread is started: it panics
 * PANIC_AT=M			or when the clock is read for the Mth time, by whoever does
 * NO_ROOM=1			the disk has no room for what is written to a file
 * NO_ROOM=/DIRECTORY	or to a file there
 * CLOCK_AHEAD=N		the clock of the host is ahead by N seconds
 * HANGS=/DIRECTORY		the file system there answers nothing, as one of a machine that is gone
 * SYNCED=FILE			what is made durable is put there, a path on each line
 *
 *-------------------------------------------------------------------------
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

typedef int (*create_function) (pthread_t *, const pthread_attr_t *,
								void *(*) (void *), void *);
typedef int (*attr_function) (pthread_attr_t *);
typedef int (*open_function) (const char *, int, mode_t);
typedef ssize_t (*write_function) (int, const void *, size_t);
typedef ssize_t (*pwrite_function) (int, const void *, size_t, off64_t);
typedef ssize_t (*pread_function) (int, void *, size_t, off64_t);
typedef int (*sync_function) (int);
typedef int (*clock_function) (clockid_t, struct timespec *);
typedef int (*statx_function) (int, const char *, int, unsigned int,
							   struct statx *);
typedef DIR *(*opendir_function) (const char *);
typedef char *(*realpath_function) (const char *, char *);

/* What a thread is to do, and how many there are. */
typedef struct Work
{
	void	   *(*start) (void *);
	void	   *argument;
} Work;

static int	living;

static void *
counted(void *given)
{
	Work		work = *(Work *) given;
	void	   *result;

	free(given);
	result = work.start(work.argument);
	__atomic_sub_fetch(&living, 1, __ATOMIC_SEQ_CST);
	return result;
}

int
pthread_create(pthread_t *thread, const pthread_attr_t *attr,
			   void *(*start) (void *), void *argument)
{
	const char *most = getenv("MOST_THREADS");
	const char *sent = getenv("RAISE");
	create_function next = (create_function) dlsym(RTLD_NEXT, "pthread_create");
	int			number = __atomic_add_fetch(&living, 1, __ATOMIC_SEQ_CST);
	Work	   *work;
	int			failure = EAGAIN;

	if (sent && !getenv("RAISE_AT"))
		raise(atoi(sent));
	work = malloc(sizeof(Work));
	if (work && (!most || number <= atoi(most)))
	{
		work->start = start;
		work->argument = argument;
		failure = next(thread, attr, counted, work);
	}
	if (failure)
	{
		free(work);
		__atomic_sub_fetch(&living, 1, __ATOMIC_SEQ_CST);
	}
	return failure;
}

int
pthread_attr_init(pthread_attr_t *attr)
{
	attr_function next = (attr_function) dlsym(RTLD_NEXT, "pthread_attr_init");

	return getenv("PANIC") ? EINVAL : next(attr);
}

/* Microseconds after a signal, and those that what meets a second one is held up. */
#define BETWEEN_SIGNALS 300000
#define HELD_UP 6000000

static int	done;

/* One more file was opened, read or written. */
static void
count(void)
{
	const char *sent = getenv("RAISE");
	const char *at = getenv("RAISE_AT");
	int			number = __atomic_add_fetch(&done, 1, __ATOMIC_SEQ_CST);

	if (!sent || !at || number != atoi(at))
		return;
	kill(getpid(), atoi(sent));
	/* The work goes on when the program has heard of it. */
	usleep(BETWEEN_SIGNALS);
	if (getenv("RAISE_AGAIN"))
	{
		kill(getpid(), atoi(sent));
		usleep(HELD_UP);
	}
}

static void __attribute__((destructor))
tell_count(void)
{
	const char *path = getenv("COUNT");
	FILE	   *file = path ? fopen(path, "w") : NULL;

	if (file)
	{
		fprintf(file, "%d", done);
		fclose(file);
	}
}

/* What is said goes to a file, too: that of the server's log. */
static int
has_no_room(int file)
{
	const char *where = getenv("NO_ROOM");
	struct stat kind;
	char		link[64];
	char		path[4096];
	ssize_t		length;

	if (!where || file <= 2 || fstat(file, &kind) != 0 || !S_ISREG(kind.st_mode))
		return 0;
	if (where[0] != '/')
		return 1;
	snprintf(link, sizeof(link), "/proc/self/fd/%d", file);
	length = readlink(link, path, sizeof(path) - 1);
	if (length < 0)
		return 0;
	path[length] = '\0';
	return strncmp(path, where, strlen(where)) == 0;
}

/* Who asks for what lies there never hears of it. */
static void
ask(const char *path)
{
	const char *where = getenv("HANGS");
	size_t		length = where ? strlen(where) : 0;

	if (!where || !path || strncmp(path, where, length) != 0)
		return;
	while (path[length] == '/' || path[length] == '\0')
		pause();
}

int
statx(int directory, const char *path, int flags, unsigned int mask,
	  struct statx *found)
{
	statx_function next = (statx_function) dlsym(RTLD_NEXT, "statx");

	ask(path);
	return next(directory, path, flags, mask, found);
}

DIR *
opendir(const char *path)
{
	opendir_function next = (opendir_function) dlsym(RTLD_NEXT, "opendir");

	ask(path);
	return next(path);
}

char *
realpath(const char *path, char *resolved)
{
	realpath_function next = (realpath_function) dlsym(RTLD_NEXT, "realpath");

	ask(path);
	return next(path, resolved);
}

int
open64(const char *path, int flags,...)
{
	open_function next = (open_function) dlsym(RTLD_NEXT, "open64");
	mode_t		mode = 0;

	ask(path);
	if (flags & (O_CREAT | O_TMPFILE))
	{
		va_list		given;

		va_start(given, flags);
		mode = va_arg(given, mode_t);
		va_end(given);
	}
	count();
	return next(path, flags, mode);
}

ssize_t
pread64(int file, void *bytes, size_t length, off64_t at)
{
	pread_function next = (pread_function) dlsym(RTLD_NEXT, "pread64");

	count();
	return next(file, bytes, length, at);
}

ssize_t
pwrite64(int file, const void *bytes, size_t length, off64_t at)
{
	pwrite_function next = (pwrite_function) dlsym(RTLD_NEXT, "pwrite64");

	count();
	if (has_no_room(file))
	{
		errno = ENOSPC;
		return -1;
	}
	return next(file, bytes, length, at);
}

ssize_t
write(int file, const void *bytes, size_t length)
{
	write_function next = (write_function) dlsym(RTLD_NEXT, "write");

	if (has_no_room(file))
	{
		errno = ENOSPC;
		return -1;
	}
	return next(file, bytes, length);
}

int
fsync(int file)
{
	sync_function next = (sync_function) dlsym(RTLD_NEXT, "fsync");
	const char *told = getenv("SYNCED");
	FILE	   *paths = told ? fopen(told, "a") : NULL;
	char		link[64];
	char		path[4096];
	ssize_t		length;

	if (paths)
	{
		snprintf(link, sizeof(link), "/proc/self/fd/%d", file);
		length = readlink(link, path, sizeof(path) - 1);
		if (length > 0)
			fprintf(paths, "%.*s\n", (int) length, path);
		fclose(paths);
	}
	return next(file);
}

int
clock_gettime(clockid_t clock, struct timespec *now)
{
	clock_function next = (clock_function) dlsym(RTLD_NEXT, "clock_gettime");
	const char *ahead = getenv("CLOCK_AHEAD");
	const char *panic = getenv("PANIC_AT");
	int			failure = next(clock, now);

	if (panic && clock == CLOCK_MONOTONIC)
	{
		static int	readings;

		if (__atomic_add_fetch(&readings, 1, __ATOMIC_SEQ_CST) == atoi(panic))
		{
			errno = EINVAL;
			return -1;
		}
	}
	if (ahead && clock == CLOCK_REALTIME)
		now->tv_sec += atol(ahead);
	return failure;
}
