/*-------------------------------------------------------------------------
 *
 * provoke.c
 *	  Ways to end that a test cannot wait for: loaded before libc.
 *
 * MOST_THREADS=N		the system gives N threads at once beside the first
 * RAISE=N				signal N arrives when the first thread is started
 * PANIC=1				what the Rust library is sure of fails: it panics
 * NO_ROOM=1			the disk has no room for what is written to a file
 * CLOCK_AHEAD=N		the clock of the host is ahead by N seconds
 *
 *-------------------------------------------------------------------------
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

typedef int (*create_function) (pthread_t *, const pthread_attr_t *,
								void *(*) (void *), void *);
typedef int (*attr_function) (pthread_attr_t *);
typedef ssize_t (*write_function) (int, const void *, size_t);
typedef int (*clock_function) (clockid_t, struct timespec *);

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

	if (sent)
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

ssize_t
write(int file, const void *bytes, size_t length)
{
	write_function next = (write_function) dlsym(RTLD_NEXT, "write");
	struct stat kind;

	/* What is said goes to a file, too: that of the server's log. */
	if (getenv("NO_ROOM") && file > 2 && fstat(file, &kind) == 0 && S_ISREG(kind.st_mode))
	{
		errno = ENOSPC;
		return -1;
	}
	return next(file, bytes, length);
}

int
clock_gettime(clockid_t clock, struct timespec *now)
{
	clock_function next = (clock_function) dlsym(RTLD_NEXT, "clock_gettime");
	const char *ahead = getenv("CLOCK_AHEAD");
	int			failure = next(clock, now);

	if (ahead && clock == CLOCK_REALTIME)
		now->tv_sec += atol(ahead);
	return failure;
}
