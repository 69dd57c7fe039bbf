/*-------------------------------------------------------------------------
 *
 * mapfile.c
 *	  The map on disk: flush, save, load.
 *
 * The file "pgstrata.map" lies in the top of the data directory (pg_checksums
 * would stumble over it in global/).
 *
 * Nothing in it is overwritten but the header's sector. A flush appends the
 * dirty pages, in groups that have a checksum for each page, and syncs; then
 * the header says how long the file is now, and it syncs again. So whatever is
 * cut short and whatever of it reaches the disk,
 *
 *		the file is, as far as its header says, exactly what one flush left,
 *
 * every page of that is checked when it is read, and a file that is shorter,
 * or has a page that fails, is damaged: no crash leaves one. Only with the
 * header goes a redo pointer on record, so
 *
 *		a redo pointer in the header says that every mark that recovery from
 *		there will not make again is in the file.
 *
 * When the file has grown to more than twice what the map needs, and when it
 * may end in what is half written, mapfile_save() makes a new one and renames
 * it. So it does with what is not a growth: another size, compacted
 * generations, a new history.
 *
 * A flush that fails leaves the header and the file's length as they were, and
 * dirty what was. The next may succeed; if the server crashes before, the control file's redo is
 * not in the header, and the history is void.
 *
 * Once the tracker has refused there is no file, nor a flush that would make
 * one: the next start must not believe what this one did not see.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "access/xlog.h"
#include "access/xlog_internal.h"
#include "catalog/pg_control.h"
#include "map.h"
#include "miscadmin.h"
#include "portability/instr_time.h"
#include "storage/fd.h"
#include "utils/timestamp.h"

#define MAP_TEMPORARY	PAGE_MAP_FILE ".tmp"

/* The file may grow to twice what was saved and this many pages: 16 MiB. */
#define GROWTH_PAGES	4096

#define HEADER_CRC_LENGTH	offsetof(MapHeader, crc)
#define GROUP_CRC_LENGTH	offsetof(MapGroup, crc)

/* Pages that were dirty until this flush took them, if there is memory for it. */
static uint8 *taken = NULL;

/* A group on its way. */
static union
{
	MapGroup	head;
	char		pages[1 + GROUP_PAGES][MAP_PAGE];
}			group;

static pg_crc32c
crc_of(const void *data, Size length)
{
	pg_crc32c	crc;

	INIT_CRC32C(crc);
	COMP_CRC32C(crc, data, length);
	FIN_CRC32C(crc);
	return crc;
}

static bool
write_all(int fd, const char *data, Size length, off_t offset)
{
	while (length > 0)
	{
		ssize_t		n = pwrite(fd, data, length, offset);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
		{
			if (n == 0)
				errno = ENOSPC;
			return false;
		}
		data += n;
		offset += n;
		length -= n;
	}
	return true;
}

static bool
read_all(int fd, char *data, Size length, off_t offset)
{
	while (length > 0)
	{
		ssize_t		n = pread(fd, data, length, offset);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return false;
		data += n;
		offset += n;
		length -= n;
	}
	return true;
}

static Size
pages_in_use(void)
{
	return (map.arena - map.base) / MAP_PAGE + map.shared->pages_used;
}

static bool
is_zero(const char *page)
{
	return page[0] == 0 && memcmp(page, page + 1, MAP_PAGE - 1) == 0;
}

/*
 * Copy the next pages that are dirty, or all that are not zero, into the
 * group. The header is not among them. What is written, and checksummed, is
 * the copy: others go on marking.
 */
