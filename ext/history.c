/*-------------------------------------------------------------------------
 *
 * history.c
 *	  Generations, and the tokens by which backups name them.
 *
 * A cell holds the generation in which its block was last written. A backup
 * bumps the generation before it starts, and keeps the token it gets, a
 * serial number and a random nonce. Blocks that changed since are those with
 * a cell of at least the token's generation. The nonce is what makes a token
 * of another history, of a copy of this cluster or of a time that was rolled
 * back, unknown instead of wrong.
 *
 * Compaction: generations have 16 bits. Those that no token names are merged
 * into the next lower one that some token does, so a token's answer stays
 * exactly as it was. It is done at start when half of the numbers are used,
 * and while the server runs only when they would run out.
 *
 * All of this happens under the map lock; marking does not take it.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xlog.h"
#include "access/xlogrecovery.h"
#include "map.h"
#include "miscadmin.h"
#include "utils/timestamp.h"

static bool
tells_of_reset(const char *why)
{
	return strncmp(why, HISTORY_WAS_RESET, strlen(HISTORY_WAS_RESET)) == 0;
}

/*
 * A history begins: nothing is known of the time before. A reset stays said,
 * whatever voids the history after it: to who has a token from before, it is
 * more than that the token is void. Files were written past the server.
 */
void
history_begin(const char *why, XLogRecPtr lsn)
{
	MapHeader  *header = map.header;
	Size		said = strlen(header->since_why);

	header->token_count = 0;
	header->since = GetCurrentTimestamp();
	header->since_lsn = lsn;
	if (!tells_of_reset(header->since_why) || tells_of_reset(why))
		strlcpy(header->since_why, why, sizeof(header->since_why));
	else if (strstr(header->since_why, why) == NULL)
		snprintf(header->since_why + said, sizeof(header->since_why) - said,
				 ", later %s", why);
}

static XLogRecPtr
current_lsn(void)
{
	return RecoveryInProgress() ? GetXLogReplayRecPtr(NULL) : GetXLogInsertRecPtr();
}

/*
 * The running server loses its history: forget all tokens. They are in the file
 * until the next flush.
 */
void
history_drop(const char *why)
{
	LWLockAcquire(map.lock, LW_EXCLUSIVE);
	history_begin(why, current_lsn());
	LWLockRelease(map.lock);
	ereport(LOG, (errmsg("pgstrata: history of changes starts anew: %s", why)));
}

/*
 * Recovery does not repeat all changes of FSM forks, nor, without checksums,
 * of visibility maps that a hot standby's queries read before replay does:
 * after an unclean stop all of them count as changed. They are small.
 */
void
history_side_forks_changed(void)
{
	map.shared->side_generation = map_generation();
}

/*
 * The renumbering that merges generations without a token, and the current
 * generation in it: 1 is all that is older than the first token, i + 2 is
 * from token i on. Tokens are changed; the caller renumbers cells and stamps.
 * With plenty of numbers left it is the identity, except for cells beyond the
 * current generation: those are marks of a bump that was lost in a crash.
 *
 * It never makes a higher generation the lower one, whatever the tokens may
 * be, so no answer can lose a block. NULL, and nothing has changed, if there
 * is no memory.
 */
uint16 *
history_compaction(uint32 *generation)
{
	uint16	   *renumber = malloc((PG_UINT16_MAX + 1) * sizeof(uint16));
	bool		compact = *generation > MAX_GENERATION / 2;
	uint32		count = map.header->token_count;
	uint32		token = 0;
	uint32		last = *generation;

	if (renumber == NULL)
		return NULL;
	renumber[0] = 0;
	for (uint32 g = 1; g <= PG_UINT16_MAX; g++)
	{
		while (token < count && map.tokens[token].generation <= g)
			token++;
		renumber[g] = compact ? token + 1 : g;
		if (g > last)
			renumber[g] = renumber[last];
	}
	if (compact)
	{
		for (uint32 i = 0; i < count; i++)
			map.tokens[i].generation =
				renumber[map.tokens[i].generation & PG_UINT16_MAX];
		*generation = renumber[last];
	}
	return renumber;
}

static void
renumber_place(uint16 *place, const uint16 *renumber)
{
	uint16		old = *(volatile uint16 *) place;

	while (!__atomic_compare_exchange_n(place, &old, renumber[old], false,
										__ATOMIC_SEQ_CST, __ATOMIC_RELAXED))
		 /* raised meanwhile: again */ ;
}

