/*-------------------------------------------------------------------------
 *
 * interpose.c
 *	  Finding the server's storage tables, and putting us into them.
 *
 * smgr.c calls the file layer (md.c) through the static table smgrsw[], and a
 * checkpoint syncs files through syncsw[] in sync.c. Neither has a name that
 * we could link to, but all functions in them do. So their addresses are
 * known, and the tables can be recognised: a table is the one place in the
 * executable's data that holds exactly those addresses in exactly that order.
 *
 * That is trusted only if
 *
 *	- there is exactly one such place for each table, in a segment that is
 *	  not executable;
 *	- no code calls or jumps to a function we replace directly, past the
 *	  table, as a compiler may do that sees that the table has one row.
 *	  (GCC does it for the last member only, which we leave alone; clang for
 *	  all.) md.c may call its own mdextend(): those calls fill a file up to
 *	  a later segment, in recovery, and end with a truncation that we see;
 *	- the probe (probe.c) then sees each call arrive.
 *
 * Otherwise nothing is touched, and the tracker says why it refuses.
 *
 * The tables are written once, in the postmaster, before it has children and
 * before any file is open; children inherit them. The pages are made writable
 * for that moment and get back the protection they had.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include "access/clog.h"
#include "access/commit_ts.h"
#include "access/multixact.h"
#include "interpose.h"
#include "storage/md.h"

typedef void (*AnyFunction) (void);

typedef struct TableMember
{
	const char *name;
	AnyFunction original;		/* NULL: the table has none there */
	AnyFunction ours;			/* NULL: left alone */
} TableMember;

#define KEEP(fn)			{#fn, (AnyFunction) (fn), NULL}
#define TRACK(fn, ours)		{#fn, (AnyFunction) (fn), (AnyFunction) (ours)}
#define NONE				{"none", NULL, NULL}

/*
 * struct f_smgr of smgr.c, its one row.
 */
static const TableMember smgr_members[] = {
	KEEP(mdinit), NONE, KEEP(mdopen), KEEP(mdclose),
	TRACK(mdcreate, tracked_create), KEEP(mdexists),
	TRACK(mdunlink, tracked_unlink), TRACK(mdextend, tracked_extend),
#if PG_VERSION_NUM >= 160000
	TRACK(mdzeroextend, tracked_zeroextend),
#endif
	KEEP(mdprefetch),
#if PG_VERSION_NUM >= 180000
	KEEP(mdmaxcombine),
#endif
#if PG_VERSION_NUM >= 170000
	TRACK(mdreadv, tracked_readv),
#else
	TRACK(mdread, tracked_read),
#endif
#if PG_VERSION_NUM >= 180000
	TRACK(mdstartreadv, tracked_startreadv),
#endif
#if PG_VERSION_NUM >= 170000
	TRACK(mdwritev, tracked_writev),
#else
	TRACK(mdwrite, tracked_write),
#endif
	KEEP(mdwriteback), KEEP(mdnblocks), TRACK(mdtruncate, tracked_truncate),
	KEEP(mdimmedsync),
#if PG_VERSION_NUM >= 170000
	KEEP(mdregistersync),
#endif
#if PG_VERSION_NUM >= 180000
	KEEP(mdfd),
#endif
};

/*
 * struct SyncOps of sync.c, its five rows of sync, unlink, match.
 */
static const TableMember sync_members[] = {
	TRACK(mdsyncfiletag, tracked_sync), KEEP(mdunlinkfiletag), KEEP(mdfiletagmatches),
	TRACK(clogsyncfiletag, tracked_clog_sync), NONE, NONE,
	TRACK(committssyncfiletag, tracked_committs_sync), NONE, NONE,
	TRACK(multixactoffsetssyncfiletag, tracked_offsets_sync), NONE, NONE,
	TRACK(multixactmemberssyncfiletag, tracked_members_sync), NONE, NONE,
};

typedef struct Table
{
	const char *name;
	const TableMember *members;
	int			count;
	int			matches;
	bool		executable;		/* a match lies where code does */
	AnyFunction *place;
} Table;