static void
fill_group(Size *page, Size end, bool all)
{
	MapGroup   *head = &group.head;

	head->count = 0;
	while (*page < end && head->count < GROUP_PAGES)
	{
		uint8	   *next = all ? &map.dirty[*page] : memchr(&map.dirty[*page], 1, end - *page);
		char	   *copy = group.pages[1 + head->count];

		if (next == NULL)
		{
			*page = end;
			break;
		}
		*page = next - map.dirty;
		*next = 0;
		if (taken != NULL)
			taken[*page] = 1;

		/* a mark made from here on makes its page dirty again */
		pg_memory_barrier();
		memcpy(copy, map.base + *page * MAP_PAGE, MAP_PAGE);
		if (!all || !is_zero(copy))
		{
			head->pages[head->count].page = *page;
			head->pages[head->count].crc = crc_of(copy, MAP_PAGE);
			head->count++;
		}
		(*page)++;
	}
}

/* Append groups of the dirty pages, or of all, at the given page of the file. */
static bool
append_pages(int fd, uint32 *place, bool all)
{
	Size		end = pages_in_use();
	MapGroup   *head = &group.head;

	for (Size page = 1; page < end;)
	{
		memset(group.pages[0], 0, MAP_PAGE);
		fill_group(&page, end, all);
		if (head->count == 0)
			break;
		head->magic = GROUP_MAGIC;
		head->file_id = map.header->file_id;
		head->place = *place;
		head->crc = crc_of(head, GROUP_CRC_LENGTH);
		if (!write_all(fd, group.pages[0], (1 + head->count) * MAP_PAGE,
					   (off_t) *place * MAP_PAGE))
			return false;
		*place += 1 + head->count;
	}
	return true;
}

/* Bring the header up to date, and write it. */
static bool
write_header(int fd, uint32 file_pages)
{
	MapHeader  *header = map.header;

	header->magic = MAP_MAGIC;
	header->format = MAP_FORMAT;
	header->block_size = BLCKSZ;
	header->file_pages = file_pages;
	header->slots = map.slots;
	header->pages_used = map.shared->pages_used;
	header->generation = map_generation();
	header->side_generation = map.shared->side_generation;
	header->overflow = map.shared->overflow;
	header->crc = crc_of(header, HEADER_CRC_LENGTH);
	return write_all(fd, (char *) header, MAP_PAGE, 0);
}

static bool
try_control(ControlFileData *control)
{
	int			fd = BasicOpenFile(XLOG_CONTROL_FILE, O_RDONLY | PG_BINARY);
	bool		complete;

	if (fd < 0)
		return false;
	complete = read_all(fd, (char *) control, sizeof(ControlFileData), 0);
	close(fd);
	return complete && control->crc == crc_of(control, offsetof(ControlFileData, crc));
}

/*
 * The control file, or false and zeros if it cannot be read. The server's own
 * function raises an error then. In the middle of a truncation, or of the
 * server's end, that would be worse than not to know.
 */
bool
mapfile_read_control(ControlFileData *control)
{
	/* some write it without a lock, and are done with it at once */
	for (int tries = 0; tries < 3; tries++)
		if (try_control(control))
			return true;
	memset(control, 0, sizeof(ControlFileData));
	return false;
}

/* What the control file says now. */
typedef struct ControlState
{
	XLogRecPtr	redo;			/* recovery would start there; 0: not known */
	bool		shutting_down;	/* this is the server's last checkpoint */
} ControlState;

static ControlState
read_control(void)
{
	ControlState state;
	ControlFileData control;

	LWLockAcquire(ControlFileLock, LW_SHARED);
	(void) mapfile_read_control(&control);
	LWLockRelease(ControlFileLock);
	state.redo = control.checkPointCopy.redo;

	/* the checkpoint at the end of recovery says so, too */
	state.shutting_down = control.state == DB_SHUTDOWNING && !RecoveryInProgress();
	return state;
}

/*
 * Put a flush on record: the redo pointer that its checkpoint is about to put
 * into the control file, and the one that was there when the flush began, as
 * the checkpoint may never get so far. Not one that is there by now: marks
 * that only its checkpoint made superfluous may have missed this flush.
 */
