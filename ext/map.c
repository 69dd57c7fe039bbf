/*-------------------------------------------------------------------------
 *
 * map.c
 *	  The map in memory: its directory, its cells, and marking.
 *
 * The map lives in an anonymous shared mapping made by the postmaster before
 * it forks, so it outlives a crash of its children. Untouched pages of it
 * take no memory: the size is a capacity.
 *
 * Marking takes no lock. A process looks the chunk up (in a cache of its
 * own, then in the directory) and raises the cell by compare-and-swap, at
 * most once per block and generation. Only a chunk's first mark inserts
 * into the directory, under a spinlock.
 *
 * Invariants:
 *
 *	- A cell only grows, but for compaction (history.c), which renumbers all.
 *	- A mark sets the cell first and the dirty byte of its page second; a
 *	  flush clears the byte first and copies the page second, each with a full
 *	  fence between. So a mark that ended before a flush began is in the file,
 *	  or its page is still dirty. An entry and its page of the directory are
 *	  written in the same order, under the directory lock, but a mark may find
 *	  the entry in between: so a flush first waits for who holds the lock.
 *	- A ready entry's key and page do not change. An entry is recycled only
 *	  after its relation's file was unlinked, when no write to it can be in
 *	  flight; the version in its state tells a reader, or a cache, of it.
 *	- Marks are lost only for want of room, and then "overflow" is set.
 *	- Whatever is not in use by a ready entry is free. The list of free pages
 *	  says so for speed, and is not believed after a crash of a child.
 *
 * Nothing here raises an error: marks are made inside critical sections.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <sys/mman.h>

#include "map.h"
#include "miscadmin.h"
#include "storage/spin.h"

Map			map;

/*
 * Chunks this process marked lately. 4096 entries are 64 GiB of hot blocks, and
 * 160 kB, of which only what is used becomes memory.
 */
#define CACHE_SIZE	4096

typedef struct CachedChunk
{
	MapKey		key;
	uint32		state;			/* the entry's when it was looked up */
	MapEntry   *entry;
	uint16	   *cells;
} CachedChunk;

static CachedChunk cache[CACHE_SIZE];

static inline uint64
mix64(uint64 h)
{
	h ^= h >> 33;
	h *= UINT64CONST(0xff51afd7ed558ccd);
	h ^= h >> 33;
	h *= UINT64CONST(0xc4ceb9fe1a85ec53);
	return h ^ (h >> 33);
}

static inline uint64
key_hash(const MapKey *key)
{
	uint64		h = mix64(((uint64) key->rel << 32) | key->chunk);

	return mix64(h ^ (((uint64) key->db << 32) | key->spc));
}

static inline bool
key_matches(const MapEntry *entry, const MapKey *key)
{
	return entry->rel == key->rel && entry->chunk == key->chunk &&
		entry->db == key->db && entry->spc == key->spc;
}

static uint16
entry_check(const MapEntry *entry)
{
	MapKey		key = {entry->spc, entry->db, entry->rel, entry->chunk};

	return (uint16) mix64(key_hash(&key) ^ entry->page);
}

bool
map_entry_is_sound(const MapEntry *entry)
{
	return entry->check == entry_check(entry);
}

/*
 * Make the mapping. The directory has at least twice as many slots as the
 * arena has pages, so that probing stays short.
 */
