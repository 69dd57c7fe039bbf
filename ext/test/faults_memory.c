/*-------------------------------------------------------------------------
 *
 * faults_memory.c
 *	  Kills a child at every instruction of its work on the map in memory.
 *
 * The map's own code runs in a child, step by step, under its parent's eyes.
 * After each instruction that changed the shared memory, the parent does to it
 * what the postmaster does when a child has crashed, and looks whether all is
 * there: no mark of another relation may be lost, not even after all pages
 * that count as free were given out again. Then the memory is put back, and the
 * child does its next step.
 *
 * And a child stands still at every instruction of an insertion, while another
 * marks in the entry if it is ready, and a flush begins: what the other relied on
 * must be in the file, unless the flush waits.
 *
 *-------------------------------------------------------------------------
 */
#include "../map.c"

#include <setjmp.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

/* the server's own are not linked */
#undef printf
#undef fprintf

/* Where to go on when a lock would have to be waited for. */
static jmp_buf *waiting = NULL;

int
s_lock(volatile slock_t *lock, const char *file, int line, const char *func)
{
	if (waiting == NULL)
		abort();
	longjmp(*waiting, 1);
}

#define LIVE		100			/* relations of which no mark may be lost */
#define LIVES		3
#define DOOMED		200			/* forgotten by the child */
#define RECYCLED	300			/* forgotten before, so that its page is another's */
#define NEW			400			/* marked by the child */
#define FLUSHED		500			/* marked by the child while others flush */
#define FILLER		1000
#define DATABASE	5
#define OTHER_DATABASE	6

static Size memory_bytes;
static Size side_bytes;
static char *memory_copy;
static char *side_copy;
static char *map_file;			/* what flushes have written of the directory */
static int	steps;
static int	checks;
static int	waits;
static int	flushes;

static RelBackend
relation(Oid db, uint32 number)
{
	RelBackend	rel;

	memset(&rel, 0, sizeof(rel));
	REL_SPC(rel) = 1663;
	REL_DB(rel) = db;
	REL_NUMBER(rel) = number;
	rel.backend = -1;
	return rel;
}

static void
mark(Oid db, uint32 number, BlockNumber block)
{
	(void) map_mark(relation(db, number), MAIN_FORKNUM, block, 2);
}

static void
fail(const char *what, uint32 number)
{
	fprintf(stderr, "after step %d: %s %u\n", steps, what, number);
	exit(1);
}

static void
expect_mark(uint32 number, BlockNumber block)
{
	MapEntry	entry;

	if (!map_find_entry(1663, DATABASE, number, CHUNK_KEY(MAIN_FORKNUM, block / CELLS_PER_PAGE), &entry))
		fail("no entry of relation", number);
	if (map_cells(entry.page)[block % CELLS_PER_PAGE] == 0)
		fail("a mark was lost of relation", number);
}

static void
expect_lives(void)
{
	for (uint32 n = 0; n < LIVES; n++)
		for (BlockNumber block = 7; block < 3 * CELLS_PER_PAGE; block += CELLS_PER_PAGE)
			expect_mark(LIVE + n, block);
}

/* As after a crash; then everything that is free is used. */
static void
crash_and_check(void)
{
	uint32		owned = 0;

	memset(cache, 0, sizeof(cache));
	if (!map_after_crash())
		fail("the map is called damaged", 0);
	expect_lives();
	for (uint32 i = 0; i < map.slots; i++)
		if (ENTRY_KIND(map.directory[i].state.value) == ENTRY_READY && map.directory[i].page != NO_PAGE)
			owned++;
	if (owned + map.shared->free_count != map.shared->pages_used)
		fail("pages were lost, or are in use twice, in use:", owned);
	for (uint32 n = 0; !map.shared->overflow; n++)
		mark(DATABASE, FILLER + n, n % CELLS_PER_PAGE);
	expect_lives();
	checks++;
}

static bool
has_changed(void)
{
	return memcmp(memory_copy, map.base, memory_bytes) != 0 ||
		memcmp(side_copy, map.shared, side_bytes) != 0;
}

static void
keep(void)
{
	memcpy(memory_copy, map.base, memory_bytes);
	memcpy(side_copy, map.shared, side_bytes);
}

static void
put_back(void)
{
	memcpy(map.base, memory_copy, memory_bytes);
	memcpy(map.shared, side_copy, side_bytes);
}

/* A child is killed here, and what it did so far is put back. */
static void
crash_here(void)
{
	keep();
	crash_and_check();
	put_back();
}