static void
record_redo(XLogRecPtr redo, XLogRecPtr at_begin)
{
	if (redo == InvalidXLogRecPtr || redo == map.header->redo[0])
		return;
	map.header->redo[0] = redo;
	map.header->redo[1] = at_begin;
}

static void
count_flush(instr_time began, uint64 pages)
{
	MapShared  *shared = map.shared;
	instr_time	now;

	INSTR_TIME_SET_CURRENT(now);
	INSTR_TIME_SUBTRACT(now, began);
	shared->flush_us_last = INSTR_TIME_GET_MICROSEC(now);
	shared->flush_us_max = Max(shared->flush_us_max, shared->flush_us_last);
	shared->flush_us_total += shared->flush_us_last;
	shared->flushed_pages += pages;
	shared->flushes++;
	shared->flushed_at = GetCurrentTimestamp();
}

/* How many pages a flush would append. */
static uint32
dirty_pages(void)
{
	uint32		count = 0;

	for (Size page = 1; page < map.bytes / MAP_PAGE; page++)
		count += map.dirty[page] != 0;
	return count;
}

/*
 * Open the file for appending; -1 if a new one must be written. Who knows what
 * somebody did to the file while the server runs.
 */
static int
open_to_append(void)
{
	uint32		length = map.header->file_pages;
	int			fd = BasicOpenFile(PAGE_MAP_FILE, O_RDWR | PG_BINARY);
	struct stat st;

	if (fd >= 0 && !map.shared->rewrite && fstat(fd, &st) == 0 &&
		st.st_ino == map.shared->file_inode && st.st_size >= (off_t) length * MAP_PAGE &&
		length + dirty_pages() <= 2 * map.shared->saved_pages + GROWTH_PAGES)
		return fd;
	if (fd >= 0)
		close(fd);
	return -1;
}

/* What a flush took that failed is dirty as before. */
static void
give_back(void)
{
	if (taken == NULL)
		map_all_dirty();
	else
		for (Size page = 1; page < map.bytes / MAP_PAGE; page++)
			if (taken[page])
				map.dirty[page] = 1;
	pg_memory_barrier();
}

/*
 * Append what is dirty. If that fails, as on a full disk, the file is as long
 * as before, and may be appended to.
 */
static bool
append_and_sync(int fd, uint32 *length)
{
	int			save_errno;

	if (taken == NULL)
		taken = malloc(map.bytes / MAP_PAGE);
	if (taken != NULL)
		memset(taken, 0, map.bytes / MAP_PAGE);
	if (append_pages(fd, length, false) && pg_fdatasync(fd) == 0)
		return true;
	save_errno = errno;
	if (ftruncate(fd, (off_t) map.header->file_pages * MAP_PAGE) == 0)
		map.shared->rewrite = false;
	errno = save_errno;
	return false;
}

/* Write what is not in the file, then the header with this redo pointer. */
static bool
append_dirty(int fd, XLogRecPtr redo, XLogRecPtr at_begin)
{
	uint32		length = map.header->file_pages;

	/* until we have done: should we be killed, nobody appends to this */
	map.shared->rewrite = true;
	if (append_and_sync(fd, &length))
	{
		record_redo(redo, at_begin);
		if (write_header(fd, length) && pg_fdatasync(fd) == 0)
		{
			map.shared->rewrite = false;
			return true;
		}
	}
	give_back();
	return false;
}

/*
 * The last checkpoint of a server that stops does not go on record: after it
 * the cluster counts as shut down, so whoever likes may write to it, and the
 * control file ends with the same redo pointer. That the cluster is as we
 * left it, only a clean map can say.
 */
