/*-------------------------------------------------------------------------
 *
 * faults.c
 *	  Watches, fails or stops a server's writes and syncs, for test/behaviour.
 *
 * Preloaded (LD_PRELOAD) into the server. It tells apart what a call is for by
 * the file's name: the tracker's map, pg_control, a relation's file. The calls
 * are logged in the file "log" of the directory PGSTRATA_FAULTS. A file there
 * that has the name of a step makes that step
 *
 *	 fail		if it says "fail", with EIO, for as long as the file is there;
 *	 stop		if it says "stop": the file "stopped" appears, and the process
 *				waits to be killed.
 *
 *-------------------------------------------------------------------------
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
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

/* Log the step; true if it is to fail. */
static int
fault(int fd, const char *act)
{
	const char *directory = getenv("PGSTRATA_FAULTS");
	char		step[64];
	char		line[80];
	char		path[4096];
	char		order[16] = "";
	int			file;

	if (directory == NULL || step_of(fd, act, step, sizeof(step)) == NULL)
		return 0;
	snprintf(line, sizeof(line), "%s\n", step);
	put(directory, "log", line);
	snprintf(path, sizeof(path), "%s/%s", directory, step);
	file = open(path, O_RDONLY);
	if (file < 0)
		return 0;
	if (read(file, order, sizeof(order) - 1) < 0)
		abort();
	close(file);
	if (strncmp(order, "stop", 4) == 0)
	{
		put(directory, "stopped", line);
		for (;;)
			pause();
	}
	errno = EIO;
	return strncmp(order, "fail", 4) == 0;
}

#define REAL(call) \
	static __typeof__(&call) real; \
	if (real == NULL) \
		real = (__typeof__(&call)) dlsym(RTLD_NEXT, #call)

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