bool
map_create(int megabytes)
{
	Size		pages = (Size) megabytes * (1024 * 1024 / MAP_PAGE);
	Size		side;
	char	   *extra;

	map.bytes = pages * MAP_PAGE;
	map.slots = 1;
	while (map.slots < pages * 2)
		map.slots *= 2;
	map.arena_pages = pages - 1 - TOKEN_PAGES -
		map.slots * sizeof(MapEntry) / MAP_PAGE;

	side = TYPEALIGN(MAP_PAGE, sizeof(MapShared)) +
		TYPEALIGN(MAP_PAGE, pages) + map.arena_pages * sizeof(uint32);
	map.base = mmap(NULL, map.bytes, PROT_READ | PROT_WRITE,
					MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	extra = mmap(NULL, side, PROT_READ | PROT_WRITE,
				 MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (map.base == MAP_FAILED || extra == MAP_FAILED)
		return false;

	map.header = (MapHeader *) map.base;
	map.tokens = (MapToken *) (map.base + MAP_PAGE);
	map.directory = (MapEntry *) (map.base + (1 + TOKEN_PAGES) * MAP_PAGE);
	map.arena = (char *) (map.directory + map.slots);
	map.shared = (MapShared *) extra;
	map.dirty = (uint8 *) extra + TYPEALIGN(MAP_PAGE, sizeof(MapShared));
	map.free_pages = (uint32 *) (map.dirty + TYPEALIGN(MAP_PAGE, pages));
	SpinLockInit(&map.shared->directory_lock);
	pg_atomic_init_u32(&map.shared->generation, 1);
	return true;
}

/* Empty again: what was loaded turned out to be of no use. */
bool
map_recreate(int megabytes)
{
	Size		extra = (char *) (map.free_pages + map.arena_pages) -
		(char *) map.shared;

	munmap(map.base, map.bytes);
	munmap((void *) map.shared, extra);
	memset(&map, 0, sizeof(map));
	return map_create(megabytes);
}

/* Everything in use must go to the file with the next flush. */
void
map_all_dirty(void)
{
	Size		pages = (map.arena - map.base) / MAP_PAGE + map.shared->pages_used;

	memset(map.dirty, 1, pages);
	pg_memory_barrier();
}

/* Can a ready entry be what an insertion left? "taken" are others' pages. */
static bool
entry_is_right(const MapEntry *entry, uint8 *taken)
{
	if (!map_entry_is_sound(entry))
		return false;
	if (entry->chunk == DATABASE_CHUNK)
		return entry->page == NO_PAGE;
	if (entry->page >= map.shared->pages_used || taken[entry->page])
		return false;
	taken[entry->page] = 1;
	return true;
}

/*
 * The children are gone, perhaps in the middle of something. An insertion cut
 * short leaves a busy entry; the count and the list of free pages, and the
 * count of entries, may be anything, and are made anew out of the directory. A
 * mark cut short between cell and dirty byte is why all becomes dirty.
 *
 * False if an entry cannot be right: memory was overwritten. Such are dropped,
 * and with them what they knew.
 */
bool
map_after_crash(void)
{
	MapShared  *shared = map.shared;
	uint8	   *taken = calloc(map.arena_pages, 1);
	bool		right = taken != NULL && shared->pages_used <= map.arena_pages;

	SpinLockInit(&shared->directory_lock);
	shared->entries = 0;
	shared->free_count = 0;
	shared->pages_used = Min(shared->pages_used, map.arena_pages);
	for (uint32 i = 0; i < map.slots; i++)
	{
		MapEntry   *entry = &map.directory[i];
		uint32		state = pg_atomic_read_u32(&entry->state);

		if (ENTRY_KIND(state) == ENTRY_READY && taken != NULL && entry_is_right(entry, taken))
			shared->entries++;
		else if (ENTRY_KIND(state) == ENTRY_READY || ENTRY_KIND(state) == ENTRY_BUSY)
		{
			right = right && ENTRY_KIND(state) == ENTRY_BUSY;
			pg_atomic_write_u32(&entry->state, ENTRY_VERSION(state) | ENTRY_DEAD);
		}
	}
	for (uint32 page = 0; taken != NULL && page < shared->pages_used; page++)
		if (!taken[page])
			map.free_pages[shared->free_count++] = page;
	free(taken);
	map_all_dirty();
	return right;
}

/*
 * Find a key's entry. Without the lock an entry may be recycled while it is
 * looked at: its state, read before and after the comparison, tells.
 */
static MapEntry *
lookup(const MapKey *key, uint32 *state)
{
	uint32		mask = map.slots - 1;
	uint32		slot = key_hash(key) & mask;

	for (uint32 n = 0; n <= mask; n++, slot = (slot + 1) & mask)
	{
		MapEntry   *entry = &map.directory[slot];

		*state = pg_atomic_read_u32(&entry->state);
		if (ENTRY_KIND(*state) == ENTRY_FREE)
			return NULL;
		if (ENTRY_KIND(*state) != ENTRY_READY)
			continue;
		pg_read_barrier();
		if (!key_matches(entry, key))
			continue;
		pg_read_barrier();
		if (pg_atomic_read_u32(&entry->state) == *state)
			return entry;
	}
	return NULL;
}

/* A zeroed arena page, under the lock. */
static uint32
take_page(void)
{
	MapShared  *shared = map.shared;

	if (shared->free_count > 0)
	{
		uint32		page = map.free_pages[--shared->free_count];

		memset(map_cells(page), 0, MAP_PAGE);
		map_dirty(map_cells(page));
		return page;
	}
	if (shared->pages_used < map.arena_pages)
		return shared->pages_used++;
	return NO_PAGE;
}

/*
 * Insert a key that is not there, under the lock, into the first slot of its
 * path that is not in use.
 */
static MapEntry *
insert_locked(const MapKey *key)
{
	uint32		mask = map.slots - 1;
	uint32		slot = key_hash(key) & mask;
	bool		wants_page = key->chunk != DATABASE_CHUNK;
	uint32		page = NO_PAGE;

	if (wants_page && (page = take_page()) == NO_PAGE)
		return NULL;
	for (uint32 n = 0; n <= mask; n++, slot = (slot + 1) & mask)
	{
		MapEntry   *entry = &map.directory[slot];
		uint32		state = pg_atomic_read_u32(&entry->state);

		if (ENTRY_KIND(state) == ENTRY_READY)
			continue;
		pg_atomic_write_u32(&entry->state, ENTRY_VERSION(state) | ENTRY_BUSY);
		pg_write_barrier();
		entry->spc = key->spc;
		entry->db = key->db;
		entry->rel = key->rel;
		entry->chunk = key->chunk;
		entry->page = page;
		entry->last_chunk = 0;
		entry->whole = 0;
		entry->check = entry_check(entry);
		pg_write_barrier();
		pg_atomic_write_u32(&entry->state, (ENTRY_VERSION(state) + 4) | ENTRY_READY);

		/* a flush that clears the byte once we have read it copies the entry */
		pg_memory_barrier();
		map_dirty(entry);
		map.shared->entries++;
		return entry;
	}
	return NULL;
}

/*
 * Find or insert. A fork's first chunk has an entry whenever any of its
 * chunks has one: it knows the highest, so that a fork can be forgotten
 * without a walk through the directory.
 */
static MapEntry *
find_or_insert(const MapKey *key, uint32 *state)
{
	MapEntry   *entry = lookup(key, state);
	MapEntry   *first = NULL;
	MapKey		first_key = *key;
	uint32		ignored;

	if (entry != NULL)
		return entry;

	SpinLockAcquire(&map.shared->directory_lock);
	entry = lookup(key, state);
	if (entry == NULL && key->chunk != DATABASE_CHUNK &&
		CHUNK_NUMBER(key->chunk) > 0)
	{
		first_key.chunk = CHUNK_KEY(CHUNK_FORK(key->chunk), 0);
		first = lookup(&first_key, &ignored);
		if (first == NULL)
			first = insert_locked(&first_key);
		if (first != NULL && first->last_chunk < CHUNK_NUMBER(key->chunk))
		{
			first->last_chunk = CHUNK_NUMBER(key->chunk);
			map_dirty(first);
		}
		if (first != NULL)
			entry = insert_locked(key);
	}
	else if (entry == NULL)
		entry = insert_locked(key);
	if (entry != NULL)
		*state = pg_atomic_read_u32(&entry->state);
	else
		map.shared->overflow = true;
	SpinLockRelease(&map.shared->directory_lock);
	return entry;
}

/*
 * From here on all marks that have ended are in dirty pages, entries and all.
 * A lookup takes no lock, so a mark may end in an entry that is ready while who
 * inserts it has not come to the dirty byte. To set the byte before the entry is
 * ready would not do: a flush may come between, and copy what counts as
 * nothing. But the inserter keeps the lock until both are done.
 */
void
map_await_insertions(void)
{
	SpinLockAcquire(&map.shared->directory_lock);
	SpinLockRelease(&map.shared->directory_lock);
}

static inline void
raise_generation(uint16 *place, uint16 generation)
{
	uint16		old = *(volatile uint16 *) place;

	while (old < generation)
	{
		if (__atomic_compare_exchange_n(place, &old, generation, false,
										__ATOMIC_SEQ_CST, __ATOMIC_RELAXED))
		{
			pg_memory_barrier();
			map_dirty(place);
			return;
		}
	}
}

static inline uint16 *
find_cells(const MapKey *key)
{
	CachedChunk *cached = &cache[(key->rel * 31 + key->chunk * 7 +
								  CHUNK_FORK(key->chunk) * 101) % CACHE_SIZE];
	MapEntry   *entry;

	if (cached->entry != NULL &&
		cached->key.rel == key->rel && cached->key.chunk == key->chunk &&
		cached->key.db == key->db && cached->key.spc == key->spc &&
		pg_atomic_read_u32(&cached->entry->state) == cached->state)
		return cached->cells;

	entry = find_or_insert(key, &cached->state);
	cached->entry = entry;
	if (entry == NULL)
		return NULL;
	cached->key = *key;
	cached->cells = map_cells(entry->page);
	return cached->cells;
}

/*
 * Mark blocks as written in the current generation, which is returned: the
 * caller compares it with the current one after the write (P1).
 */
uint32
map_mark(RelBackend rel, ForkNumber fork, BlockNumber block, BlockNumber count)
{
	uint32		generation = map_generation();
	MapKey		key = {REL_SPC(rel), REL_DB(rel), REL_NUMBER(rel), 0};

	while (count > 0)
	{
		uint32		first = block % CELLS_PER_PAGE;
		uint32		n = Min(count, CELLS_PER_PAGE - first);
		uint16	   *cells;

		key.chunk = CHUNK_KEY(fork, block / CELLS_PER_PAGE);
		cells = find_cells(&key);
		if (cells == NULL)
			break;
		for (uint32 i = 0; i < n; i++)
			raise_generation(&cells[first + i], (uint16) generation);
		block += n;
		count -= n;
	}
	return generation;
}

static void
stamp(const MapKey *key)
{
	uint32		state;
	MapEntry   *entry = find_or_insert(key, &state);

	if (entry != NULL)
		raise_generation(&entry->whole, (uint16) map_generation());
}

/* All blocks of a fork count as changed: its file is a new one. */
void
map_stamp_fork(RelBackend rel, ForkNumber fork)
{
	MapKey		key = {REL_SPC(rel), REL_DB(rel), REL_NUMBER(rel), CHUNK_KEY(fork, 0)};

	stamp(&key);
}

/* All files of a database, in every tablespace, count as changed. */
void
map_stamp_database(Oid db)
{
	MapKey		key = {InvalidOid, db, 0, DATABASE_CHUNK};

	stamp(&key);
}

/*
 * Free an entry and its page, under the lock. Dead entries at the end of a
 * run become free, or lookups would grow longer for ever.
 */
static void
forget_locked(MapEntry *entry)
{
	uint32		mask = map.slots - 1;
	uint32		slot = entry - map.directory;
	uint32		state = pg_atomic_read_u32(&entry->state);

	pg_atomic_write_u32(&entry->state, ENTRY_VERSION(state) | ENTRY_DEAD);
	map_dirty(entry);
	map.shared->entries--;
	if (entry->page != NO_PAGE)
		map.free_pages[map.shared->free_count++] = entry->page;

	state = pg_atomic_read_u32(&map.directory[(slot + 1) & mask].state);
	while (ENTRY_KIND(state) == ENTRY_FREE)
	{
		entry = &map.directory[slot];
		state = pg_atomic_read_u32(&entry->state);
		if (ENTRY_KIND(state) != ENTRY_DEAD)
			break;
		state = ENTRY_VERSION(state) | ENTRY_FREE;
		pg_atomic_write_u32(&entry->state, state);
		map_dirty(entry);
		slot = (slot - 1) & mask;
	}
}

/*
 * The fork's file was unlinked. If a file of that name comes to be again, it
 * is stamped when it is created.
 */
void
map_forget_fork(RelBackend rel, ForkNumber fork)
{
	MapKey		key = {REL_SPC(rel), REL_DB(rel), REL_NUMBER(rel), CHUNK_KEY(fork, 0)};
	uint32		state;
	MapEntry   *entry = lookup(&key, &state);
	uint32		last;

	if (entry == NULL)
		return;
	last = entry->last_chunk;
	for (uint32 n = last + 1; n-- > 0;)
	{
		key.chunk = CHUNK_KEY(fork, n);
		SpinLockAcquire(&map.shared->directory_lock);
		entry = lookup(&key, &state);
		if (entry != NULL)
			forget_locked(entry);
		SpinLockRelease(&map.shared->directory_lock);
	}
}

/*
 * The database's files, in one tablespace or (InvalidOid) in all, were
 * removed as a directory. With the last of them its stamp goes: if a database
 * of that number comes to be again, it is stamped, or its files are.
 */
void
map_forget_database(Oid spc, Oid db)
{
	for (uint32 i = 0; i < map.slots; i++)
	{
		MapEntry   *entry = &map.directory[i];

		if (ENTRY_KIND(pg_atomic_read_u32(&entry->state)) != ENTRY_READY ||
			entry->db != db)
			continue;
		SpinLockAcquire(&map.shared->directory_lock);
		if (ENTRY_KIND(pg_atomic_read_u32(&entry->state)) == ENTRY_READY &&
			entry->db == db && (spc == InvalidOid || entry->spc == spc))
			forget_locked(entry);
		SpinLockRelease(&map.shared->directory_lock);
	}
}

/*
 * Put an entry read from a file into an empty or growing map, in the
 * postmaster, and return its cells for filling. If the file had the key
 * twice (a flush cut short may leave that), the cells come to be shared.
 * NULL when there is no room, or no page to fill.
 */
uint16 *
map_place(const MapEntry *old)
{
	MapKey		key = {old->spc, old->db, old->rel, old->chunk};
	uint32		state;
	MapEntry   *entry = find_or_insert(&key, &state);

	if (entry == NULL)
		return NULL;
	entry->whole = Max(entry->whole, old->whole);
	return entry->page == NO_PAGE ? NULL : map_cells(entry->page);
}

/* Copy a slot's entry, if it is ready and was so throughout. */
bool
map_read_entry(uint32 slot, MapEntry *copy)
{
	MapEntry   *entry = &map.directory[slot];
	uint32		state = pg_atomic_read_u32(&entry->state);

	if (ENTRY_KIND(state) != ENTRY_READY)
		return false;
	pg_read_barrier();
	memcpy(copy, entry, sizeof(MapEntry));
	pg_atomic_init_u32(&copy->state, state);
	return map_entry_unchanged(slot, copy);
}

/* Is the slot still the relation's it was when copied? */
bool
map_entry_unchanged(uint32 slot, const MapEntry *copy)
{
	pg_read_barrier();
	return pg_atomic_read_u32(&map.directory[slot].state) ==
		copy->state.value;
}

/* Look a chunk up for reading. */
bool
map_find_entry(Oid spc, Oid db, uint32 rel, uint32 chunk, MapEntry *copy)
{
	MapKey		key = {spc, db, rel, chunk};
	uint32		state;
	MapEntry   *entry = lookup(&key, &state);

	return entry != NULL && map_read_entry(entry - map.directory, copy);
}

/* The generation in which the database's files were replaced, or 0. */
uint16
map_stamp_of_database(Oid db)
{
	MapEntry	entry;

	return map_find_entry(InvalidOid, db, 0, DATABASE_CHUNK, &entry) ? entry.whole : 0;
}