static bool
flush_locked(XLogRecPtr redo, bool seen)
{
	instr_time	began;
	ControlState control;
	uint32		length = map.header->file_pages;
	int			fd;
	bool		ok;

	/* half renumbered cells must not reach the file */
	if (map.shared->compacting || map_is_refused())
		return false;

	INSTR_TIME_SET_CURRENT(began);
	control = read_control();
	if (control.redo == InvalidXLogRecPtr)
	{
		map.shared->flush_failures++;
		map.header->redo[0] = InvalidXLogRecPtr;
		ereport(LOG,
				(errmsg("pgstrata: could not flush page map \"%s\": file \"%s\" could not be read",
						PAGE_MAP_FILE, XLOG_CONTROL_FILE)));
		return false;
	}
	if (seen)
		redo = control.redo;
	if (control.shutting_down)
		redo = InvalidXLogRecPtr;
	map_await_insertions();
	fd = open_to_append();
	if (fd < 0)
	{
		record_redo(redo, control.redo);
		length = 0;
		ok = mapfile_save();
	}
	else if (!(ok = append_dirty(fd, redo, control.redo)))
	{
		map.shared->flush_failures++;
		ereport(LOG,
				(errcode_for_file_access(),
				 errmsg("pgstrata: could not flush page map \"%s\": %m", PAGE_MAP_FILE)));
	}
	if (fd >= 0)
		close(fd);
	if (ok)
		count_flush(began, map.header->file_pages - length);
	else
		map.header->redo[0] = InvalidXLogRecPtr;
	return ok;
}

/*
 * Flush. "redo" is recorded if it is valid: only its checkpoint, before it
 * puts it into the control file, may say it.
 */
bool
mapfile_flush(XLogRecPtr redo)
{
	bool		ok;

	LWLockAcquire(map.lock, LW_EXCLUSIVE);
	ok = flush_locked(redo, false);
	LWLockRelease(map.lock);
	return ok;
}

/*
 * Flush, and record the redo pointer that the control file has when the flush
 * begins. One that was read before the lock could replace a younger one.
 */
bool
mapfile_flush_seen(void)
{
	bool		ok;

	LWLockAcquire(map.lock, LW_EXCLUSIVE);
	ok = flush_locked(InvalidXLogRecPtr, true);
	LWLockRelease(map.lock);
	return ok;
}

/*
 * Flush before something becomes durable that no recovery would mark again.
 * If that fails, the file goes; false if that fails too.
 */
bool
mapfile_flush_or_discard(void)
{
	return mapfile_flush(InvalidXLogRecPtr) || mapfile_discard();
}

/* The same where a transaction can still fail. */
void
mapfile_flush_or_error(void)
{
	if (!mapfile_flush_or_discard())
		ereport(ERROR,
				(errcode_for_file_access(),
				 errmsg("could not flush or remove page map \"%s\": %m", PAGE_MAP_FILE),
				 errhint("Make the data directory writable, or remove pgstrata from shared_preload_libraries.")));
}

/* A new file's contents; "inode" is the file's. */
static bool
write_whole(int fd, uint64 *inode)
{
	uint32		length = 1;
	struct stat st;

	if (fd < 0 || fstat(fd, &st) != 0 ||
		!pg_strong_random(&map.header->file_id, sizeof(map.header->file_id)))
		return false;
	*inode = st.st_ino;
	return append_pages(fd, &length, true) && write_header(fd, length) && pg_fsync(fd) == 0;
}

/*
 * Write the whole map to a new file and put it in the old one's place. The
 * caller holds the lock, or is alone.
 */
bool
mapfile_save(void)
{
	int			fd;
	uint64		inode = 0;
	bool		ok;

	if (map_is_refused())
		return false;
	fd = BasicOpenFile(MAP_TEMPORARY, O_RDWR | O_CREAT | O_TRUNC | PG_BINARY);
	ok = write_whole(fd, &inode);
	if (fd >= 0)
		close(fd);
	map.shared->rewrite = true;
	ok = ok && durable_rename(MAP_TEMPORARY, PAGE_MAP_FILE, LOG) == 0;
	if (ok)
	{
		map.shared->rewrite = false;
		map.shared->file_inode = inode;
		map.shared->saved_pages = map.header->file_pages;
	}
	else
	{
		int			save_errno = errno;

		/* what a disk is full with should not be ours */
		(void) unlink(MAP_TEMPORARY);
		errno = save_errno;
		map_all_dirty();
		map.shared->flush_failures++;
		ereport(LOG,
				(errcode_for_file_access(),
				 errmsg("pgstrata: could not save page map \"%s\": %m", PAGE_MAP_FILE)));
	}
	return ok;
}

