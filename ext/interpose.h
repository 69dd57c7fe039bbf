/*-------------------------------------------------------------------------
 *
 * interpose.h
 *	  Putting functions of ours into the server's storage tables.
 *
 *-------------------------------------------------------------------------
 */
#ifndef PGSTRATA_INTERPOSE_H
#define PGSTRATA_INTERPOSE_H

#include "pgstrata.h"
#include "storage/sync.h"
#if PG_VERSION_NUM >= 180000
#include "storage/aio_types.h"
#endif

/*
 * The calls we want to see, as the server's table has them, and the order in
 * which protocol.c counts them for the probe.
 */
typedef enum TrackedCall
{
	CALL_CREATE,
	CALL_UNLINK,
	CALL_EXTEND,
	CALL_ZEROEXTEND,			/* 16 and later */
	CALL_READ,
	CALL_STARTREAD,				/* 18 and later */
	CALL_WRITE,
	CALL_TRUNCATE,
	CALL_COUNT
} TrackedCall;

/* protocol.c: what stands in for the md functions of the same name */
extern void tracked_create(SMgrRelation reln, ForkNumber fork, bool isRedo);
extern void tracked_unlink(RelBackend rel, ForkNumber fork, bool isRedo);
extern void tracked_extend(SMgrRelation reln, ForkNumber fork, BlockNumber block,
						   PageBytes page, bool skipFsync);
extern void tracked_truncate(SMgrRelation reln, ForkNumber fork,
							 BlockNumber a, BlockNumber b);
#if PG_VERSION_NUM >= 160000
extern void tracked_zeroextend(SMgrRelation reln, ForkNumber fork,
							   BlockNumber block, int count, bool skipFsync);
#endif
#if PG_VERSION_NUM >= 170000
extern void tracked_readv(SMgrRelation reln, ForkNumber fork, BlockNumber block,
						  void **pages, BlockNumber count);
extern void tracked_writev(SMgrRelation reln, ForkNumber fork, BlockNumber block,
						   const void **pages, BlockNumber count, bool skipFsync);
#elif PG_VERSION_NUM >= 160000
extern void tracked_read(SMgrRelation reln, ForkNumber fork, BlockNumber block,
						 void *page);
extern void tracked_write(SMgrRelation reln, ForkNumber fork, BlockNumber block,
						  const void *page, bool skipFsync);
#else
extern void tracked_read(SMgrRelation reln, ForkNumber fork, BlockNumber block,
						 char *page);
extern void tracked_write(SMgrRelation reln, ForkNumber fork, BlockNumber block,
						  char *page, bool skipFsync);
#endif
#if PG_VERSION_NUM >= 180000
extern void tracked_startreadv(PgAioHandle *ioh, SMgrRelation reln, ForkNumber fork,
							   BlockNumber block, void **pages, BlockNumber count);
#endif
extern int	tracked_sync(const FileTag *tag, char *path);
extern int	tracked_clog_sync(const FileTag *tag, char *path);
extern int	tracked_committs_sync(const FileTag *tag, char *path);
extern int	tracked_offsets_sync(const FileTag *tag, char *path);
extern int	tracked_members_sync(const FileTag *tag, char *path);

/* Each says why not, or NULL. */
extern char *interpose_find(void);
extern char *interpose_patch(void);

#endif							/* PGSTRATA_INTERPOSE_H */