static Table tables[] = {
	{"smgrsw", smgr_members, lengthof(smgr_members)},
	{"syncsw", sync_members, lengthof(sync_members)},
};

typedef struct Range
{
	const uint8 *start;
	const uint8 *end;
} Range;

#define MAX_TEXTS	8
static Range texts[MAX_TEXTS];
static int	text_count;

static bool
table_is_at(const Table *table, AnyFunction const *place)
{
	for (int i = 0; i < table->count; i++)
		if (place[i] != table->members[i].original)
			return false;
	return true;
}

static void
search_segment(Table *table, const Range *range, bool executable)
{
	AnyFunction *place = (AnyFunction *) TYPEALIGN(sizeof(AnyFunction), range->start);

	for (; (const uint8 *) (place + table->count) <= range->end; place++)
		if (table_is_at(table, place))
		{
			table->matches++;
			table->executable |= executable;
			table->place = place;
		}
}

/* Called for the main program first; the libraries are not of interest. */
static int
search_program(struct dl_phdr_info *info, size_t size, void *arg)
{
	for (int i = 0; i < info->dlpi_phnum; i++)
	{
		const ElfW(Phdr) *segment = &info->dlpi_phdr[i];
		bool		executable = (segment->p_flags & PF_X) != 0;
		Range		range;

		if (segment->p_type != PT_LOAD || !(segment->p_flags & PF_R))
			continue;
		range.start = (const uint8 *) info->dlpi_addr + segment->p_vaddr;
		range.end = range.start + segment->p_filesz;
		if (executable && text_count < MAX_TEXTS)
			texts[text_count++] = range;
		for (int t = 0; t < lengthof(tables); t++)
			search_segment(&tables[t], &range, executable);
	}
	return 1;
}

/*
 * Does the code at "at" call or jump to a fixed place? On x86-64 an
 * instruction may begin at any byte, so this can only err by seeing too many.
 */
static inline const uint8 *
branch_target(const uint8 *at)
{
#if defined(__x86_64__)
	int32		offset;

	if (at[0] == 0xE8 || at[0] == 0xE9)
		memcpy(&offset, at + 1, sizeof(offset));
	else
		return NULL;
	return at + 5 + offset;
#elif defined(__aarch64__)
	uint32		code;

	memcpy(&code, at, sizeof(code));
	if ((code & 0x7C000000) != 0x14000000)	/* B and BL */
		return NULL;
	return at + ((int64) ((int32) (code << 6) >> 6)) * 4;
#endif
}

/* x86-64's conditional jump to a far place: 0F 8x rel32 */
static inline const uint8 *
conditional_target(const uint8 *at)
{
#if defined(__x86_64__)
	int32		offset;

	if (at[0] != 0x0F || (at[1] & 0xF0) != 0x80)
		return NULL;
	memcpy(&offset, at + 2, sizeof(offset));
	return at + 6 + offset;
#else
	return NULL;
#endif
}

#if defined(__x86_64__)
#define CODE_STEP	1
#define CODE_LONGEST 6
#elif defined(__aarch64__)
#define CODE_STEP	4
#define CODE_LONGEST 4
#else
#define CODE_STEP	0			/* no idea of this machine's code */
#define CODE_LONGEST 0
#endif

/* md.c's own code, as far as the functions it exports reach. */
static Range
code_of_md(void)
{
	Range		range = {NULL, NULL};

	for (int i = 0; i < lengthof(smgr_members); i++)
	{
		const uint8 *at = (const uint8 *) smgr_members[i].original;

		if (at == NULL)
			continue;
		if (range.start == NULL || at < range.start)
			range.start = at;
		if (at > range.end)
			range.end = at;
	}
	return range;
}

/* Is this a function we replace, called from where it should not be? */
static const char *
passes_by_table(const uint8 *from, const uint8 *target, const Range *md)
{
	for (int t = 0; t < lengthof(tables); t++)
		for (int i = 0; i < tables[t].count; i++)
		{
			const TableMember *member = &tables[t].members[i];

			if (member->ours == NULL || (const uint8 *) member->original != target)
				continue;
			if (member->original == (AnyFunction) mdextend &&
				from >= md->start && from < md->end)
				continue;
			return member->name;
		}
	return NULL;
}