/*
 * Nobody writes any more: all of the memory goes to the file. If the map is
 * clean, the control file says "shut down"; the caller filled the control
 * fields, and holds the lock or is alone.
 */
bool
mapfile_save_at_exit(bool clean)
{
	int			fd = open_to_append();
	bool		ok;

	map.header->clean = clean;
	ok = fd < 0 ? mapfile_save() : append_dirty(fd, InvalidXLogRecPtr, InvalidXLogRecPtr);
	map.header->clean = false;
	if (fd >= 0)
		close(fd);
	if (!ok)
		ereport(LOG,
				(errcode_for_file_access(),
				 errmsg("pgstrata: could not save page map \"%s\": %m", PAGE_MAP_FILE)));
	return ok;
}

/* Read the header: nothing in it may be believed before this says yes. */
bool
mapfile_read_header(MapHeader *header, const char **why)
{
	int			fd = BasicOpenFile(PAGE_MAP_FILE, O_RDONLY | PG_BINARY);
	bool		complete;

	if (fd < 0)
	{
		*why = errno == ENOENT ? "there was no page map" :
			"the page map could not be opened";
		return false;
	}
	complete = read_all(fd, (char *) header, sizeof(MapHeader), 0);
	close(fd);
	*why = "the page map is damaged";
	if (!complete)
		return false;
	if (header->magic != MAP_MAGIC)
		return false;
	if (header->format != MAP_FORMAT || header->block_size != BLCKSZ)
	{
		*why = "the page map is of another version";
		return false;
	}
	return header->crc == crc_of(header, HEADER_CRC_LENGTH) &&
		header->slots > 0 && (header->slots & (header->slots - 1)) == 0 &&
		header->pages_used <= header->slots && header->file_pages > 0 &&
		header->token_count <= MAX_TOKENS &&
		header->generation <= PG_UINT16_MAX;
}

/* Raise the new cells to the old ones, renumbered. */
static void
load_cells(uint16 *cells, const uint16 *old, const uint16 *renumber)
{
	for (uint32 i = 0; i < CELLS_PER_PAGE; i++)
		cells[i] = Max(cells[i], renumber[old[i]]);
}

/*
 * Insert every entry of the file's image into the map, and its cells. The
 * file's directory may have another size than ours.
 */
static bool
load_directory(char *image, const MapHeader *header, const uint16 *renumber,
			   const char **why)
{
	MapEntry   *entries = (MapEntry *) (image + (1 + TOKEN_PAGES) * MAP_PAGE);
	char	   *arena = (char *) (entries + header->slots);

	for (uint32 i = 0; i < header->slots; i++)
	{
		MapEntry   *entry = &entries[i];
		uint16	   *cells;

		if (ENTRY_KIND(entry->state.value) != ENTRY_READY)
			continue;
		if (!map_entry_is_sound(entry))
		{
			*why = "the page map's directory is damaged";
			return false;
		}
		entry->whole = renumber[entry->whole];
		cells = map_place(entry);
		if (map.shared->overflow)
		{
			*why = "the page map does not fit into pgstrata.map_size";
			return false;
		}

		/* the header's count is younger than the directory */
		if (cells != NULL && entry->page >= header->pages_used)
		{
			*why = "the page map's directory is damaged";
			return false;
		}
		if (cells != NULL)
			load_cells(cells, (uint16 *) (arena + (Size) entry->page * MAP_PAGE),
					   renumber);
	}
	return true;
}

