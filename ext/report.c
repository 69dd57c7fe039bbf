/*-------------------------------------------------------------------------
 *
 * report.c
 *	  Reading changed blocks out of the map.
 *
 * Two ways. Report walks the map: it copies the directory's entries (32 bytes
 * for each 16 MiB ever touched), sorts them, and then makes one row after the
 * other; no file is opened. report_visit_files() walks the data directory and
 * asks the map for each file, which gives exact sizes.
 *
 * Neither takes a lock. Marks only come to be more while we read, and an
 * entry that is recycled belonged to a relation that is gone. What reading
 * must not meet is a renumbering of generations: functions.c looks for that
 * when it has reached the end.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <sys/stat.h>

#include "catalog/pg_tablespace_d.h"
#include "common/file_utils.h"
#include "miscadmin.h"
#include "nodes/pg_list.h"
#include "report.h"
#include "storage/fd.h"

StaticAssertDecl(RELSEG_SIZE % CELLS_PER_PAGE == 0,
				 "a chunk must not cross a segment");

#define CHUNKS_PER_SEGMENT	(RELSEG_SIZE / CELLS_PER_PAGE)
#define TABLESPACE_LINKS	"pg_tblspc"

typedef struct SlotEntry
{
	MapEntry	entry;
	uint32		slot;
} SlotEntry;

struct Report
{
	uint32		since;
	SlotEntry  *entries;
	uint32		count;
	uint32		next;
	int			side_forks_left;	/* FSM and VM of everything: rows to come */
	List	   *directories;	/* of stamped databases: rows to come */
};

static int
compare_entries(const void *a, const void *b)
{
	const MapEntry *l = &((const SlotEntry *) a)->entry;
	const MapEntry *r = &((const SlotEntry *) b)->entry;

	if (l->spc != r->spc)
		return l->spc < r->spc ? -1 : 1;
	if (l->db != r->db)
		return l->db < r->db ? -1 : 1;
	if (l->rel != r->rel)
		return l->rel < r->rel ? -1 : 1;
	if (l->chunk != r->chunk)
		return l->chunk < r->chunk ? -1 : 1;
	return 0;
}

static void
relation_path(char *path, const MapEntry *entry)
{
	if (entry->spc == GLOBALTABLESPACE_OID)
		snprintf(path, MAXPGPATH, "global/%u", entry->rel);
	else if (entry->spc == DEFAULTTABLESPACE_OID)
		snprintf(path, MAXPGPATH, "base/%u/%u", entry->db, entry->rel);
	else
		snprintf(path, MAXPGPATH, TABLESPACE_LINKS "/%u/%s/%u/%u", entry->spc,
				 TABLESPACE_VERSION_DIRECTORY, entry->db, entry->rel);
}

typedef void (*DatabaseVisitor) (Oid spc, Oid db, const char *path, void *context);

typedef struct DatabaseWalk
{
	DatabaseVisitor visit;
	void	   *context;
} DatabaseWalk;

/* Call for each tablespace that somebody made. */
static void
visit_tablespaces(void (*visit) (Oid spc, void *context), void *context)
{
	DIR		   *dir = AllocateDir(TABLESPACE_LINKS);
	struct dirent *entry;

	while ((entry = ReadDir(dir, TABLESPACE_LINKS)) != NULL)
		if (strspn(entry->d_name, "0123456789") == strlen(entry->d_name))
			visit((Oid) strtoul(entry->d_name, NULL, 10), context);
	FreeDir(dir);
}

/* The databases of a tablespace. */
static void
walk_databases(DatabaseWalk *walk, Oid spc, const char *path)
{
	DIR		   *dir = AllocateDir(path);
	struct dirent *entry;

	if (dir == NULL && errno == ENOENT)
		return;
	while ((entry = ReadDir(dir, path)) != NULL)
	{
		char		sub[MAXPGPATH];

		if (strspn(entry->d_name, "0123456789") != strlen(entry->d_name))
			continue;
		snprintf(sub, sizeof(sub), "%s/%s", path, entry->d_name);
		walk->visit(spc, strtoul(entry->d_name, NULL, 10), sub, walk->context);
	}
	FreeDir(dir);
}

static void
walk_tablespace(Oid spc, void *context)
{
	char		path[MAXPGPATH];

	snprintf(path, sizeof(path), TABLESPACE_LINKS "/%u/%s", spc,
			 TABLESPACE_VERSION_DIRECTORY);
	walk_databases(context, spc, path);
}

/* Call for each directory of a database. */
static void
visit_databases(DatabaseVisitor visit, void *context)
{
	DatabaseWalk walk = {visit, context};

	walk_databases(&walk, DEFAULTTABLESPACE_OID, "base");
	visit_tablespaces(walk_tablespace, &walk);
}