static const char *
find_direct_call(void)
{
	Range		md = code_of_md();
	Range		all = md;

	/* the sync functions of other files may lie outside of md.c */
	for (int i = 0; i < lengthof(sync_members); i++)
	{
		const uint8 *at = (const uint8 *) sync_members[i].original;

		if (at != NULL)
		{
			all.start = Min(all.start, at);
			all.end = Max(all.end, at);
		}
	}
	for (int t = 0; t < text_count; t++)
		for (const uint8 *at = texts[t].start; at + CODE_LONGEST <= texts[t].end; at += CODE_STEP)
		{
			const uint8 *target = branch_target(at);
			const char *name;

			if (target == NULL)
				target = conditional_target(at);
			if (target == NULL || target < all.start || target > all.end)
				continue;
			name = passes_by_table(at, target, &md);
			if (name != NULL)
				return name;
		}
	return NULL;
}

/* Look, and touch nothing. */
char *
interpose_find(void)
{
	const char *name;

	if (CODE_STEP == 0)
		return "this machine's code cannot be checked for calls that pass by the storage tables";
	dl_iterate_phdr(search_program, NULL);
	for (int t = 0; t < lengthof(tables); t++)
	{
		if (tables[t].matches != 1)
			return psprintf("this server's table \"%s\" was found %d times, not once",
							tables[t].name, tables[t].matches);
		if (tables[t].executable)
			return psprintf("this server's table \"%s\" lies among code", tables[t].name);
	}
	name = find_direct_call();
	if (name != NULL)
		return psprintf("this server was built so that %s() is called past its table", name);
	return NULL;
}

/* The protection of the page at an address, or -1. */
static int
page_protection(const void *address)
{
	FILE	   *maps = fopen("/proc/self/maps", "r");
	char		line[1024];
	int			protection = -1;

	while (maps != NULL && protection < 0 && fgets(line, sizeof(line), maps))
	{
		unsigned long start;
		unsigned long end;
		char		flags[5];

		if (sscanf(line, "%lx-%lx %4s", &start, &end, flags) == 3 &&
			(uintptr_t) address >= start && (uintptr_t) address < end)
			protection = (flags[0] == 'r' ? PROT_READ : 0) |
				(flags[1] == 'w' ? PROT_WRITE : 0) |
				(flags[2] == 'x' ? PROT_EXEC : 0);
	}
	if (maps != NULL)
		fclose(maps);
	return protection;
}

/* Make a table's pages writable, or what they were. */
static bool
protect_table(const Table *table, int protection)
{
	uintptr_t	page = sysconf(_SC_PAGESIZE);
	uintptr_t	start = (uintptr_t) table->place & ~(page - 1);
	uintptr_t	end = TYPEALIGN(page, (uintptr_t) (table->place + table->count));

	return mprotect((void *) start, end - start, protection) == 0;
}

static void
write_table(const Table *table, bool ours)
{
	for (int i = 0; i < table->count; i++)
		if (table->members[i].ours != NULL)
			__atomic_store_n(&table->place[i],
							 ours ? table->members[i].ours : table->members[i].original,
							 __ATOMIC_SEQ_CST);
}

static char *
patch_table(const Table *table)
{
	int			before = page_protection(table->place);
	int			at_end = page_protection(table->place + table->count - 1);

	if (before < 0 || before != at_end || (before & PROT_EXEC))
		return psprintf("the memory protection of table \"%s\" is not as expected", table->name);
	if (!(before & PROT_WRITE) && !protect_table(table, PROT_READ | PROT_WRITE))
		return psprintf("table \"%s\" cannot be made writable: %m", table->name);
	write_table(table, true);
	if (!(before & PROT_WRITE) && !protect_table(table, before))
	{
		write_table(table, false);
		return psprintf("table \"%s\" cannot be protected again: %m", table->name);
	}
	return NULL;
}

/* Put us in. The sync table goes first: alone, it does no harm. */
char *
interpose_patch(void)
{
	char	   *why = patch_table(&tables[1]);

	return why != NULL ? why : patch_table(&tables[0]);
}
