/*-------------------------------------------------------------------------
 *
 * mapfile.c
 *	  The map on disk: flush, save, load.
 *
 * The file "pgstrata.map" lies in the top of the data directory (pg_checksums
 * would stumble over it in global/) and mirrors the mapping up to the last
 * arena page in use.
 *
 * A flush writes the dirty pages in place and syncs them, then writes the
 * header and syncs again. Only that second step records a redo pointer, so
 *
 *		a redo pointer in the header says that every mark that recovery from
 *		there will not make again is in the file.
 *
 * If power fails in the middle, the file holds some mix of old and new pages
 * under the old or the new header. Cells only grow, and an entry or a token
 * is never split, so a mix has every mark of the older flush; and the control
 * file still names the older checkpoint, whose recovery marks the rest again.
 *
 * What is not a growth (another size, compacted generations, a new history)
 * is never written in place: mapfile_save() makes a new file and renames it.
 *
 * A flush that fails leaves the header as it was and everything dirty. The
 * next may succeed; if the server crashes before, the control file's redo is
 * not in the header, and the history is void.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "catalog/pg_control.h"
#include "common/controldata_utils.h"
#include "map.h"
#include "miscadmin.h"
#include "portability/instr_time.h"
#include "storage/fd.h"
#include "utils/timestamp.h"

#define MAP_TEMPORARY	PAGE_MAP_FILE ".tmp"

/* 1 MiB: long enough for the disk, short enough to share it. */
#define WRITE_PAGES		256

#define HEADER_CRC_LENGTH	offsetof(MapHeader, crc)

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

static Size
pages_in_file(void)
{
	return (map.arena - map.base) / MAP_PAGE + map.shared->pages_used;
}

/* Write runs of dirty pages; the header is not among them. */
static bool
write_dirty_pages(int fd, uint64 *written)
{
	Size		end = pages_in_file();
	Size		page = 1;

	while (page < end)
	{
		Size		first;
		uint8	   *next = memchr(&map.dirty[page], 1, end - page);

		if (next == NULL)
			break;
		first = page = next - map.dirty;
		while (page < end && page - first < WRITE_PAGES && map.dirty[page])
			map.dirty[page++] = 0;

		/* a mark made from here on makes its page dirty again */
		pg_memory_barrier();
		if (!write_all(fd, map.base + first * MAP_PAGE,
					   (page - first) * MAP_PAGE, first * MAP_PAGE))
			return false;
		*written += page - first;
	}
	return true;
}

/* Bring the header up to date, and write it. */
static bool
write_header(int fd)
{
	MapHeader  *header = map.header;

	header->magic = MAP_MAGIC;
	header->format = MAP_FORMAT;
	header->block_size = BLCKSZ;
	header->slots = map.slots;
	header->pages_used = map.shared->pages_used;
	header->generation = map_generation();
	header->side_generation = map.shared->side_generation;
	header->overflow = map.shared->overflow;
	header->crc = crc_of(header, HEADER_CRC_LENGTH);
	return write_all(fd, (char *) header, MAP_PAGE, 0);
}

