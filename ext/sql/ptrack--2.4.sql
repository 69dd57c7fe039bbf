/* ext/sql/ptrack--2.4.sql */

-- complain if script is sourced in psql, rather than via CREATE EXTENSION
\echo Use "CREATE EXTENSION ptrack" to load this file. \quit

-- Named and shaped as ptrack 2.4's, for tools that were written for it. A
-- question by LSN is answered from the newest token made at or before it:
-- never fewer pages than changed, perhaps more. Each question makes a token.
-- As with ptrack, the LSN NULL has no changes.

CREATE FUNCTION ptrack_version()
RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$ SELECT '2.4'::text $$;
COMMENT ON FUNCTION ptrack_version() IS
'version of ptrack whose functions these stand in for; pgstrata.version() has our own';

CREATE FUNCTION ptrack_init_lsn()
RETURNS pg_lsn
AS 'MODULE_PATHNAME', 'pgstrata_ptrack_init_lsn'
LANGUAGE C VOLATILE;
COMMENT ON FUNCTION ptrack_init_lsn() IS
'LSN from which changes are known; 0/0 if they are not tracked';

CREATE FUNCTION ptrack_get_pagemapset(start_lsn pg_lsn)
RETURNS TABLE (path text, pagecount bigint, pagemap bytea)
AS 'MODULE_PATHNAME', 'pgstrata_ptrack_get_pagemapset'
LANGUAGE C STRICT VOLATILE;
COMMENT ON FUNCTION ptrack_get_pagemapset(pg_lsn) IS
'for each relation file with pages that may have changed since the LSN: its path, their number, and a bitmap with the lowest bit first';

-- Bound when it is made, so that it works with any search_path.
CREATE FUNCTION ptrack_get_change_stat(start_lsn pg_lsn)
RETURNS TABLE (files bigint, pages numeric, "size, MB" numeric)
LANGUAGE sql VOLATILE
BEGIN ATOMIC
	SELECT count(path), sum(pagecount),
		   sum(pagecount) * current_setting('block_size')::numeric / (1024 * 1024)
	FROM ptrack_get_pagemapset(start_lsn);
END;
COMMENT ON FUNCTION ptrack_get_change_stat(pg_lsn) IS
'number of relation files and pages that may have changed since the LSN; who calls it needs EXECUTE on ptrack_get_pagemapset(pg_lsn) too';

-- For a role with backup duty; see docs/TRACKER.md.
REVOKE ALL ON FUNCTION ptrack_init_lsn() FROM PUBLIC;
REVOKE ALL ON FUNCTION ptrack_get_pagemapset(pg_lsn) FROM PUBLIC;
REVOKE ALL ON FUNCTION ptrack_get_change_stat(pg_lsn) FROM PUBLIC;
