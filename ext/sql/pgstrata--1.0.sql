/* ext/sql/pgstrata--1.0.sql */

-- complain if script is sourced in psql, rather than via CREATE EXTENSION
\echo Use "CREATE EXTENSION pgstrata" to load this file. \quit

CREATE FUNCTION version()
RETURNS text
AS 'MODULE_PATHNAME', 'pgstrata_version'
LANGUAGE C STRICT PARALLEL SAFE;
COMMENT ON FUNCTION version() IS 'version of the loaded tracker library';

CREATE FUNCTION state(
	OUT tracking bool,
	OUT reason text,
	OUT history_since timestamptz,
	OUT history_lsn pg_lsn,
	OUT history_reason text,
	OUT generation int,
	OUT tokens int,
	OUT map_capacity_bytes bigint,
	OUT map_used_bytes bigint,
	OUT map_entries bigint,
	OUT overflow bool,
	OUT flushes bigint,
	OUT flushed_pages bigint,
	OUT flush_last_ms float8,
	OUT flush_max_ms float8,
	OUT flush_total_ms float8,
	OUT flush_failures bigint,
	OUT flushed_at timestamptz)
AS 'MODULE_PATHNAME', 'pgstrata_state'
LANGUAGE C STRICT VOLATILE;
COMMENT ON FUNCTION state() IS
'one row: is the tracker to be trusted (tracking), and if not, why (reason); since when its history reaches back and why it began; use of the map; flushes';

CREATE FUNCTION bump()
RETURNS text
AS 'MODULE_PATHNAME', 'pgstrata_bump'
LANGUAGE C STRICT VOLATILE;
COMMENT ON FUNCTION bump() IS
'make a token: call before pg_backup_start(), keep the token with the backup, and ask changes() for it when the next backup has started; an error if changes are not tracked';

CREATE FUNCTION token_status(token text, OUT known bool, OUT reason text)
AS 'MODULE_PATHNAME', 'pgstrata_token_status'
LANGUAGE C VOLATILE;
COMMENT ON FUNCTION token_status(text) IS
'would changes() answer for this token, and if not, why';

CREATE FUNCTION changes(token text,
	OUT path text,
	OUT fork text,
	OUT segment int,
	OUT whole bool,
	OUT blocks bytea)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'pgstrata_changes'
LANGUAGE C VOLATILE ROWS 10000;
COMMENT ON FUNCTION changes(text) IS
'blocks that may have changed since the token was made: see docs/TRACKER.md for how to read the rows; an error if that is not known';

CREATE FUNCTION change_stat(token text,
	OUT files bigint,
	OUT pages bigint,
	OUT bytes bigint)
AS 'MODULE_PATHNAME', 'pgstrata_change_stat'
LANGUAGE C VOLATILE;
COMMENT ON FUNCTION change_stat(text) IS
'how many relation files and pages of the data directory changed since the token was made; reads directories, not files';

-- All but the version is for a role with backup duty; see docs/TRACKER.md.
REVOKE ALL ON FUNCTION state() FROM PUBLIC;
REVOKE ALL ON FUNCTION bump() FROM PUBLIC;
REVOKE ALL ON FUNCTION token_status(text) FROM PUBLIC;
REVOKE ALL ON FUNCTION changes(text) FROM PUBLIC;
REVOKE ALL ON FUNCTION change_stat(text) FROM PUBLIC;
GRANT USAGE ON SCHEMA pgstrata TO pg_monitor;
GRANT EXECUTE ON FUNCTION state() TO pg_monitor;
