/*-------------------------------------------------------------------------
 *
 * map.h
 *	  The map of changed blocks: layout, in memory and on disk.
 *
 * The map is one run of 4 KiB pages in memory:
 *
 *	page 0			MapHeader
 *	pages 1..32		MapToken[]: the generations that a backup can name
 *	directory		MapEntry[]: an open-addressed hash table
 *	arena			pages of 2048 cells
 *
 * The file "pgstrata.map" in the data directory begins with the header; then
 * come groups of pages, in the order in which they were written: a MapGroup,
 * and the pages that it names. What comes later in the file holds.
 *
 * A cell belongs to one block and holds the generation in which the block
 * was last written; 0 is never. A page of cells covers 2048 blocks, that is
 * 16 MiB of one relation fork: a chunk. So the map is exact, and costs
 * 256 MiB for each TB that is written to, and nothing for what is not.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGSTRATA_MAP_H
#define PGSTRATA_MAP_H

#include "pgstrata.h"
#include "port/atomics.h"
#include "port/pg_crc32c.h"
#include "storage/lwlock.h"
#include "storage/s_lock.h"

#define PAGE_MAP_FILE		"pgstrata.map"
#define MAP_MAGIC			UINT64CONST(0x50414D5254534750)	/* "PGSTRMAP" */
#define MAP_FORMAT			2
#define MAP_PAGE			4096
#define CELLS_PER_PAGE		(MAP_PAGE / sizeof(uint16))

/*
 * A backup makes two tokens: at least 3072 are 64 days of hourly backups; older
 * ones are forgotten.
 * Generations are compacted to those with a token when they near 65535, so
 * the limit must be well above MAX_TOKENS. Tokens of questions by LSN, which
 * may come often, have their own share of it.
 */
#define MAX_TOKENS			4096
#define TOKENS_DROPPED		512
#define MAX_QUESTIONS		512
#define QUESTIONS_DROPPED	128
#define MAX_GENERATION		65000
#define TOKEN_PAGES			(MAX_TOKENS * sizeof(MapToken) / MAP_PAGE)

/* What a backup stored to ask later "what changed since". */
typedef struct MapToken
{
	uint64		nonce;			/* random: names this history, and no copy */
	XLogRecPtr	lsn;			/* insert or replay position after the bump */
	TimestampTz at;
	uint32		serial;			/* counts bumps, never renumbered */
	uint16		generation;		/* cells from here on changed since */
	uint16		kind;			/* TOKEN_... */
} MapToken;

#define TOKEN_BACKUP		0	/* somebody has it, and will ask for it */
#define TOKEN_QUESTION		1	/* made by a question by LSN, for the next */

StaticAssertDecl(sizeof(MapToken) == 32, "tokens must fill their pages");

/*
 * A directory entry. The key and the page never change while the entry is
 * ready.
 */
typedef struct MapEntry
{
	pg_atomic_uint32 state;		/* version << 2 | ENTRY_... */
	Oid			spc;
	Oid			db;
	uint32		rel;			/* 0 in a database's stamp */
	uint32		chunk;			/* fork << 24 | block / 2048 */
	uint32		page;			/* index into the arena, or NO_PAGE */
	uint32		last_chunk;		/* chunk 0 only: highest chunk with an entry */
	uint16		whole;			/* generation in which all of the fork, or of
								 * the database, was last replaced */
	uint16		check;			/* of key and page */
} MapEntry;

StaticAssertDecl(sizeof(MapEntry) == 32, "entries must fill their pages");

#define ENTRY_FREE			0	/* never used, or nothing after it: probing ends */
#define ENTRY_DEAD			1	/* forgotten: probing goes on */
#define ENTRY_BUSY			2	/* being written, under the directory lock */
#define ENTRY_READY			3
#define ENTRY_KIND(state)	((state) & 3)
#define ENTRY_VERSION(state) ((state) & ~(uint32) 3)