/* Read a group, and put its pages in their places. */
static bool
read_group(int fd, const MapHeader *header, uint32 *place, char *image, Size image_pages)
{
	MapGroup   *head = &group.head;
	off_t		at = (off_t) *place * MAP_PAGE;

	if (!read_all(fd, group.pages[0], MAP_PAGE, at) ||
		head->magic != GROUP_MAGIC || head->crc != crc_of(head, GROUP_CRC_LENGTH) ||
		head->file_id != header->file_id || head->place != *place ||
		head->count == 0 || head->count > GROUP_PAGES ||
		head->count >= header->file_pages - *place ||
		!read_all(fd, group.pages[1], head->count * MAP_PAGE, at + MAP_PAGE))
		return false;
	for (uint32 i = 0; i < head->count; i++)
	{
		uint32		page = head->pages[i].page;

		if (page == 0 || page >= image_pages ||
			head->pages[i].crc != crc_of(group.pages[1 + i], MAP_PAGE))
			return false;
		memcpy(image + (Size) page * MAP_PAGE, group.pages[1 + i], MAP_PAGE);
	}
	*place += 1 + head->count;
	return true;
}

/*
 * The map that the file holds, in memory of its own. Pages that are not in the
 * file are zero. NULL if anything that the header counts is not as written.
 */
static char *
read_image(const MapHeader *header, Size pages)
{
	char	   *image = mmap(NULL, pages * MAP_PAGE, PROT_READ | PROT_WRITE,
							 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	int			fd;
	uint32		place = 1;
	bool		ok;

	if (image == MAP_FAILED)
		return NULL;
	fd = BasicOpenFile(PAGE_MAP_FILE, O_RDONLY | PG_BINARY);
	ok = fd >= 0;
	while (ok && place < header->file_pages)
		ok = read_group(fd, header, &place, image, pages);
	if (fd >= 0)
		close(fd);
	if (!ok)
	{
		munmap(image, pages * MAP_PAGE);
		return NULL;
	}
	return image;
}

/*
 * Load the file that the header was read from into the empty map. Sizes may
 * differ, and old generations are compacted on the way, so that a server
 * restarted now and then never needs to do it while it runs.
 */
bool
mapfile_load(const MapHeader *header, const char **why)
{
	Size		pages = 1 + TOKEN_PAGES + header->pages_used +
		(Size) header->slots * sizeof(MapEntry) / MAP_PAGE;
	char	   *image = read_image(header, pages);
	uint16	   *renumber;
	uint32		generation = header->generation;
	bool		ok;

	*why = "the page map is damaged";
	if (image == NULL)
		return false;
	memcpy(map.header, header, sizeof(MapHeader));
	memcpy(map.tokens, image + MAP_PAGE, MAX_TOKENS * sizeof(MapToken));
	renumber = history_compaction(&generation);
	if (renumber == NULL)
	{
		*why = "there was no memory to read the page map";
		munmap(image, pages * MAP_PAGE);
		return false;
	}
	ok = load_directory(image, header, renumber, why);
	map.shared->side_generation = renumber[header->side_generation & PG_UINT16_MAX];
	pg_atomic_write_u32(&map.shared->generation, generation);
	free(renumber);
	munmap(image, pages * MAP_PAGE);
	return ok;
}

/*
 * The server's own function would end it where the directory cannot be opened.
 * As there, file systems that do not sync directories are no failure.
 */
static bool
sync_data_directory(void)
{
	int			fd = BasicOpenFile(DataDir, O_RDONLY | PG_BINARY);
	bool		ok = fd >= 0 &&
		(pg_fsync(fd) == 0 || errno == EBADF || errno == EINVAL);
	int			save_errno = errno;

	if (fd >= 0)
		close(fd);
	errno = save_errno;
	return ok;
}

/*
 * Make sure that no old map is believed at the next start. The caller tells if
 * that fails: this raises no error.
 */
bool
mapfile_discard(void)
{
	return (unlink(PAGE_MAP_FILE) == 0 || errno == ENOENT) && sync_data_directory();
}