/* Renumber all cells and stamps, while others mark. */
static void
renumber_all(const uint16 *renumber)
{
	uint32		pages = map.shared->pages_used;

	for (uint32 i = 0; i < map.slots; i++)
		renumber_place(&map.directory[i].whole, renumber);
	for (uint32 page = 0; page < pages; page++)
	{
		uint16	   *cells = map_cells(page);

		for (uint32 i = 0; i < CELLS_PER_PAGE; i++)
			if (cells[i] != 0)
				renumber_place(&cells[i], renumber);
	}
}

/*
 * Compact while the server runs. Others go on marking with the old, high
 * generation until the new one is published, and a straggler even after: the
 * second pass brings such cells down, and one that escapes it is only called
 * changed too often. Renumbered cells must not meet the old header in the
 * file, so a whole new file is written. If we are killed half way, the
 * history is dropped (lifecycle.c sees "compacting").
 */
static void
compact_running(void)
{
	uint32		generation = map_generation();
	uint16	   *renumber;

	renumber = history_compaction(&generation);
	if (renumber == NULL)
		ereport(ERROR, (errcode(ERRCODE_OUT_OF_MEMORY), errmsg("out of memory")));
	map.shared->compacting = true;
	renumber_all(renumber);
	map.shared->side_generation = renumber[map.shared->side_generation];
	pg_atomic_write_u32(&map.shared->generation, generation);
	pg_memory_barrier();

	for (uint32 g = 0; g <= PG_UINT16_MAX; g++)
		renumber[g] = Min(g, generation);
	renumber_all(renumber);
	free(renumber);
	map.shared->compacting = false;
	if (!mapfile_save() && !mapfile_discard())
		history_begin("generations were renumbered and could not be saved",
					  InvalidXLogRecPtr);
}

/* So many tokens are left, and lie elsewhere than before. */
static void
tokens_moved(uint32 kept)
{
	map.header->token_count = kept;
	for (uint32 page = 0; page < TOKEN_PAGES; page++)
		map_dirty((char *) map.tokens + page * MAP_PAGE);
}

/* Forget the oldest tokens of a kind. */
static void
drop_tokens(uint16 kind, uint32 count)
{
	uint32		kept = 0;

	for (uint32 i = 0; i < map.header->token_count; i++)
		if (map.tokens[i].kind == kind && count > 0)
			count--;
		else
			map.tokens[kept++] = map.tokens[i];
	tokens_moved(kept);
}

static uint32
count_tokens(uint16 kind)
{
	uint32		count = 0;

	for (uint32 i = 0; i < map.header->token_count; i++)
		if (map.tokens[i].kind == kind)
			count++;
	return count;
}

static void
make_room_for_token(uint16 kind)
{
	if (kind == TOKEN_QUESTION && count_tokens(kind) >= MAX_QUESTIONS)
		drop_tokens(kind, QUESTIONS_DROPPED);
	if (map.header->token_count == MAX_TOKENS)
		drop_tokens(TOKEN_BACKUP, TOKENS_DROPPED);
}

/* The token of the last question, if no WAL was written since. */
static const MapToken *
same_question(uint16 kind)
{
	uint32		count = map.header->token_count;
	const MapToken *last = count > 0 ? &map.tokens[count - 1] : NULL;

	return kind == TOKEN_QUESTION && last != NULL && last->kind == kind &&
		last->lsn == current_lsn() ? last : NULL;
}

/*
 * Make a token, and let all marks from here on be newer than it.
 *
 * Its LSN is read when the new generation is there, and under the lock: who
 * began at or after that LSN began after the generation, whatever came
 * between, and a later token has no lower one. One read before would be older
 * than changes that have the generation before.
 */
MapToken
history_bump(uint16 kind)
{
	MapHeader  *header = map.header;
	const MapToken *same;
	MapToken	token;

	memset(&token, 0, sizeof(token));
	if (!pg_strong_random(&token.nonce, sizeof(token.nonce)))
		ereport(ERROR, (errmsg("could not make a random token")));

	LWLockAcquire(map.lock, LW_EXCLUSIVE);
	if ((same = same_question(kind)) != NULL)
	{
		token = *same;
		LWLockRelease(map.lock);
		return token;
	}
	make_room_for_token(kind);
	if (map_generation() >= MAX_GENERATION)
		compact_running();

	token.kind = kind;
	token.at = GetCurrentTimestamp();
	token.serial = ++header->serial;
	token.generation = map_generation() + 1;
	pg_atomic_write_u32(&map.shared->generation, token.generation);
	pg_memory_barrier();
	token.lsn = current_lsn();

	/* a history that began where no LSN is known is known from here on */
	if (header->since_lsn == InvalidXLogRecPtr)
		header->since_lsn = token.lsn;
	map.tokens[header->token_count] = token;
	map_dirty(&map.tokens[header->token_count++]);
	LWLockRelease(map.lock);
	return token;
}