#define NO_PAGE				PG_UINT32_MAX
#define CHUNK_FORK(chunk)	((ForkNumber) ((chunk) >> 24))
#define CHUNK_NUMBER(chunk) ((chunk) & 0xFFFFFF)
#define CHUNK_KEY(fork, n)	(((uint32) (fork) << 24) | (n))
#define DATABASE_CHUNK		((uint32) 0xFF000000)

typedef struct MapKey
{
	Oid			spc;
	Oid			db;
	uint32		rel;
	uint32		chunk;
} MapKey;

/* Tells whether somebody wrote a file, or put another in its place. */
typedef struct FileIdentity
{
	uint64		inode;
	uint64		modified;		/* in ns; the change time would tell of chown, too */
} FileIdentity;

/*
 * The first sector of the file, and the only one that is ever overwritten:
 * last in every flush. What changes while the server runs is kept in
 * MapShared and copied in here.
 */
typedef struct MapHeader
{
	uint64		magic;
	uint32		format;
	uint32		block_size;
	uint64		system_identifier;

	/* the file: what lies beyond file_pages is a flush cut short, or nothing */
	uint64		file_id;		/* random, the same in every group */
	uint32		file_pages;		/* this one and the groups */

	/* geometry */
	uint32		slots;			/* of the directory, a power of two */
	uint32		pages_used;		/* of the arena */

	/* history */
	uint32		generation;
	uint32		serial;			/* of the last token */
	uint32		token_count;
	uint32		side_generation;	/* FSM and VM forks last called changed */
	bool		overflow;
	bool		clean;			/* the server stopped and all is in the file */
	TimestampTz since;
	XLogRecPtr	since_lsn;
	char		since_why[120];

	/* P6: by what to know that nobody wrote without us */
	XLogRecPtr	redo[2];		/* of the last flush, and the control file's then */
	FileIdentity opts;			/* postmaster.opts, rewritten at every start */
	FileIdentity control;		/* pg_control, of a clean map */
	pg_crc32c	control_crc;

	pg_crc32c	crc;			/* of all before */
} MapHeader;

StaticAssertDecl(sizeof(MapHeader) <= 512, "the header must fit a sector");

/* 512 KiB: long enough for the disk, short enough to share it. */
#define GROUP_PAGES			128
#define GROUP_MAGIC			UINT64CONST(0x50554F5247534750)	/* "PGSGROUP" */

/* One page of the file: which pages of the map follow it there. */
typedef struct MapGroup
{
	uint64		magic;
	uint64		file_id;
	uint32		place;			/* of this page in the file */
	uint32		count;
	struct
	{
		uint32		page;
		pg_crc32c	crc;
	}			pages[GROUP_PAGES];
	pg_crc32c	crc;			/* of all before */
} MapGroup;

StaticAssertDecl(sizeof(MapGroup) <= MAP_PAGE, "a group's head must fit a page");

/* What is shared by the processes but not kept in the file. */
typedef struct MapShared
{
	/* read at every mark: alone in its cache line */
	pg_atomic_uint32 generation;
	char		pad[PG_CACHE_LINE_SIZE - sizeof(pg_atomic_uint32)];

	/* the directory lock, and what it protects besides the directory */
	slock_t		directory_lock;
	uint32		pages_used;		/* arena pages ever handed out */
	uint32		free_count;		/* of them, in free_pages[] */
	uint32		entries;

	/* marks were lost for want of room; set without a lock, never unset */
	volatile bool overflow;

	/* written under the map lock */
	bool		verified;		/* the worker saw the tables used */
	uint32		probes_failed;	/* without an answer, since the last with one */
	bool		compacting;		/* cells are being renumbered */
	uint32		side_generation;
	char		refusal[200];	/* not empty: cannot be trusted, and why */

	/* the file, under the map lock */
	bool		rewrite;		/* the file may end in what is half written */
	uint64		file_inode;
	uint32		saved_pages;	/* file_pages when the whole map was written */

	/* statistics, under the map lock */
	uint64		flushes;
	uint64		flushed_pages;
	uint64		flush_us_total;
	uint64		flush_us_last;
	uint64		flush_us_max;
	uint64		flush_failures;
	TimestampTz flushed_at;

#ifdef PGSTRATA_MEASURE
	volatile bool bypass;
#endif
} MapShared;