/* What a flush does, of the directory alone. */
static void
copy_dirty(void)
{
	for (Size page = 1 + TOKEN_PAGES; page < (map.arena - map.base) / MAP_PAGE; page++)
	{
		if (map.dirty[page] == 0)
			continue;
		map.dirty[page] = 0;
		memcpy(map_file + page * MAP_PAGE, map.base + page * MAP_PAGE, MAP_PAGE);
	}
}

/*
 * A flush that began before the insertion is copying all the time, and here another
 * begins. The file must have the new entry as ready if a mark can have found it.
 */
static void
flush_here(void)
{
	MapKey		key = {1663, DATABASE, FLUSHED, CHUNK_KEY(MAIN_FORKNUM, 2)};
	uint32		state;
	MapEntry   *entry = lookup(&key, &state);
	MapEntry   *saved;
	jmp_buf		would_wait;

	keep();
	waiting = &would_wait;
	if (setjmp(would_wait) == 0)
	{
		map_await_insertions();
		copy_dirty();
		flushes += entry != NULL;
		saved = entry == NULL ? NULL : (MapEntry *) (map_file + ((char *) entry - map.base));
		if (saved != NULL && (saved->state.value != state || !key_matches(saved, &key)))
			fail("a flush has missed the entry of relation", FLUSHED);
	}
	else
	{
		waits += entry != NULL;
		copy_dirty();
	}
	waiting = NULL;
	keep();
}

/* Let a child do it, one instruction after the other. */
static void
step_through(void (*work) (void), void (*at_change) (void))
{
	int			status;
	pid_t		child = fork();

	if (child == 0)
	{
		if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) != 0)
			_exit(2);
		raise(SIGSTOP);
		work();
		_exit(0);
	}
	keep();
	while (waitpid(child, &status, 0) == child && WIFSTOPPED(status))
	{
		if (has_changed())
			at_change();
		steps++;
		if (ptrace(PTRACE_SINGLESTEP, child, NULL, NULL) != 0)
			fail("a process cannot be stepped through here", errno);
	}
	if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
		fail("the child ended with status", status);
	memset(cache, 0, sizeof(cache));
}

static void
forget(void)
{
	map_forget_fork(relation(DATABASE, DOOMED), MAIN_FORKNUM);
}

static void
forget_database(void)
{
	map_forget_database(InvalidOid, OTHER_DATABASE);
}

static void
insert(void)
{
	mark(DATABASE, NEW, 2 * CELLS_PER_PAGE + 5);
}

static void
insert_flushed(void)
{
	mark(DATABASE, FLUSHED, 2 * CELLS_PER_PAGE + 5);
}

static void
stamp_new(void)
{
	map_stamp_database(OTHER_DATABASE);
	map_stamp_fork(relation(DATABASE, NEW + 1), MAIN_FORKNUM);
}

int
main(void)
{
	if (!map_create(1))
		fail("no memory", 0);
	memory_bytes = map.bytes;
	side_bytes = (char *) (map.free_pages + map.arena_pages) - (char *) map.shared;
	memory_copy = malloc(memory_bytes);
	side_copy = malloc(side_bytes);

	/* the list of free pages has had the live relations' pages */
	for (uint32 n = 0; n < 4 * LIVES; n++)
		mark(DATABASE, RECYCLED + n, 0);
	for (uint32 n = 0; n < 4 * LIVES; n++)
		map_forget_fork(relation(DATABASE, RECYCLED + n), MAIN_FORKNUM);
	for (uint32 n = 0; n < LIVES; n++)
		for (BlockNumber block = 7; block < 3 * CELLS_PER_PAGE; block += CELLS_PER_PAGE)
			mark(DATABASE, LIVE + n, block);
	for (BlockNumber block = 0; block < 4 * CELLS_PER_PAGE; block += CELLS_PER_PAGE)
		mark(DATABASE, DOOMED, block);
	for (uint32 n = 0; n < 5; n++)
		mark(OTHER_DATABASE, LIVE + n, n);
	map_stamp_database(OTHER_DATABASE);

	step_through(forget, crash_here);
	step_through(insert, crash_here);
	step_through(forget_database, crash_here);
	step_through(stamp_new, crash_here);
	map_file = calloc(memory_bytes, 1);
	copy_dirty();
	step_through(insert_flushed, flush_here);
	crash_and_check();
	printf("%d steps, %d crashes, %d flushes, of which %d waited\n", steps, checks, flushes + waits, waits);
	return checks > 50 && flushes > 0 && waits > 0 ? 0 : 1;
}