static void
note_if_replaced(Oid spc, Oid db, const char *path, void *context)
{
	List	  **databases = context;

	if (protocol_database_is_replaced(db))
		*databases = list_append_unique_oid(*databases, db);
}

typedef struct DatabaseDirectories
{
	Oid			db;
	List	   *paths;
} DatabaseDirectories;

static void
add_database_directory(Oid spc, void *context)
{
	DatabaseDirectories *found = context;
	char	   *path = psprintf(TABLESPACE_LINKS "/%u/%s/%u", spc,
								TABLESPACE_VERSION_DIRECTORY, found->db);
	struct stat st;

	if (stat(path, &st) == 0)
		found->paths = lappend(found->paths, path);
}

/* The directories of a database, one in each tablespace that it uses. */
static List *
database_directories(Oid db)
{
	DatabaseDirectories found = {db, NIL};
	char	   *path = psprintf("base/%u", db);
	struct stat st;

	if (stat(path, &st) == 0)
		found.paths = lappend(found.paths, path);
	visit_tablespaces(add_database_directory, &found);
	return found.paths;
}

/*
 * In the current memory context, where the report stays. Which databases are
 * being replaced is asked first: one that is not any more has its stamp.
 */
Report *
report_begin(uint32 since)
{
	Report	   *report = palloc0(sizeof(Report));
	uint32		room = map.shared->entries + 1024;
	List	   *databases = NIL;
	ListCell   *cell;

	visit_databases(note_if_replaced, &databases);
	report->since = since;
	report->side_forks_left = map.shared->side_generation >= since ? 2 : 0;
	report->entries = palloc_extended((Size) room * sizeof(SlotEntry), MCXT_ALLOC_HUGE);
	for (uint32 slot = 0; slot < map.slots; slot++)
	{
		SlotEntry  *next;

		if (report->count == room)
		{
			room *= 2;
			report->entries = repalloc_huge(report->entries,
											(Size) room * sizeof(SlotEntry));
		}
		next = &report->entries[report->count];
		if (!map_read_entry(slot, &next->entry))
			continue;
		next->slot = slot;
		if (next->entry.chunk != DATABASE_CHUNK)
			report->count++;
		else if (next->entry.whole >= since)
			databases = list_append_unique_oid(databases, next->entry.db);
	}
	foreach(cell, databases)
		report->directories = list_concat(report->directories,
										  database_directories(lfirst_oid(cell)));
	qsort(report->entries, report->count, sizeof(SlotEntry), compare_entries);
	return report;
}

static void
clear_row(ReportRow *row)
{
	row->path[0] = '\0';
	row->fork = InvalidForkNumber;
	row->whole = true;
	row->segment = 0;
	row->block_count = 0;
	row->bitmap_bytes = 0;
	memset(row->bitmap, 0, sizeof(row->bitmap));
}

/* Set the bits of a chunk's changed blocks; "limit" blocks of it count. */
static void
add_chunk(ReportRow *row, const MapEntry *entry, uint32 since, uint32 limit)
{
	const uint16 *cells = map_cells(entry->page);
	uint32		base = (CHUNK_NUMBER(entry->chunk) % CHUNKS_PER_SEGMENT) * CELLS_PER_PAGE;

	for (uint32 i = 0; i < limit; i++)
		if (((volatile const uint16 *) cells)[i] >= since)
		{
			uint32		block = base + i;

			row->bitmap[block / 8] |= 1 << (block % 8);
			row->bitmap_bytes = block / 8 + 1;
			row->block_count++;
		}
}

static bool
same_fork(const MapEntry *a, const MapEntry *b)
{
	return a->spc == b->spc && a->db == b->db && a->rel == b->rel &&
		CHUNK_FORK(a->chunk) == CHUNK_FORK(b->chunk);
}

static uint32
segment_of(const MapEntry *entry)
{
	return CHUNK_NUMBER(entry->chunk) / CHUNKS_PER_SEGMENT;
}

/* Take the entries of the next fork that is stamped, or of its next segment. */
static void
take_entries(Report *report, ReportRow *row)
{
	SlotEntry  *first = &report->entries[report->next];

	clear_row(row);
	row->fork = CHUNK_FORK(first->entry.chunk);
	row->segment = segment_of(&first->entry);
	row->whole = first->entry.whole >= report->since;
	relation_path(row->path, &first->entry);
	while (report->next < report->count)
	{
		SlotEntry  *this = &report->entries[report->next];

		if (!same_fork(&first->entry, &this->entry) ||
			(!row->whole && segment_of(&this->entry) != row->segment))
			break;
		if (!row->whole && map_entry_unchanged(this->slot, &this->entry))
			add_chunk(row, &this->entry, report->since, CELLS_PER_PAGE);
		report->next++;
	}
}