/* Where everything is; set in the postmaster, inherited by its children. */
typedef struct Map
{
	char	   *base;			/* of the mapping that the file mirrors */
	MapHeader  *header;
	MapToken   *tokens;
	MapEntry   *directory;
	char	   *arena;
	uint32		slots;
	uint32		arena_pages;	/* capacity */
	Size		bytes;

	uint8	   *dirty;			/* one for each page of the mapping */
	uint32	   *free_pages;
	MapShared  *shared;

	/* held for flushes, tokens, header: never while marking */
	LWLock	   *lock;
} Map;

extern Map	map;

/* map.c */
extern bool map_create(int megabytes);
extern bool map_recreate(int megabytes);
extern bool map_after_crash(void);
extern uint32 map_mark(RelBackend rel, ForkNumber fork, BlockNumber block,
					   BlockNumber count);
extern void map_stamp_fork(RelBackend rel, ForkNumber fork);
extern void map_stamp_database(Oid db);
extern void map_forget_fork(RelBackend rel, ForkNumber fork);
extern void map_forget_database(Oid spc, Oid db);
extern uint16 *map_place(const MapEntry *entry);
extern void map_all_dirty(void);
extern void map_await_insertions(void);
extern bool map_entry_is_sound(const MapEntry *entry);
extern bool map_read_entry(uint32 slot, MapEntry *copy);
extern bool map_find_entry(Oid spc, Oid db, uint32 rel, uint32 chunk, MapEntry *copy);
extern uint16 map_stamp_of_database(Oid db);
extern bool map_entry_unchanged(uint32 slot, const MapEntry *copy);

static inline uint32
map_generation(void)
{
	return pg_atomic_read_u32(&map.shared->generation);
}

/* For as long as this server runs, its changes are not known. */
static inline bool
map_is_refused(void)
{
	return map.shared->refusal[0] != '\0';
}

static inline void
map_dirty(const void *place)
{
	uint8	   *flag = &map.dirty[((const char *) place - map.base) / MAP_PAGE];

	if (*(volatile uint8 *) flag == 0)
		*(volatile uint8 *) flag = 1;
}

static inline uint16 *
map_cells(uint32 page)
{
	return (uint16 *) (map.arena + (Size) page * MAP_PAGE);
}

/* mapfile.c */
struct ControlFileData;
extern bool mapfile_read_control(struct ControlFileData *control);
extern bool mapfile_flush(XLogRecPtr redo);
extern bool mapfile_flush_seen(void);
extern bool mapfile_flush_or_discard(void);
extern void mapfile_flush_or_error(void);
extern bool mapfile_save(void);
extern bool mapfile_save_at_exit(bool clean);
extern bool mapfile_read_header(MapHeader *header, const char **why);
extern bool mapfile_load(const MapHeader *header, const char **why);
extern bool mapfile_discard(void);

/* How the reason of a reset begins. Backups look for these words. */
#define HISTORY_WAS_RESET	"it was reset by role"

/* history.c */
extern void history_begin(const char *why, XLogRecPtr lsn);
extern void history_drop(const char *why);
extern void history_side_forks_changed(void);
extern MapToken history_bump(uint16 kind);
extern bool history_drop_token(const char *text);
extern MapToken *history_tokens(uint32 *count);
extern bool history_find(const char *text, uint32 *generation, char **why);
extern bool history_find_lsn(XLogRecPtr lsn, uint32 *generation);
extern char *history_token_text(const MapToken *token);
extern uint16 *history_compaction(uint32 *generation);

#endif							/* PGSTRATA_MAP_H */