/* The redo pointer that recovery would start from now, or 0. */
static XLogRecPtr
control_redo(void)
{
	ControlFileData *control;
	bool		control_ok;
	XLogRecPtr	redo;

	LWLockAcquire(ControlFileLock, LW_SHARED);
	control = get_controlfile(DataDir, &control_ok);
	LWLockRelease(ControlFileLock);
	redo = control_ok ? control->checkPointCopy.redo : InvalidXLogRecPtr;
	pfree(control);
	return redo;
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

static bool
flush_locked(XLogRecPtr redo)
{
	instr_time	began;
	uint64		pages = 0;
	XLogRecPtr	at_begin;
	int			fd;
	bool		ok;

	/* half renumbered cells must not reach the file */
	if (map.shared->compacting)
		return false;

	INSTR_TIME_SET_CURRENT(began);
	at_begin = control_redo();
	fd = BasicOpenFile(PAGE_MAP_FILE, O_RDWR | PG_BINARY);
	if (fd < 0 && errno == ENOENT)
	{
		record_redo(redo, at_begin);
		return mapfile_save();
	}
	ok = fd >= 0 && write_dirty_pages(fd, &pages) && pg_fdatasync(fd) == 0;
	if (ok)
	{
		record_redo(redo, at_begin);
		ok = write_header(fd) && pg_fdatasync(fd) == 0;
	}
	if (!ok)
	{
		int			save_errno = errno;

		map_all_dirty();
		map.shared->flush_failures++;
		map.header->redo[0] = InvalidXLogRecPtr;
		errno = save_errno;
		ereport(LOG,
				(errcode_for_file_access(),
				 errmsg("pgstrata: could not flush page map \"%s\": %m", PAGE_MAP_FILE)));
	}
	else
		count_flush(began, pages);
	if (fd >= 0)
		close(fd);
	return ok;
}

/*
 * Flush. "redo" is recorded if it is valid: only its checkpoint, or one who
 * saw it in the control file, may say it.
 */
bool
mapfile_flush(XLogRecPtr redo)
{
	bool		ok;

	LWLockAcquire(map.lock, LW_EXCLUSIVE);
	ok = flush_locked(redo);
	LWLockRelease(map.lock);
	return ok;
}

/*
 * Flush before something becomes durable that no recovery would mark again.
 * If that fails, the file goes; if that fails too, so must the transaction.
 */
void
mapfile_flush_or_error(void)
{
	if (!mapfile_flush(InvalidXLogRecPtr) && !mapfile_discard())
		ereport(ERROR,
				(errcode_for_file_access(),
				 errmsg("could not flush or remove page map \"%s\": %m", PAGE_MAP_FILE),
				 errhint("Make the data directory writable, or remove pgstrata from shared_preload_libraries.")));
}

/*
 * Write the whole map to a new file and put it in the old one's place. The
 * caller holds the lock, or is alone.
 */
bool
mapfile_save(void)
{
	Size		end = pages_in_file();
	int			fd = BasicOpenFile(MAP_TEMPORARY, O_RDWR | O_CREAT | O_TRUNC | PG_BINARY);
	bool		ok = fd >= 0;

	for (Size page = 1; ok && page < end; page += WRITE_PAGES)
	{
		Size		n = Min(WRITE_PAGES, end - page);

		memset(&map.dirty[page], 0, n);
		pg_memory_barrier();
		ok = write_all(fd, map.base + page * MAP_PAGE, n * MAP_PAGE, page * MAP_PAGE);
	}
	ok = ok && write_header(fd) && pg_fsync(fd) == 0;
	if (fd >= 0)
		close(fd);
	ok = ok && durable_rename(MAP_TEMPORARY, PAGE_MAP_FILE, LOG) == 0;
	if (!ok)
	{
		map_all_dirty();
		map.shared->flush_failures++;
		ereport(LOG,
				(errcode_for_file_access(),
				 errmsg("pgstrata: could not save page map \"%s\": %m", PAGE_MAP_FILE)));
	}
	return ok;
}

/*
 * At the very end of the postmaster, with all children gone and the control
 * file saying "shut down": the one state in which all of the file is what the
 * memory was, so it gets a checksum. The caller filled the control_ fields.
 */
bool
mapfile_save_clean(void)
{
	uint64		pages = 0;
	int			fd = BasicOpenFile(PAGE_MAP_FILE, O_RDWR | PG_BINARY);
	bool		ok = fd >= 0 && write_dirty_pages(fd, &pages) && pg_fdatasync(fd) == 0;

	if (ok)
	{
		map.header->clean = true;
		map.header->body_crc = crc_of(map.base + MAP_PAGE,
									  (pages_in_file() - 1) * MAP_PAGE);
		ok = write_header(fd) && pg_fdatasync(fd) == 0;
	}
	if (fd >= 0)
		close(fd);
	return ok;
}

/* Read the header: nothing in it may be believed before this says yes. */
bool
mapfile_read_header(MapHeader *header, const char **why)
{
	int			fd = BasicOpenFile(PAGE_MAP_FILE, O_RDONLY | PG_BINARY);
	ssize_t		n;

	if (fd < 0)
	{
		*why = errno == ENOENT ? "there was no page map" :
			"the page map could not be opened";
		return false;
	}
	n = pread(fd, header, sizeof(MapHeader), 0);
	close(fd);
	*why = "the page map is damaged";
	if (n != sizeof(MapHeader))
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
		header->pages_used <= header->slots &&
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

		/*
		 * A page beyond the header's count was given out after that header
		 * was written: its marks are newer than the redo recorded there.
		 */
		if (cells != NULL && entry->page < header->pages_used)
			load_cells(cells, (uint16 *) (arena + (Size) entry->page * MAP_PAGE),
					   renumber);
	}
	return true;
}

/*
 * The file's image in memory of its own. Pages missing at its end are zero:
 * they were given out but never marked, or a clean map's checksum will tell.
 */
static char *
read_image(Size length)
{
	char	   *image = mmap(NULL, length, PROT_READ | PROT_WRITE,
							 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	int			fd;
	Size		done = 0;
	ssize_t		n = 0;

	if (image == MAP_FAILED)
		return NULL;
	fd = BasicOpenFile(PAGE_MAP_FILE, O_RDONLY | PG_BINARY);
	while (fd >= 0 && done < length &&
		   (n = pread(fd, image + done, length - done, done)) > 0)
		done += n;
	if (fd >= 0)
		close(fd);
	if (fd < 0 || n < 0)
	{
		munmap(image, length);
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
	Size		length = (1 + TOKEN_PAGES + (Size) header->pages_used) * MAP_PAGE +
		(Size) header->slots * sizeof(MapEntry);
	char	   *image = read_image(length);
	uint16	   *renumber;
	uint32		generation = header->generation;
	bool		ok = false;

	*why = "the page map could not be read";
	if (image == NULL)
		return false;
	if (header->clean &&
		header->body_crc != crc_of(image + MAP_PAGE, length - MAP_PAGE))
		*why = "the page map's contents fail their checksum";
	else
	{
		memcpy(map.header, header, sizeof(MapHeader));
		memcpy(map.tokens, image + MAP_PAGE, MAX_TOKENS * sizeof(MapToken));
		renumber = history_compaction(&generation);
		ok = load_directory(image, header, renumber, why);
		map.shared->side_generation = renumber[header->side_generation & PG_UINT16_MAX];
		pg_atomic_write_u32(&map.shared->generation, generation);
		free(renumber);
	}
	munmap(image, length);
	return ok;
}

/* Make sure that no old map is believed at the next start. */
bool
mapfile_discard(void)
{
	if (unlink(PAGE_MAP_FILE) != 0 && errno != ENOENT)
		return false;
	fsync_fname(DataDir, true);
	return true;
}