bool
report_next(Report *report, ReportRow *row)
{
	if (report->side_forks_left > 0)
	{
		clear_row(row);
		row->fork = report->side_forks_left-- == 2 ? FSM_FORKNUM : VISIBILITYMAP_FORKNUM;
		return true;
	}
	if (report->directories != NIL)
	{
		clear_row(row);
		strlcpy(row->path, linitial(report->directories), MAXPGPATH);
		report->directories = list_delete_first(report->directories);
		return true;
	}
	while (report->next < report->count)
	{
		take_entries(report, row);
		if (row->whole || row->block_count > 0)
			return true;
	}
	return false;
}

/* ------------------------------------------------------------------------
 * By files
 * ------------------------------------------------------------------------
 */

/* "16384", "16384_vm", "16384.3", "16384_fsm.1"; no temporary relations. */
static bool
parse_relation_name(const char *name, RelationFile *file)
{
	char	   *end;
	int			length;

	if (name[0] < '1' || name[0] > '9')
		return false;
	file->rel = strtoul(name, &end, 10);
	file->fork = MAIN_FORKNUM;
	file->segment = 0;
	if (*end == '_')
	{
		length = forkname_chars(end + 1, &file->fork);
		if (length == 0)
			return false;
		end += 1 + length;
	}
	if (*end == '.')
		file->segment = strtoul(end + 1, &end, 10);
	return *end == '\0';
}

typedef struct FileWalk
{
	RelationFileVisitor visit;
	void	   *context;
	RelationFile file;
} FileWalk;

static void
walk_directory(FileWalk *walk, const char *path)
{
	DIR		   *dir = AllocateDir(path);
	struct dirent *entry;
	struct stat st;

	/* a database may be dropped while we look */
	if (dir == NULL && errno == ENOENT)
		return;
	while ((entry = ReadDir(dir, path)) != NULL)
	{
		CHECK_FOR_INTERRUPTS();
		if (!parse_relation_name(entry->d_name, &walk->file))
			continue;
		snprintf(walk->file.path, MAXPGPATH, "%s/%s", path, entry->d_name);
		if (stat(walk->file.path, &st) != 0)
			continue;
		walk->file.block_count = Min(st.st_size / BLCKSZ, RELSEG_SIZE);
		walk->visit(&walk->file, walk->context);
	}
	FreeDir(dir);
}

/* As above, the locks before the stamps, which report_file() reads. */
static void
walk_database(Oid spc, Oid db, const char *path, void *context)
{
	FileWalk   *walk = context;

	walk->file.spc = spc;
	walk->file.db = db;
	walk->file.replaced = protocol_database_is_replaced(db);
	walk_directory(walk, path);
}

void
report_visit_files(RelationFileVisitor visit, void *context)
{
	FileWalk	walk = {visit, context};

	walk.file.spc = GLOBALTABLESPACE_OID;
	walk_directory(&walk, "global");
	visit_databases(walk_database, &walk);
}

static void
all_blocks(ReportRow *row, uint32 count)
{
	for (uint32 block = 0; block < count; block++)
		row->bitmap[block / 8] |= 1 << (block % 8);
	row->bitmap_bytes = (count + 7) / 8;
	row->block_count = count;
}

/* Which of the blocks that the file has have changed? */
void
report_file(const RelationFile *file, uint32 since, ReportRow *row)
{
	MapEntry	entry;
	bool		side = file->fork == FSM_FORKNUM || file->fork == VISIBILITYMAP_FORKNUM;
	uint32		chunk = file->segment * CHUNKS_PER_SEGMENT;

	clear_row(row);
	row->fork = file->fork;
	row->segment = file->segment;
	strlcpy(row->path, file->path, MAXPGPATH);
	if ((side && map.shared->side_generation >= since) || file->replaced ||
		map_stamp_of_database(file->db) >= since ||
		(map_find_entry(file->spc, file->db, file->rel, CHUNK_KEY(file->fork, 0), &entry) &&
		 entry.whole >= since))
	{
		all_blocks(row, file->block_count);
		return;
	}
	row->whole = false;
	for (uint32 done = 0; done < file->block_count; done += CELLS_PER_PAGE, chunk++)
		if (map_find_entry(file->spc, file->db, file->rel, CHUNK_KEY(file->fork, chunk), &entry))
			add_chunk(row, &entry, since, Min(CELLS_PER_PAGE, file->block_count - done));
}