char *
history_token_text(const MapToken *token)
{
	return psprintf("%u:%016llx", token->serial, (unsigned long long) token->nonce);
}

/* Why is a token not one of ours? As far as can be said. */
static char *
unknown_token(uint32 serial)
{
	MapHeader  *header = map.header;
	uint32		oldest = 0;

	while (oldest < header->token_count && map.tokens[oldest].kind != TOKEN_BACKUP)
		oldest++;
	if (oldest < header->token_count && serial < map.tokens[oldest].serial &&
		map.tokens[oldest].serial > 1)
		return psprintf("the token is older than the oldest that is kept; the history began at %s because %s",
						timestamptz_to_str(header->since), header->since_why);
	return psprintf("the token is not of this history, which began at %s because %s",
					timestamptz_to_str(header->since), header->since_why);
}

static bool
parse_token(const char *text, uint32 *serial, uint64 *nonce)
{
	unsigned long long n;
	int			length = 0;

	if (sscanf(text, "%10u:%16llx%n", serial, &n, &length) != 2 || text[length] != '\0')
		return false;
	*nonce = n;
	return true;
}

/* Where the token is, under the lock; token_count if it is not there. */
static uint32
place_of_token(uint32 serial, uint64 nonce)
{
	uint32		i = 0;

	while (i < map.header->token_count &&
		   (map.tokens[i].serial != serial || map.tokens[i].nonce != nonce))
		i++;
	return i;
}

/* The generation of a token, or why it is unknown. */
bool
history_find(const char *text, uint32 *generation, char **why)
{
	uint32		serial;
	uint64		nonce;
	uint32		place;
	bool		found;

	if (!parse_token(text, &serial, &nonce))
	{
		*why = pstrdup("it is not a token");
		return false;
	}
	LWLockAcquire(map.lock, LW_SHARED);
	place = place_of_token(serial, nonce);
	found = place < map.header->token_count;
	if (found)
		*generation = map.tokens[place].generation;
	else
		*why = unknown_token(serial);
	LWLockRelease(map.lock);
	return found;
}

/* Forget one token; false if it was not there. */
bool
history_drop_token(const char *text)
{
	uint32		serial;
	uint64		nonce;
	uint32		place;
	bool		found;

	if (!parse_token(text, &serial, &nonce))
		return false;
	LWLockAcquire(map.lock, LW_EXCLUSIVE);
	place = place_of_token(serial, nonce);
	found = place < map.header->token_count;
	if (found)
	{
		uint32		kept = map.header->token_count - 1;

		memmove(&map.tokens[place], &map.tokens[place + 1],
				(kept - place) * sizeof(MapToken));
		tokens_moved(kept);
	}
	LWLockRelease(map.lock);
	return found;
}

/* A copy of all tokens, the oldest first. */
MapToken *
history_tokens(uint32 *count)
{
	MapToken   *copy = palloc(MAX_TOKENS * sizeof(MapToken));

	LWLockAcquire(map.lock, LW_SHARED);
	*count = map.header->token_count;
	memcpy(copy, map.tokens, *count * sizeof(MapToken));
	LWLockRelease(map.lock);
	return copy;
}

/*
 * The generation that has all changes since an LSN: that of the newest token
 * made at or before it, or of the history's beginning.
 */
bool
history_find_lsn(XLogRecPtr lsn, uint32 *generation)
{
	bool		found;

	LWLockAcquire(map.lock, LW_SHARED);
	found = map.header->since_lsn != InvalidXLogRecPtr &&
		map.header->since_lsn <= lsn;
	*generation = 1;
	for (uint32 i = 0; i < map.header->token_count && map.tokens[i].lsn <= lsn; i++)
		*generation = map.tokens[i].generation;
	LWLockRelease(map.lock);
	return found;
}
